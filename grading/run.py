# SPDX-License-Identifier: MIT
"""grade.py run: build, run on this machine beside the solution, and grade.

On hardware a lab whose checks ask what really ran is run a second time, traced: tracing may slow
a call by a microsecond, so what is graded is what it printed without. Its claims are held against
what the second run did. The simulated device's log takes no virtual time: one run does for both.
"""
import contextlib
import os
import sys
import time
from pathlib import Path

import output
import progress
import ranges
import runner
import tracing
import verdict
from graded import grade_data

SOLUTIONS = runner.KIT / "solutions"


def build(folder, labs, backend):
    """Build what is out of date; what fails keeps no program, only its log."""
    jobs = str(os.cpu_count() or 1)
    progress.run(f"building {runner.short_name(folder)}",
                 ["make", "-s", "-k", "-j", jobs, "build", f"DIR={folder}", f"BACKEND={backend}"]
                 + ([f"LAB={labs[0][:2]}"] if len(labs) == 1 else []), quiet=True, cwd=runner.KIT)
    if backend == "cuda":  # if it cannot be built, grade.py says that nothing was traced
        progress.run("building the tracer", ["make", "-s", "trace"], quiet=True, cwd=runner.KIT)


def run_once(stem, folder, backend, devices, traced=False):
    """Run one lab of a folder, alone on its GPU: (Run, Trace or None, why there is none)."""
    kept, program = runner.results_of(folder, backend), runner.program_of(stem, folder, backend)
    with runner.alone(devices, stem), progress.Ticker(stem, progress.expected(stem, backend, kept)):
        if traced:
            run, trace, why = tracing.capture(program, backend)
        else:
            run, trace, why = runner.run_lab(program), None, ""
    if not run.problem:
        progress.keep(kept, stem, run.wall)
    return run, trace, why


def asks_what_ran(stem, folder):
    try:
        return any(c.formula and c.formula.needs_trace for c in ranges.load(stem, folder))
    except ranges.RangeError:
        return False  # grade_data says what is wrong with it


def measured(stem, options, devices):
    """A run of a lab whose figures count, and what really ran, if its checks ask for that: (Run,
    Trace or None, why there is no trace)."""
    asks = asks_what_ran(stem, options.ranges)
    why = tracing.unavailable(options.backend) if asks else ""
    if asks and options.backend == "sim":
        return run_once(stem, options.dir, options.backend, devices, traced=True)
    run, trace, _ = run_once(stem, options.dir, options.backend, devices)
    if asks and not why and not run.problem and run.code == 0:
        print("  once more, traced, to see what really ran", file=sys.stderr)
        again, trace, why = run_once(stem, options.dir, options.backend, devices, traced=True)
        if again.problem:
            trace, why = None, f"the traced run {again.problem}"
    return run, trace, why


def compares(options):
    """Whether the solution's figures are wanted beside those of the program."""
    return not options.no_reference and runner.short_name(options.dir) != "solutions"


def kept_reference(stem, options):
    return runner.results_of(SOLUTIONS, options.backend) / f"{stem}.txt"


def comparable(path, devices):
    """The Output in a file if it is one to compare with: whole, of a run, and of this device."""
    try:
        out = output.read(path)
    except output.OutputError:
        return None
    here = not devices or out.device == devices[0]["name"]
    return out if here and out.skipped is None else None


def wants_reference(stem, options, devices):
    """Whether the solution has to be run: not if it was minutes ago, or is not asked for."""
    if not compares(options):
        return False
    kept, program = kept_reference(stem, options), runner.program_of(stem, SOLUTIONS, options.backend)
    fresh = kept.exists() and program.exists() and max(
        time.time() - runner.REFERENCE_AGE, program.stat().st_mtime) < kept.stat().st_mtime
    return not (fresh and comparable(kept, devices))


def expected(stems, options, devices):
    """Seconds that these labs will take, with the solutions beside them."""
    pairs = [(stem, options.dir) for stem in stems]
    pairs += [(stem, SOLUTIONS) for stem in stems if wants_reference(stem, options, devices)]
    return sum(progress.expected(stem, options.backend, runner.results_of(
        folder, options.backend)) for stem, folder in pairs)


def reference_for(stem, options, devices):
    """The solution's Output on this machine, run now unless it was minutes ago; None if it fails."""
    if not compares(options):
        return None
    kept = kept_reference(stem, options)
    if wants_reference(stem, options, devices):
        print(f"  the solution first, to compare with on this machine: {stem}", file=sys.stderr)
        run, _, _ = run_once(stem, SOLUTIONS, options.backend, devices)
        if run.problem or run.code != 0:
            print(f"  no comparison: the solution {run.problem or 'was skipped'}", file=sys.stderr)
            return None
        runner.save(kept, run.out)
    reference = comparable(kept, devices)
    if not reference:
        print(f"  no comparison: {os.path.relpath(kept, runner.KIT)} is no output of this device",
              file=sys.stderr)
    elif verdict.spoiled(reference):
        with contextlib.suppress(OSError):
            kept.unlink()  # serves once: the next one measures again
    return reference


def run(options):
    folder = Path(options.dir)
    options.backend = options.backend or runner.gpu.pick_backend()
    stems, devices = runner.find_labs(folder, options.lab), runner.devices_for(options.backend)
    print(f"building {runner.short_name(folder)} ...", file=sys.stderr, flush=True)
    build(folder.resolve(), stems, options.backend)
    if compares(options):
        build(runner.KIT / "solutions", stems, options.backend)
    grades, begun, wanted = [], time.monotonic(), expected(stems, options, devices)
    for place, stem in enumerate(stems, 1):
        print(f"[{place}/{len(stems)}] {stem}  ({time.monotonic() - begun:.0f} s of about "
              f"{max(wanted, 1):.0f} s)", file=sys.stderr, flush=True)
        grades.append(best_attempt(stem, folder, options, devices))
    return grades


def best_attempt(stem, folder, options, devices):
    """Run until nothing is inconclusive; the attempt with most points counts, the earlier of equal
    ones. Its output and trace are kept."""
    reference, best = reference_for(stem, options, devices), None
    kept = runner.results_of(folder, options.backend) / f"{stem}.txt"
    for attempt in range(1, runner.attempts(options.backend, options.attempts) + 1):
        result, trace, why = measured(stem, options, devices)
        graded = grade_data(result.out, os.path.relpath(kept, runner.KIT), options.ranges, stem, reference,
                            result.wall, result.cpu, trace)
        if why and not result.problem and result.code == 0:
            graded.notes.append(f"what really ran was not checked: {why}")
        if result.problem:
            graded.verdicts, graded.output = [], None
            graded.error = f"{stem}: {result.problem}"
        if best is None or graded.earned > best.earned:
            best = graded
            if result.out:
                runner.save(kept, result.out)
            if trace:
                tracing.write_json(trace, tracing.kept_at(folder, options.backend, stem))
            elif why:  # an earlier attempt's would not fit the output
                with contextlib.suppress(OSError):
                    tracing.kept_at(folder, options.backend, stem).unlink()
        if not any(v.state == verdict.INCONCLUSIVE for v in graded.verdicts):
            break
        print(f"  attempt {attempt}: too noisy to say", file=sys.stderr)
    return best
