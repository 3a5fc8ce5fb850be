#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run built labs, one after another, alone on the GPU, and keep what they print.

    runner.py --dir labs [--lab NN] [--backend cuda] [--out FOLDER]

`make run` and `make record` call it; grade.py uses run_lab. Exit 0 if every lab finished (or
was skipped), 1 if one failed or its output cannot be kept, 2 for a mistake in the call, 77 if
all were skipped.
"""
import argparse
import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu
import progress

KIT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 120.0       # seconds; the slowest lab takes about five on an H200
REFERENCE_AGE = 30 * 60  # seconds; an older figure is not "the same machine minutes ago"
OUTPUT_LIMIT = 1 << 20   # bytes; a lab prints a few thousand
POLL = 0.05              # seconds between looks at a running program
SKIPPED = 77
GPUS = {"12": 2}         # that a lab measures on; every other on the first that is visible
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class UsageError(Exception):
    """A mistake in how the command was called: one line, exit 2."""


class CannotKeep(OSError):
    """A result cannot be written; its text is one line."""

    def __str__(self):
        return (f"{self.filename}: {self.strerror}: what is found cannot be kept; a folder is needed that you "
                "may write to, on a disk with room")


class Run:
    """What became of one run. `problem` is empty, or one line on why the output is no good."""

    def __init__(self):
        self.code, self.wall, self.cpu = None, 0.0, 0.0
        self.out, self.err, self.problem = b"", b"", ""


def short_name(folder):
    """How a folder of labs is called under build/ and results/: its path inside the kit."""
    path = Path(folder).resolve()
    with contextlib.suppress(ValueError):
        path = path.relative_to(KIT)
    return "_".join(part for part in path.parts if part != "/") or "kit"


def find_labs(folder, lab=None):
    """The stems NN_name of the .cu files in folder, all or one. Raises UsageError."""
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: no such folder; DIR is labs, solutions or a path")
    stems = sorted(p.stem for p in Path(folder).glob("[0-9][0-9]_*.cu"))
    if not stems:
        raise UsageError(f"{folder}: holds no NN_name.cu")
    if lab:
        chosen = [stem for stem in stems if re.fullmatch(r"\d+", lab) and int(stem[:2]) == int(lab)]
        if not chosen:
            raise UsageError(f"no lab {lab} in {folder}; there are: "
                             + " ".join(stem[:2] for stem in stems))
        return chosen
    return stems


def program_of(stem, folder, backend):
    return KIT / "build" / backend / short_name(folder) / stem


def results_of(folder, backend):
    return KIT / "results" / backend / short_name(folder)


class Plain:
    """Starts a program as it is. sandbox.py has another, which confines it."""

    poll = POLL

    def __init__(self, more_environment=None):
        self.environment = {**os.environ, **(more_environment or {})}

    def start(self, command):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True, cwd=KIT,
                                env=self.environment)

    def trouble(self, child):
        """Asked while it runs, every `poll` seconds: why it must be stopped, or nothing."""
        return ""

    def exit_code(self, child, code):
        """What the program itself ended with; negative for a signal."""
        return code


def run_lab(program, echo=None, time_limit=TIME_LIMIT, more_environment=None):
    """Run one program without input. `echo` gets its standard output as it comes, as bytes."""
    if not program.exists():
        run = Run()
        run.problem = f"did not build: {first_error(program)}"
        return run
    return run_command([str(program)], echo, time_limit, Plain(more_environment))


def run_command(command, echo=None, time_limit=TIME_LIMIT, box=None):
    """Run a command without input, in a box if one is given.

    Its whole process group is ended when it has ended, or at the limits.
    """
    run, box, begun = Run(), box or Plain(), time.monotonic()
    child = box.start(command)
    with ended_if_interrupted(child), selectors.DefaultSelector() as select:
        for file, name in ((child.stdout, "out"), (child.stderr, "err")):
            os.set_blocking(file.fileno(), False)
            select.register(file, selectors.EVENT_READ, name)
        checked, ended, pause = begun, False, 0.001
        while not (ended or run.problem):
            if select.get_map():
                ready = select.select(box.poll)
            else:  # it closed both: mostly because it is just ending
                ready, pause = [], min(2 * pause, POLL)
                time.sleep(pause)
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended:
                end_group(child.pid)  # what it left running in the background
                ready = [(key, 0) for key in list(select.get_map().values())]
            read(ready, select, run, echo, to_the_end=ended)
            if len(run.out) + len(run.err) > OUTPUT_LIMIT:
                run.problem = f"was stopped: it printed over {OUTPUT_LIMIT >> 20} MB"
            elif not ended and time.monotonic() > begun + time_limit:
                run.problem = f"was stopped after {time_limit:.0f} s: does a loop never end?"
            elif not ended and time.monotonic() >= checked + box.poll:
                checked, run.problem = time.monotonic(), box.trouble(child)
        if run.problem:
            end_group(child.pid)
    _, status, usage = os.wait4(child.pid, 0)
    end_group(child.pid)
    child.returncode = os.waitstatus_to_exitcode(status)
    run.code = box.exit_code(child, child.returncode)
    run.wall, run.cpu = time.monotonic() - begun, usage.ru_utime + usage.ru_stime
    if not run.problem and run.code not in (0, SKIPPED):
        said = run.err.decode(errors="replace").strip().splitlines()
        how = f"signal {signal_name(-run.code)}" if run.code < 0 else f"exit code {run.code}"
        run.problem = f"ended with {how}" + (f": {said[0][:200]}" if said else "")
    return run


def read(ready, select, run, echo, to_the_end):
    """Take what the pipes hold: a piece of each, or, once it has ended, all that is left."""
    for key, _ in ready:
        while len(run.out) + len(run.err) <= OUTPUT_LIMIT:
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                break  # nothing more now; a process that got away may hold the other end
            if not data:
                select.unregister(key.fileobj)
                break
            if key.data == "out":
                run.out += data
                if echo:
                    echo(data)
            else:
                run.err += data
            if not to_the_end:
                break


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def heed_signals():
    """A closed terminal and a batch system end a tool as Ctrl-C does: with what it has started,
    which would go on without any limit."""
    for one in ENDING:
        if signal.getsignal(one) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(one, signal.default_int_handler)


@contextlib.contextmanager
def ended_if_interrupted(child):
    """Ctrl-C does not reach a program in a session of its own: end it before going on."""
    try:
        yield
    except BaseException:
        end_group(child.pid)
        child.wait()
        raise
    finally:
        child.stdout.close()
        child.stderr.close()


def end_group(pid):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def first_error(program):
    """The first error line of a build's log."""
    try:
        lines = program.with_suffix(".log").read_text(errors="replace").splitlines()
    except OSError:
        return "run make build to see why"
    return next((line for line in lines if re.search(r"\berror\b", line)), "see make build")


def attempts(backend, asked):
    """How often to run what is too noisy to say: the simulated device would say the same again."""
    return 1 if backend == "sim" else asked


def devices_for(backend):
    """The visible GPUs, of which there is one at least; none for the simulated device. Raises
    UsageError."""
    if backend == "sim":
        return []
    devices, why = gpu.visible_devices()
    if not devices:
        raise UsageError(f"BACKEND=cuda, but {why}; BACKEND=sim uses the simulated device")
    return devices


@contextlib.contextmanager
def alone(devices, *stems):
    """Hold the locks of the GPUs, of those visible, that these labs measure on: in one order for
    all, or two that wait would wait for each other."""
    used = devices[:max((GPUS.get(stem[:2], 1) for stem in stems), default=0)]
    with contextlib.ExitStack() as locks:
        for bus_id in sorted({device["bus_id"] for device in used}):
            locks.enter_context(gpu.locked(bus_id))
        yield


def save(path, data):
    """Write a file, and the folders that it needs, as write_whole does. Raises CannotKeep."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotKeep(error.errno, error.strerror, str(error.filename or path)) from None
    write_whole(path, data)


def write_whole(path, data):
    """Write a file so that it is there whole or not at all, also after a loss of power. Raises
    CannotKeep."""
    part = path.with_name(part_of(path))
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()  # it may be what could not be made
        raise CannotKeep(error.errno, error.strerror, str(path)) from None


def part_of(path):
    """A name for a half-written file that no other process uses, nor one of another machine
    that writes into the same folder."""
    return f"{path.name}.{os.uname().nodename}.{os.getpid()}.part"


def show(data):
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def stderr_beyond_warnings(run):
    """Standard error without the warnings that the output holds too."""
    lines = run.err.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.encode() not in run.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="labs")
    parser.add_argument("--lab")
    parser.add_argument("--backend", choices=["cuda", "sim"])
    parser.add_argument("--out", help="keep outputs there, and only those of labs that finished")
    options = parser.parse_args()
    backend = options.backend or gpu.pick_backend()
    try:
        stems, devices = find_labs(options.dir, options.lab), devices_for(backend)
        if options.out and (backend == "sim") != Path(options.out).name.startswith("simulated"):
            raise UsageError("outputs of the simulated device, and no others, are recorded under "
                             "a MACHINE that begins with 'simulated'")
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    folder = Path(options.out) if options.out else results_of(options.dir, backend)
    failed, skipped, begun = [], 0, time.monotonic()
    kept = results_of(options.dir, backend)
    wanted = {stem: progress.expected(stem, backend, kept) for stem in stems}
    for place, stem in enumerate(stems, 1):
        print(f"[{place}/{len(stems)}] {stem}  ({time.monotonic() - begun:.0f} s of about "
              f"{max(sum(wanted.values()), 1):.0f} s)", file=sys.stderr, flush=True)
        with alone(devices, stem), progress.Ticker(stem, wanted[stem]) as ticker:
            run = run_lab(program_of(stem, options.dir, backend), echo=ticker.around(show))
        if not run.problem:
            progress.keep(kept, stem, run.wall)
        said = stderr_beyond_warnings(run)
        if said:
            print(said, file=sys.stderr)
        skipped += run.code == SKIPPED
        if run.problem:
            failed.append(stem)
            print(f"{stem}: {run.problem}", file=sys.stderr)
        if run.out and not (options.out and (run.problem or run.code != 0)):
            save(folder / f"{stem}.txt", run.out)
    if skipped < len(stems):
        print(f"{len(stems) - len(failed) - skipped} of {len(stems)} labs finished in "
              f"{time.monotonic() - begun:.1f} s; outputs are in {os.path.relpath(folder, KIT)}/",
              file=sys.stderr)
    if failed:
        print("failed: " + " ".join(failed), file=sys.stderr)
        return 1
    return SKIPPED if skipped == len(stems) else 0


if __name__ == "__main__":
    heed_signals()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped; what finished before is kept")
    except CannotKeep as error:
        sys.exit(str(error))
