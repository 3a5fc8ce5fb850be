#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Show what really ran: a Gantt chart of a lab's regions of interest, a row a stream.

    timeline.py --dir labs --lab 08 [--backend sim] [--region pipelined]

Runs the lab, traced, and keeps results/BACKEND/DIR/NN_name.trace.json, which Perfetto
(ui.perfetto.dev) and chrome://tracing open, and NN_name.REGION.svg where gnuplot is installed.
Of the visits to a region the one of median length is shown. `make timeline` calls it. Exit 0 if
there is something to show, 1 if not, 2 for a mistake in the call, 77 if all were skipped.
"""
import argparse
import os
import re
import shutil
import sys

import plot
import runner
import tracing

WIDTH = 80
LABEL = 17
CHART = WIDTH - LABEL - 1
MOST = 45      # ops in a chart; of more the first are shown
MOST_EDGES = 12
HOST = "host"
SVG_COLOURS = {"kernel": "#4878a8", "copy_in": "#5a9e6f", "copy_out": "#c98a3d", "copy": "#8d8d4f",
               "memset": "#8d8d4f", "host": "#7d6aa8", "wait": "#cccccc", "call": "#999999",
               "holds": "#b05050"}
WAITING = {"cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamSynchronize"}


class Bar:
    """Something drawn: from start to end on a row, with the letter that fills it."""

    def __init__(self, row, start, end, letter, kind, name):
        self.row, self.start, self.end, self.letter = row, start, end, letter
        self.kind, self.name = kind, name


class Chart:
    """One visit, ready to be drawn."""

    def __init__(self, trace, visit):
        self.trace, self.visit = trace, visit
        ops = sorted((op for op in trace.ops if op.visit == visit), key=lambda op: (op.start, op.call))
        self.count, self.ops = len(ops), ops[:MOST]
        shown = {op.call for op in self.ops}
        last_call = max(shown, default=0) if len(ops) > MOST else float("inf")
        self.calls = [c for c in trace.calls if c.visit == visit and c.call <= last_call]
        placed = trace.place(visit)
        self.marks = [m for m in placed.marks if m[0].call <= last_call]
        self.edges = [e for e in placed.edges if e.wait.call <= last_call]
        self.rows = [(None, HOST)] + [(key, trace.row_name(*key)) for key in trace.rows(visit)]
        times = [op.start for op in self.ops] + [c.start for c in self.calls]
        ends = [op.end for op in self.ops] or [c.end for c in self.calls]
        self.start = min(times, default=0.0)
        self.end = max(ends, default=self.start)
        self.letters = letters_of(self.ops)
        self.bars = [bar for bar in self._bars() if bar.start <= self.end]

    def _bars(self):
        for call in self.calls:
            holds = call.name in WAITING or call.times > 1
            yield Bar(None, call.start, min(call.end, self.end), "~" if holds else ":",
                      "holds" if holds else "call", call.name)
        for call, stream, start, end in self.marks:
            if call.name == "cudaStreamWaitEvent":
                yield Bar((self.trace.device_of(stream), stream), start, min(end, self.end), ".",
                          "wait", f"wait for event {call.event}")
        for op in self.ops:
            yield Bar((op.device, op.stream), op.start, op.end, self.letters[op.name], op.kind,
                      op.name)


def letters_of(ops):
    """A letter for each name: of a copy i or o, of a kernel its first that is still free."""
    letters = {}
    for op in ops:
        if op.name in letters:
            continue
        wanted = {"copy_in": "i", "copy_out": "o", "memset": "m", "copy": "c"}.get(
            op.name, re.sub(r"[^A-Za-z]", "", op.name).upper() + "KABCDEFGHIJLMNOPQRSTUVWXYZ")
        letters[op.name] = next((c for c in wanted if c not in letters.values()), "#")
    return letters


def overlaps(ops):
    """The stretches of time in which two or more of the ops ran."""
    changes = sorted([(op.start, 1) for op in ops] + [(op.end, -1) for op in ops])
    running, found = 0, []
    for at, change in changes:
        if running == 1 and change == 1:
            begun = at
        if running == 2 and change == -1 and at > begun:
            found.append((begun, at))
        running += change
    return found


def time_text(us):
    if us >= 100_000:
        return f"{us / 1000:.0f} ms"
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} us"


def painted(bars, width, start, scale):
    """One row of characters. The last of what shares a cell, and never less than a cell."""
    cells = [" "] * width
    order = {"call": 0, "holds": 1, "wait": 2}
    for bar in sorted(bars, key=lambda b: (order.get(b.kind, 3), b.start)):
        first = min(max(int((bar.start - start) * scale), 0), width - 1)
        last = min(max(int((bar.end - start) * scale + 0.5) - 1, first), width - 1)
        for cell in range(first, last + 1):
            cells[cell] = bar.letter
        # Where one of a kind follows another at once, the eye needs the boundary.
        if first > 0 and bar.kind not in ("call", "wait", "holds") and cells[first - 1] == bar.letter:
            cells[first] = "|" if last > first else bar.letter
    return "".join(cells).rstrip()


def ruler(length):
    """A time axis: marks with round numbers."""
    step = 10 ** (len(str(max(1, int(length)))) - 1)
    for divisor in (5, 2, 1):
        if length / (step / divisor) <= 7 or divisor == 1:
            step = step / divisor
            break
    scale, line, at = CHART / length, [" "] * CHART, 0
    while at * step <= length:
        text = time_axis(at * step)
        place = int(at * step * scale)
        if place + len(text) < CHART and all(c == " " for c in line[max(0, place - 1):place + len(text) + 1]):
            line[place:place + len(text)] = text
        at += 1
    return "".join(line).rstrip()


def time_axis(us):
    return "0" if us == 0 else f"{us / 1000:g}ms" if us >= 1000 else f"{us:g}us"


def gantt(chart):
    """The chart as lines of at most 80 columns."""
    trace, length = chart.trace, chart.end - chart.start
    region = trace.visits[chart.visit].region
    visits = sum(visit.region == region for visit in trace.visits)
    lines = [f"{region}: {time_text(length)}, {chart.count} operation{'s' * (chart.count != 1)}"
             + (f" (visit {1 + sum(v.region == region for v in trace.visits[:chart.visit])} of "
                f"{visits})" if visits > 1 else "")]
    if chart.count > len(chart.ops):
        lines.append(f"  the first {len(chart.ops)} are shown; the JSON has all")
    if length <= 0:
        return lines + ["  nothing ran"]
    scale = CHART / length
    lines.append(" " * LABEL + ruler(length))
    for key, name in chart.rows:
        row = painted([b for b in chart.bars if b.row == key], CHART, chart.start, scale)
        lines.append(f"{name[:LABEL - 2]:<{LABEL - 2}}  {row}".rstrip())
    both = painted([Bar(None, a, b, "=", "kernel", "") for a, b in overlaps(chart.ops)
                    if (b - a) * scale >= 0.5], CHART, chart.start, scale).replace("|", "=")
    if both.strip():
        lines.append(f"{'at the same time':<{LABEL - 1}} {both}".rstrip())
    key = [f"{letter} {name}" for name, letter in chart.letters.items()]
    kinds = {bar.kind for bar in chart.bars}
    key += [". wait for an event"] * ("wait" in kinds) + [": call"] * ("call" in kinds)
    key += ["~ host waits"] * ("holds" in kinds)
    lines += wrapped(key, "  ")
    total = [op for op in trace.ops if op.visit == chart.visit]
    lines.append(f"  overlap {time_text(tracing.saved(total))}: by so much longer these would take "
                 "in turn")
    return lines + edge_lines(chart)


def wrapped(items, indent):
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 3 > WIDTH and line.strip():
            lines.append(line.rstrip(" ,"))
            line = indent
        line += item + ",  "
    return lines + [line.rstrip(" ,")]


def edge_lines(chart):
    def named(op):
        if op is None:
            return "nothing"
        before = sum(o.name == op.name and (o.call, o.start) < (op.call, op.start)
                     for o in chart.trace.ops if o.visit == chart.visit)
        several = sum(o.name == op.name for o in chart.ops) > 1
        return f"{op.name} {before + 1}" if several else op.name
    lines = []
    for edge in chart.edges[:MOST_EDGES]:
        lines.append(f"  event {edge.wait.event}: {named(edge.before)} -> {named(edge.behind)}, "
                     f"from stream {edge.record.stream} to {edge.wait.stream}")
    if len(chart.edges) > MOST_EDGES:
        lines.append(f"  and {len(chart.edges) - MOST_EDGES} more edges")
    return [line[:WIDTH] for line in lines]


def totals(trace):
    """What the whole program ran and called, since only regions are written down."""
    ran = sorted(((us, name, count) for (group, name), (count, us) in trace.totals.items()
                  if group == "ran"), reverse=True)
    lines = ["the whole program ran"] if ran else []
    for us, name, count in ran[:8]:
        lines.append(f"  {count:>9,} {name[:40]:<40} {time_text(us):>12}")
    calls = sorted(((count, name) for (group, name), (count, _) in trace.totals.items()
                    if group == "call"), reverse=True)
    return lines + wrapped([f"{count:,} {name}" for count, name in calls], "  calls: ")


def report(trace, regions):
    lines = [f"{trace.lab}  {trace.backend}: {trace.device}"[:WIDTH], ""]
    for region in regions:
        visit = trace.representative(region)
        lines += gantt(Chart(trace, visit)) + [""]
        if region in trace.truncated:
            lines[-1:] = [f"  {trace.truncated[region]} lines were left out", ""]
    if not regions:
        lines += ["this lab names no region of interest: only counted", ""]
    lines += totals(trace)
    if trace.lost:
        lines.append(f"the tracer lost {trace.lost} records")
    if not trace.complete:
        lines.append("the program did not come to its end: this is what it left")
    return lines


def svg(chart, path):
    """Draw the chart with gnuplot, whole or not at all. False if it cannot."""
    if shutil.which("gnuplot") is None or chart.end <= chart.start:
        return False
    rows = {key: len(chart.rows) - i for i, (key, _) in enumerate(chart.rows)}
    unit, name = (1000.0, "ms") if chart.end - chart.start >= 1000 else (1.0, "us")

    def at(us):
        return f"{(us - chart.start) / unit:.6f}"

    def safe(text):
        return re.sub(r"[^\w ,.:()/+-]", "", text)
    title = f"{chart.trace.lab} {chart.trace.visits[chart.visit].region}, {chart.trace.backend}: {chart.trace.device}"
    script = [f'set terminal svg size 960,{130 + 46 * len(rows)} font "sans,13" background "white"',
              f"set label '{safe(title)}' at screen 0.5, screen 0.95 center noenhanced",
              f'set xlabel "{name}; grey: a stream waits for an event; an arrow: from its record to the wait"', f"set xrange [0:{at(chart.end)}]",
              f"set yrange [0.4:{len(rows) + 0.6}]", "unset key", "set border 3", "set tmargin at screen 0.82", "set xtics nomirror",
              "set ytics nomirror scale 0 noenhanced (" + ", ".join(
                  f'"{safe(text)}" {rows[key]}' for key, text in chart.rows) + ")"]
    bars = [b for b in chart.bars if b.row in rows]
    for i, bar in enumerate(sorted(bars, key=lambda b: b.kind != "wait"), 1):
        least = bar.start + 0.002 * (chart.end - chart.start)  # or nobody would see it
        half = 0.16 if bar.kind == "wait" else 0.36
        script.append(f"set object {i} rectangle from {at(bar.start)},{rows[bar.row] - half} to "
                      f"{at(max(bar.end, least))},{rows[bar.row] + half} fillcolor rgb '{SVG_COLOURS[bar.kind]}' "
                      "fillstyle solid border rgb 'white' front")
        if bar.kind in SVG_COLOURS and bar.kind not in ("wait", "call", "holds") and (
                bar.end - bar.start > 0.011 * len(bar.name) * (chart.end - chart.start)):
            script.append(f"set label {i} '{safe(bar.name)}' at {at((bar.start + bar.end) / 2)},"
                          f"{rows[bar.row]} center front textcolor rgb 'white' noenhanced")
    x = 0.12
    for kind in dict.fromkeys(b.kind for b in bars if b.kind not in ("wait", "call")):
        word = "host waits" if kind == "holds" else kind.replace("_", " ")
        script.append(f"set label '{word}' at screen {x:.3f}, screen 0.87 front textcolor rgb "
                      f"'{SVG_COLOURS[kind]}' noenhanced")
        x += 0.012 * len(word) + 0.03
    marks = {call.call: (stream, start, end) for call, stream, start, end in chart.marks}
    for i, edge in enumerate(chart.edges, 1):
        (one, _, start), (other, _, end) = marks[edge.record.call], marks[edge.wait.call]
        keys = [(chart.trace.device_of(stream), stream) for stream in (one, other)]
        if max(start, end) <= chart.end:
            script.append(f"set arrow {i} from {at(start)},{rows[keys[0]]} to {at(max(start, end))},"
                          f"{rows[keys[1]]} front linewidth 1.5 linecolor rgb 'black' size screen 0.008,25")
    script.append("plot -1 notitle")
    try:
        runner.save(path, plot.gnuplot("\n".join(script)))
    except plot.PlotError as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return False
    return True


def show(stem, options, backend, devices):
    """Trace one lab and show it. What became of it: shown, skipped or failed."""
    program = runner.program_of(stem, options.dir, backend)
    with runner.alone(devices, stem):
        run, trace, why = tracing.capture(program, backend)
    if run.code == runner.SKIPPED:
        print(run.out.decode(errors="replace").strip())
        return "skipped"
    if run.problem:
        print(f"{stem}: {run.problem}", file=sys.stderr)
    if trace is None:
        print(f"{stem}: no trace: {why}", file=sys.stderr)
        return "failed"
    regions = list(dict.fromkeys(visit.region for visit in trace.visits))
    if options.region and options.region not in regions:
        print(f"{stem}: no region '{options.region}'; there are: {' '.join(regions) or 'none'}",
              file=sys.stderr)
        return "failed"
    wanted = [options.region] if options.region else regions
    print("\n".join(report(trace, wanted)))
    path = tracing.kept_at(options.dir, backend, stem)
    tracing.write_json(trace, path)
    kept = [path]
    for region in wanted:
        picture = path.with_name(f"{stem}.{re.sub(r'[^A-Za-z0-9_-]', '_', region)}.svg")
        if svg(Chart(trace, trace.representative(region)), picture):
            kept.append(picture)
    names = ", ".join(p.name for p in kept[1:])
    print(f"kept {os.path.relpath(path, runner.KIT)} ({tracing.size_text(path)}); open it in "
          "ui.perfetto.dev" + (f"; and {names}" if names else ""), file=sys.stderr)
    return "shown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="labs")
    parser.add_argument("--lab")
    parser.add_argument("--backend", choices=["cuda", "sim"])
    parser.add_argument("--region", help="only this one; all that the lab names without it")
    options = parser.parse_args()
    backend = options.backend or runner.gpu.pick_backend()
    try:
        stems, devices = runner.find_labs(options.dir, options.lab), runner.devices_for(backend)
        if tracing.unavailable(backend):
            raise runner.UsageError(tracing.unavailable(backend))
    except runner.UsageError as error:
        print(error, file=sys.stderr)
        return 2
    became = []
    for place, stem in enumerate(stems):
        if place:
            print()
        became.append(show(stem, options, backend, devices))
    if "failed" in became:
        return 1
    return runner.SKIPPED if set(became) == {"skipped"} else 0


if __name__ == "__main__":
    runner.heed_signals()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped")
    except runner.CannotKeep as error:
        sys.exit(str(error))
    except BrokenPipeError:
        sys.exit(1)
