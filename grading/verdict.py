# SPDX-License-Identifier: MIT
"""Judge one lab's output by its checks."""
import math

from formula import NoValue, NotHere

PASS, FAIL, UNMEASURED, INCONCLUSIVE = "pass", "FAIL", "unmeasured", "inconclusive"
SKIPPED = "skipped"  # counts neither way

# How common/device.h's warnings begin of what is not the program's own doing.
SPOILERS = ("another process is on this", "MPS is running")


class Verdict:
    """What became of one check: state, points earned, the figure as text, and a message."""

    def __init__(self, check, state, shown="", message=""):
        self.check, self.state, self.shown, self.message = check, state, shown, message
        self.earned = check.points if state == PASS else 0
        self.recomputed = False  # whether it fails by its own output's other figures
        self.compared = False    # whether it fails only beside the solution's figure
        self.points = check.points if state != SKIPPED else 0

    def as_dict(self):
        return {"check": self.check.name, "verdict": self.state, "value": self.shown,
                "range": range_text(self.check), "points": self.earned,
                "of": self.points, "todo": self.check.todo, "message": self.message,
                "why": self.check.why}


def range_text(check):
    if check.equals:
        return " | ".join(check.equals)
    if check.only_compares:
        return "as the solution"
    if check.min is None and check.max is None:
        return "recomputed"
    if check.min is None:
        return f"<= {check.max:g}"
    if check.max is None:
        return f">= {check.min:g}"
    return f"{check.min:g} .. {check.max:g}"


def number_text(value):
    size = abs(value)
    return f"{value:.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3}f}"


def environment(output, process_wall=None, process_cpu=None):
    """(values, series) of an output as formulas see them: every figure an interval."""
    values = {name: (v.value, v.low, v.high) for name, v in output.values.items()}
    series = {name: {at: (v.value, v.low, v.high) for at, v in points.items()}
              for name, points in output.series.items()}
    if output.backend == "simulated":
        # The virtual clock's own time counts, not how fast it was computed.
        process_wall = process_cpu = None
    for name, value in (("device_mhz", output.device_mhz), ("device_sms", output.device_sms),
                        ("process_wall", process_wall or output.seconds),
                        ("process_cpu", process_cpu)):
        if value is not None:
            values[name] = (value, value, value)
    return values, series


def judge(output, checks, reference=None, process_wall=None, process_cpu=None, trace=None):
    """One Verdict a check. `reference` is the solution's Output on the same machine, or None;
    `trace` what really ran, a tracing.Trace, or None."""
    here, there = environment(output, process_wall, process_cpu), None
    _spread_of_derived(checks, *here)
    if reference:
        there = environment(reference)
        _spread_of_derived(checks, *there)
    here = (*here, trace)
    todos = {check.name: check.todo for check in checks if check.todo}
    seen = {}
    for check in checks:
        one = _judge(check, output, here, there, todos)
        seen[check.name] = _excused(one, spoiled(
            output, reference if one.compared else None,
            trace if check.formula and check.formula.needs_trace else None))
    return [_resting(verdict, seen) for verdict in seen.values()]


def spoiled(*sources):
    """What was not the program's own doing in the runs that a verdict is from: the warning, or
    nothing. A source is an Output, a tracing.Trace, or None."""
    return next((text for source in sources if source for text in source.warnings
                 if text.startswith(SPOILERS)), "")


def _resting(seen, others):
    """What the lab has taken from a figure is as uncertain as the figure, if it could be taken
    at all."""
    noisy = [name for name in seen.check.rests_on
             if name in others and others[name].state == INCONCLUSIVE]
    if seen.state not in (FAIL, UNMEASURED) or not noisy:
        return seen
    return Verdict(seen.check, INCONCLUSIVE, seen.shown, f"rests on {noisy[0]}, of which nothing can "
                   f"be said; run again on a quiet machine. If it stays: {seen.message}")


def _excused(seen, why):
    """Nobody is blamed for a figure that another process may have spoiled; it earns nothing."""
    if seen.state != FAIL or not why or seen.recomputed:
        return seen
    return Verdict(seen.check, INCONCLUSIVE, seen.shown, f"too much was going on to say ({why}); "
                   f"run again when it is gone. If it stays: {seen.message}")


def _spread_of_derived(checks, values, series):
    """A derived figure is printed without a spread: give it that of what it is derived from."""
    for check in checks:
        if check.recompute and check.name in values:
            try:
                wanted, low, high = check.recompute.evaluate(values, series)
            except NoValue:
                continue
            value = values[check.name][0]
            if _agree(check, value, wanted):
                values[check.name] = (value, min(low, value), max(high, value))


def _agree(check, value, wanted):
    return abs(value - wanted) <= check.tolerance * abs(wanted) + 1e-9


def with_todo(check, text):
    """The message names the TODO that it is about."""
    if check.todo is None or f"TODO({check.todo})" in text:
        return text
    return f"{text} (TODO({check.todo}))" if text else f"TODO({check.todo})"


def not_measured(check, error, output, todos):
    """The missing figure's own TODO is the one to do first, if a check of its name has one."""
    name = error.name or check.name
    todo = todos.get(name, check.todo)
    if error.name is None:
        text = f"cannot be computed: {error}"
    elif name in output.unmeasured:
        text = f"{name} is not measured yet"
    else:
        text = f"{error}: has its line been removed or renamed?"
    return Verdict(check, UNMEASURED, "", f"{text}: see TODO({todo})" if todo else text)


def _judge(check, output, environ, reference, todos):
    if check.equals:
        return _judge_word(check, output, todos)
    values, series, trace = environ
    alone = Verdict(check, SKIPPED, "", "needs the solution's figures from the same machine")
    if check.only_compares and not reference:
        return alone
    try:
        figures = _figures(check, values, series, trace)
        wanted = check.recompute.evaluate(values, series) if check.recompute else None
    except NotHere as error:
        return Verdict(check, SKIPPED, "", str(error))
    except NoValue as error:
        if error.name == "process_cpu":
            return Verdict(check, SKIPPED, "", "needs the processor time of the process")
        return not_measured(check, _why_underived(check, error, values, series), output, todos)
    unit = _unit(check, output)
    worst = max(figures.values(), key=lambda figure: _outside(check, figure[0]))
    shown = f"{number_text(worst[0])} {unit}".rstrip()
    if not all(math.isfinite(figure[0]) for figure in figures.values()):
        return Verdict(check, FAIL, shown, with_todo(check, "is not a finite number"))
    if check.unit and unit and unit != check.unit:
        return Verdict(check, FAIL, shown,
                       with_todo(check, f"is printed in {unit} and should be in {check.unit}"))
    if wanted and not _agree(check, worst[0], wanted[0]):
        text = check.if_wrong or "is not what the measured figures give"
        seen = Verdict(check, FAIL, shown,
                       with_todo(check, f"{text}; recomputed: {number_text(wanted[0])}"))
        seen.recomputed = True
        return seen
    if _outside(check, worst[0]) > 0:
        low = check.min is not None and worst[0] < check.min
        within = (check.min is None or worst[2] >= check.min) and (
            check.max is None or worst[1] <= check.max)
        message = with_todo(check, check.if_low if low else check.if_high)
        if within and worst[1] < worst[2]:
            return Verdict(check, INCONCLUSIVE, shown, "the spread of the readings reaches into "
                           "the range: too noisy to say; run again on a quiet machine. If it "
                           f"stays: {message}")
        return Verdict(check, FAIL, shown, message)
    if check.reference_factor and reference:
        try:
            there = _figures(check, *reference)
        except NoValue:
            there = {}  # the solution has no such figure here: nothing to compare with
        shared = [at for at in figures if at in there]
        if check.only_compares and not shared:
            return alone
        for at in shared:
            far = _far_from_reference(check, figures[at], there[at], unit)
            if far:
                return far
    return Verdict(check, PASS, shown)


def _far_from_reference(check, mine, its, unit):
    """The verdict on a figure that is too far from the solution's; None if it is near."""
    def outside(a, b):  # by more than the factor, whichever is the larger; a sign must agree
        return a != b and (a * b <= 0 or max(a / b, b / a) > check.reference_factor)
    if not outside(mine[0], its[0]):
        return None
    shown = f"{number_text(mine[0])} {unit}".rstrip()
    ratio = f"{number_text(mine[0] / its[0])} times that" if its[0] else "that"
    text = f"the solution measures {number_text(its[0])} {unit} on this machine: {ratio} is not noise"
    hint = check.if_low if mine[0] < its[0] else check.if_high
    message = with_todo(check, f"{text}. {hint}" if hint else text)
    nearest = (mine[1], its[2]) if mine[0] > its[0] else (mine[2], its[1])
    reaches = (nearest[0] - nearest[1]) * (mine[0] - its[0]) <= 0 or not outside(*nearest)
    if reaches and (mine[1] < mine[2] or its[1] < its[2]):
        return Verdict(check, INCONCLUSIVE, shown, "the spread of the readings reaches what the "
                       "solution measures: too noisy to say; run again on a quiet machine. If it "
                       f"stays: {message}")
    seen = Verdict(check, FAIL, shown, message)
    seen.compared = True
    return seen


def _why_underived(check, missing, values, series):
    """A derived figure that is missing since its own figures do not determine it: that is why."""
    if check.recompute and missing.name == check.name:
        try:
            check.recompute.evaluate(values, series)
        except NoValue as error:
            return missing if error.name else error
    return missing


def _judge_word(check, output, todos):
    word = output.words.get(check.name)
    if word is None:
        return not_measured(check, NoValue(check.name), output, todos)
    if word in check.equals:
        return Verdict(check, PASS, word)
    wanted = " or ".join(check.equals)
    return Verdict(check, FAIL, word, with_todo(check, f"{check.if_wrong}; expected {wanted}"))


def _figures(check, values, series, trace=None):
    """The intervals that the check's bounds apply to: parameter -> interval, for a lone one None."""
    if check.formula:
        return {None: check.formula.evaluate(values, series, trace)}
    if check.name in series:
        return series[check.name]
    if check.name in values:
        return {None: values[check.name]}
    raise NoValue(check.name)


def _unit(check, output):
    if check.formula:
        return check.unit or ""
    points = output.series.get(check.name)
    return (next(iter(points.values())) if points else output.values[check.name]).unit


def inside(check, value):
    """Whether a lone number is within a check's bounds."""
    return _outside(check, value) == 0.0


def _outside(check, value):
    """How far outside the bounds, 0 when inside; only for comparing one point with another."""
    if check.min is not None and value < check.min:
        return check.min - value
    if check.max is not None and value > check.max:
        return value - check.max
    return 0.0
