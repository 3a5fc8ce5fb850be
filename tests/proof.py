#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The proof of the grader, as one table: make proof. grading/proof.md explains it.

    tests/proof.py [--cases 100000]     some ten minutes on two cores; needs no GPU

Exit 0 if every promise is kept.
"""
import argparse
import os
import sys
import textwrap
import time
import unittest
from pathlib import Path

import kit

import faults
import fuzz
import honest
import mutants
import test_sources

begun = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - begun:4.0f} s] {text}", file=sys.stderr, flush=True)


class Rows:
    """The lines of the table, 80 columns wide, and whether all that they promise is kept."""

    def __init__(self):
        self.lines, self.good = [], True

    def add(self, what, figures, good):
        self.good &= bool(good)
        self._wrapped(f"{'kept ' if good else 'NOT KEPT '} {what}: {figures}", "")

    def under(self, lines):
        for line in lines:
            self._wrapped(line, "  ")

    def _wrapped(self, text, indent):
        self.lines += textwrap.wrap(text, 80, initial_indent=indent, subsequent_indent=indent + "  ",
                                    break_on_hyphens=False)


def mutant_rows(rows):
    fates = mutants.prove("sim")
    for what, share, promised in zip(("rejected", "with the right message"), mutants.shares(fates), mutants.PROMISED):
        rows.add(f"mutants {what}", f"{share:.1%} of {len(fates)}, listed ones included (promised: {promised:.0%})",
                 share >= promised)
    rows.under(mutants.table(fates)[:-1])
    for fate in fates:
        if fate.state != mutants.RIGHT:
            rows.under([f"{'listed' if fate.mutant.listed else fate.state}: {fate.mutant.name}: {fate.mutant.mistake}"]
                       + ([f"  {fate.mutant.listed}"] if fate.mutant.listed else []))


def honest_rows(rows):
    kit.build_solutions("sim")
    for tally in (honest.recorded(), honest.published(), *honest.devices(), honest.noise(100)):
        noisy = "noise" in tally.title
        rows.add(f"honest: {tally.title}", f"{tally.total(honest.FULL)} full marks, "
                 f"{tally.total(honest.INCONCLUSIVE)} inconclusive, {tally.total(honest.ACCUSED)} accused",
                 tally.total(honest.FULL) and not tally.total(honest.ACCUSED) and (
                     noisy or not tally.total(honest.INCONCLUSIVE)))


def fault_rows(rows):
    outcomes = faults.prove()
    wrong = [o for o in outcomes if o.wrong]
    rows.add("faults: each call failing once", f"{len(outcomes)} failures of "
             f"{len({(o.stem, o.call) for o in outcomes})} calls, {len(wrong)} wrong", outcomes and not wrong)
    rows.under(faults.table(outcomes))
    rows.under([f"{o.stem} {o.call}:{o.nth}: {o.wrong}" for o in wrong])


def fuzz_rows(rows, cases):
    with kit.folder() as folder:
        for kind, share in fuzz.SHARES.items():
            done, wrong = fuzz.fuzz(kind, int(cases * share), 1, Path(folder))
            rows.add(f"fuzz: {kind}", f"{done} cases, {len(wrong)} wrong", done == int(cases * share) and not wrong)
            rows.under(text.split("\n")[0] for text in wrong[:5])


def source_rows(rows):
    for test in unittest.defaultTestLoader.loadTestsFromModule(test_sources):
        for one in test:
            result = unittest.TestResult()
            unittest.TestSuite([one]).run(result)
            word = one.id().rsplit(".", 1)[1].replace("test_", "").replace("_", " ")
            kind = "sanitizers" if isinstance(one, test_sources.Sanitized) else "linters"
            bad = len(result.failures) + len(result.errors)
            rows.add(f"{kind}: {word}", result.skipped[0][1] if result.skipped else
                     f"{bad} wrong" if bad else "clean", not bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100000, help="of the fuzzing, in all")
    options = parser.parse_args()
    os.environ.pop("SIM_DEVICE_FILE", None)
    rows = Rows()
    for title, part in (("mutants", mutant_rows), ("honest machines", honest_rows),
                        ("failing calls", fault_rows),
                        ("fuzz", lambda r: fuzz_rows(r, options.cases)),
                        ("sanitizers and linters", source_rows)):
        say(title)
        part(rows)
    say("done")
    print("\n".join(rows.lines))
    print("all kept" if rows.good else "NOT all kept")
    return 0 if rows.good else 1


if __name__ == "__main__":
    sys.exit(main())
