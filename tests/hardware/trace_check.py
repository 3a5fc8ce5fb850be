#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""On a machine with a GPU: is the tracer right, and does it disturb? One table, and the traces.

    tests/hardware/trace_check.py [--out FOLDER] [STEP...]

Steps, all by default: build traces shapes disturbs grades cheats deaths. Leaves the traces in
FOLDER (results/trace_check) and in FOLDER.tar.gz. Exit 1 if anything is not as it must be.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(KIT / "grading"), str(KIT / "tests")]
import cheats  # noqa: E402
import kit  # noqa: E402
import runner  # noqa: E402
import trace_rules  # noqa: E402
import tracing  # noqa: E402

STEPS = ["build", "traces", "shapes", "disturbs", "grades", "cheats", "deaths"]
wrong = []


def check(fine, text):
    print(f"  {'ok   ' if fine else 'WRONG'} {text}", flush=True)
    if not fine:
        wrong.append(text)


def make(*arguments):
    done = subprocess.run(["make", "-s", "-k", f"-j{os.cpu_count()}", *arguments], cwd=KIT,
                          capture_output=True, text=True)
    check(done.returncode == 0, f"make {' '.join(arguments)} {done.stderr[-2000:]}")


def build(options):
    make("build", "DIR=solutions", "BACKEND=cuda")
    make("build", "DIR=solutions", "BACKEND=sim")
    make("trace", "BACKEND=cuda")


def take(stem, backend, out):
    """(Run, Trace) of a solution, the trace kept in out/backend/; None for it if there is none."""
    program = runner.program_of(stem, KIT / "solutions", backend)
    if backend == "sim" and stem.startswith("12"):
        os.environ["SIM_DEVICES"] = "2"
    run, trace, why = tracing.capture(program, backend)
    os.environ.pop("SIM_DEVICES", None)
    if run.code == runner.SKIPPED:
        return run, None
    check(not run.problem and trace is not None, f"{stem} on {backend}: {run.problem or why}"
          if run.problem or trace is None else f"{stem} on {backend}: traced")
    if trace is None:
        return run, None
    path = out / backend / f"{stem}.trace.json"
    tracing.write_json(trace, path)
    return run, trace


def traces(options):
    for stem in kit.STEMS:
        run, trace = take(stem, "cuda", options.out)
        if trace is None:
            print(f"  {stem}: no trace ({run.out[:100]!r})")
            continue
        path = options.out / "cuda" / f"{stem}.trace.json"
        (options.out / "cuda" / f"{stem}.txt").write_bytes(run.out)
        launches = trace.launches()[0] if not trace.lost else float("nan")
        print(f"       {os.path.getsize(path) / 1e6:.2f} MB, {run.wall:.2f} s, {launches:.0f} kernels, "
              f"{len(trace.ops)} ops and {len(trace.calls)} calls in {len(trace.visits)} visits, "
              f"left out {sum(trace.truncated.values())}, lost {trace.lost}")
        check(os.path.getsize(path) < 20e6, f"{stem}: under 20 MB")
        check(trace.complete and not trace.lost, f"{stem}: complete, nothing lost")
        broken = trace_rules.problems(path.read_bytes())
        check(not broken, f"{stem}: loads in Perfetto {broken[:3]}")
        for (group, name), (count, us) in sorted(trace.totals.items()):
            print(f"         {group:<5} {name:<28} {count:>8}  {us:>12.1f} us")
        for region in dict.fromkeys(visit.region for visit in trace.visits):
            if region not in trace.truncated and not trace.lost:
                print(f"         region {region}: span {trace.span_us(region)[0]:.1f} us, overlap "
                      f"{trace.overlap_us(region)[0]:.1f} us, launches "
                      f"{trace.launches(region + '/')[0]:.0f}, waits {trace.waits(region)[0]:.0f}, "
                      f"syncs {trace.device_syncs(region)[0]:.0f}+{trace.event_syncs(region)[0]:.0f}, "
                      f"sleeping {trace.sleeping_waits(region)[0]:.0f}, graphs "
                      f"{trace.graph_launches(region)[0]:.0f}")


def shapes(options):
    for stem in kit.STEMS:
        path = options.out / "cuda" / f"{stem}.trace.json"
        if not path.exists():
            continue
        here = tracing.read_json(path.read_bytes(), path.name)
        _, there = take(stem, "sim", options.out)
        if there is None:
            continue
        regions = list(dict.fromkeys(visit.region for visit in here.visits))
        others = list(dict.fromkeys(visit.region for visit in there.visits))
        check(regions == others, f"{stem}: the same regions {regions} {others}")
        for region in regions:
            one, two = here.shape(region), there.shape(region)
            check(one == two, f"{stem} {region}: the same {len(one)} rows and edges")
            if one != two:
                for line in sorted(set(one) ^ set(two))[:12]:
                    print(f"           {'cuda' if line in one else 'sim '} {line}")


def figure(out, name):
    found = re.search(rf"measured {name} = (\S+)", out.decode())
    return float(found[1]) if found else float("nan")


def disturbs(options):
    program = runner.program_of("08_copyComputePipeline", KIT / "solutions", "cuda")
    names = ("pipelined", "serial", "copy_in", "kernel", "copy_out", "first_chunk", "return_pinned")
    seen = {name: ([], []) for name in names}
    for _ in range(options.turns):
        for traced in (False, True):
            run = (tracing.capture(program, "cuda")[0] if traced else runner.run_lab(program))
            for name in names:
                seen[name][traced].append(figure(run.out, name))
    for name, (plain, with_it) in seen.items():
        a, b = statistics.median(plain), statistics.median(with_it)
        print(f"       {name:<14} untraced {a:10.2f} ({min(plain):.2f} .. {max(plain):.2f})  traced "
              f"{b:10.2f} ({min(with_it):.2f} .. {max(with_it):.2f})  {100 * (b / a - 1):+.2f} %")
        if name == "pipelined":
            check(abs(b / a - 1) < 0.05, f"tracing changes {name} by under 5 %")


def grade(folder, *more):
    done = subprocess.run([sys.executable, str(KIT / "grading/grade.py"), "run", "--dir", str(folder),
                           "--backend", "cuda", "--format", "json", *more], cwd=KIT,
                          capture_output=True, text=True)
    try:
        return json.loads(done.stdout)["labs"]
    except ValueError:
        check(False, f"grade.py: {done.stderr[-1000:]}")
        return []


def grades(options):
    for lab in grade(KIT / "solutions"):
        odd = [c for c in lab["checks"] if c["verdict"] not in ("pass", "skipped")]
        check(not odd and not lab["error"], f"{lab['lab']}: {lab['points']}/{lab['of']} "
              f"{lab['error'] or ''} {lab['notes'] or ''}")
        for c in odd:
            print(f"           {c['verdict']} {c['check']} {c['value']} {c['range']}: {c['message']}")
        for c in lab["checks"]:
            if re.search(r"_ran$|fits|slept|did_not", c["check"]):
                print(f"           {c['verdict']} {c['check']} {c['value']}  ({c['range']})")


def cheating(options):
    with tempfile.TemporaryDirectory(prefix="labs-cheats.") as folder:
        for stem in cheats.CHEATS:
            (Path(folder) / f"{stem}.cu").write_text(cheats.source(stem))
        for lab in grade(folder, "--no-reference"):
            failed = {c["check"] for c in lab["checks"] if c["verdict"] == "FAIL"}
            must = cheats.CHEATS[lab["lab"]][3]
            check(must <= failed, f"{lab['lab']} is caught: {cheats.CHEATS[lab['lab']][0]}")
            print(f"           fails {sorted(failed)}; {lab['error'] or ''} {lab['notes'] or ''}")


DYING = """#include "%s/common/lab.h"
#include <unistd.h>
__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}
int main(int count, char **word) {
    lab_begin("05", "crossStreamWait");
    region_begin("end");
    for (int i = 0; i < 20; i++) {
        WaitKernel<<<1, 1>>>(cycles_for_us(10000));
        CUDA_CHECK(cudaDeviceSynchronize());
    }
    if (count > 1 && word[1][0] == 'x')
        _exit(0);
    if (count > 1 && word[1][0] == 's')
        *(volatile int *)0 = 1;
    abort();
}
"""


def deaths(options):
    with tempfile.TemporaryDirectory(prefix="labs-deaths.") as name:
        folder = Path(name)
        (folder / "05_dies.cu").write_text(DYING % KIT)
        make("build", f"DIR={folder}", "BACKEND=cuda")
        program = runner.program_of("05_dies", folder, "cuda")
        for how in ("x", "s", "a"):
            log = folder / f"log.{how}"
            subprocess.run([str(program), how], env={**os.environ, **tracing.environment("cuda", log)},
                           capture_output=True)
            died_with(how, log, 1 if how == "x" else 15)  # of _exit nobody is told
        log = folder / "log.term"
        solution = runner.program_of("08_copyComputePipeline", KIT / "solutions", "cuda")
        child = subprocess.Popen([str(solution)], env={**os.environ, **tracing.environment("cuda", log)},
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.5)
        child.send_signal(signal.SIGTERM)
        child.wait()
        died_with("SIGTERM", log, 10)


def died_with(how, log, least):
    try:
        trace = tracing.read_log(log.read_bytes(), log.name)
    except (OSError, tracing.TraceError) as error:
        check(False, f"dying ({how}): {error}")
        return
    check(len(trace.ops) >= least, f"dying ({how}): {len(trace.ops)} ops and {len(trace.calls)} "
          f"calls are left, complete: {trace.complete}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=" ".join(STEPS))
    parser.add_argument("--out", type=Path, default=KIT / "results" / "trace_check")
    parser.add_argument("--turns", type=int, default=5, help="traced and untraced runs of lab 08")
    options = parser.parse_args()
    todo = {"build": build, "traces": traces, "shapes": shapes, "disturbs": disturbs,
            "grades": grades, "cheats": cheating, "deaths": deaths}
    if not set(options.steps) <= set(STEPS):
        parser.error(f"steps are: {' '.join(STEPS)}")
    for step in options.steps or STEPS:
        begun = time.monotonic()
        print(f"== {step}", flush=True)
        try:
            todo[step](options)
        except Exception as error:  # one step must not cost the others
            check(False, f"{step}: {type(error).__name__}: {error}")
        print(f"   {time.monotonic() - begun:.0f} s", flush=True)
    if options.out.exists():
        with tarfile.open(f"{options.out}.tar.gz", "w:gz") as tar:
            tar.add(options.out, arcname=options.out.name)
        print(f"traces: {options.out}.tar.gz")
    print(f"{len(wrong)} not as it must be")
    for text in wrong:
        print(f"  {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
