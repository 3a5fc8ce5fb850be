#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutated input for whatever reads what others wrote: outputs, range files, formulas, traces.

    tests/fuzz.py [--cases 2000] [--seed 1] [--only outputs]

Seeds are the recorded outputs, those of unfinished labs, the range files, and traces. No input
may raise anything but the reader's own error, take more than a second of processor time, or earn
what it should not: a check that passes only with the mutation must have been given a figure whose own
line the mutation changed, and points never exceed the lab's. With one seed the cases are always the
same.
"""
import argparse
import json
import random
import re
import sys
import time
import warnings
from pathlib import Path

import kit

import formula
import output
import ranges
import tracing
import verdict
from graded import grade_data

SLOW = 1.0  # seconds that one case may take
TOKENS = [b"nan", b"inf", b"-inf", b"1e308", b"1e-308", b"-1", b"0", b"9" * 400, b"1e999", b"0x10", b"9" * 5000,
          b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"\x1b[31m", b"\x1b]", b" ", b"\t",
          b"measured ", b"derived ", b"observed ", b"unmeasured ", b"finished ", b"lab ", b"skipped ",
          b"backend simulated\n", b"device ", b"= ", b"[", b"]", b"(", b")", b"(" * 300, b"-" * 300,
          b"**", b"//", b"__import__('os')", b"lambda: 0", b"%(min)s", b"=", b"\xc2\xa0", b"\xd9\xa3",
          b"[DEFAULT]\n", b"points = 1e400\n", b"min = 1e400\n", b"max = nan\n", b"; ", b"#", b"{", b"}",
          b"\"", b"'", b"\\", b",", b":", b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"\x85", b"\x0c"]


def mutate(data, dice, others):
    """The bytes with one to four small changes."""
    data = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        kind, size = dice.randrange(11), len(data)
        at = dice.randrange(size + 1)
        lines = bytes(data).split(b"\n")
        one, two = dice.randrange(len(lines)), dice.randrange(len(lines))
        if kind == 0 and size:
            data[at % size] = dice.randrange(256)
        elif kind == 1:
            data[at:at] = dice.choice(TOKENS)
        elif kind == 2:
            del data[at:at + dice.choice((1, 1, 4, 40, 400))]
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del lines[one]
            data = bytearray(b"\n".join(lines))
        elif kind == 5:
            lines.insert(two, lines[one])
            data = bytearray(b"\n".join(lines))
        elif kind == 6:
            lines[one], lines[two] = lines[two], lines[one]
            data = bytearray(b"\n".join(lines))
        elif kind == 7:  # a number becomes another
            numbers = list(re.finditer(rb"[-+]?\d+(?:\.\d+)?", bytes(data)))
            if numbers:
                found = dice.choice(numbers)
                data[found.start():found.end()] = dice.choice(
                    (b"0", b"-1", b"1e9", b"1e-9", b"1e400", b"nan", b"7" * 30, found[0] * 2,
                     b"%d" % dice.randrange(-10, 10000)))
        elif kind == 8:
            other = dice.choice(others)
            begin = dice.randrange(len(other) + 1)
            data[at:at] = other[begin:begin + dice.choice((5, 50, 500))]
        elif kind == 9:  # a figure is printed again, and is another
            lines.insert(two, re.sub(rb" = \S+ (\S+).*", rb" = 7.000 \1", lines[one]))
            data = bytearray(b"\n".join(lines))
        else:
            data[at:at] = bytes(data[at:at + 50]) * dice.choice((1, 2, 100))
    return bytes(data)


class Failure(Exception):
    """What a case did that it should not; `data` made it."""

    def __init__(self, text, data):
        super().__init__(text)
        self.data = data


# ---- Outputs

def unfinished(data):
    """An output as the lab prints it before anything is written."""
    return re.sub(rb"(?m)^(?:measured|derived) (\S+) = \S+ (\S+).*$", rb"unmeasured \1 \2", data)


def wrong(data, dice):
    """An output whose figures are far off."""
    return re.sub(rb"(?m)^(measured|derived) (\S+) = \S+ (\S+).*$",
                  lambda m: b"%s %s = %.4f %s" % (m[1], m[2], 10 ** dice.uniform(-6, 6), m[3]), data)


class Base:
    """An output and its grade, for comparison with mutations of it."""

    def __init__(self, data):
        self.data = data
        self.output = output.parse(data, "base")
        self.read = {line: read_of(self.output, line) for line in data.decode().split("\n")
                     if output.VALUE.fullmatch(line) or output.OBSERVED.fullmatch(line)}
        self.passed = {v.check.name for v in grade(data).verdicts if v.state == verdict.PASS}


def grade(data, reference=None):
    return grade_data(data, "case.txt", ranges.HERE, reference=reference)


def given(out, check):
    """All of an output that a check can depend on."""
    names = check.names()
    return ([(n, vars(out.values[n]) if n in out.values else None, out.words.get(n),
              {at: vars(v) for at, v in out.series.get(n, {}).items()}) for n in sorted(names)],
            out.device_mhz, out.device_sms, out.seconds, out.backend, out.warnings)


def judge_output(base, data):
    graded = grade(data)
    if not 0 <= graded.earned <= graded.points_of:
        raise Failure(f"{graded.earned} of {graded.points_of} points", data)
    if graded.error:
        if graded.earned or graded.verdicts:
            raise Failure("an error and points", data)
        if "\n" in graded.error or not graded.error.startswith(("case.txt", str(ranges.HERE))):
            raise Failure(f"the error is no line with a place: {graded.error!r}", data)
        return
    out = graded.output
    if out.skipped is not None or out.stem != base.output.stem:
        return  # earns nothing, or is another lab's: then nothing can be compared
    try:
        here = set(output.decode(data, "case")[0].split("\n")[:-1])  # the last is cut off
    except output.OutputError as error:
        raise Failure(f"read although it cannot be decoded: {error}", data) from None
    for line, figure in base.read.items():  # an intact line counts as it stands
        if line in here and read_of(out, line) != figure:
            raise Failure(f"{line} is read as another although its line is intact", data)
    for v in graded.verdicts:
        gained = v.state == verdict.PASS and v.check.name not in base.passed
        if gained and given(out, v.check) == given(base.output, v.check):
            raise Failure(f"[{v.check.name}] passes with the same figures that it failed with", data)


def read_of(out, line):
    """What an output holds of the figure or word that this line prints."""
    found = output.VALUE.fullmatch(line)
    if not found:
        return out.words.get(output.OBSERVED.fullmatch(line)["name"])
    points = out.series.get(found["name"], {})
    value = points.get(float(found["at"])) if found["at"] else out.values.get(found["name"])
    return value and vars(value).copy()


def fuzz_outputs(cases, dice):
    bases = []
    for path in sorted((kit.KIT / "worksheets" / "recorded").glob("*/*.txt")):
        data = path.read_bytes()
        bases += [Base(data), Base(unfinished(data)), Base(wrong(data, dice))]
    others = [base.data for base in bases]
    for number in range(cases):
        base = bases[number % len(bases)]
        data = mutate(base.data, dice, others)
        if number % 50 == 0:
            data = data.decode("latin-1").encode("utf-16")
        yield lambda base=base, data=data: judge_output(base, data), data


# ---- Range files and formulas

def judge_ranges(stem, data, out, folder):
    (folder / f"{stem}.ini").write_bytes(data)
    ranges._load.cache_clear()  # two cases may come within one tick of the file's clock
    try:
        checks = ranges.load(stem, folder)
    except ranges.RangeError as error:
        if "\n" in str(error):
            raise Failure(f"the error is not one line: {error!r}", data) from None
        return
    if not checks or any(check.points < 1 or not check.why for check in checks):
        raise Failure("a check without points or reason was taken", data)
    for v in verdict.judge(out, checks, out):
        if not 0 <= v.earned <= v.check.points:
            raise Failure(f"[{v.check.name}] earns {v.earned} of {v.check.points}", data)


def fuzz_ranges(cases, dice, folder):
    texts = {stem: (ranges.HERE / f"{stem}.ini").read_bytes() for stem in kit.STEMS}
    outs = {stem: output.read(kit.RECORDED / f"{stem}.txt") for stem in kit.STEMS}
    for number in range(cases):
        stem = kit.STEMS[number % len(kit.STEMS)]
        text = texts[stem]
        if number % 2:  # one section alone, so that changes hit what is looked at
            sections = text.split(b"\n[")
            text = b"[" + dice.choice(sections[1:])
        data = mutate(text, dice, list(texts.values()))
        yield lambda s=stem, d=data: judge_ranges(s, d, outs[s], folder), data


ATOMS = ["a", "b", "zero", "s", "s[1]", "s[5]", "1", "0", "-2.5", "1e308", "1e-308", "9" * 350, "1j", "True",
         "'x'", "nothing", "None", "..."]
SHAPES = ["({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} / {1})", "-{0}", "min({0}, {1})", "max({0})",
          "abs({0})", "median({0}, {1}, {0})", "slope(s, {0})", "interpolate(s, {0})", "max_fall(s)",
          "first(s)", "last({0})", "count(s)", "{0} ** {1}", "{0} // {1}", "{0}[{1}]", "{0}({1})",
          "{0}.real", "[{0}]", "{0} if {1} else {0}", "{0} < {1}", "lambda: {0}"]


def expression(dice, depth=0):
    if depth > 5 or dice.random() < 0.3:
        return dice.choice(ATOMS)
    return dice.choice(SHAPES).format(expression(dice, depth + 1), expression(dice, depth + 1))


def judge_formula(text):
    values = {"a": (6.0, 5.0, 7.0), "b": (2.0, 1.0, 4.0), "zero": (0.0, -1.0, 1.0)}
    series = {"s": {1.0: (1.0, 0.5, 1.5), 2.0: (1.0, 1.0, 1.0), 3.0: (2.0, 0.0, 9.0), 5.0: (4.0, 3.0, 4.5)}}
    try:
        value, low, high = formula.Formula(text).evaluate(values, series)
    except (formula.FormulaError, formula.NoValue):
        return
    if value == value and not (low <= value <= high or low != low or high != high):
        raise Failure(f"{value} is not within {low} .. {high}", text)


def fuzz_formulas(cases, dice, _):
    for _ in range(cases):
        text = expression(dice)
        if dice.random() < 0.3:
            text = mutate(text.encode(), dice, [b"slope(s, a)"]).decode("utf-8", "replace")
        yield lambda t=text: judge_formula(t), text


# ---- Traces

def evidence(stem, out, trace):
    """{check: state} of the checks that ask what ran."""
    checks = [c for c in ranges.load(stem) if c.formula and c.formula.needs_trace]
    return {v.check.name: v.state for v in verdict.judge(out, checks, trace=trace)}


def held(trace):
    """All that a trace says, in a form that can be compared."""
    return json.dumps(tracing.to_json(trace), sort_keys=True)


class TraceBase:
    """A trace and what the checks of a lab make of it."""

    def __init__(self, data, stem, reader):
        self.data, self.stem, self.reader = data, stem, reader
        self.output = output.read(kit.RECORDED / f"{stem}.txt")
        trace = reader(data)
        self.held, self.evidence = held(trace), evidence(stem, self.output, trace)


def judge_trace(base, data):
    try:
        trace = base.reader(data)
    except tracing.TraceError as error:
        if "\n" in str(error):
            raise Failure(f"the error is not one line: {error!r}", data) from None
        return
    seen = evidence(base.stem, base.output, trace)
    same = held(trace) == base.held
    if same and seen != base.evidence:
        raise Failure(f"the same trace is judged otherwise: {seen}", data)
    again = tracing.read_json(json.dumps(tracing.to_json(trace)).encode())
    if evidence(base.stem, base.output, again) != seen:
        raise Failure("what it says changes when it is written and read again", data)


def fuzz_traces(cases, dice, _):
    """A log as it is written on hardware, the JSON that is made of it, and an H200's."""
    stem, log = "05_crossStreamWait", (kit.KIT / "tests" / "hardware_sample.log").read_bytes()
    bases = [TraceBase(log, stem, tracing.read_log),
             TraceBase(held(tracing.read_log(log)).encode(), stem, tracing.read_json),
             TraceBase((kit.RECORDED / f"{stem}.trace.json").read_bytes(), stem, tracing.read_json)]
    others = [base.data for base in bases[:2]] + [b"1e400", b"-1", b"null", b"[]", b"{}", b"true", b"\t\t", b"T\tcall\t"]
    for number in range(cases):
        base = bases[number % len(bases)]
        data = mutate(base.data, dice, others)
        yield lambda base=base, data=data: judge_trace(base, data), data


KINDS = {"outputs": lambda cases, dice, folder: fuzz_outputs(cases, dice), "ranges": fuzz_ranges,
         "formulas": fuzz_formulas, "traces": fuzz_traces}
SHARES = {"outputs": 0.5, "ranges": 0.2, "formulas": 0.2, "traces": 0.1}


def fuzz(kind, cases, seed, folder):
    """(cases run, list of what went wrong). Each entry says what, the case's number and input."""
    wrong_ones, done = [], 0
    for number, (case, data) in enumerate(KINDS[kind](cases, random.Random(f"{seed} {kind}"), folder)):
        begun = time.process_time()  # not by the wall: the processor may be shared
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                case()
        except Failure as failure:
            wrong_ones.append(f"{kind} {number}: {failure}\n{show(failure.data)}")
        except Exception as error:  # a crash is what this looks for
            wrong_ones.append(f"{kind} {number}: {type(error).__name__}: {error}\n{show(data)}")
        took = time.process_time() - begun
        if took > SLOW:
            wrong_ones.append(f"{kind} {number}: took {took:.1f} s\n{show(data)}")
        done += 1
    return done, wrong_ones


def show(data):
    return "    " + repr(data[:3000])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(KINDS))
    options = parser.parse_args()
    failed, begun = 0, time.monotonic()
    with kit.folder() as folder:
        for kind in [options.only] if options.only else KINDS:
            share = 1 if options.only else SHARES[kind]
            done, wrong_ones = fuzz(kind, int(options.cases * share), options.seed, Path(folder))
            for text in wrong_ones[:5]:
                print(text)
            failed += len(wrong_ones)
            print(f"{kind}: {done} cases, {len(wrong_ones)} wrong, {time.monotonic() - begun:.0f} s so far",
                  flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
