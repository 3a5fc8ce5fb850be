# SPDX-License-Identifier: MIT
"""Formulas of the range files: arithmetic over the metrics of one run, and nothing else.

    sync_over_async = launch_sync / launch_async
    cpu_spin[10] / wall_spin[10]                 one point of a series
    interpolate(launch_wait, 2 * launch_null)    where a series first rises to a level
    slope(launch_wait, 1.5 * launch_null)        least squares, of the points at or above a level
    max_fall(launch_wait)                        largest drop below an earlier point, relative
    first(s) last(s) count(s) min(..) max(..) abs(..) median(..)

and over what really ran, where the run was traced:

    trace.launches("NullKernel")                 kernels of that name that ran, in the whole program
    trace.launches("diamond_graph/AddKernel")    in one visit to a region that the lab names
    trace.launches                               kernels of any name
    trace.waits                                  waits of a stream for another stream's event
    trace.device_syncs trace.stream_syncs        calls of cudaDeviceSynchronize, of cudaStreamSynchronize
    trace.event_syncs trace.sleeping_waits       of cudaEventSynchronize; on an event whose waiter sleeps
    trace.graph_launches                         calls of cudaGraphLaunch
    trace.waits("event_wait")                    all of these also in one visit to a region
    trace.span_us("pipelined")                   from the first start in a region to the last end
    trace.overlap_us("pipelined")                what its ops, one after the other, would take longer
    trace.overlap_us("pipelined/copy_in", "pipelined/kernel")    how long both kinds ran at a time

After a region's name and a slash stands a kernel's name or kernel, copy_in, copy_out, copy (any
of them) or memset. The figure is the median over the visits to the region, its interval their
extremes; of a region that was never visited it is 0.

Every figure carries the interval of its spread (quartiles, or the extremes of a few readings),
and arithmetic carries the interval along: that is how the grader tells "wrong" from "too noisy
to say". Python's parser reads the formula; a whitelist of nodes is walked, nothing is executed.
"""
import ast

# name -> fewest and most arguments; tracing.Trace has a method of each name.
OF_TRACE = {"launches": (0, 1), "waits": (0, 1), "device_syncs": (0, 1), "event_syncs": (0, 1),
            "stream_syncs": (0, 1), "sleeping_waits": (0, 1), "graph_launches": (0, 1), "span_us": (1, 1),
            "overlap_us": (1, 2)}
LONGEST = 500  # characters; also keeps the parse tree shallow
LARGEST = 1e15  # of the numbers in it, as of those that are printed


class FormulaError(Exception):
    """A mistake in the formula itself: the range file's author must mend it."""


class NoValue(Exception):
    """The formula is right, but a figure it needs is not there. `name` is the figure's name."""

    def __init__(self, name, text=None):
        super().__init__(text or f"{name} is not measured")
        self.name = name


class NotHere(NoValue):
    """What it needs is not known of this run, through no fault of the program."""


def interval(value, low=None, high=None):
    return (value, value if low is None else low, value if high is None else high)


def divide(a, b, text):
    if b[0] == 0:
        raise NoValue(None, f"{text} divides by zero")
    if b[1] <= 0 <= b[2]:  # the spread of the divisor reaches zero: nothing is known
        return (a[0] / b[0], float("-inf"), float("inf"))
    corners = [x / y for x in a[1:] for y in b[1:]]
    return (a[0] / b[0], min(corners), max(corners))


def multiply(a, b):
    corners = [x * y for x in a[1:] for y in b[1:]]
    return (a[0] * b[0], min(corners), max(corners))


def absolute(a):
    low = 0.0 if a[1] <= 0 <= a[2] else min(abs(a[1]), abs(a[2]))
    return (abs(a[0]), low, max(abs(a[1]), abs(a[2])))


def extreme(pick):
    return lambda *args: tuple(pick(a[k] for a in args) for k in range(3))


def middle(*args):
    def median(numbers):
        numbers = sorted(numbers)
        return (numbers[len(numbers) // 2] + numbers[(len(numbers) - 1) // 2]) / 2
    return tuple(median(a[k] for a in args) for k in range(3))


# Functions of a series, given as a list of (parameter, interval), and of plain numbers.

def slope(points, level=interval(float("-inf"))):
    kept = [(x, y) for x, y in points if y[0] >= level[0]]
    if len({x for x, _ in kept}) < 2:
        raise NoValue(None, "fewer than two points to draw a slope through")
    mx = sum(x for x, _ in kept) / len(kept)
    spread = sum((x - mx) ** 2 for x, _ in kept)
    if spread == 0:
        raise NoValue(None, "fewer than two points to draw a slope through")

    def through(left, right):  # which end of its spread a point counts with, on either side
        return sum((x - mx) * y[left if x < mx else right] for x, y in kept) / spread
    return (through(0, 0), through(2, 1), through(1, 2))


def crossing(points, level):
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if y0 < level <= y1:
            return x0 + (level - y0) / (y1 - y0) * (x1 - x0)
    return None


def interpolate(points, level):
    value, low, high = (crossing([(x, y[k]) for x, y in points], level[j])
                        for k, j in ((0, 0), (2, 1), (1, 2)))
    if value is None:
        raise NoValue(None, "the series never rises to the level")
    return (value, points[0][0] if low is None else min(low, value),
            float("inf") if high is None else max(high, value))


def max_fall(points):
    def largest(earlier, later):
        highest, fall = points[0][1][earlier], 0.0
        for _, y in points:
            if highest > 0:
                fall = max(fall, (highest - y[later]) / highest)
            highest = max(highest, y[earlier])
        return fall
    return (largest(0, 0), largest(1, 2), largest(2, 1))


OF_SERIES = {"slope": (slope, 1, 2), "interpolate": (interpolate, 2, 2),
             "max_fall": (max_fall, 1, 1), "count": (lambda s: interval(float(len(s))), 1, 1),
             "first": (lambda s: s[0][1], 1, 1), "last": (lambda s: s[-1][1], 1, 1)}
OF_NUMBERS = {"min": extreme(min), "max": extreme(max), "abs": absolute, "median": middle}


def asks_trace(node):
    target = node.func if isinstance(node, ast.Call) else node
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and (
        target.value.id == "trace")


class Formula:
    """A parsed formula. `names` is the set of metrics that it needs, `needs_trace` whether it
    asks what really ran."""

    def __init__(self, text):
        self.text, self.names, self.needs_trace = text, set(), False
        if len(text) > LONGEST:
            raise FormulaError(f"longer than {LONGEST} characters")
        try:
            self.tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise FormulaError(f"cannot be read: '{text[:60]}'") from None
        self._check(self.tree)

    def _check(self, node, depth=0):
        """Refuse whatever is not arithmetic, when the range file is loaded."""
        if depth > 50:
            raise FormulaError("nested too deeply")
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            if not abs(node.value) <= LARGEST:
                raise FormulaError("holds a number too large for any figure")
            return
        if asks_trace(node):
            self._check_trace(node)
        elif isinstance(node, ast.Name) and node.id != "trace":
            self.names.add(node.id)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            self._check(node.operand, depth + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            self._check(node.left, depth + 1)
            self._check(node.right, depth + 1)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(
                node.slice, ast.Constant) and type(node.slice.value) in (int, float):
            self.names.add(node.value.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            name = node.func.id
            if name in OF_SERIES:
                _, fewest, most = OF_SERIES[name]
                if not fewest <= len(node.args) <= most or not isinstance(node.args[0], ast.Name):
                    raise FormulaError(f"{name} takes a series and {most - 1} number(s)")
            elif name not in OF_NUMBERS or not node.args:
                raise FormulaError(f"no function '{name}'; there are: "
                                   + " ".join(sorted({**OF_SERIES, **OF_NUMBERS})))
            elif name == "abs" and len(node.args) != 1:
                raise FormulaError("abs takes one number")
            for arg in node.args:
                self._check(arg, depth + 1)
        else:
            raise FormulaError(f"'{ast.unparse(node)[:40]}' is not arithmetic over metrics")

    def _check_trace(self, node):
        """trace.name, or trace.name("text") with as many texts as it takes."""
        called = isinstance(node, ast.Call)
        name = (node.func if called else node).attr
        given = node.args if called else []
        if name not in OF_TRACE:
            raise FormulaError(f"trace has no '{name}'; there are: " + " ".join(sorted(OF_TRACE)))
        fewest, most = OF_TRACE[name]
        if not fewest <= len(given) <= most or called and (node.keywords or not given) or not all(
                isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value for a in given):
            raise FormulaError(f"trace.{name} takes {fewest} to {most} names in quotes")
        self.needs_trace = True

    def evaluate(self, values, series, trace=None):
        """(value, low, high). values: name -> interval; series: name -> {parameter: interval};
        trace: what ran, a tracing.Trace, or None.

        Raises NoValue, naming the figure that is missing, or NotHere.
        """
        return self._walk(self.tree, values, series, trace)

    def _walk(self, node, values, series, trace):
        def walk(child):
            return self._walk(child, values, series, trace)
        if isinstance(node, ast.Constant):
            return interval(float(node.value))
        if asks_trace(node):
            if trace is None:
                raise NotHere(None, "needs a trace of the run")
            called = isinstance(node, ast.Call)
            method = getattr(trace, (node.func if called else node).attr)
            return method(*(a.value for a in node.args) if called else ())
        if isinstance(node, ast.Name):
            if node.id in values:
                return values[node.id]
            raise NoValue(node.id, f"{node.id} is a series: name one of its points"
                          if node.id in series else None)
        if isinstance(node, ast.UnaryOp):
            value = walk(node.operand)
            return value if isinstance(node.op, ast.UAdd) else (-value[0], -value[2], -value[1])
        if isinstance(node, ast.BinOp):
            a, b = walk(node.left), walk(node.right)
            if isinstance(node.op, ast.Add):
                return (a[0] + b[0], a[1] + b[1], a[2] + b[2])
            if isinstance(node.op, ast.Sub):
                return (a[0] - b[0], a[1] - b[2], a[2] - b[1])
            if isinstance(node.op, ast.Mult):
                return multiply(a, b)
            return divide(a, b, self.text)
        if isinstance(node, ast.Subscript):
            points = series.get(node.value.id, {})
            if node.slice.value not in points:
                raise NoValue(node.value.id)
            return points[node.slice.value]
        if node.func.id in OF_NUMBERS:
            return OF_NUMBERS[node.func.id](*map(walk, node.args))
        name = node.args[0].id
        if not series.get(name):
            raise NoValue(name)
        function = OF_SERIES[node.func.id][0]
        return function(sorted(series[name].items()), *map(walk, node.args[1:]))
