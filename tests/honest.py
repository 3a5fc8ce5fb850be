#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Right solutions must not be accused: repeated, under load, on other devices, with noise.

    tests/honest.py repeats [--rounds 10] [--seconds 180]   every solution, again and again
    tests/honest.py load                beside a busy process on the same core; beside a second
                                        process on the GPU
    tests/honest.py devices             simulated GPUs a tenth and five times as fast
    tests/honest.py recorded            what is recorded and published
    tests/honest.py noise               recorded outputs, with their readings spread and shifted

The first two need a GPU, and grade each run twice: alone, and as a student's copy would be, beside a
solution measured before. Full marks are right; so is `inconclusive` with its cause, under load.
Exit 1 if a check failed.
"""
import argparse
import concurrent.futures
import csv
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest.mock

import kit

import gpu
import output
import ranges
import runner
import tracing
import verdict
from formula import NoValue
from graded import grade_data

FULL, INCONCLUSIVE, ACCUSED, SKIPPED = "full marks", "inconclusive", "ACCUSED", "skipped"


def judge(stem, data, run=None, reference=None, trace=None):
    """(word, lines that say what was not passed) for one output of a right solution; `run` is the
    runner.Run that it is from, if it is from one."""
    graded = grade_data(data, stem, ranges.HERE, stem, reference, run and run.wall, run and run.cpu,
                        trace)
    if graded.skipped is not None:
        return SKIPPED, []
    if graded.error:
        return ACCUSED, [f"{stem}: {graded.error}"]
    missed = [v for v in graded.verdicts if v.state not in (verdict.PASS, verdict.SKIPPED)]
    lines = [f"{stem}: {v.state} {v.check.name} {v.shown}: {v.message}" for v in missed]
    if any(v.state != verdict.INCONCLUSIVE for v in missed):
        return ACCUSED, lines
    return (INCONCLUSIVE if missed else FULL), lines


class Tally:
    """Counts of each word, a lab. Accusations are printed as they come; `all_lines`: whatever was
    not passed."""

    def __init__(self, title, all_lines=False):
        self.title, self.of, self.all_lines = title, {}, all_lines

    def add(self, stem, word, lines):
        counts = self.of.setdefault(stem, {})
        counts[word] = counts.get(word, 0) + 1
        for line in lines if word == ACCUSED or self.all_lines else []:
            print(f"    {self.title}: {line}", flush=True)

    def total(self, word):
        return sum(counts.get(word, 0) for counts in self.of.values())

    def print(self):
        print(f"{self.title}: {self.total(FULL)} full marks, {self.total(INCONCLUSIVE)} inconclusive, "
              f"{self.total(ACCUSED)} accused, {self.total(SKIPPED)} skipped")
        for stem, counts in sorted(self.of.items()):
            print(f"    {stem:<26} " + ", ".join(f"{n} {word}" for word, n in sorted(counts.items())))
        sys.stdout.flush()


def program(stem, backend="cuda"):
    return runner.program_of(stem, kit.KIT / "solutions", backend)


def one_round(tally, references, attempts=1):
    """Every solution once; the first output of each is the reference of the later ones."""
    for stem in kit.STEMS:
        for attempt in range(attempts):
            run, trace = kit.measure(program(stem), stem, "cuda")
            if run.problem:
                word, lines = ACCUSED, [f"{stem}: {run.problem}"]
            else:
                word, lines = judge(stem, run.out, run, None, trace)
                if stem in references and word != SKIPPED:
                    beside, more = judge(stem, run.out, run, references[stem], trace)
                    if beside != word != ACCUSED:
                        word, lines = beside, [f"beside the solution: {line}" for line in more]
            if word != INCONCLUSIVE:
                break
        if stem not in references and word != SKIPPED and not run.problem:
            references[stem] = output.parse(run.out, stem)
        tally.add(stem, word, lines)


def repeats(rounds, seconds):
    tally, references, begun = Tally("quiet machine", all_lines=True), {}, time.monotonic()
    for done in range(rounds):
        if done and (time.monotonic() - begun) * (done + 1) / done > seconds:
            print(f"    {done} of {rounds} rounds in the {seconds:.0f} s allowed", flush=True)
            break
        one_round(tally, references, attempts=3)
    tally.print()
    return tally, references


def end(children):
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def load(references):
    """Each solution beside a busy process on its own core, and beside another program's kernels."""
    mine, tallies = os.sched_getaffinity(0), []
    core = min(mine)
    tally = Tally("core shared with a busy process", all_lines=True)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        os.sched_setaffinity(busy.pid, {core})
        os.sched_setaffinity(0, {core})  # the labs inherit it
        one_round(tally, references, attempts=3)
    finally:
        os.sched_setaffinity(0, mine)
        end([busy])
    tally.print()
    tallies.append(tally)

    tally = Tally("second process on the GPU", all_lines=True)
    other = subprocess.Popen(["/bin/sh", "-c", 'while :; do "$0" >/dev/null 2>&1; done',
                              str(program(kit.STEMS[1]))], start_new_session=True)
    try:
        time.sleep(1)
        one_round(tally, references, attempts=3)
    finally:
        end([other])
    tally.print()
    return [*tallies, tally]


def parameters(path):
    """A whole parameter file: that of the H200, with what the file at `path` sets in its place."""
    setting = re.compile(r"^(\w+) = ([^#\n]*)", re.MULTILINE)
    own = dict(setting.findall(path.read_text(encoding="utf-8")))
    whole = (kit.KIT / "common/sim/h200.ini").read_text(encoding="utf-8")
    gone = set(own) - {key for key, _ in setting.findall(whole)}
    if gone:
        sys.exit(f"{path}: no parameter is called {' '.join(sorted(gone))}")
    return setting.sub(lambda m: f"{m[1]} = {own.get(m[1], m[2]).strip()} ", whole)


def on_device(path, folder):
    """A Tally of all solutions on the simulated device of a parameter file."""
    tally, whole = Tally(f"simulated {path.stem}"), kit.Path(folder) / path.name
    whole.write_text(parameters(path), encoding="utf-8")
    with unittest.mock.patch.dict(os.environ, SIM_DEVICES="2", SIM_DEVICE_FILE=str(whole)), \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda stem: kit.measure(program(stem, "sim"), stem, "sim"), kit.STEMS))
    for stem, (run, trace) in zip(kit.STEMS, runs):
        tally.add(stem, *(judge(stem, run.out, run, None, trace) if not run.problem else (
            ACCUSED, [f"{stem}: {run.problem}"])))
    return tally


def devices():
    with kit.folder() as folder:
        return [on_device(path, folder) for path in sorted((kit.KIT / "tests/devices").glob("*.ini"))]


def recorded():
    """A Tally of all outputs under worksheets/recorded/, with their traces where there are any."""
    tally = Tally("recorded outputs")
    for path in sorted((kit.KIT / "worksheets" / "recorded").glob("*/*.txt")):
        traced = path.with_suffix(".trace.json")
        trace = tracing.read_json(traced.read_bytes(), traced.name) if traced.exists() else None
        tally.add(path.stem, *judge(path.stem, path.read_bytes(), trace=trace))
    return tally


def published():
    """A Tally of the published figures that a range names."""
    tally = Tally("published figures")
    checks = {c.name: (stem, c) for stem in kit.STEMS for c in ranges.load(stem) if not c.formula}
    with open(kit.KIT / "worksheets/recorded/published.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["metric"] in checks:
                stem, check = checks[row["metric"]]
                good = row["unit"] == check.unit and verdict.inside(check, float(row["value"]))
                tally.add(stem, FULL if good else ACCUSED, [] if good else [str(dict(row))])
    return tally


MEASURED = re.compile(r"measured (\S+) = (\S+) (\S+) \(median of (\d+), (quartiles (\S+) (\S+), )?"
                      r"min (\S+), max (\S+)\)")


def noisy(text, stem, dice):
    """An output as a disturbed machine would have printed it: some readings of each time are as
    they were, the median and the rest are later, by up to five times."""
    strength = dice.choice((0.02, 0.1, 0.3, 1.0, 4.0))

    def spread(found):
        name, median, unit, count = found[1], float(found[2]), found[3], int(found[4])
        if unit not in ("us", "ms") or count < 5 or median < 0:
            return found[0]
        least = float(found[6] or found[8])
        value = median * (1 + strength * dice.random())
        most = value * (1 + strength * dice.random())
        quartiles = f"quartiles {least:.6g} {most:.6g}, " if found[5] else ""
        return (f"measured {name} = {value:.6g} {unit} (median of {count}, {quartiles}"
                f"min {min(least, float(found[8])):.6g}, max {1.1 * most:.6g})")
    lines = [MEASURED.sub(spread, line) for line in text.splitlines(True)]
    values, series = verdict.environment(output.parse("".join(lines).encode(), stem))
    for check in ranges.load(stem):
        if check.recompute:  # the lab derives it from what it has measured
            try:
                value = check.recompute.evaluate(values, series)[0]
                now = rf"derived {check.name} = {value:.6g} \1"
            except NoValue:
                now = rf"unmeasured {check.name} \1"
            lines = [re.sub(rf"^derived {check.name} = \S+ (\S+)", now, line) for line in lines]
    return "".join(lines)


def noise(cases, seed=20261130):
    """A Tally of recorded outputs with that many kinds of noise, each, beside the quiet one."""
    tally, dice = Tally("recorded outputs with noise"), random.Random(seed)
    for path in sorted(kit.RECORDED.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        quiet = output.parse(text.encode(), path.name)
        for _ in range(cases):
            data = noisy(text, path.stem, dice).encode()
            tally.add(path.stem, *judge(path.stem, data))
            tally.add(path.stem, *judge(path.stem, data, reference=quiet))
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["repeats", "load", "devices", "recorded", "noise"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=180.0, help="that the repeats may take")
    parser.add_argument("--arch", default="native")
    options = parser.parse_args()
    tallies, references = [], {}
    if {"repeats", "load"} & set(options.what):
        found, why = gpu.visible_devices()
        if not found or not kit.NVCC:
            sys.exit(why or "no nvcc: install the CUDA Toolkit")
        kit.build_solutions("cuda", options.arch)
        with runner.alone(found, *kit.STEMS):
            if "repeats" in options.what:
                tally, references = repeats(options.rounds, options.seconds)
                tallies.append(tally)
            if "load" in options.what:
                if not references:  # they are measured before there is any load
                    one_round(Tally("quiet, for reference", all_lines=True), references, attempts=3)
                tallies += load(references)
    here = []
    if "devices" in options.what:
        kit.build_solutions("sim")
        here += devices()
    if "recorded" in options.what:
        here += [recorded(), published()]
    if "noise" in options.what:
        here.append(noise(40))
    for tally in here:
        tally.print()
    return 1 if any(tally.total(ACCUSED) for tally in tallies + here) else 0


if __name__ == "__main__":
    sys.exit(main())
