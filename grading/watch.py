#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Build, run and grade one lab whenever its file is saved.

    watch.py --lab NN [--dir labs] [--backend cuda]

The verdict comes first: points, the first check that is not passed, or why it did not build. A
save while a run is under way starts it anew. Ctrl-C ends it, exit 0; 2 for a mistake in the call.
"""
import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import runner
from grade import wrap

POLL = 0.2          # seconds between looks at the file
ERROR_LINES = 12    # of a compiler's log
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def stamp(path):
    """What changes when a file is saved; None while an editor has it renamed away."""
    try:
        status = path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino
    except OSError:
        return None


class Grading:
    """One run of grade.py, in a session of its own so that Ctrl-C is ours to hand on."""

    def __init__(self, options):
        self.output = tempfile.TemporaryFile()
        command = [sys.executable, Path(__file__).with_name("grade.py"), "run", "--dir", options.dir,
                   "--lab", options.lab, "--backend", options.backend, "--format", "json"]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output,
                                      start_new_session=True)

    def ended(self):
        return self.child.poll() is not None

    def stop(self):
        """End it and all that it has started."""
        if not self.ended():
            self.child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(3)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.output.close()

    def report(self):
        """The lab's report as grade.py's JSON holds it, or None if it printed none."""
        self.output.seek(0)
        text = self.output.read().decode(errors="replace")
        self.stop()
        try:
            return json.loads(text)["labs"][0]
        except (ValueError, LookupError):
            return None


def compiler_said(program):
    """The first lines of a failed build's log."""
    try:
        lines = Path(f"{program}.log").read_text(errors="replace").rstrip().split("\n")
    except OSError:
        return []
    more = [f"... {len(lines) - ERROR_LINES} lines more in " + os.path.relpath(
        f"{program}.log", runner.KIT)] if len(lines) > ERROR_LINES else []
    return ["  " + line for line in lines[:ERROR_LINES] + more]


def verdict_text(report, stem, program):
    """What stands on the screen after a run, the verdict first."""
    title = stem.replace("_", " ", 1)
    if report is None:
        return f"{title}: could not be graded: make grade LAB={stem[:2]} says why"
    where = report["backend"] or ""
    where = "SIMULATED" if where == "simulated" else report["device"] or ""
    if report["error"]:
        lines = [f"{title}  could not grade, 0/{report['of'] or '?'}", "",
                 wrap(report["error"], "  ")]
        if "did not build" in report["error"]:
            lines += [""] + compiler_said(program)
        return "\n".join(lines)
    if report["skipped"] is not None:
        return f"{title}  skipped: {report['skipped']}"
    checks = report["checks"]
    counted = [check for check in checks if check["verdict"] != "skipped"]
    bad = [check for check in counted if check["verdict"] != "pass"]
    lines = [f"{title}  {report['points']}/{report['of']}"
             + ("  full marks" if not bad else f"  {len(bad)} of {len(counted)} checks to go")
             + (f"  {where}" if where else ""), ""]
    if bad:
        first = bad[0]
        value = f": {first['value']}, wanted {first['range']}" if first["value"] else ""
        lines += [f"  {first['verdict']} {first['check']}{value}", wrap(first["message"], "      "), ""]
    lines += [wrap(note, "  ") for note in report["notes"]]
    for check in checks:
        lines.append(f"  {check['verdict']:<12} {check['check']:<26} {check['value'] or '-'}")
    return "\n".join(lines)


@contextlib.contextmanager
def own_foreground():
    """Take the terminal, so that Ctrl-C reaches this program and not the make that called it:
    make would say Error and end with 2."""
    try:
        terminal, group = sys.stdin.fileno(), os.getpgrp()
        if not os.isatty(terminal) or os.tcgetpgrp(terminal) != group or os.getpid() == group:
            raise OSError
    except (OSError, ValueError):
        yield
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # make would not stop with us
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(terminal, group)


def watch(options, stem):
    source = Path(options.dir) / f"{stem}.cu"
    program = runner.program_of(stem, options.dir, options.backend)
    seen, grading = None, None
    try:
        while True:
            now = stamp(source)
            if now is not None and now != seen:
                if grading:
                    grading.stop()
                seen = now
                if sys.stdout.isatty():
                    print(f"{stem.replace('_', ' ', 1)}: saved {time.strftime('%H:%M:%S')}, "
                          "running ...", flush=True)
                grading = Grading(options)
            elif grading and grading.ended():
                text = verdict_text(grading.report(), stem, program)
                grading = None
                print(f"{CLEAR if sys.stdout.isatty() else ''}{text}\n\n"
                      f"{time.strftime('%H:%M:%S')}: waiting for {source} to be saved; Ctrl-C ends",
                      flush=True)
            time.sleep(POLL)
    finally:
        if grading:
            grading.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="labs")
    parser.add_argument("--lab", required=True)
    parser.add_argument("--backend", choices=["cuda", "sim"])
    options = parser.parse_args()
    options.backend = options.backend or runner.gpu.pick_backend()
    try:
        stem = runner.find_labs(options.dir, options.lab)[0]
        runner.devices_for(options.backend)
    except runner.UsageError as error:
        print(error, file=sys.stderr)
        return 2
    with own_foreground(), contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        watch(options, stem)
    print()
    return 0


if __name__ == "__main__":
    runner.heed_signals()
    try:
        sys.exit(main())
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)
