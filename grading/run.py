# SPDX-License-Identifier: MIT
"""grade.py run: build, run on this machine beside the solution, and grade.

On hardware a lab whose checks ask what really ran is run a second time, traced: tracing may slow
a call by a microsecond, so what is graded is what it printed without. Its claims are held against
what the second run did. The simulated device's log takes no virtual time: one run does for both.
"""
import os
import subprocess
import sys
import time
from pathlib import Path

import output
import ranges
import runner
import tracing
import verdict
from graded import grade_data

REFERENCE_AGE = 30 * 60  # seconds; an older figure is not "the same machine minutes ago"


def build(folder, labs, backend):
    """Build what is out of date; what fails keeps no program, only its log."""
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["make", "-s", "-k", "-j", jobs, "build", f"DIR={folder}", f"BACKEND={backend}"]
                   + ([f"LAB={labs[0][:2]}"] if len(labs) == 1 else []), cwd=runner.KIT,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if backend == "cuda":
        subprocess.run(["make", "-s", "trace"], cwd=runner.KIT, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def asks_what_ran(stem, folder):
    try:
        return any(c.formula and c.formula.needs_trace for c in ranges.load(stem, folder))
    except ranges.RangeError:
        return False  # grade_data says what is wrong with it


def measured(program, backend, asks, bus_id):
    """One run of a lab: (Run, Trace or None, why there is no trace)."""
    why = tracing.unavailable(backend) if asks else ""
    with runner.alone(bus_id):
        if backend == "sim" and asks:
            return tracing.capture(program, backend)
        run, trace = runner.run_lab(program), None
        if asks and not why and not run.problem and run.code == 0:
            print("  once more, traced, to see what really ran", file=sys.stderr)
            traced, trace, why = tracing.capture(program, backend)
            if traced.problem:
                trace, why = None, f"the traced run {traced.problem}"
    return run, trace, why


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
    options.backend = options.backend or runner.gpu.pick_backend()
    stems, bus_id = runner.find_labs(folder, options.lab), runner.device_for(options.backend)
    print(f"building {runner.short_name(folder)} ...", file=sys.stderr, flush=True)
    build(folder.resolve(), stems, options.backend)
    if not options.no_reference and runner.short_name(folder) != "solutions":
        build(runner.KIT / "solutions", stems, options.backend)
    grades, begun = [], time.monotonic()
    for place, stem in enumerate(stems, 1):
        print(f"[{place}/{len(stems)}] {stem}  ({time.monotonic() - begun:.0f} s so far)",
              file=sys.stderr, flush=True)
        reference = reference_for(stem, options, bus_id)
        for attempt in range(1, options.attempts + 1):
            result, trace, why = measured(runner.program_of(stem, folder, options.backend),
                                          options.backend, asks_what_ran(stem, options.ranges),
                                          bus_id)
            kept = runner.results_of(folder, options.backend) / f"{stem}.txt"
            if result.out:
                runner.save(kept, result.out)
            source = os.path.relpath(kept, runner.KIT)
            if trace:
                tracing.write_json(trace, tracing.kept_at(folder, options.backend, stem))
            graded = grade_data(result.out, source, options.ranges, stem, reference, result.wall,
                                result.cpu, trace)
            if why and not result.problem and result.code == 0:
                graded.notes.append(f"what really ran was not checked: {why}")
            if result.problem:
                graded.verdicts, graded.output = [], None
                graded.error = f"{stem}: {result.problem}"
            if not any(v.state == verdict.INCONCLUSIVE for v in graded.verdicts):
                break
            print(f"  attempt {attempt}: too noisy to say", file=sys.stderr)
        grades.append(graded)
    return grades
