# SPDX-License-Identifier: MIT
"""Load the checks of a lab from grading/ranges/NN_name.ini.

One section a check; its name is the metric checked, unless it has a formula:

    [sync_over_async]
    recompute = launch_sync / launch_async   the printed figure must equal this, within tolerance
    formula = ...         checked instead of a printed metric
    unit = x              the unit it must be printed in
    min = 1.2             either may be left out
    max = 60
    equals = yes          for an observed word, instead of min and max; several: yes | no
    tolerance = 0.02      of recompute, relative; this is the default
    reference_factor = 2  also within this factor of the solution's figure on the same machine;
                          alone it needs one, and is skipped where there is none
    rests_on = two_streams    another check, or several: a | b. While one is inconclusive this one
                          cannot fail: for what the lab takes from figures, as a word for their sort
    only = hardware       left out, with its points, on the simulated device, which has no such thing
    points = 3
    todo = 3              the TODO of the lab that this check is about
    why = ...             why the bounds are what they are: required, with numbers of machines
    if_low, if_high, if_wrong = ...   the probable mistake

In a formula device_mhz and device_sms come from the device line, process_wall is the whole
process's time in seconds, and process_cpu the processor time that it used, in seconds, too. A
check that needs what is not known of a run (process_cpu of a recorded output, trace without a
tracer) is skipped, with its points.
"""
import configparser
import functools
import math
import re
from pathlib import Path

from formula import Formula, FormulaError

HERE = Path(__file__).resolve().parent / "ranges"
KEYS = {"formula", "recompute", "unit", "min", "max", "equals", "tolerance", "reference_factor",
        "points", "todo", "rests_on", "only", "why", "if_low", "if_high", "if_wrong"}
GIVEN = {"device_mhz", "device_sms", "process_wall", "process_cpu"}


class RangeError(Exception):
    """A mistake in a range file; the text says file, line and what is wrong."""


class NoSuchLab(RangeError):
    """There is no range file of that name."""


class Check:
    """One section. Numbers are floats or None; formula and recompute are Formula or None."""

    def __init__(self, name):
        self.name = name
        self.formula = self.recompute = self.min = self.max = self.reference_factor = None
        self.todo = self.unit = None
        self.equals, self.rests_on, self.tolerance, self.points = [], [], 0.02, 0
        self.only = self.why = self.if_low = self.if_high = self.if_wrong = ""

    @property
    def only_compares(self):
        """Whether it has nothing but the solution's figure to hold its own against."""
        return bool(self.reference_factor) and self.min is self.max is self.recompute is None

    def names(self):
        """The metrics that this check needs."""
        names = set() if self.formula else {self.name}
        for formula in (self.formula, self.recompute):
            names |= formula.names if formula else set()
        return names - GIVEN


def load(stem, folder=HERE):
    """The checks of one lab, in the order of its range file. Raises RangeError."""
    path = Path(folder) / f"{stem}.ini"
    try:
        stamp = path.stat()
    except OSError:
        raise NoSuchLab(f"there is no such lab: no {path}") from None
    return list(_load(path, stamp.st_mtime_ns, stamp.st_size))


@functools.lru_cache(maxsize=100)  # a class has thousands of outputs of a dozen labs
def _load(path, _changed, _size):
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RangeError(f"{path}: cannot be read: {error}") from None
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=True,
                                       comment_prefixes=("#",), default_section="no defaults")
    parser.optionxform = str
    try:
        parser.read_string(text)
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or (error.errors[0][0] if getattr(
            error, "errors", None) else 0)
        what = str(error).splitlines()[0].split("]: ")[-1]
        raise RangeError(f"{path}:{line}: {what}") from None
    checks = [_check(parser[section], f"{path}:", text.splitlines()) for section in
              parser.sections()]
    if not checks:
        raise RangeError(f"{path}:1: holds no check")
    for check in checks:
        for name in set(check.rests_on) - {other.name for other in checks}:
            line = _line_of(text.splitlines(), check.name, "rests_on")
            raise RangeError(f"{path}:{line}: [{check.name}] rests_on = {name}: is no check of this "
                             "file")
    return checks


def _line_of(lines, section, key=None):
    """The line number of a section, or of a key in it: configparser does not keep them."""
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("["):
            inside = line.startswith(f"[{section}]")
            if inside and key is None:
                return number
        elif inside and key and re.match(rf"{re.escape(key)}\s*=", line):
            return number
    return 0


def _check(section, path, lines):
    check = Check(section.name)

    def fail(key, text):
        raise RangeError(f"{path}{_line_of(lines, section.name, key)}: [{section.name}] {text}")

    for key, text in section.items():
        text = " ".join(text.split())  # a value may go on in the next line, indented
        if key not in KEYS:
            fail(key, f"no key '{key}'; keys are: {' '.join(sorted(KEYS))}")
        if key in ("min", "max", "tolerance", "reference_factor", "points", "todo"):
            try:
                value = float(text)
                if not math.isfinite(value) or key in ("points", "todo") and (
                        value != int(value) or value < 0):
                    raise ValueError
            except ValueError:
                fail(key, f"{key} = {text}: is no number that fits")
            setattr(check, key, int(value) if key in ("points", "todo") else value)
        elif key in ("formula", "recompute"):
            try:
                setattr(check, key, Formula(text))
            except FormulaError as error:
                fail(key, f"{key}: {error}")
        elif key in ("equals", "rests_on"):
            setattr(check, key, [word.strip() for word in text.split("|")])
        else:
            setattr(check, key, text)
    if not check.points:
        fail(None, "has no points")
    if not check.why:
        fail(None, "has no why: say where its bounds come from")
    if not (check.equals or check.recompute) and (
            check.min is check.max is check.reference_factor is None):
        fail(None, "checks nothing: give min, max, equals, recompute or reference_factor")
    if check.min is not None and check.max is not None and check.min > check.max:
        fail("min", f"min {check.min:g} is above max {check.max:g}")
    if check.min is not None and not check.if_low:
        fail(None, "has a min but no if_low: say what mistake makes it too low")
    if check.max is not None and not check.if_high:
        fail(None, "has a max but no if_high: say what mistake makes it too high")
    if check.equals and not check.if_wrong:
        fail(None, "has equals but no if_wrong: say what mistake gives another word")
    if check.only not in ("", "hardware"):
        fail("only", f"only = {check.only}: can be hardware and nothing else")
    if check.reference_factor is not None and check.reference_factor <= 1:
        fail("reference_factor", "reference_factor must be above 1")
    return check
