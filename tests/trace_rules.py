# SPDX-License-Identifier: MIT
"""What Perfetto and chrome://tracing need of a trace-event file, as a list of what is wrong.

After the format's description (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)
and Perfetto's importer: slices of one row are nested or apart, no duration is negative, a flow
has one beginning and one end, the end is not before the beginning, and each lies on a slice.
"""
import json


def problems(data):
    """Every rule that the bytes of a JSON file break; at most one line a rule and event."""
    try:
        found = json.loads(data, parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError) as error:
        return [f"is no JSON: {error}"]
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        return ["is no object with a list traceEvents"]
    wrong, last, slices, flows, named = [], None, {}, {}, set()
    for place, e in enumerate(found["traceEvents"]):
        def bad(text):
            wrong.append(f"event {place} ({e.get('name')}): {text}")
        if not isinstance(e.get("name"), str) or e.get("ph") not in ("M", "X", "s", "f"):
            bad("has no name, or a phase that is not M, X, s or f")
            continue
        if e["ph"] == "M":
            if e["name"] == "thread_name":
                named.add((e["pid"], e["tid"]))
            continue
        if not all(isinstance(e.get(k), int) for k in ("pid", "tid")):
            bad("has no whole number as pid or tid")
            continue
        if not isinstance(e.get("ts"), (int, float)):
            bad("has no ts")
            continue
        if last is not None and e["ts"] < last:
            bad(f"ts {e['ts']} is before the one above")
        last = e["ts"]
        row = (e["pid"], e["tid"])
        if row not in named:
            bad("is on a row without a name")
        if e["ph"] == "X":
            if not isinstance(e.get("dur"), (int, float)) or e["dur"] < 0:
                bad("has no duration, or a negative one")
                continue
            slices.setdefault(row, []).append((e["ts"], e["ts"] + e["dur"], place))
        else:
            flows.setdefault(e["id"], []).append((e["ph"], e["ts"], row))
    for row, held in slices.items():
        open_until = []
        for start, end, place in held:
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            if open_until and end > open_until[-1] + 1e-6:
                wrong.append(f"event {place}: ends after the slice that it lies in, on row {row}")
            open_until.append(end)
    for identity, ends in flows.items():
        kinds = sorted(kind for kind, _, _ in ends)
        if kinds != ["f", "s"]:
            wrong.append(f"flow {identity}: has {kinds}")
            continue
        at = {kind: ts for kind, ts, _ in ends}
        if at["f"] < at["s"]:
            wrong.append(f"flow {identity}: ends before it begins")
        for kind, ts, row in ends:
            if not any(start - 1e-3 <= ts <= end + 1e-3 for start, end, _ in slices.get(row, ())):
                wrong.append(f"flow {identity}: its {kind} lies on no slice")
    return wrong
