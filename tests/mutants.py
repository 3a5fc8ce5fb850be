#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutants: the solutions with one mistake each, of those that students make, and how they fare.

    tests/mutants.py [--backend sim] [NAME...]      build, run, grade; a line for each that slips

A mutant is a patch, tests/mutants/NN_name.patch, and a section of tests/mutants/index.ini:

    [01_no_final_synchronize]
    mistake = nothing waits for the last launch before the clock is stopped
    check = left_running   the check that must fail, or with | between them one of several, ...
    todo = 2               ... and the TODO that its message must name; none outside the TODOs
    says = cudaError...    with check = program: it ends with an error that holds these words
    listed = reason        nothing that it prints or does can tell it from the solution: why

It is graded as `make grade` does: against what the solution prints on the same device. Rejected
means that a check failed or that the program ended with an error; `inconclusive` is no rejection.
"""
import argparse
import concurrent.futures
import configparser
import os
import re
import subprocess
import sys
import unittest.mock
from pathlib import Path

import kit

import gpu
import output
import runner
import verdict
from graded import grade_data

FOLDER = kit.KIT / "tests" / "mutants"
KEYS = {"mistake", "check", "todo", "says", "listed"}
RIGHT, REJECTED, SLIPPED, SKIPPED = "right message", "rejected", "SLIPPED", "skipped"
PROMISED = 0.95, 0.90  # rejected, and with the right message: of all, the listed ones included
ATTEMPTS = 3        # runs while the grader finds a figure too noisy to say


class Stale(Exception):
    """A patch that no longer applies, or an index that does not fit: file, line, what."""


class Mutant:
    def __init__(self, name, section):
        self.name, self.stem = name, next((s for s in kit.STEMS if s[:2] == name[:2]), None)
        unknown = set(section) - KEYS
        if unknown or not self.stem or "mistake" not in section or "check" not in section:
            raise Stale(f"tests/mutants/index.ini: [{name}] {' '.join(sorted(unknown))}: keys are "
                        + " ".join(sorted(KEYS)))
        self.mistake = section["mistake"]
        self.checks = [name.strip() for name in section["check"].split("|")]
        self.todo, self.says = section.get("todo"), section.get("says")
        self.listed = section.get("listed")
        self.path = FOLDER / f"{name}.patch"


def load():
    """All mutants, in the order of the index."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.read(FOLDER / "index.ini", encoding="utf-8")
    mutants = [Mutant(name, parser[name]) for name in parser.sections()]
    named, there = {m.name for m in mutants}, {p.stem for p in FOLDER.glob("*.patch")}
    for name in sorted(named ^ there):
        raise Stale(f"tests/mutants/{name}: " + ("has no patch" if name in named else
                                                 "is not in index.ini"))
    return mutants


def applied(mutant):
    """The solution's text with the mutant's mistake in it. Raises Stale, with file and line."""
    text = (kit.KIT / "solutions" / f"{mutant.stem}.cu").read_text(encoding="utf-8").split("\n")
    hunks, where = [], f"tests/mutants/{mutant.path.name}"
    for number, line in enumerate(mutant.path.read_text(encoding="utf-8").splitlines(), 1):
        head = re.match(r"@@ -(\d+)", line)
        if head:
            hunks.append((number, int(head[1]) - 1, [], []))
        elif hunks:
            old, new = hunks[-1][2:]
            if line[:1] in (" ", "-", ""):
                old.append(line[1:])
            if line[:1] in (" ", "+", ""):
                new.append(line[1:])
    if not hunks:
        raise Stale(f"{where}:1: holds no hunk")
    moved = 0
    for number, at, old, new in hunks:
        places = [i for i in range(len(text)) if text[i:i + len(old)] == old]
        if not places:
            gone = next((line for line in old if line not in text), old[0]).strip()
            raise Stale(f"{where}:{number}: no longer applies to solutions/{mutant.stem}.cu near line "
                        f"{at + 1}: it has changed at or near '{gone}'")
        at = min(places, key=lambda place: abs(place - at - moved))
        text[at:at + len(old)] = new
        moved += len(new) - len(old)
    return "\n".join(text)


class Device:
    """Where mutants run: how to build one, and what the solutions print there."""

    def __init__(self, backend, arch="native"):
        self.backend, self.arch = backend, arch
        self.folder = kit.KIT / "build" / backend / "mutants"
        self.reference = {}

    def measure_solution(self, stem):
        run = runner.run_lab(runner.program_of(stem, kit.KIT / "solutions", self.backend))
        if run.problem:
            sys.exit(f"the solution of {stem} {run.problem}")
        self.reference[stem] = None if run.code == runner.SKIPPED else output.parse(run.out, stem)

    def build(self, mutant):
        """The program; raises Stale if it does not compile, which a mutant must."""
        self.folder.mkdir(parents=True, exist_ok=True)
        source, program = self.folder / f"{mutant.name}.cu", self.folder / mutant.name
        source.write_text(applied(mutant), encoding="utf-8")
        program.unlink(missing_ok=True)
        if self.backend == "sim":
            compiler = os.environ.get("CXX", "g++")
            commands = [[sys.executable, "common/sim/rewrite.py", source],
                        [compiler, "-std=c++17", "-O1", "-w", "-fsanitize=thread",
                         "-Icommon/sim/include", "-iquote", "solutions", "-c", f"{program}.cpp",
                         "-o", f"{program}.o"],
                        [compiler, "-o", program, f"{program}.o",
                         *(kit.KIT / "build/sim/engine" / f"{p.stem}.o" for p in
                           sorted(kit.KIT.glob("common/sim/*.c"))), "-lm"]]
        else:
            commands = [[kit.NVCC, "-O2", f"-arch={self.arch}", "-w", "-Isolutions", "-o", program, source]]
        for command in commands:
            made = subprocess.run([str(c) for c in command], cwd=kit.KIT, capture_output=True,
                                  stdin=subprocess.DEVNULL)
            if made.returncode != 0:
                raise Stale(f"tests/mutants/{mutant.name}.patch: does not compile: "
                            + made.stderr.decode(errors="replace").strip()[:2000])
            if command[1] == "common/sim/rewrite.py":
                Path(f"{program}.cpp").write_bytes(made.stdout)
        if self.backend == "cuda" and mutant.stem.startswith("04"):  # the -G part is not mutated
            beside = runner.program_of(mutant.stem, kit.KIT / "solutions", "cuda").with_suffix(".debug")
            link = program.with_name(program.name + ".debug")
            link.unlink(missing_ok=True)
            os.symlink(beside, link)
        return program

    def grade(self, mutant, program):
        """The grade of one run; of the last, where the first were too noisy to say."""
        for _ in range(runner.attempts(self.backend, ATTEMPTS)):
            run, trace = kit.measure(program, mutant.stem, self.backend)
            graded = grade_data(run.out, mutant.name, kit.KIT / "grading" / "ranges", mutant.stem,
                                self.reference[mutant.stem], run.wall, run.cpu, trace)
            if run.problem:
                graded.verdicts, graded.output = [], None
                graded.error = f"{run.problem}\n{run.err.decode(errors='replace')}"
            if not any(v.state == verdict.INCONCLUSIVE for v in graded.verdicts):
                break
        return graded


class Fate:
    """What became of a mutant: state, and the checks that failed with their messages."""

    def __init__(self, mutant, graded):
        self.mutant, self.failed = mutant, {v.check.name: v for v in graded.verdicts if v.state in (
            verdict.FAIL, verdict.UNMEASURED)}
        self.error = graded.error
        self.state = SKIPPED if graded.skipped is not None else self._state()

    def _state(self):
        if not self.failed and not self.error:
            return SLIPPED
        if self.mutant.says:
            return RIGHT if self.mutant.says in self.error else REJECTED
        told = [self.failed[name].message for name in self.mutant.checks if name in self.failed]
        right = any(not self.mutant.todo or f"TODO({self.mutant.todo})" in text for text in told)
        return RIGHT if right else REJECTED

    def text(self):
        lines = [f"{self.state:<13} {self.mutant.name}: {self.mutant.mistake}"]
        if self.mutant.listed:
            lines[0] += f" (listed: {self.mutant.listed})"
        if self.state != RIGHT:
            lines.append(f"      wanted: {' or '.join(self.mutant.checks)}"
                         + (f" and TODO({self.mutant.todo})" if self.mutant.todo else "")
                         + (f" and '{self.mutant.says}'" if self.mutant.says else ""))
            lines += [f"      {v.check.name} {v.shown}: {v.message}" for v in self.failed.values()]
            if self.error:
                lines.append("      " + self.error.strip().replace("\n", "\n      "))
        return "\n".join(lines)


def prove(backend="sim", names=(), jobs=None, arch="native", say=None):
    """A Fate for every mutant, or for those whose names contain one of `names`."""
    jobs = jobs or os.cpu_count() or 1
    mutants = [m for m in load() if not names or any(n in m.name for n in names)]
    device = Device(backend, arch)
    kit.build_solutions(backend, arch)
    stems, fates = sorted({m.stem for m in mutants}), []

    def keep(fate):
        fates.append(fate)
        if say:
            say(fate)
    with unittest.mock.patch.dict(os.environ, SIM_DEVICES="2"), \
            concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        if backend == "sim":  # on the virtual clock nothing disturbs: all at once
            list(pool.map(device.measure_solution, stems))
            for fate in pool.map(lambda m: Fate(m, device.grade(m, device.build(m))), mutants):
                keep(fate)
        else:
            programs = dict(zip(mutants, pool.map(device.build, mutants)))
            with runner.alone(runner.devices_for(backend), *stems):
                for stem in stems:
                    device.measure_solution(stem)
                    for mutant in [m for m in mutants if m.stem == stem]:
                        keep(Fate(mutant, device.grade(mutant, programs[mutant])))
    return fates


def shares(fates):
    """(rejected, with the right message) of all that ran, the listed ones included."""
    ran = [f for f in fates if f.state != SKIPPED]
    return [sum(f.state in states for f in ran) / max(len(ran), 1) for states in ((RIGHT, REJECTED), (RIGHT,))]


def table(fates):
    """Lines: one a lab, and the total with the two percentages."""
    rows = ["lab                     mutants  rejected  right message  listed  slipped"]

    def row(title, some):
        listed = sum(bool(f.mutant.listed) for f in some)
        rejected = sum(f.state in (RIGHT, REJECTED) for f in some)
        right = sum(f.state == RIGHT for f in some)
        slipped = sum(f.state == SLIPPED and not f.mutant.listed for f in some)
        rows.append(f"{title:<23} {len(some):>7}  {rejected:>8}  {right:>13}  {listed:>6}  {slipped:>7}")
    ran = [f for f in fates if f.state != SKIPPED]
    for stem in sorted({f.mutant.stem for f in ran}):
        row(stem, [f for f in ran if f.mutant.stem == stem])
    row("all", ran)
    rows.append("{:.1%} rejected, {:.1%} with the right message, of all, the listed ones included".format(
        *shares(fates)))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="those whose names contain it")
    parser.add_argument("--backend", choices=["sim", "cuda"], default="sim")
    parser.add_argument("--arch", default="native", help="for nvcc")
    parser.add_argument("--jobs", type=int, help="programs built at once")
    parser.add_argument("-v", "--verbose", action="store_true", help="the rejected ones, too")
    options = parser.parse_args()

    def say(fate):
        if options.verbose or fate.state != RIGHT:
            print(fate.text(), flush=True)
    if options.backend == "cuda" and not (gpu.visible_devices()[0] and kit.NVCC):
        sys.exit(gpu.visible_devices()[1] or "no nvcc: install the CUDA Toolkit")
    try:
        there = [m.name for m in load()]
        strange = [name for name in options.names if not any(name in one for one in there)]
        if strange:
            sys.exit(f"no mutant's name contains {' or '.join(strange)}: tests/mutants/index.ini names them")
        fates = prove(options.backend, options.names, options.jobs, options.arch, say)
    except Stale as stale:
        sys.exit(str(stale))
    print("\n".join(table(fates)))
    return 1 if any(f.state == SLIPPED and not f.mutant.listed for f in fates) else 0


if __name__ == "__main__":
    sys.exit(main())
