# SPDX-License-Identifier: MIT
"""What the tests share: where the kit is, and how to call its commands."""
import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent
GRADE = [sys.executable, "-W", "error", str(KIT / "grading" / "grade.py")]
STEMS = sorted(p.stem for p in (KIT / "solutions").glob("[0-9][0-9]_*.cu"))
RECORDED = KIT / "worksheets" / "recorded" / "nvidia-h200"
sys.path.insert(0, str(KIT / "grading"))
import gpu  # noqa: E402
import ranges  # noqa: E402
import runner  # noqa: E402
import tracing  # noqa: E402

NVCC = gpu.find_nvcc()


def call(*command, **more):
    """Run a command without input; (exit code, standard output, standard error)."""
    run = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL,
                         capture_output=True, **{"cwd": KIT, **more})
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def grade(*arguments, **more):
    return call(*GRADE, *arguments, **more)


def measure(program, stem, backend):
    """A run of a program as `make grade` takes it: (Run, Trace or None). On hardware what really
    ran comes from a second run."""
    if not any(c.formula and c.formula.needs_trace for c in ranges.load(stem)):
        return runner.run_lab(program), None
    if backend == "sim":
        return tracing.capture(program, backend)[:2]
    result = runner.run_lab(program)
    if result.problem or result.code != 0 or tracing.unavailable(backend):
        return result, None
    again, trace, _ = tracing.capture(program, backend)
    return result, None if again.problem else trace


def build_solutions(backend, arch="native"):
    """Build solutions/, and on hardware the tracer; exits with what the compiler said."""
    code, out, err = call("make", "-s", f"-j{os.cpu_count()}", "build", "DIR=solutions",
                          f"BACKEND={backend}", f"ARCH={arch}", env=clean_environment())
    if code != 0:
        sys.exit(f"the solutions do not build:\n{out}{err}")
    if backend == "cuda":
        call("make", "-s", "trace", env=clean_environment())


def folder():
    """A temporary folder that removes itself; use as a context manager."""
    return tempfile.TemporaryDirectory(prefix="labs-test.")


def copy_of_kit(into):
    """The kit as it lies here, without what was built, in another folder, to break things in."""
    target = Path(into) / "kit"
    shutil.copytree(KIT, target, ignore=shutil.ignore_patterns(
        "build", "results", ".git", "__pycache__"))
    return target


def read_to_end(terminal):
    """All that still comes to a terminal until the last program there has ended."""
    data = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(terminal, 65536):
            data += piece
    os.close(terminal)
    return data.decode(errors="replace")


def until(true, seconds=60):
    """Wait for something to become true, in vain at worst: then what is asserted next fails."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)


class Copy(unittest.TestCase):
    """Tests of a copy of the kit, by its commands."""

    def setUp(self):
        held = folder()
        self.addCleanup(held.cleanup)
        self.copy = copy_of_kit(held.name)

    def tool(self, name, *arguments, code=0, **more):
        got, out, err = call(sys.executable, "-W", "error", self.copy / f"grading/{name}.py",
                             *arguments, **{"cwd": self.copy, **more})
        self.assertEqual(got, code, out + err)
        self.assertNotIn("Traceback", err)
        return out, err

    def keep(self, path, text):
        path = self.copy / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def needs_terminal(test):
    """Skip where no terminal can be opened: some containers have none to give."""
    try:
        for end in pty.openpty():
            os.close(end)
    except OSError as error:
        test.skipTest(f"no terminal to be had here: {error}")


def no_driver(folder):
    """A folder in which a program started with it as LD_LIBRARY_PATH finds no NVIDIA driver, also where
    the machine has one: the file of that name is none, and the loader looks no further."""
    (Path(folder) / "libcuda.so.1").write_text("")
    return str(folder)


def clean_environment(**more):
    """The environment without what an outer make left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return {**kept, **more}
