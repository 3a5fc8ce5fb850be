# SPDX-License-Identifier: MIT
"""grade.py run: build, run on this machine beside the solution, and grade."""
import os
import subprocess
import sys
import time
from pathlib import Path

import output
import runner
import verdict
from graded import grade_data

REFERENCE_AGE = 30 * 60  # seconds; an older figure is not "the same machine minutes ago"


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
