#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check that what the labs printed is physically plausible, and say what a wrong figure means.

    grade.py check FILE...                  recorded outputs; needs no GPU
    grade.py run --dir DIR [--lab NN]       build, run on this machine, check
    grade.py class SUBMISSIONS --out OUT    a class: a folder or a zip a student
    grade.py export OUT --to SYSTEM         its grades, as a course system reads them
    grade.py report OUT                     its grades, as one web page
    grade.py doctor                         what this machine lacks (exit 0 or 1)

Exit code: 0 full marks (class, export, report: done), 1 below, 2 a mistake in the call,
3 something could not be graded or kept; of class also 4 some are still in a cluster's queue, 130
stopped by Ctrl-C or a signal.
The report goes to standard output, progress to standard error. The checks are in ranges/.
"""
import argparse
import json
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import output  # noqa: E402
import ranges  # noqa: E402
import verdict  # noqa: E402
from graded import Graded, grade_data  # noqa: E402

WIDTH = 80
FULL, BELOW, USAGE, COULD_NOT = 0, 1, 2, 3


def check(options):
    grades = []
    for path in options.files:
        try:
            grades.append(grade_data(output.load(path), path, options.ranges))
        except output.OutputError as error:
            grades.append(Graded(path))
            grades[-1].error = str(error)
    return grades


def wrap(text, indent):
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def text_report(grades, verbose):
    lines = []
    for graded in grades:
        where = f"{graded.output.backend}: {graded.output.device}" if (
            graded.output and graded.output.device) else graded.source
        title = (graded.stem or "?").replace("_", " ", 1)[:40]  # a name, as all words, may be of any length
        points = f"{graded.earned}/{graded.points_of}"
        if graded.error:
            points = f"could not grade, 0/{graded.points_of or '?'}"
        if graded.skipped is not None:
            points = "skipped"
        room = WIDTH - len(title) - len(points) - 4
        lines.append(f"{title}  {where[:room]:<{room}}  {points}")
        if graded.error:
            lines.append(wrap(graded.error, "  "))
        if graded.skipped:
            lines.append(wrap(graded.skipped, "  "))
        lines += [wrap(note, "  ") for note in graded.notes]
        for v in graded.verdicts:
            found = f"{v.shown or '-':>13}  {verdict.range_text(v.check):<15}"
            if v.check.equals:  # a word, as long as CUDA's names are
                found = f"{v.shown[:30] or '-':<30}"
            lines.append(f"  {v.state:<12} {v.check.name:<26} {found} "
                         f"{f'{v.earned}/{v.points}' if v.points else '-':>5}")
            if v.message:
                lines.append(wrap(v.message, "      "))
            if verbose:
                lines.append(wrap(f"why: {v.check.why}", "      "))
        lines.append("")
    earned, of = sum(g.earned for g in grades), sum(g.points_of for g in grades)
    failed = [g for g in grades if g.error]
    practice = sum(bool(g.output) and g.output.backend == "simulated" for g in grades)
    skipped = sum(g.skipped is not None for g in grades)
    lines.append(f"{earned} of {of} points in {len(grades) - skipped} lab(s)"
                 + (f", {skipped} skipped" if skipped else "")
                 + (f", {len(failed)} could not be graded" if failed else "")
                 + (f", {practice} simulated, for practice" if practice else "")
                 + (": full marks" if exit_code(grades) == FULL else ""))
    return "\n".join(lines)


def exit_code(grades):
    if any(g.error for g in grades):
        return COULD_NOT
    of = sum(g.points_of for g in grades)
    return FULL if of and sum(g.earned for g in grades) == of else BELOW


def add_class_commands(commands):
    """The subcommands for a class; class_run.py, export.py and report.py do the work."""
    one = commands.add_parser("class", help="grade what a class handed in")
    one.add_argument("submissions", metavar="SUBMISSIONS",
                     help="a folder, or a zip, with a folder or a zip for each student")
    one.add_argument("--out", required=True, help="folder for grades; run again, it goes on there")
    one.add_argument("--roster", help="CSV of the students, as the course system exports it")
    one.add_argument("--labs", help="numbers, as 01,02; all without it")
    one.add_argument("--jobs", type=positive, default=None, help="builds at once; default: the cores")
    one.add_argument("--attempts", type=positive, default=3, help="runs while too noisy to say")
    one.add_argument("--only-failed", action="store_true",
                     help="grade those who could not be graded, and leave all others alone")
    one.add_argument("--force", action="store_true", help="grade all again")
    one.add_argument("--backend", choices=["cuda", "sim"], help="default: hardware, or nothing is run")
    one.add_argument("--outputs", action="store_true", help="check the outputs handed in; run nothing")
    one.add_argument("--single", action="store_true", help="SUBMISSIONS is one student's work")
    one.add_argument("--credit-simulated", action="store_true",
                     help="points for simulated figures, too, which are practice otherwise")
    one.add_argument("--unsafe", action="store_true", help="run programs without a sandbox")
    one.add_argument("--bind", action="append", metavar="FOLDER",
                     help="one more folder that programs may read, as where a compiler lies")
    one.add_argument("--time-limit", type=positive, default=120, help="seconds for building one lab, and for running it")
    one.add_argument("--ranges", type=Path, default=ranges.HERE, help="folder of range files")
    one.add_argument("--arch", default="", help="GPU to build for, as sm_90; default: this machine's, "
                     "with --slurm all-major")
    one.add_argument("--task", metavar="STUDENT", help=argparse.SUPPRESS)
    add_slurm_options(one.add_argument_group("on a cluster (grading/SLURM.md)"))
    two = commands.add_parser("export", help="a class's grades, for a course system")
    two.add_argument("out", metavar="OUT", help="the folder that `class` wrote")
    two.add_argument("--to", required=True, choices=["gradescope", "canvas", "moodle", "prairielearn",
                                                     "classroom", "junit", "csv"])
    two.add_argument("--roster", help="CSV of the students, as the course system exports it")
    two.add_argument("--title", default="CUDA timing labs",
                     help="the assignment; for Canvas with its number: 'Labs (1234)'")
    two.add_argument("--student", help="one student alone")
    two.add_argument("--file", help="write there, not to standard output; for the formats of one "
                     "student a file a folder")
    three = commands.add_parser("report", help="a class's grades, as one web page")
    three.add_argument("out", metavar="OUT", help="the folder that `class` wrote")
    three.add_argument("--roster", help="CSV of the students, as the course system exports it")
    three.add_argument("--title", default="CUDA timing labs")
    three.add_argument("--file", help="write there, not to standard output")


def add_slurm_options(group):
    group.add_argument("--slurm", action="store_true",
                       help="run programs as an array of Slurm jobs, a student a task")
    group.add_argument("--wait", action="store_true", help="until they are through, saying how far it is")
    group.add_argument("--dry-run", action="store_true", help="print the script; do nothing")
    group.add_argument("--at-most", type=positive, metavar="N", help="tasks at once")
    group.add_argument("--array-size", type=positive, metavar="N",
                       help="tasks an array; default: as many as the cluster allows")
    group.add_argument("--partition", metavar="P")
    group.add_argument("--gres", help="what a task gets; default: gpu:1")
    group.add_argument("--account", metavar="A")
    group.add_argument("--job-time", metavar="T", help="limit on a task, as Slurm's --time")
    group.add_argument("--sbatch", action="append", default=[], metavar="OPTION",
                       help="one more of sbatch's, as --sbatch=--constraint=h200")


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     epilog="\n".join(__doc__.splitlines()[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--format", choices=["text", "json"], default="text")
    shared.add_argument("--ranges", type=Path, default=ranges.HERE, help="folder of range files")
    shared.add_argument("-v", "--verbose", action="store_true", help="why each range is what it is")
    one = commands.add_parser("check", parents=[shared], help="check recorded outputs; no GPU needed")
    one.add_argument("files", nargs="+", metavar="FILE", help="what a lab printed")
    two = commands.add_parser("run", parents=[shared], help="build, run and check")
    two.add_argument("--dir", default="labs", help="labs, solutions or a path")
    two.add_argument("--lab", help="number of one lab; all without it")
    two.add_argument("--backend", choices=["cuda", "sim"],
                     help="hardware or the simulated device; default: hardware if there is any")
    two.add_argument("--attempts", type=positive, default=3, help="runs while too noisy to say")
    two.add_argument("--no-reference", action="store_true", help="do not run the solution first")
    add_class_commands(commands)
    commands.add_parser("doctor", help="what this machine lacks, and what to do about it")
    options = parser.parse_args()
    if options.command == "doctor":
        import doctor
        return doctor.main()
    if options.command == "check":
        grades = check(options)
    elif options.command == "run":
        import run  # here, so that a check of one file does not wait for its modules
        run.runner.heed_signals()
        try:
            grades = run.run(options)
        except run.runner.UsageError as error:
            print(error, file=sys.stderr)
            return USAGE
        except run.runner.CannotKeep as error:
            print(error, file=sys.stderr)
            return COULD_NOT
    else:
        import importlib
        module = {"class": "class_run"}.get(options.command, options.command)
        return importlib.import_module(module).main(options)
    if options.format == "json":
        print(json.dumps({"points": sum(g.earned for g in grades),
                          "of": sum(g.points_of for g in grades),
                          "labs": [g.as_dict() for g in grades]}, indent=2))
    else:
        print(text_report(grades, options.verbose))
    return exit_code(grades)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped")
    except BrokenPipeError:
        sys.exit(BELOW)
