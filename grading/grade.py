#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check that what the labs printed is physically plausible, and say what a wrong figure means.

    grade.py check FILE...                  recorded outputs; needs no GPU
    grade.py run --dir DIR [--lab NN]       build, run on this machine, check

Exit code: 0 full marks, 1 below, 2 a mistake in the call, 3 something could not be graded.
The report goes to standard output, progress to standard error. The checks are in ranges/.
"""
import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import output  # noqa: E402
import ranges  # noqa: E402
import runner  # noqa: E402
import verdict  # noqa: E402

WIDTH = 80
REFERENCE_AGE = 30 * 60  # seconds; "the same machine minutes ago" is older than that no more
FULL, BELOW, USAGE, COULD_NOT = 0, 1, 2, 3


class Graded:
    """One lab's grade: verdicts, or the error for which there are none."""

    def __init__(self, source, stem=None):
        self.source, self.stem, self.output, self.error = source, stem, None, ""
        self.verdicts, self.notes, self.points_of = [], [], 0

    @property
    def earned(self):
        return sum(v.earned for v in self.verdicts)

    @property
    def skipped(self):
        return self.output.skipped if self.output else None

    def as_dict(self):
        out = self.output
        return {"source": self.source, "lab": self.stem, "error": self.error or None,
                "skipped": self.skipped, "backend": out.backend if out else None,
                "device": out.device if out else None, "points": self.earned,
                "of": self.points_of, "notes": self.notes,
                "checks": [v.as_dict() for v in self.verdicts]}


def grade_data(data, source, ranges_folder, stem=None, reference=None, process_wall=None):
    """Grade one output, given as bytes. Never raises for what the bytes or a range file hold."""
    graded = Graded(source, stem)
    try:
        if stem:
            graded.points_of = sum(c.points for c in ranges.load(stem, ranges_folder))
        graded.output = out = output.parse(data, source)
        graded.notes = out.notes + [f"warning: {text}" for text in out.warnings]
        if stem and out.stem != stem:
            raise output.OutputError("malformed", source, f"is the output of {out.stem}, not of "
                                     f"{stem}")
        graded.stem = out.stem
        if out.skipped is None:
            checks = ranges.load(out.stem, ranges_folder)
            graded.points_of = sum(c.points for c in checks)
            graded.verdicts = verdict.judge(out, checks, reference, process_wall)
        else:
            graded.points_of = 0
    except (output.OutputError, ranges.RangeError) as error:
        graded.output, graded.error = None, str(error)
    return graded


def check(options):
    grades = []
    for path in options.files:
        try:
            with open(path, "rb") as file:
                data = file.read(output.MAX_BYTES + 1)
        except OSError as error:
            graded = Graded(path)
            graded.error = f"{path}: {error.strerror}: run the lab first (make run)"
        else:
            graded = grade_data(data, path, options.ranges)
        grades.append(graded)
    return grades


def build(folder, labs, backend):
    """Build what is out of date; what fails keeps no program, only its log."""
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["make", "-s", "-k", "-j", jobs, "build", f"DIR={folder}", f"BACKEND={backend}"]
                   + ([f"LAB={labs[0][:2]}"] if len(labs) == 1 else []), cwd=runner.KIT,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def reference_for(stem, options, bus_id):
    """The solution's Output on this machine, run now unless it was minutes ago; None if it fails."""
    if runner.short_name(options.dir) == "solutions" or options.no_reference:
        return None
    kept = runner.results_of(runner.KIT / "solutions", options.backend) / f"{stem}.txt"
    program = runner.program_of(stem, runner.KIT / "solutions", options.backend)
    fresh = kept.exists() and program.exists() and max(
        time.time() - REFERENCE_AGE, program.stat().st_mtime) < kept.stat().st_mtime
    if not fresh:
        print(f"  the solution first, to compare with on this machine: {stem}", file=sys.stderr)
        with runner.alone(bus_id):
            run = runner.run_lab(program)
        if run.problem or run.code != 0:
            print(f"  no comparison: the solution {run.problem or 'was skipped'}", file=sys.stderr)
            return None
        runner.save(kept, run.out)
    try:
        return output.read(kept)
    except output.OutputError:
        return None


def run(options):
    folder = Path(options.dir)
    stems = runner.find_labs(folder, options.lab)
    print(f"building {runner.short_name(folder)} ...", file=sys.stderr, flush=True)
    build(folder.resolve(), stems, options.backend)
    if not options.no_reference and runner.short_name(folder) != "solutions":
        build(runner.KIT / "solutions", stems, options.backend)
    bus_id, grades, begun = runner.device_for(options.backend), [], time.monotonic()
    for place, stem in enumerate(stems, 1):
        print(f"[{place}/{len(stems)}] {stem}  ({time.monotonic() - begun:.0f} s so far)",
              file=sys.stderr, flush=True)
        reference = reference_for(stem, options, bus_id)
        for attempt in range(1, options.attempts + 1):
            with runner.alone(bus_id):
                result = runner.run_lab(runner.program_of(stem, folder, options.backend))
            kept = runner.results_of(folder, options.backend) / f"{stem}.txt"
            if result.out:
                runner.save(kept, result.out)
            source = os.path.relpath(kept, runner.KIT)
            graded = grade_data(result.out, source, options.ranges, stem, reference, result.wall)
            if result.problem:
                graded.verdicts, graded.output = [], None
                graded.error = f"{stem}: {result.problem}"
            if not any(v.state == verdict.INCONCLUSIVE for v in graded.verdicts):
                break
            print(f"  attempt {attempt}: too noisy to say", file=sys.stderr)
        grades.append(graded)
    return grades


def wrap(text, indent):
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def text_report(grades, verbose):
    lines = []
    for graded in grades:
        where = f"{graded.output.backend}: {graded.output.device}" if (
            graded.output and graded.output.device) else graded.source
        title = (graded.stem or "?").replace("_", " ", 1)
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
            lines.append(f"  {v.state:<12} {v.check.name:<26} {v.shown or '-':>13}  "
                         f"{verdict.range_text(v.check):<15} {f'{v.earned}/{v.check.points}':>5}")
            if v.message:
                lines.append(wrap(v.message, "      "))
            if verbose:
                lines.append(wrap(f"why: {v.check.why}", "      "))
        lines.append("")
    earned, of = sum(g.earned for g in grades), sum(g.points_of for g in grades)
    failed = [g for g in grades if g.error]
    skipped = sum(g.skipped is not None for g in grades)
    lines.append(f"{earned} of {of} points in {len(grades) - skipped} lab(s)"
                 + (f", {skipped} skipped" if skipped else "")
                 + (f", {len(failed)} could not be graded" if failed else "")
                 + (": full marks" if exit_code(grades) == FULL else ""))
    return "\n".join(lines)


def exit_code(grades):
    if any(g.error for g in grades):
        return COULD_NOT
    of = sum(g.points_of for g in grades)
    return FULL if of and sum(g.earned for g in grades) == of else BELOW


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
    two.add_argument("--backend", choices=["cuda"], default="cuda")
    two.add_argument("--attempts", type=int, default=3, help="runs while too noisy to say")
    two.add_argument("--no-reference", action="store_true", help="do not run the solution first")
    options = parser.parse_args()
    try:
        grades = {"check": check, "run": run}[options.command](options)
    except runner.UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
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
