#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run built labs, one after another, alone on the GPU, and keep what they print.

    runner.py --dir labs [--lab NN] [--backend cuda] [--out FOLDER]

`make run` and `make record` call it; grade.py uses run_lab. Exit 0 if every lab finished (or
was skipped), 1 if one failed, 2 for a mistake in the call, 77 if all were skipped.
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
TIME_LIMIT = 120.0      # seconds; the slowest lab takes about five on an H200
OUTPUT_LIMIT = 1 << 20  # bytes; a lab prints a few thousand
SKIPPED = 77


class UsageError(Exception):
    """A mistake in how the command was called: one line, exit 2."""


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
    return str(path).strip("/").replace("/", "_") or "kit"


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


def run_lab(program, echo=None, time_limit=TIME_LIMIT, more_environment=None):
    """Run one program without input. `echo` gets its standard output as it comes, as bytes.

    Its whole process group is ended when it has ended, or at the limits.
    """
    run = Run()
    if not program.exists():
        run.problem = f"did not build: {first_error(program)}"
        return run
    begun = time.monotonic()
    child = subprocess.Popen([str(program)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True, cwd=KIT,
                             env={**os.environ, **(more_environment or {})})
    with ended_if_interrupted(child), selectors.DefaultSelector() as select:
        select.register(child.stdout, selectors.EVENT_READ, "out")
        select.register(child.stderr, selectors.EVENT_READ, "err")
        while select.get_map() and not run.problem:
            left = begun + time_limit - time.monotonic()
            ready = select.select(max(left, 0))
            if not ready:
                run.problem = f"was stopped after {time_limit:.0f} s: does a loop never end?"
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    select.unregister(key.fileobj)
                elif key.data == "out":
                    run.out += data
                    if echo:
                        echo(data)
                else:
                    run.err += data
            if len(run.out) + len(run.err) > OUTPUT_LIMIT:
                run.problem = f"was stopped: it printed over {OUTPUT_LIMIT >> 20} MB"
    if run.problem:
        end_group(child.pid)
    _, status, usage = os.wait4(child.pid, 0)
    end_group(child.pid)  # what it left running in the background
    child.returncode = run.code = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    child.stderr.close()
    run.wall, run.cpu = time.monotonic() - begun, usage.ru_utime + usage.ru_stime
    if not run.problem and run.code not in (0, SKIPPED):
        said = run.err.decode(errors="replace").strip().splitlines()
        how = f"signal {signal.Signals(-run.code).name}" if run.code < 0 else f"exit code {run.code}"
        run.problem = f"ended with {how}" + (f": {said[0]}" if said else "")
    return run


@contextlib.contextmanager
def ended_if_interrupted(child):
    """Ctrl-C does not reach a program in a session of its own: end it before going on."""
    try:
        yield
    except BaseException:
        end_group(child.pid)
        child.wait()
        raise


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


def device_for(backend):
    """The bus id of the GPU to lock, or None for the simulated device. Raises UsageError."""
    if backend == "sim":
        return None
    devices, why = gpu.visible_devices()
    if not devices:
        raise UsageError(f"BACKEND=cuda, but {why}; BACKEND=sim uses the simulated device")
    return devices[0]["bus_id"]


def alone(bus_id):
    return gpu.locked(bus_id) if bus_id else contextlib.nullcontext()


def save(path, data):
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)


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
        stems, bus_id = find_labs(options.dir, options.lab), device_for(backend)
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
        with alone(bus_id), progress.Ticker(stem, wanted[stem]) as ticker:
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
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped; what finished before is kept")
