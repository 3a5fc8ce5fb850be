#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fill a worksheet's table of comparison, without writing into the worksheet.

    compare.py [--lab NN] [--dir labs]

Columns: the student's prediction, the simulated device, the recorded H200, other recordings
under worksheets/recorded/, published machines, and the last output of DIR. The table goes to
standard output, 80 columns wide, and as Markdown to results/compare_NN_name.md. What is
missing says which command makes it. Exit 0, 1 if it cannot be kept, 2 for a mistake in the call.
"""
import argparse
import csv
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import output
import ranges
import runner
import verdict
import worksheet

WIDTH = 80
RECORDED = worksheet.FOLDER / "recorded"
H200, SIMULATED = "nvidia-h200", "simulated-h200"
UNMEASURED = "unmeasured"


class Cell:
    """A figure, a word, or a text of one row; `value` is a number or None."""

    def __init__(self, text="", value=None, unit=None):
        self.text, self.value, self.unit = text, value, unit


class Column:
    """One machine, or the prediction: `head` is its title, `cells` metric -> Cell, `missing` what
    makes its figures, `source` where they come from."""

    def __init__(self, kind, head, missing="", source=""):
        self.kind, self.head, self.missing, self.source = kind, head, missing, source
        self.cells, self.path, self.simulated = {}, None, kind == "simulated"

    def cell(self, metric):
        return self.cells.get(metric, Cell())


def figure_text(value):
    """As common/print.h prints it: whole numbers without decimals, small ones with more."""
    if value == int(value) and abs(value) < 1e9:
        return f"{value:.0f}"
    return verdict.number_text(value) if abs(value) >= 0.1 else f"{value:.5f}".rstrip("0")


def ratio_text(value):
    size = abs(value)
    if 0 < size < 0.1:
        return f"{value:.2g} x"
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2}f} x"


def figures(out):
    """metric -> Cell of an Output; a point of a series is called name[key=at]."""
    cells = {name: Cell(figure_text(v.value), v.value, v.unit) for name, v in out.values.items()}
    cells.update({name: Cell(word) for name, word in out.words.items()})
    for name, points in out.series.items():
        for at, v in points.items():
            cells[f"{name}[{at:g}]"] = Cell(figure_text(v.value), v.value, v.unit)
    cells.update({name: Cell(UNMEASURED) for name in out.unmeasured})
    return cells


def point_name(metric):
    """cpu_spin[ms=10] as figures() calls it: cpu_spin[10]."""
    found = re.fullmatch(rf"({output.NAME})\[{output.NAME}=({output.NUMBER})\]", metric)
    return f"{found[1]}[{float(found[2]):g}]" if found else metric


def read_output(path):
    """(Output or None, what is wrong with the file or '')."""
    try:
        out = output.read(path)
    except output.OutputError as error:
        return None, str(error).replace(f"{runner.KIT}/", "")
    return (None, "") if out.skipped is not None else (out, "")


def machine_column(kind, head, path, metrics, missing):
    """A Column from a recorded output; (Column, note)."""
    column, note = Column(kind, head, missing), ""
    if path.exists():
        out, note = read_output(path)
        if out:
            cells = figures(out)
            column.path, column.source = path, out.device
            column.cells = {m: cells[key] for m in metrics for key in (point_name(m),)
                            if key in cells}
            column.cells.update({m: cells[name] for m in metrics if m not in column.cells
                                 for name in (m.split("[")[0],) if name in out.unmeasured})
    return column, note


def marks(machine):
    """What tells machines apart in their names: RTX 3060 -> {3060}, "EC2, 2011" -> {ec2}."""
    words = re.findall(r"[a-z0-9]+", machine.lower())
    return {w for w in words if re.search(r"\d", w) and not re.fullmatch(r"20[012]\d|wsl2", w)}


def published(heads, rows):
    """Columns of published machines: from recorded/published.csv, where the sources are, and
    from the worksheet's own columns for what is derived from those."""
    columns = []
    for head in heads:
        column = Column("published", head)
        column.cells = {row.metric: Cell(row.cells[head], (worksheet.prediction(
            row.cells[head]) or Cell()).value) for row in rows if row.cells.get(head)}
        columns.append(column)
    try:
        with open(RECORDED / "published.csv", encoding="utf-8", newline="") as file:
            facts = [(f, float(f["value"])) for f in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError):
        facts = []  # tests/ check that file: here it is one column less
    for fact, value in facts:
        row = next((r for r in rows if point_name(r.metric) == point_name(fact["metric"])), None)
        if row is None:
            continue
        column = next((c for c in columns if marks(c.head) and marks(c.head) <= marks(
            fact["machine"])), None)
        if column is None:
            column = Column("published", fact["machine"])
            columns.append(column)
        column.cells.setdefault(row.metric, Cell(figure_text(value), value, fact["unit"]))
        if fact["source"] not in column.source:
            column.source += ("; " if column.source else "") + fact["source"]
    return columns


def result_of(stem, folder):
    """The last output of a lab in DIR: on hardware, else simulated. None if there is none."""
    for backend in ("cuda", "sim"):
        path = runner.results_of(folder, backend) / f"{stem}.txt"
        if path.exists():
            return path
    return None


def only_hardware(stem):
    """The metrics that the range file says a simulated device cannot have."""
    try:
        checks = ranges.load(stem)
    except ranges.RangeError:
        return set()
    names = [(bool(check.only), check.names()) for check in checks]
    return set().union(*(n for only, n in names if only)) - set().union(
        *(n for only, n in names if not only))


class Comparison:
    """All that one lab's table holds: rows, columns, and notes."""

    def __init__(self, stem, folder):
        self.stem, self.notes = stem, []
        text = worksheet.read(stem)
        self.question = worksheet.question(text)
        found = worksheet.tables(worksheet.section(text, "Compare"))
        self.rows = [row for _, rows in found for row in rows if row.metric]
        metrics = [row.metric for row in self.rows]
        self.hardware_only = only_hardware(stem) & set(metrics)
        number, lab = stem[:2], ("" if runner.short_name(folder) == "labs" else f" DIR={folder}")
        make = f"make grade LAB={number}{lab}"
        sources = [("simulated", "simulated", RECORDED / SIMULATED,
                    f"make record MACHINE={SIMULATED} BACKEND=sim LAB={number}"),
                   ("h200", "H200, recorded", RECORDED / H200,
                    f"make record MACHINE={H200} LAB={number} on an H200")]
        sources += [("own", path.name, path, f"make record MACHINE={path.name} LAB={number} there")
                    for path in sorted(RECORDED.glob("*/")) if path.name not in (H200, SIMULATED)]
        self.columns = [Column("prediction", "prediction", "write it, before you run, into "
                               f"worksheets/{stem}.md: under Predict, or in this column there")]
        for kind, head, path, missing in sources:
            self._add(kind, head, path / f"{stem}.txt", metrics, missing)
        heads = list(dict.fromkeys(h for table, _ in found for h in table
                                   if not re.search(r"predict|simulated|H200|yours", h, re.I)))
        self.columns += published(heads, self.rows)
        self._add("yours", "yours", result_of(stem, folder) or Path(), metrics, make)
        yours = self.columns[-1]
        if yours.path and yours.path.parts[-3] == "sim":
            yours.head = "yours (SIMULATED)"
            yours.simulated = True
        self._predict(text)
        self.columns = [c for c in self.columns if c.cells or c.kind not in ("own", "published")]
        self._ratios(yours)

    def _add(self, kind, head, path, metrics, missing):
        column, note = machine_column(kind, head, path if path.name else path / "none", metrics,
                                      missing)
        self.columns.append(column)
        if note:
            self.notes.append(f"{head}: {note}")

    def column(self, kind):
        return next(c for c in self.columns if c.kind == kind)

    def unit(self, row):
        """What the row is printed in: by a machine, else by the label."""
        return next((c.cells[row.metric].unit for c in reversed(self.columns)
                     if c.cell(row.metric).unit), worksheet.unit_in(row.label))

    def _predict(self, text):
        units = {row.metric: self.unit(row) for row in self.rows}
        found, self.other_predictions = worksheet.predictions(text, units)
        self.predictions = found
        column = self.column("prediction")
        for row in self.rows:
            said = found.get(row.metric)
            if not said:
                continue
            column.cells[row.metric] = Cell(said.text, said.value, units[row.metric])
            if said.value is not None and not self.is_word(row):
                column.cells[row.metric].text = figure_text(said.value)

    def is_word(self, row):
        return any(c.cell(row.metric).text not in ("", UNMEASURED) and
                   c.cell(row.metric).value is None
                   for c in self.columns if c.kind not in ("prediction", "published", "ratio"))

    def _ratios(self, yours):
        for kind, head in (("h200", "yours / H200"), ("prediction", "yours / prediction")):
            other, column = self.column(kind), Column("ratio", head)
            for row in self.rows:
                one, two = yours.cell(row.metric), other.cell(row.metric)
                if self.is_word(row) and one.text not in ("", UNMEASURED) and two.text:
                    column.cells[row.metric] = Cell("same" if same_word(one.text, two.text)
                                                    else "differs")
                elif one.value is not None and two.value is not None:
                    if one.value == two.value:
                        column.cells[row.metric] = Cell("same")
                    elif two.value:
                        column.cells[row.metric] = Cell(ratio_text(one.value / two.value))
            self.columns.append(column)

    def missing(self):
        """What to do about each column that lacks a figure, a line each."""
        lines = []
        for column in self.columns:
            rows = [r.metric for r in self.rows if not (column.simulated and column.path and
                                                       r.metric in self.hardware_only)]
            lacks = [name for name in rows if not column.cell(name).text]
            undone = [name for name in rows if column.cell(name).text == UNMEASURED]
            if column.missing and lacks:
                which = "" if len(lacks) == len(self.rows) else (
                    ": " + ", ".join(lacks[:3]) + (", ..." if lacks[3:] else ""))
                lines.append(f"{column.head} (missing{which}): {column.missing}")
            if undone and column.kind == "yours":
                lines.append(f"yours (unmeasured: {', '.join(undone[:3])}"
                             f"{', ...' if undone[3:] else ''}): fill in the next TODO, and "
                             f"{column.missing}; make hint LAB={self.stem[:2]} helps")
        if self.hardware_only and any(c.simulated and c.path for c in self.columns):
            lines.append(f"{', '.join(sorted(self.hardware_only))}: a simulated device has none")
        return lines


def same_word(one, two):
    """Whether two names of an answer mean the same: cudaSuccess, success; not ready."""
    def bare(word):
        return re.sub(r"^cuda(error)?|[^a-z0-9]", "", word.lower())
    return bare(one) == bare(two)


def git(*arguments):
    """What git says, or None where there is no git or no repository."""
    try:
        run = subprocess.run(["git", *arguments], cwd=runner.KIT, stdin=subprocess.DEVNULL,
                             capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.decode(errors="replace") if run.returncode == 0 else None


def commit_time(compared):
    """When the predictions that stand in the worksheet now first stood in a commit, in a row up
    to now: seconds since 1970, or None."""
    path, since = f"worksheets/{compared.stem}.md", None
    wanted = {name: p.text for name, p in compared.predictions.items()}, compared.other_predictions
    units = {row.metric: compared.unit(row) for row in compared.rows}
    for line in (git("log", "-50", "--format=%H %ct", "--", path) or "").split("\n"):
        if not line:
            continue
        commit, when = line.split()
        found, others = worksheet.predictions(git("show", f"{commit}:./{path}") or "", units)
        if ({name: p.text for name, p in found.items()}, others) != wanted:
            break
        since = int(when)
    return since


def when(seconds):
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def prediction_note(compared):
    """Whether the prediction was there before the output: what can be said, and no more."""
    yours = compared.column("yours")
    if not yours.path or not (compared.predictions or compared.other_predictions):
        return ""
    measured, name = yours.path.stat().st_mtime, f"worksheets/{compared.stem}.md"
    committed = commit_time(compared)
    if committed is not None and committed < measured:
        return (f"Your prediction was committed to git ({when(committed)}) before this output was "
                f"made ({when(measured)}).")
    changed = worksheet.path_of(compared.stem).stat().st_mtime
    if changed < measured:
        return (f"Your prediction was there before this output: {name} was last changed "
                f"{when(changed)}, the output made {when(measured)}.")
    return (f"Whether your prediction came before the output cannot be told: {name} was changed "
            f"{when(changed)}, after this output ({when(measured)}); answering its questions "
            "does that, too. Committing the worksheet before you run keeps the order on record. "
            "No points depend on it.")


def stacked(head):
    """A column's head in lines, none longer than its longest word."""
    words, lines = re.sub("[,()]", "", head).replace(" / ", "/ ").split(), []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= max(map(len, words)):
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def blocks(columns, labels):
    """Lay (head's lines, texts) out in blocks that fit the width; each repeats the labels."""
    left = max(map(len, labels))
    wide = [max(map(len, head + texts)) for head, texts in columns]
    tight = left + sum(wide) + len(wide) <= WIDTH < left + sum(wide) + 2 * len(wide)
    gap = 1 if tight else 2  # closer together where that makes it one block
    laid, room = [[]], 0
    for column, width in zip(columns, wide):
        if laid[-1] and left + room + width + gap > WIDTH:
            laid.append([])
            room = 0
        laid[-1].append((*column, width + gap))
        room += width + gap
    for block in laid:
        height = max(len(head) for head, _, _ in block)
        rows = [("", [([""] * (height - len(head)) + head)[row] for head, _, _ in block])
                for row in range(height)]
        rows += [(label, [texts[i] for _, texts, _ in block]) for i, label in enumerate(labels)]
        yield [(label.ljust(left) + "".join(text.rjust(width) for text, (_, _, width) in zip(
            texts, block))).rstrip() for label, texts in rows]


def label_of(compared, row):
    unit = compared.unit(row)
    return row.metric + (f", {unit}" if unit else "")


def words_of(compared, row):
    """A row of words: each answer once, with who gave it. A column would not hold them."""
    answers = {}
    for column in compared.columns:
        text = column.cell(row.metric).text
        if text and column.kind != "ratio":
            known = next((a for a in answers if same_word(a, text)), text)
            answers.setdefault(known, []).append(column.head.split(",")[0])
    text = "; ".join(f"{answer}: {', '.join(who)}" for answer, who in answers.items()) or "-"
    return [row.metric] + textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ",
                                        break_on_hyphens=False)


def text_report(compared):
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_on_hyphens=False,
                                break_long_words=False)
    lines = wrap.wrap(f"{compared.stem.replace('_', ' ', 1)}: {compared.question}")
    yours = compared.column("yours")
    if yours.path:
        lines += wrap.wrap(f"yours: {yours.source}, {os.path.relpath(yours.path, runner.KIT)}, "
                           f"{when(yours.path.stat().st_mtime)}")
    rows = [row for row in compared.rows if not compared.is_word(row)]
    for kinds in (("prediction", "simulated", "h200", "yours", "ratio"), ("own", "published")):
        columns = [c for kind in kinds for c in compared.columns if c.kind == kind and (
            kind not in ("own", "published", "ratio") or any(c.cell(r.metric).text for r in rows))]
        if rows and columns:
            laid = [(stacked(terminal_head(column)), [terminal_text(column.cell(row.metric).text)
                                                      for row in rows]) for column in columns]
            for block in blocks(laid, [label_of(compared, row) for row in rows]):
                lines += [""] + block
    words = [row for row in compared.rows if compared.is_word(row)]
    lines += [""] if words else []
    for row in words:
        lines += words_of(compared, row)
    notes = [f"- {line}" for line in notes_of(compared)]
    for line in ([""] + notes if notes else []):
        lines += wrap.wrap(line) or [""]
    return "\n".join(lines)


def terminal_head(column):
    return column.head.replace("prediction", "pred." if column.kind == "ratio" else "predicted")


def terminal_text(text):
    return "-" if not text or text == UNMEASURED else text if len(text) <= 12 else text[:11] + "~"


def notes_of(compared):
    notes = compared.missing() + compared.notes
    notes += [f"published: {c.head}: {c.source}" for c in compared.columns
              if c.kind == "published" and c.source]
    notes += [f"recorded: {c.head}: {c.source}" for c in compared.columns if c.kind == "own"]
    notes += [f"predicted, in words: {label}: {text}" for label, text in compared.other_predictions]
    said = prediction_note(compared)
    return notes + ([said] if said else [])


def markdown(compared):
    def row_of(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    lines = [f"# {compared.stem.replace('_', ' ', 1)}: comparison", "", f"**{compared.question}**",
             "", f"Made by `make compare LAB={compared.stem[:2]}`; the worksheet is "
             f"[worksheets/{compared.stem}.md](../worksheets/{compared.stem}.md).", "",
             row_of([""] + [c.head for c in compared.columns]),
             row_of(["---"] * (len(compared.columns) + 1))]
    for row in compared.rows:
        unit = compared.unit(row)
        lines.append(row_of([f"`{row.metric}`" + (f", {unit}" if unit else "")] +
                            [c.cell(row.metric).text for c in compared.columns]))
    notes = notes_of(compared)
    files = [f"{c.head}: [{os.path.relpath(c.path, runner.KIT)}]"
             f"({os.path.relpath(c.path, runner.KIT / 'results')}), {c.source}"
             for c in compared.columns if c.path]
    return "\n".join(lines + [""] + [f"- {line}" for line in files + notes]) + "\n"


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
    failed = 0
    for stem in stems:
        try:
            compared = Comparison(stem, options.dir)
        except worksheet.WorksheetError as error:
            print(error, file=sys.stderr)
            failed = 2
            continue
        kept = runner.KIT / "results" / f"compare_{stem}.md"
        runner.save(kept, markdown(compared).encode())
        if not options.lab and not compared.column("yours").path:
            print(f"{stem.replace('_', ' ', 1)}: nothing of yours yet: "
                  f"{compared.column('yours').missing}\n")
            continue
        print(text_report(compared) + f"\n\nas Markdown: {os.path.relpath(kept, runner.KIT)}\n")
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
