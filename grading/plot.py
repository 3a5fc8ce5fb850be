#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draw a lab's figures with gnuplot: yours over the recorded H200 over the simulated device.

    plot.py [--lab NN] [--dir labs]

Writes results/NN_name.svg and, for one lab, draws it in the terminal, too (80 x 24, so that it
works over SSH). Exit 0, 1 if a picture failed or cannot be kept, 2 for a mistake in the call, 3 without gnuplot.

One function a lab fills a Picture with gnuplot commands. In grey and in print the machines
differ by shade, line and point: what is yours is black and solid.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

import compare
import runner
from compare import figure_text

SVG = ("set terminal svg size 800,{} font 'sans-serif,14' background 'white' noenhanced "
       "dashlength 0.8")
DUMB = "set terminal dumb 79 24 noenhanced"
SHADES = ["#000000", "#606060", "#a0a0a0"]
DASHES = ["solid", "(14,6)", "(3,5)"]
POINTS = [7, 4, 8]  # filled circle, open square, open triangle
INSTALL = "gnuplot is not installed: sudo apt-get install -y gnuplot-nox"


class PlotError(Exception):
    """Nothing to draw, or gnuplot refused: one line on what to do."""


class Source:
    """One machine's output and what it is called. `rank` 0 is in front: black and solid."""

    def __init__(self, label, out):
        self.label, self.out, self.rank = label, out, 0

    def value(self, name):
        entry = self.out.values.get(name)
        return entry.value if entry else None

    def series(self, name):
        """[(at, value)], rising; points that were not measured are not there."""
        return sorted((at, v.value) for at, v in self.out.series.get(name, {}).items())


class Picture:
    """The gnuplot script of one picture, for a terminal of letters (dumb) or for SVG."""

    def __init__(self, dumb, xlabel, ylabel):
        self.dumb, self.data, self.settings, self.plots, self.height = dumb, [], [], [], 500
        self.set(f"xlabel {quote(xlabel)}", f"ylabel {quote(ylabel)}", "border 3",
                 "tics nomirror", "key above left Left reverse horizontal samplen 4")
        if dumb:
            self.set("key vertical maxcols 2")  # two entries in a row of 79 letters, not more
        else:
            self.set("grid back lc rgb '#dddddd' lw 1 dt solid", "key spacing 1.25")

    def set(self, *commands):
        self.settings += [f"set {command}" for command in commands]

    def plot(self, rows, how, title, svg="", dumb=""):
        """Plot rows of numbers. `svg` and `dumb` are what only one of the terminals draws."""
        name = f"$data{len(self.data)}"
        lines = [" ".join(f"{number:.9g}" for number in row) for row in rows]
        self.data.append("\n".join([f"{name} << EOD", *lines, "EOD"]))
        self.plots.append(f"{name} using {how} {dumb if self.dumb else svg} "
                          + (f"title {quote(title)}" if title else "notitle"))

    def curve(self, rows, source, title=None):
        rank = source.rank
        self.plot(rows, "1:2", title or source.label, f"with linespoints pt {POINTS[rank]} ps 0.8 "
                  f"lw {1.6 if rank else 2.2} dt {DASHES[rank]} lc rgb '{SHADES[rank]}'",
                  "with lines")

    def line(self, rows, title, dash):
        """A thin line that is no measurement: a level, a prediction."""
        self.plot(rows, "1:2", title, f"with lines lw 1.2 dt {dash} lc rgb '#000000'", "with lines")

    def label(self, text, x, y, side="left", offset="0.6,0"):
        self.set(f"label {quote(text)} at {x:.9g},{y:.9g} {side} offset {offset} front")

    def script(self):
        return "\n".join([DUMB if self.dumb else SVG.format(self.height), *self.data, *self.settings,
                          "plot " + ", \\\n     ".join(self.plots), ""])


def quote(text):
    return "'" + text.replace("'", "''") + "'"


def having(sources, *metrics):
    """The sources that have at least one of the metrics. Raises PlotError if none has."""
    found = [s for s in sources if any(m in s.out.values or s.series(m) for m in metrics)]
    if not found:
        raise PlotError(f"no output holds {' or '.join(metrics)} yet")
    for rank, source in enumerate(found):
        source.rank = min(rank, len(SHADES) - 1)
    return found


def extent(sources, *metrics):
    """The lowest and the highest parameter, and the highest value, of the series. Raises PlotError
    if there is none, but single figures of that name."""
    points = [p for s in sources for m in metrics for p in s.series(m)]
    if not points:
        raise PlotError(f"no output holds a series {' or '.join(metrics)}")
    return min(x for x, _ in points), max(x for x, _ in points), max(y for _, y in points)


def breakeven(sources, dumb):
    """02, as the CUDA Handbook draws it: where does the curve cross twice the NULL launch?"""
    drawn = having([s for s in sources if s.value("launch_null")], "launch_wait")
    picture = Picture(dumb, "cycles that the kernel waits", "microseconds a launch")
    _, end, top = extent(drawn, "launch_wait")
    picture.set(f"xrange [0:{end:g}]", f"yrange [0:{1.08 * top:g}]", "format x '%.0f'")
    for source in reversed(drawn):
        picture.curve([(0, source.value("launch_null"))] + source.series("launch_wait"), source)
    null, at = drawn[0].value("launch_null"), drawn[0].value("breakeven_cycles")
    picture.line([(0, null), (end, null)], f"NULL launch: {figure_text(null)} us", "(2,4)")
    picture.line([(0, 2 * null), (end, 2 * null)], f"2 x NULL: {figure_text(2 * null)} us", "(10,5)")
    if at:
        picture.plot([(at, 0), (at, 2 * null)], "1:2", "", "with lines lw 1.2 dt solid lc rgb "
                     "'#000000'", "with lines")
        picture.plot([(at, 2 * null)], "1:2", "", "with points pt 6 ps 2 lw 2 lc rgb '#000000'",
                     "with points pt 'O'")
        side = "right" if at > 0.6 * end else "left"
        picture.label(f"break-even: {at:.0f} cycles", at, 0.3 * null, side,
                      "-1,0" if side == "right" else "1,0")
    return picture


def bars(sources, dumb, rows, level=None):
    """Groups of bars that lie, a group for each (metric, what it is), a bar for each source."""
    drawn = having(sources, *(metric for metric, _ in rows))[:3]
    if dumb and len(rows) * (len(drawn) + 1) > 20:
        drawn = drawn[:2]  # a bar needs a line of its own
    picture = Picture(dumb, "microseconds", "")
    picture.set("key vertical maxcols 1")
    pitch = len(drawn) + 1
    picture.height = max(500, 160 + 20 * pitch * len(rows))
    top = max(s.value(m) for s in drawn for m, _ in rows if s.value(m) is not None)
    for place, source in enumerate(drawn):
        boxes = []
        for group, (metric, _) in enumerate(rows):
            value, y = source.value(metric), (len(rows) - group) * pitch - place
            if value is not None:
                boxes.append((value / 2, y, value))
                picture.label(figure_text(value), value, y, offset="1,0" if dumb else "0.5,0")
        fill = ["solid 1", "solid 1", "pattern 4"][source.rank]
        picture.plot(boxes, "($1*0):2:3:(0)" if dumb else "1:2:(0):3:($2-0.42):($2+0.42)",
                     source.label, f"with boxxyerror fs {fill} border lc rgb '#404040' lc rgb "
                     f"'{SHADES[source.rank]}'", "with vectors nohead")
    tics = [f'"{metric if dumb else text + chr(92) + "n" + metric}"'
            + f" {(len(rows) - group) * pitch - (len(drawn) - 1) / 2:g}"
            for group, (metric, text) in enumerate(rows)]
    picture.set(f"ytics ({', '.join(tics)}) scale 0", "grid noytics", f"xrange [0:{1.15 * top:g}]",
                f"yrange [1:{len(rows) * pitch + 1 + bool(level)}]")
    if level:
        high = len(rows) * pitch + 1
        picture.line([(level[0], 1), (level[0], high)], "", "(6,4)")
        picture.label(level[1], level[0], high, offset="0.6,-0.4")
    return picture


def clocks(sources, dumb):
    """03: what each clock says about one kernel of 500 us."""
    return bars(sources, dumb, [
        ("wall_enqueue", "host clock, no synchronize"),
        ("wall_sync", "host clock and synchronize"),
        ("event_batch", "events, one of many kernels"),
        ("event_each_sync", "and a synchronize after each"),
        ("event_first", "events, first launch ever")], (500, "the 500 us asked for"))


def timestamps(sources, dumb):
    """07: records with and without a timestamp, in three places."""
    return bars(sources, dumb, [
        ("record_timing", "CPU, a record"),
        ("record_disable_timing", "and without time"),
        ("queued_timing", "GPU, kernel and record"),
        ("queued_disable_timing", "and without time"),
        ("hop_timing", "from stream to stream"),
        ("hop_disable_timing", "and without time")])


def waiting(sources, dumb):
    """06: how much of the time that a wait takes is CPU time."""
    ways = [("spin", "spinning", 7, 0.9), ("poll", "polling", 8, 2.0), ("block", "sleeping", 5, 1.0)]
    drawn = having(sources, *(f"cpu_{way}" for way, *_ in ways))
    drawn = drawn[:2] if dumb else drawn[:3]
    picture = Picture(dumb, "length of the kernel waited for, ms (logarithmic)",
                      "CPU time, % of the time waited")
    low, high, _ = extent(drawn, *(f"cpu_{way}" for way, *_ in ways))
    picture.set("logscale x", f"xrange [{low / 1.6:g}:{high * 1.6:g}]", "yrange [0:118]",
                "xtics ({})".format(", ".join(f"{at:g}" for at in sorted(
                    {at for s in drawn for way, *_ in ways for at, _ in s.series(f"cpu_{way}")}))))
    for source in reversed(drawn):
        shade, first = SHADES[source.rank], source is drawn[0]
        for place, (way, name, point, size) in enumerate(ways):
            wall = dict(source.series(f"wall_{way}"))
            # Letters stand side by side: in one place the last would hide the others.
            beside = 10 ** (0.04 * (place - 3 if first else place + 1)) if dumb else 1
            rows = [(at * beside, 100 * cpu / wall[at]) for at, cpu in source.series(f"cpu_{way}")
                    if wall.get(at)]
            letter = name[1].upper() if first else name[1]
            title = f"{name} ({source.label})" if dumb else name if first else ""
            if rows:
                picture.plot(rows, "1:2", title, f"with linespoints pt {point} ps {size} lw "
                             f"{2 if first else 1.4} dt {DASHES[source.rank]} lc rgb '{shade}'",
                             f"with points pt '{letter}'")
    for source in drawn if len(drawn) > 1 and not dumb else []:
        picture.plot([(low, -50), (high, -50)], "1:2", source.label,
                     f"with lines lw 2 dt {DASHES[source.rank]} lc rgb '{SHADES[source.rank]}'")
    return picture


def chunks(sources, dumb):
    """08: the sweep over the number of chunks, and what the stages alone predict."""
    drawn = having(sources, "pipelined_chunks")
    picture = Picture(dumb, "chunks that the data is cut into (logarithmic)",
                      "microseconds for all of them")
    low, high, top = extent(drawn, "pipelined_chunks")
    first = drawn[0]
    stages = [first.value(name) for name in ("copy_in", "kernel", "copy_out")]
    if first.value("serial"):
        top = max(top, first.value("serial"))
    for source in reversed(drawn):
        picture.curve(source.series("pipelined_chunks"), source)
    if None not in stages:  # of one chunk of ten
        whole = [10 * us for us in stages]
        counts = [low * (high / low) ** (i / 60) for i in range(61)]
        picture.line([(n, (sum(whole) + (n - 1) * max(whole)) / n) for n in counts],
                     "predicted: first + (n - 1) x slowest", "(10,5)")
    if first.value("serial"):
        picture.line([(low, first.value("serial")), (high, first.value("serial"))],
                     "one after the other", "(2,4)")
    ticks = [at for at, _ in first.series("pipelined_chunks")]
    picture.set("logscale x 2", f"xrange [{low / 1.15:g}:{high * 1.15:g}]",
                f"yrange [0:{1.1 * top:g}]",
                f"xtics ({', '.join(f'{at:g}' for at in ticks)})")
    return picture


def queue(sources, dumb):
    """10: how long each launch behind a closed gate takes to return."""
    drawn = having(sources, "enqueue")
    picture = Picture(dumb, "number of the launch (logarithmic)",
                      "microseconds until it returns (logarithmic)")
    low, high, top = extent(drawn, "enqueue")
    least = min(y for s in drawn for _, y in s.series("enqueue"))
    picture.set("logscale xy", f"xrange [{max(low, 1) / 1.2:g}:{high * 2:g}]", "format '%.0f'",
                f"yrange [{10 ** decade_below(least):g}:{4 * top:g}]")
    for source in reversed(drawn):
        picture.curve(source.series("enqueue"), source)
    depth = drawn[0].value("queue_depth")
    if depth:
        held = max(drawn[0].series("enqueue"), key=lambda point: point[1])
        picture.label(f"{depth:.0f} return at once; the next is held up", held[0], held[1],
                      "right", "-1.2,0")
    return picture


def decade_below(value):
    """The exponent of the power of ten at or below a positive value."""
    return len(f"{value:.0f}") - 1 if value >= 1 else -1


def graph(sources, dumb):
    """11: what a node of a chain costs, launched as a graph and as calls into a stream."""
    names = {"chain_node": "as a graph", "chain_streams": "as calls"}
    points = {"chain_node": (7, 5, 9), "chain_streams": (6, 4, 8)}  # filled, and hollow
    drawn = having(sources, *names)
    drawn = drawn[:2] if dumb else drawn[:3]
    picture = Picture(dumb, "nodes in the chain (logarithmic)", "microseconds a node")
    low, high, top = extent(drawn, *names)
    ticks = sorted({at for s in drawn for name in names for at, _ in s.series(name)})
    picture.set("logscale x", f"xrange [{low / 1.3:g}:{high * 1.3:g}]", f"yrange [0:{1.1 * top:g}]",
                f"xtics ({', '.join(f'{at:g}' for at in ticks)})",
                f"key maxcols {1 if dumb else 2}")
    for source in reversed(drawn):
        for name, how in names.items():
            rows = source.series(name)
            if rows:
                picture.plot(rows, "1:2", f"{how}, {source.label}",
                             f"with linespoints pt {points[name][source.rank]} ps 1 lw 1.8 "
                             f"dt {DASHES[source.rank]} lc rgb '{SHADES[source.rank]}'", "with lines")
    return picture


PICTURES = {"02": breakeven, "03": clocks, "06": waiting, "07": timestamps, "08": chunks,
            "10": queue, "11": graph}


def sources_of(stem, folder):
    """What there is to draw, the one in front first; and a note for each file that is no good."""
    found, notes = [], []
    mine = compare.result_of(stem, folder)
    places = [(mine, "yours")] if mine else []
    places += [(compare.RECORDED / machine / f"{stem}.txt", label) for machine, label in (
        (compare.H200, "H200, recorded"), (compare.SIMULATED, "simulated"))]
    for path, label in places:
        if not path.exists():
            continue
        out, note = compare.read_output(path)
        if note:
            notes.append(note)
        if out:
            simulated = out.backend == "simulated"
            if label == "yours":
                device = re.sub(r"\b(NVIDIA|GeForce|Tesla|GPU)\b ?", "", out.device).strip()
                label = "yours (SIMULATED)" if simulated else f"yours: {device[:24].strip()}"
            elif simulated and any("SIMULATED" in s.label for s in found):
                continue  # the same figures once more
            found.append(Source(label, out))
    return found, notes


def gnuplot(script):
    """What gnuplot draws, as bytes. Raises PlotError."""
    run = subprocess.run(["gnuplot"], input=script.encode(), capture_output=True)
    said = run.stderr.decode(errors="replace").strip()
    if run.returncode != 0 or not run.stdout.strip():
        reason = next((line for line in reversed(said.splitlines()) if line.strip()), "drew nothing")
        raise PlotError(f"gnuplot: {reason.strip()}")
    return run.stdout


def draw(stem, folder, terminal):
    """Write the SVG and, if wanted, print the picture. Raises PlotError."""
    number, make = stem[:2], PICTURES[stem[:2]]
    sources, notes = sources_of(stem, folder)
    if not any(s.label.startswith("yours") for s in sources):
        notes.append(f"nothing of yours yet: make grade LAB={number}")
    try:
        if not sources:
            raise PlotError("no output to draw")
        kept = runner.KIT / "results" / f"{stem}.svg"
        runner.save(kept, gnuplot(make(sources, False).script()))
        if terminal:
            sys.stdout.write(gnuplot(make(sources, True).script()).decode().strip("\n\f") + "\n")
    except PlotError as error:
        raise PlotError(f"lab {number}: {error}: make grade LAB={number}") from None
    finally:
        for note in notes:
            print(f"lab {number}: {note}", file=sys.stderr)
    print(f"drawn in {os.path.relpath(kept, runner.KIT)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="labs")
    parser.add_argument("--lab")
    options = parser.parse_args()
    try:
        stems = runner.find_labs(runner.KIT / "labs", options.lab)
    except runner.UsageError as error:
        print(str(error).replace(f"{runner.KIT}/", ""), file=sys.stderr)
        return 2
    if options.lab and stems[0][:2] not in PICTURES:
        print(f"lab {stems[0][:2]} has no picture; {' '.join(PICTURES)} have. Its figures side by "
              f"side: make compare LAB={stems[0][:2]}", file=sys.stderr)
        return 2
    if not shutil.which("gnuplot"):
        print(INSTALL, file=sys.stderr)
        return 3
    failed = 0
    for stem in stems:
        if stem[:2] in PICTURES:
            try:
                draw(stem, options.dir, bool(options.lab))
            except PlotError as error:
                print(error, file=sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped")
    except runner.CannotKeep as error:
        sys.exit(str(error))
    except BrokenPipeError:
        sys.exit(0)
