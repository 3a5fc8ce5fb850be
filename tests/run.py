#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run every test: tests/test_*.py and tests/sim/test_*.py, or those whose names contain one of the arguments.

    tests/run.py [NAME...]

Closes with one line, `N passed, N failed, N skipped`; exit 1 if any failed.
"""
import signal
import sys
import time
import traceback
import unittest
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "grading"), str(HERE.parent / "solutions")]


class Progress(unittest.TestResult):
    """One line a test, as it ends: nothing is silent for long."""

    def __init__(self):
        super().__init__()
        self.passed, self.begun = 0, time.monotonic()  # a class may fail before its first test

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def say(self, test, word, detail=""):
        took = time.monotonic() - self.begun
        print(f"{word:<5} {test.id()}" + (f"  {took:.1f} s" if took > 0.5 else ""), flush=True)
        if detail:
            print("      " + detail.strip().replace("\n", "\n      "), flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.say(test, "ok")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, "FAIL", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, "FAIL", self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say(test, "skip", reason)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.say(subtest, "FAIL", "".join(traceback.format_exception(*err)[-2:]))


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


def main():
    warnings.simplefilter("error")
    # Under nohup, or in a shell's background, signals are ignored, and so by every program that a
    # test starts. A handler that does nothing is not handed down.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(one) == signal.SIG_IGN:
            signal.signal(one, lambda *_: None)
    loader = unittest.TestLoader()
    tests = [test for folder in (HERE, HERE / "sim")
             for test in flatten(loader.discover(str(folder), "test_*.py", str(folder)))]
    if sys.argv[1:]:
        print("".join(loader.errors), end="")  # else each is a test that fails
        tests = [t for t in tests if any(word in t.id() for word in sys.argv[1:])]
    result = Progress()
    unittest.TestSuite(tests).run(result)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main())
