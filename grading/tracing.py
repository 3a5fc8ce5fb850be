# SPDX-License-Identifier: MIT
"""What a program really did: read a trace, draw its edges, answer the range files' questions.

A trace is written by the simulated device, or on hardware by the library of grading/trace/, in
one format (common/sim/trace_log.h), and kept as Chrome's trace-event JSON, which Perfetto and
chrome://tracing open: a row a stream, the host's calls on a row of their own, an arrow from an
event's record to the wait that it releases.

Records and waits have no length that a GPU reports. So they are placed by what is known: a
record where the work before it in its stream has ended, a wait from where its stream got to it
until the record that it waits for.
"""
import json
import os
import re
import statistics
import tempfile
from pathlib import Path

import runner
from formula import NotHere

MAX_BYTES = 64 << 20     # a log has 16 MB at most, and its JSON two to three times that
LARGEST = 1e15           # microseconds
KINDS = ("kernel", "copy_in", "copy_out", "copy", "memset", "host")
LIBRARY = runner.KIT / "build" / "trace" / "liblabtrace.so"


class TraceError(Exception):
    """A trace that cannot be read; the text says file, place and what is wrong."""


class NoEvidence(NotHere):
    """The trace has no answer to the question, through no fault of the program."""

    def __init__(self, text):
        super().__init__(None, text)


class Visit:
    """One pass through a region of interest of the lab."""

    def __init__(self, region, start):
        self.region, self.start, self.end = region, start, start


class Op:
    """Something that a GPU ran. Times in microseconds; `call` is the call that it comes from."""

    def __init__(self, visit, call, kind, name, device, start, end, size, stream=0):
        self.visit, self.call, self.kind, self.name = visit, call, kind, name
        self.device, self.start, self.end, self.bytes = device, start, end, size
        self.stream = stream


class Call:
    """A call of the host. Streams and events are numbers, None where there is none; `record`
    is the number of the record made or waited for, in stream `source`, or 0."""

    def __init__(self, visit, call, name, start, end, result, stream, event, record, source,
                 flags, times=1):
        self.visit, self.call, self.name, self.start, self.end = visit, call, name, start, end
        self.result, self.stream, self.event, self.record = result, stream, event, record
        self.source, self.flags, self.times = source, flags, times


class Edge:
    """A wait and the record that releases it, with the ops before and behind, or None."""

    def __init__(self, record, wait, before, behind):
        self.record, self.wait, self.before, self.behind = record, wait, before, behind


class Placed:
    """One visit, laid out: marks are (call, stream, start, end) of records and waits."""

    def __init__(self):
        self.marks, self.edges = [], []


class Trace:
    def __init__(self, backend="", lab="", device=""):
        self.backend, self.lab, self.device = backend, lab, device
        self.visits, self.ops, self.calls = [], [], []
        self.totals = {}      # (group, name) -> (count, microseconds)
        self.truncated = {}   # region -> lines left out, since it held too many
        self.lost = 0         # records that the tracer itself could not keep
        self.complete = False  # whether the program came to its end
        self.warnings = []    # what the traced run printed of them

    # ---- What the range files ask ------------------------------------------------------

    def _total(self, group, name):
        self._whole()
        return self.totals.get((group, name), (0, 0.0))[0]

    def _whole(self):
        if self.lost:
            raise NoEvidence(f"the tracer lost {self.lost} records")

    def _visits(self, region):
        self._whole()
        if region in self.truncated:
            raise NoEvidence(f"'{region}' holds more than the tracer keeps")
        return [i for i, visit in enumerate(self.visits) if visit.region == region]

    def _spread(self, region, one):
        """(median, least, greatest) of one(visit's number) over a region's visits; a region
        that the program never came to holds nothing."""
        values = [float(one(i)) for i in self._visits(region)] or [0.0]
        return statistics.median(values), min(values), max(values)

    def _count_calls(self, name, region, fits=lambda call: True):
        return self._spread(region, lambda i: sum(
            call.times for call in self.calls
            if call.visit == i and call.name == name and fits(call)))

    def selected(self, visit, what):
        """The ops of one visit that `what` names: a kind, a kernel's name, or nothing for all."""
        return [op for op in self.ops if op.visit == visit and (
            not what or op.kind == what or op.name == what
            or what == "copy" and op.kind.startswith("copy"))]

    def launches(self, which="kernel"):
        region, what = split(which)
        if region:
            return self._spread(region, lambda i: sum(
                op.kind == "kernel" for op in self.selected(i, what)))
        self._whole()
        return plain(sum(count for (group, name), (count, _) in self.totals.items()
                         if group == "ran" and name not in KINDS and what in ("kernel", name)))

    def waits(self, region=None):
        if region is None:
            return plain(self._total("fact", "waits"))
        return self._count_calls("cudaStreamWaitEvent", region, crosses)

    def sleeping_waits(self, region=None):
        if region is None:
            return plain(self._total("fact", "sleeping_waits"))
        return self._count_calls("cudaEventSynchronize", region, lambda c: "b" in c.flags)

    def event_syncs(self, region=None):
        return self._calls_of("cudaEventSynchronize", region)

    def stream_syncs(self, region=None):
        return self._calls_of("cudaStreamSynchronize", region)

    def device_syncs(self, region=None):
        return self._calls_of("cudaDeviceSynchronize", region)

    def graph_launches(self, region=None):
        return self._calls_of("cudaGraphLaunch", region)

    def _calls_of(self, name, region):
        if region is None:
            return plain(self._total("call", name))
        return self._count_calls(name, region)

    def span_us(self, which):
        region, what = split(which, "")
        return self._spread(region, lambda i: span(self.selected(i, what)))

    def overlap_us(self, which, other=None):
        region, what = split(which, "")
        if other is None:
            return self._spread(region, lambda i: saved(self.selected(i, what)))
        another, with_what = split(other, "")
        if another != region:
            raise NoEvidence(f"'{which}' and '{other}' are of two regions")
        return self._spread(region, lambda i: together(self.selected(i, what),
                                                       self.selected(i, with_what)))

    # ---- Rows and edges ----------------------------------------------------------------

    def representative(self, region):
        """The number of the visit whose length is the median of its region's; None: no visit."""
        found = [i for i, visit in enumerate(self.visits) if visit.region == region]
        length = {i: span([op for op in self.ops if op.visit == i]) for i in found}
        found.sort(key=lambda i: (length[i], i))
        return found[(len(found) - 1) // 2] if found else None

    def place(self, visit):
        """Where the records and waits of a visit stand in their streams, and its edges."""
        placed, free, at, last, records = Placed(), {}, {}, {}, {}
        ops = {}
        for op in sorted((op for op in self.ops if op.visit == visit), key=lambda op: op.start):
            ops.setdefault(op.call, []).append(op)
        calls = [c for c in self.calls if c.visit == visit and c.stream is not None
                 and "c" not in c.flags]
        coming = {}  # stream -> its ops, in the order of their calls
        for number in sorted(ops):
            for op in ops[number]:
                coming.setdefault(op.stream, []).append(op)
        for number, call in sorted([(c.call, c) for c in calls], key=lambda pair: pair[0]) + [
                (float("inf"), None)]:
            for done in sorted(n for n in ops if n < number or call is None):
                for op in ops.pop(done):
                    free[op.stream] = max(free.get(op.stream, op.end), op.end)
                    last[op.stream] = op
            if call is None:
                break
            stream = call.stream
            begin = max(free.get(stream, call.start), call.start)
            behind = next((op for op in coming.get(stream, ()) if op.call > number), None)
            limit = max(begin, behind.start) if behind else float("inf")
            if call.name == "cudaEventRecord" and call.record:
                at[call.record], records[call.record] = begin, (call, last.get(stream))
                placed.marks.append((call, stream, begin, begin))
            elif call.name == "cudaStreamWaitEvent" and crosses(call) and call.record in at:
                end = min(max(begin, at[call.record]), limit)
                placed.marks.append((call, stream, begin, end))
                free[stream] = end
                record, before = records[call.record]
                placed.edges.append(Edge(record, call, before, behind))
        return placed

    def rows(self, visit):
        """The streams that a visit used, as (device, stream), in order."""
        used = {(op.device, op.stream) for op in self.ops if op.visit == visit}
        used |= {(self.device_of(stream), stream) for _, stream, _, _ in self.place(visit).marks}
        return sorted(used)

    def device_of(self, stream):
        """The device of a stream: that of its ops; the first, if it never ran any."""
        return min((op.device for op in self.ops if op.stream == stream), default=0)

    def row_name(self, device, stream):
        name = f"stream {stream}" if stream else "default stream"
        several = len({op.device for op in self.ops}) > 1
        return f"GPU {device} {name}" if several else name

    def shape(self, region):
        """The rows and edges of a region as text: the same on every device that runs the
        program. Ops are named with their place among those of the same name in the visit."""
        visit = self.representative(region)
        if visit is None:
            return []
        names, seen = {}, {}
        for op in sorted((op for op in self.ops if op.visit == visit),
                         key=lambda op: (op.call, op.name)):
            seen[op.name] = seen.get(op.name, 0) + 1
            names[op] = f"{op.name} {seen[op.name]}"
        lines = []
        for device, stream in self.rows(visit):
            count = {}
            for op in names:
                if (op.device, op.stream) == (device, stream):
                    count[op.name] = count.get(op.name, 0) + 1
            held = ", ".join(f"{n} {name}" for name, n in sorted(count.items()))
            lines.append(f"row {self.row_name(device, stream)}: {held or 'no work'}")
        for edge in self.place(visit).edges:
            lines.append(f"edge {names.get(edge.before, 'nothing')} -> "
                         f"{names.get(edge.behind, 'nothing')}")
        return lines


def plain(value):
    return (float(value),) * 3


def split(which, default=None):
    """'region/what' in two. Without a region: ('', which), or the region alone if there is a
    default for what."""
    if "/" in which:
        return tuple(which.split("/", 1))
    return ("", which) if default is None else (which, default)


def crosses(call):
    """Whether a wait is for a record of another stream: one for its own orders nothing new."""
    return bool(call.record) and call.source != call.stream and "c" not in call.flags


def span(ops):
    return max(op.end for op in ops) - min(op.start for op in ops) if ops else 0.0


def union(ops):
    """The stretches of time in which at least one of the ops ran."""
    stretches = []
    for start, end in sorted((op.start, op.end) for op in ops):
        if stretches and start <= stretches[-1][1]:
            stretches[-1][1] = max(stretches[-1][1], end)
        else:
            stretches.append([start, end])
    return stretches


def saved(ops):
    """By how much the ops would have taken longer one after the other."""
    return sum(op.end - op.start for op in ops) - sum(end - start for start, end in union(ops))


def together(ops, others):
    """For how long both one of the first and one of the others ran."""
    total, left, right = 0.0, union(ops), union(others)
    i = k = 0
    while i < len(left) and k < len(right):
        total += max(0.0, min(left[i][1], right[k][1]) - max(left[i][0], right[k][0]))
        if left[i][1] < right[k][1]:
            i += 1
        else:
            k += 1
    return total


# ---- Reading the log -------------------------------------------------------------------

def number(text, at, kind=float):
    try:
        value = kind(text)
        if not -LARGEST < value < LARGEST:
            raise ValueError
    except (ValueError, OverflowError, TypeError):
        raise TraceError(f"{at}: '{str(text)[:20]}' is no number that fits") from None
    return value


def whole(text, at, least=0):
    value = number(text, at, int)
    if value < least:
        raise TraceError(f"{at}: {value} where nothing below {least} can be")
    return value


def known(text, at):
    value = number(text, at, int)
    return value if value >= 0 else None


def read_log(data, where="trace"):
    """The Trace in the bytes of a log. A log that breaks off is read up to there."""
    data = data[:MAX_BYTES].split(b"\0", 1)[0]  # beyond it nothing was written
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].decode("utf-8", errors="replace").split("\n")
    head = lines[0].split(" ")
    if head[:2] != ["labtrace", "1"] or head[2:] not in (["hardware"], ["simulated"]):
        raise TraceError(f"{where}:1: is no trace: it begins with '{lines[0][:30]}'")
    trace, visits = Trace(backend=head[2]), {}
    for place, line in enumerate(lines[1:], 2):
        if line:
            log_line(trace, visits, line.split("\t"), f"{where}:{place}")
    submitted = {call.call: call.stream for call in trace.calls}
    for op in trace.ops:
        op.stream = submitted.get(op.call) or 0
    return trace


def log_line(trace, visits, field, at):
    def wants(count):
        if len(field) != count:
            raise TraceError(f"{at}: has {len(field)} fields, not {count}")

    def visit_of(text):
        if text not in visits:
            raise TraceError(f"{at}: visit {text[:20]} has not begun")
        return visits[text]

    if field[0] == "T":
        wants(5)
        trace.totals[field[1], field[2]] = (whole(field[3], at), number(field[4], at) / 1e3)
    elif field[0] == "B":
        wants(4)
        if field[1] in visits:
            raise TraceError(f"{at}: visit {field[1][:20]} begins a second time")
        visits[field[1]] = len(trace.visits)
        trace.visits.append(Visit(field[2], number(field[3], at)))
    elif field[0] == "E":
        wants(3)
        visit = trace.visits[visit_of(field[1])]
        visit.end = max(visit.start, number(field[2], at))
    elif field[0] == "C":
        wants(12)
        times = re.fullmatch(r"x(\d+)", field[11])
        start = number(field[4], at)
        trace.calls.append(Call(
            visit_of(field[1]), whole(field[2], at), field[3], start,
            max(start, number(field[5], at)), whole(field[6], at), known(field[7], at),
            known(field[8], at), whole(field[9], at), known(field[10], at),
            "" if times or field[11] == "-" else field[11], whole(times[1], at, 1) if times else 1))
    elif field[0] == "A":
        wants(9)
        if field[3] not in KINDS:
            raise TraceError(f"{at}: '{field[3][:20]}' is no kind of op")
        start = number(field[6], at)
        trace.ops.append(Op(visit_of(field[1]), whole(field[2], at), field[3], field[4],
                            whole(field[5], at), start, max(start, number(field[7], at)),
                            whole(field[8], at)))
    elif field[0] == "D":
        wants(3)
        trace.truncated[field[1]] = whole(field[2], at)
    elif field[0] == "Z":
        wants(2)
        trace.complete, trace.lost = True, whole(field[1], at)
    else:
        raise TraceError(f"{at}: cannot be read: '{field[0][:20]}'")


# ---- Chrome's trace-event JSON ---------------------------------------------------------

REGIONS, HOST = 0, 1  # rows; the streams follow


def to_json(trace):
    """The trace as an object that json can write, with its events in the order of time."""
    streams = sorted({(op.device, op.stream) for op in trace.ops}
                     | {(trace.device_of(c.stream), c.stream) for c in trace.calls
                        if c.stream is not None})
    row = {stream: HOST + 1 + 100 * i for i, stream in enumerate(streams)}
    names, events, lanes = {}, [], {}

    def slot(base, name, start, end):
        """The row of a slice. What overlaps another of its row, as nodes of a graph do, goes
        to a further row of the same name."""
        ends = lanes.setdefault(base, [])
        lane = next((i for i, until in enumerate(ends) if until <= start), len(ends))
        ends[lane:lane + 1] = [end]
        names[base + lane] = name if not lane else f"{name}, beside"
        return base + lane

    def slice_of(base, row_name, category, name, start, end, **arguments):
        tid = slot(base, row_name, start, end)
        events.append({"ph": "X", "pid": 1, "tid": tid, "ts": round(start, 3), "cat": category,
                       "dur": max(0.0, round(round(end, 3) - round(start, 3), 3)), "name": name,
                       "args": arguments})
        return tid

    pending = []
    for i, visit in enumerate(trace.visits):
        pending.append((visit.start, visit.end, REGIONS, "regions", "region", visit.region,
                        {"visit": i}))
    for c in trace.calls:
        pending.append((c.start, c.end, HOST, "host", "call", c.name, {
            "visit": c.visit, "call": c.call, "result": c.result, "stream": c.stream,
            "event": c.event, "record": c.record, "from": c.source, "flags": c.flags,
            "times": c.times}))
    for op in trace.ops:
        key = (op.device, op.stream)
        pending.append((op.start, op.end, row[key], trace.row_name(*key), op.kind, op.name, {
            "visit": op.visit, "call": op.call, "device": op.device, "stream": op.stream,
            "bytes": op.bytes}))
    edges, marks = [], {}
    for i in range(len(trace.visits)):
        placed = trace.place(i)
        edges += placed.edges
        for call, stream, start, end in placed.marks:
            key, what = (trace.device_of(stream), stream), "wait for" if (
                call.name == "cudaStreamWaitEvent") else "record"
            pending.append((start, end, row[key], trace.row_name(*key), "placed",
                            f"{what} event {call.event}", {"visit": i, "call": call.call}))
    for start, end, base, row_name, category, name, arguments in sorted(
            pending, key=lambda p: (p[0], p[1])):
        tid = slice_of(base, row_name, category, name, start, end, **arguments)
        if category == "placed":
            marks[arguments["call"]] = (tid, round(start, 3), round(end, 3))
    for identity, edge in enumerate(edges, 1):
        tid, _, at = marks[edge.record.call]
        to, _, until = marks[edge.wait.call]
        common = {"pid": 1, "cat": "edge", "name": f"event {edge.wait.event}", "id": identity}
        events.append({"ph": "s", "tid": tid, "ts": at, **common})
        events.append({"ph": "f", "bp": "e", "tid": to, "ts": max(at, until), **common})
    rank = {"X": 0, "s": 1, "f": 2}
    events.sort(key=lambda e: (e["ts"], rank[e["ph"]], -e.get("dur", 0.0)))
    title = f"{trace.lab or 'program'} on {trace.device or 'a ' + trace.backend + ' device'}"
    meta = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}}]
    for tid in sorted(names):
        meta.append({"ph": "M", "pid": 1, "tid": tid, "name": "thread_name",
                     "args": {"name": names[tid]}})
        meta.append({"ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index",
                     "args": {"sort_index": tid}})
    return {"traceEvents": meta + events, "displayTimeUnit": "ms", "otherData": {
        "format": "labtrace 1", "lab": trace.lab, "backend": trace.backend,
        "device": trace.device, "complete": trace.complete, "lost": trace.lost,
        "truncated": trace.truncated,
        "totals": [[group, name, count, round(us, 3)]
                   for (group, name), (count, us) in sorted(trace.totals.items())]}}


def write_json(trace, path):
    text = json.dumps(to_json(trace), separators=(",", ":"))
    runner.save(Path(path), text.replace('{"ph"', '\n{"ph"').encode() + b"\n")


def read_json(data, where="trace"):
    """The Trace in the bytes of a JSON file that to_json made. Raises TraceError."""
    if len(data) > MAX_BYTES:
        raise TraceError(f"{where}: is larger than any trace of a lab")
    try:
        found = json.loads(data.decode("utf-8"))
        other, events = found["otherData"], found["traceEvents"]
        if other["format"] != "labtrace 1" or other["backend"] not in ("hardware", "simulated"):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TraceError(f"{where}: is no trace that this kit has written") from None
    trace = Trace(other["backend"], str(other.get("lab")), str(other.get("device")))
    try:
        trace.complete = other["complete"] is True
        trace.lost = number(other["lost"], where, int)
        trace.truncated = {str(k): number(v, where, int) for k, v in other["truncated"].items()}
        for group, name, count, us in other["totals"]:
            trace.totals[str(group), str(name)] = (number(count, where, int), number(us, where))
        regions = [e for e in events if e["ph"] == "X" and e["cat"] == "region"]
        for e in sorted(regions, key=lambda e: number(e["args"]["visit"], where, int)):
            if e["args"]["visit"] != len(trace.visits):
                raise TraceError(f"{where}: visit {len(trace.visits)} is missing")
            visit = Visit(str(e["name"]), number(e["ts"], where))
            visit.end = visit.start + number(e["dur"], where)
            trace.visits.append(visit)
        for e in events:
            if e["ph"] != "X" or e["cat"] in ("region", "placed"):
                continue
            _event(trace, e, where)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        raise TraceError(f"{where}: an event lacks what this kit writes") from None
    return trace


def _event(trace, e, where):
    a = e["args"]

    def of(key, least=0, none=False):
        return None if none and a[key] is None else whole(a[key], f"{where}: {key} of an event", least)
    start, length, visit = number(e["ts"], where), number(e["dur"], where), of("visit")
    if length < 0 or visit >= len(trace.visits):
        raise TraceError(f"{where}: an event of negative length, or of no visit")
    if e["cat"] == "call":
        trace.calls.append(Call(
            visit, of("call"), str(e["name"]), start, start + length, of("result"),
            of("stream", none=True), of("event", none=True), of("record"),
            of("from", none=True), str(a["flags"]), of("times", 1)))
    elif e["cat"] in KINDS:
        trace.ops.append(Op(visit, of("call"), e["cat"], str(e["name"]), of("device"),
                            start, start + length, of("bytes"), of("stream")))
    else:
        raise TraceError(f"{where}: '{str(e['cat'])[:20]}' is no kind of event")


# ---- Taking one ------------------------------------------------------------------------

def unavailable(backend):
    """Why no trace can be taken; empty if one can."""
    if backend != "sim" and not LIBRARY.exists():
        return ("the tracer is not built: it needs cupti.h of the CUDA Toolkit (make trace says "
                "what is missing)")
    return ""


def environment(backend, log):
    """What a program's environment must hold for it to write its log."""
    parent = {"LAB_TRACE_PARENT": str(os.getpid())}  # its own children leave no log
    if backend == "sim":
        return {"SIM_TRACE": str(log), **parent}
    return {"LAB_TRACE": str(log), "CUDA_INJECTION64_PATH": str(LIBRARY), **parent}


def capture(program, backend):
    """Run a program and trace it: (Run, Trace or None, why there is none)."""
    with tempfile.TemporaryDirectory(prefix="labs-trace.") as folder:
        log = Path(folder) / "log"
        run = runner.run_lab(program, more_environment=environment(backend, log))
        try:
            with open(log, "rb") as file:
                data = file.read(MAX_BYTES)
        except OSError:
            said = re.search(r"^no trace: .*", run.err.decode(errors="replace"), re.MULTILINE)
            return run, None, said[0] if said else "the program left no trace"
        try:
            trace = read_log(data)
        except TraceError as error:
            return run, None, str(error)
    describe(trace, run.out)
    return run, trace, ""


def describe(trace, out):
    """The lab, the device and the warnings, by what the program printed."""
    text = out.decode(errors="replace")
    lab = re.search(r"^lab (\d\d \w+)", text, re.MULTILINE)
    device = re.search(r"^device ([^,\n]+)", text, re.MULTILINE)
    trace.lab, trace.device = lab[1] if lab else "", device[1] if device else ""
    trace.warnings = re.findall(r"^warning (.*)", text, re.MULTILINE)


def kept_at(folder, backend, stem):
    return runner.results_of(folder, backend) / f"{stem}.trace.json"


def size_text(path):
    return f"{os.path.getsize(path) / 1e6:.1f} MB"
