#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write compile_commands.json, from which clangd and other editors' helpers learn how the kit's
sources are compiled.

    compile_commands.py [TOOLKIT]    make compile-commands

The labs are read with the CUDA Toolkit's headers where clang can read those; it is often older
than the toolkit, and then, as without one, with the simulated device's.
"""
import json
import shutil
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent
CUDA = ["clang++", "-x", "cuda", "-std=c++17", "--cuda-host-only", "-nocudalib", "-Wall",
        "-Wno-unknown-cuda-version", "-Wno-unused-command-line-argument"]
SIMULATED = ["-nocudainc", "-Icommon/sim/include"]
ENGINE = ["clang", "-std=c11", "-Wall", "-Wextra", "-Wpedantic",
          '-DSIM_INI_FILE="common/sim/h200.ini"']


def readable(command, path):
    """Whether clang, if it is there, reads the file without an error."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "-fsyntax-only", str(path)], cwd=KIT,
                          capture_output=True).returncode == 0


def entries(toolkit):
    """A command for each source file."""
    labs = [p for folder in ("labs", "solutions", "tests/sim") for p in sorted((KIT / folder).glob("*.cu"))]
    cuda = [*CUDA, *SIMULATED]
    if toolkit and labs and readable([*CUDA, f"--cuda-path={toolkit}"], labs[0]):
        cuda = [*CUDA, f"--cuda-path={toolkit}"]
    for path in labs:
        yield path, cuda
    for path in sorted((KIT / "common/sim").glob("*.c")):
        yield path, ENGINE
    yield KIT / "tests/headers.cpp", ["clang++", "-std=c++17", "-Wall", "-Wextra", SIMULATED[-1]]


def main():
    listed = [{"directory": str(KIT), "file": str(path.relative_to(KIT)),
               "arguments": [*command, "-c", str(path.relative_to(KIT))]}
              for path, command in entries(sys.argv[1] if sys.argv[1:] else "")]
    (KIT / "compile_commands.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    print(f"compile_commands.json: {len(listed)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
