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
    return call(sys.executable, "-W", "error", KIT / "grading" / "grade.py", *arguments, **more)


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
