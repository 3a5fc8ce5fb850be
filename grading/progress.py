#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Say what is under way, so that nothing is silent for more than two seconds.

    progress.py TEXT COMMAND...     run a command; while it is silent, say TEXT and for how long

On a terminal it is a last line that is written over and goes away; in a log a line every half
minute. All of it on standard error.
"""
import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SILENCE = 1.0      # seconds until the line comes, and between two of it
IN_A_LOG = 30.0    # the same where a line cannot be written over
SIMULATED = 1.0    # seconds; what the simulated device takes at most, more or less
KEPT = ".seconds"  # how long each lab took here, beside its output
RECORDED = Path(__file__).resolve().parent.parent / "worksheets" / "recorded" / "nvidia-h200"


class Ticker:
    """A context: while nothing else is said, say `text`, the time passed and the expected one."""

    def __init__(self, text, expected=None):
        self.text, self.terminal = text, sys.stderr.isatty()
        self.of = " s" if expected is None else f" s of about {max(expected, 1):.0f} s"
        self.shown, self.lock, self.end = False, threading.Lock(), threading.Event()
        self.begun = self.last = time.monotonic()

    def __enter__(self):
        self.thread = threading.Thread(target=self._tick, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        self._clear()

    def _tick(self):
        while not self.end.wait(0.1):
            with self.lock:
                now = time.monotonic()
                if now - self.last < (SILENCE if self.terminal else IN_A_LOG):
                    continue
                line = f"  {self.text}: {now - self.begun:.0f}{self.of}"
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"\r\x1b[K{line[:78]}" if self.terminal else line + "\n")
                    sys.stderr.flush()
                self.shown, self.last = self.terminal, now

    def _clear(self):
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self.shown, self.last = False, time.monotonic()

    def around(self, show):
        """show, for use while the line may stand there."""
        def shown(data):
            with self.lock:
                self._clear()
                show(data)
        return shown


def run(text, command, quiet=False, **more):
    """Run a command; its output is passed on, or dropped if quiet. Returns its exit code. If
    this is interrupted, so is the command."""
    where = subprocess.DEVNULL if quiet else subprocess.PIPE
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=where, stderr=where,
                             close_fds=False, **more)  # make hands its job slots on
    try:
        with Ticker(text) as ticker, selectors.DefaultSelector() as select:
            for source, target in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
                if source:
                    def show(data, target=target):
                        target.buffer.write(data)
                        target.flush()
                    select.register(source, selectors.EVENT_READ, ticker.around(show))
            while select.get_map():
                for key, _ in select.select():
                    data = os.read(key.fd, 65536)
                    if data:
                        key.data(data)
                    else:
                        select.unregister(key.fileobj)
            return child.wait()
    except BaseException:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        raise
    finally:
        for pipe in (child.stdout, child.stderr):
            if pipe:
                pipe.close()


def _kept(folder):
    """{stem: seconds} of a folder of outputs, {} if it has none."""
    try:
        lines = (Path(folder) / KEPT).read_text().splitlines()
        return {stem: float(seconds) for stem, seconds in map(str.split, lines)}
    except (OSError, ValueError):
        return {}


def keep(folder, stem, seconds):
    """Remember how long a lab took. It only serves the next guess, so a failure is none."""
    kept = {**_kept(folder), stem: seconds}
    with contextlib.suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / KEPT).write_text("".join(f"{s} {kept[s]:.2f}\n" for s in sorted(kept)))


def expected(stem, backend, folder):
    """Seconds that a lab will take: as long as the last time here, else as on the H200."""
    kept = _kept(folder).get(stem)
    if kept is not None:
        return kept
    if backend == "sim":
        return SIMULATED  # its printed seconds are virtual
    with contextlib.suppress(OSError):
        found = re.search(r"^finished .* after ([\d.]+) s$", (RECORDED / f"{stem}.txt").read_text(),
                          re.MULTILINE)
        if found:
            return float(found[1])
    return 2.0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("usage: progress.py TEXT COMMAND...", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(run(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as failure:
        print(f"{sys.argv[2]}: {failure.strerror}", file=sys.stderr)
        sys.exit(127)
