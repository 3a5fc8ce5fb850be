#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make labs/ from solutions/, or check that labs/ is what solutions/ makes.

A solution marks what a student writes:

    // TODO(1): what to write, in words. (4 lines)
    // BEGIN SOLUTION
    ...
    // END SOLUTION

The starter is the same file with the marked lines replaced by one comment.

    make_starters.py            write labs/ (refuses where a lab has uncommitted edits)
    make_starters.py --check    exit 1 and say where labs/ and solutions/ differ
"""
import argparse
import difflib
import re
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent
BEGIN, END = "// BEGIN SOLUTION", "// END SOLUTION"


class StarterError(Exception):
    """A solution whose markers make no sense; the text says where."""


def starter_of(text, name):
    """The starter's text. Raises StarterError on nested, unclosed or missing markers, and where
    a TODO does not say how many lines its solution has."""
    kept, opened_at, todo_seen, in_todo, said = [], None, [], False, None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare == BEGIN:
            if opened_at is not None:
                raise StarterError(f"{name}:{number}: BEGIN SOLUTION inside the one of line "
                                   f"{opened_at}; close that one first")
            if not in_todo:
                raise StarterError(f"{name}:{number}: BEGIN SOLUTION without a TODO(n) comment "
                                   "right above it")
            opened_at = number
            said = re.search(r"\((\d+) lines?\)$", text.splitlines()[number - 2])
            kept.append(line[:len(line) - len(line.lstrip())] + "// Your lines here.")
        elif bare == END:
            if opened_at is None:
                raise StarterError(f"{name}:{number}: END SOLUTION without a BEGIN SOLUTION")
            lines = number - opened_at - 1
            if not said or int(said[1]) != lines:
                raise StarterError(f"{name}:{opened_at}: end the TODO with ({lines} lines), which is what "
                                   "its solution has")
            opened_at = None
        elif BEGIN[3:] in line or END[3:] in line:
            raise StarterError(f"{name}:{number}: a marker stands alone on its line, as "
                               f"'{BEGIN}' or '{END}'")
        elif opened_at is None:
            kept.append(line)
        todo = re.match(r"// TODO\((\d+)\):", bare)
        if todo:
            todo_seen.append(int(todo.group(1)))
            if opened_at is not None:
                raise StarterError(f"{name}:{number}: a TODO inside the solution would vanish "
                                   "from the starter")
        in_todo = bool(todo) or (in_todo and bare.startswith("//"))
    if opened_at is not None:
        raise StarterError(f"{name}:{opened_at}: BEGIN SOLUTION is never closed")
    if not todo_seen:
        raise StarterError(f"{name}: no TODO(1): a lab without one teaches nothing")
    if todo_seen != list(range(1, len(todo_seen) + 1)):
        raise StarterError(f"{name}: TODOs are numbered {todo_seen}, not 1, 2, 3, ...")
    return "\n".join(kept) + "\n"


def edited_labs(labs_dir, names):
    """Those of the labs that differ from what git has committed; all where git cannot tell."""
    try:
        run = subprocess.run(["git", "status", "--porcelain", "--", *names], cwd=labs_dir,
                             capture_output=True, text=True)
    except OSError:
        return names
    return names if run.returncode else [line[3:].strip() for line in run.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description="Make labs/ from solutions/.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if they differ")
    options = parser.parse_args()
    labs_dir, wrong, starters = KIT / "labs", [], {}
    for solution in sorted((KIT / "solutions").glob("[0-9][0-9]_*.cu")):
        name = f"solutions/{solution.name}"
        try:
            starters[solution.name] = starter_of(solution.read_text(encoding="utf-8"), name)
        except (StarterError, UnicodeDecodeError) as error:
            wrong.append(str(error))
    if not starters and not wrong:
        wrong.append(f"no NN_name.cu in {KIT / 'solutions'}")
    for lab in sorted(labs_dir.glob("*.cu")) if not wrong else []:
        if lab.name not in starters:
            wrong.append(f"labs/{lab.name}: has no solution of that name")

    if options.check:
        for name, text in starters.items():
            lab = labs_dir / name
            found = lab.read_text(encoding="utf-8") if lab.exists() else ""
            if found != text:
                diff = list(difflib.unified_diff(text.splitlines(), found.splitlines(),
                                                 "made from the solution", f"labs/{name}",
                                                 lineterm="", n=0))
                wrong.append(f"labs/{name}: is not what its solution makes; make starters "
                             f"writes it. First difference:\n  " + "\n  ".join(diff[2:6]))
        if not wrong:
            print(f"starters-check: {len(starters)} labs are what solutions/ makes")
    elif not wrong:
        labs_dir.mkdir(exist_ok=True)
        edited = edited_labs(labs_dir, list(starters))
        edited = [name for name in edited
                  if (labs_dir / Path(name).name).exists()
                  and (labs_dir / Path(name).name).read_text() != starters[Path(name).name]]
        if edited:
            wrong.append("uncommitted edits would be lost in: " + ", ".join(edited) +
                         "\n  commit them, or move them away; nothing was written")
        else:
            for name, text in starters.items():
                (labs_dir / name).write_text(text, encoding="utf-8")
            print(f"starters: wrote {len(starters)} labs from solutions/")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
