# SPDX-License-Identifier: MIT
"""What the tests share: where the kit is, and how to call its commands."""
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent
GRADE = [sys.executable, "-W", "error", str(KIT / "grading" / "grade.py")]
STEMS = sorted(p.stem for p in (KIT / "solutions").glob("[0-9][0-9]_*.cu"))
RECORDED = KIT / "worksheets" / "recorded" / "nvidia-h200"
NVCC = next((p for p in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc") if p and Path(p).exists()),
            None)


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
    import ranges  # here: not every test has grading/ on its path
    import runner
    import tracing
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
    """The kit's tracked files in another folder, to break things in."""
    target = Path(into) / "kit"
    shutil.copytree(KIT, target, ignore=shutil.ignore_patterns(
        "build", "results", ".git", "__pycache__", ".probe"))
    return target


def needs_terminal(test):
    """Skip where no terminal can be opened: some containers have none to give."""
    try:
        for end in pty.openpty():
            os.close(end)
    except OSError as error:
        test.skipTest(f"no terminal to be had here: {error}")


def clean_environment(**more):
    """The environment without what an outer make left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return {**kept, **more}
