# SPDX-License-Identifier: MIT
"""Read a worksheet: its tables, what a student has written into them, and its hints.

A worksheet is Markdown. A table row is about the metric whose name stands first in backticks:

    | `launch_async`, us | 3 |              in section Predict
    | `launch_async`, us | 3 | | 3.55 |     in section Compare, column "prediction"

Nothing here writes a worksheet: it belongs to the student.
"""
import math
import re

import output
import runner

FOLDER = runner.KIT / "worksheets"
METRIC = re.compile(rf"`({output.NAME}(?:\[{output.NAME}=[^\]`]+\])?)`")
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
NOTHING = {"", "-", "--", "?", ".", "..", "...", "\u2026", "n/a", "tbd", "todo"}
UNIT = r"ns|us|ms|s|x|%|count|cycles|MHz|GB/s"
FIGURE = re.compile(
    r"(?<!\w)(?P<sign>-)?(?:(?P<whole>\d{1,3}(?:[, ']\d{3})+(?![\d,'])|\d+)(?:[.,](?P<rest>\d+))?"
    r"|(?<!\.)\.(?P<only>\d+))(?P<power>[eE][-+]?\d+)?"
    rf"\s*(?P<kilo>[kKM](?![A-Za-z]))?\s*(?:(?P<unit>{UNIT})(?![A-Za-z]))?")
RANGE = re.compile(r"\s*(?:-|\u2013|\u2014|\.{2,}|\u2026|to|or)\s*")


class WorksheetError(Exception):
    """A worksheet that is not there or cannot be read: one line."""


class Row:
    """One row of a table: its label, the metric it is about or None, and column -> cell."""

    def __init__(self, label, cells):
        names = METRIC.findall(label)
        self.label, self.cells = label, cells
        self.metric = names[0] if names else None
        # In units of another figure, not in its own.
        self.relative = bool(re.search(r"(multiple|fraction|units) of", label))


class Prediction:
    """What a student expects: the text, and a number in the row's unit, or None for a word."""

    def __init__(self, text, value=None):
        self.text, self.value = text, value


def path_of(stem):
    return FOLDER / f"{stem}.md"


def read(stem):
    """The text of a lab's worksheet. Raises WorksheetError."""
    path = path_of(stem)
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise WorksheetError(f"worksheets/{stem}.md: {error.strerror}: git checkout "
                             f"worksheets/{stem}.md brings it back") from None


def question(text):
    """The lab's question: the worksheet's first bold line."""
    found = re.search(r"^\*\*(.+?)\*\*\s*$", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def section(text, title):
    """The lines of one section, without its heading; '' if there is none."""
    found = re.search(rf"^##[ \t]+{re.escape(title)}\b.*?$(.*?)(?=^## |\Z)", text,
                      re.MULTILINE | re.DOTALL | re.IGNORECASE)
    return found[1] if found else ""


def split_cells(line):
    line = re.sub(r"^\s*\||\|\s*$", "", line)
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]


def tables(text):
    """The tables in a piece of Markdown: (columns, rows) each; the first column is the label."""
    found, heads = [], None
    lines = text.split("\n")
    for line, following in zip(lines, lines[1:] + [""]):
        if "|" not in line:
            heads = None
        elif heads is None:
            if re.fullmatch(r"[\s|:-]*-[\s|:-]*", following) and "|" in following:
                heads = split_cells(line)[1:]
                found.append((heads, []))
        elif not re.fullmatch(r"[\s|:-]*-[\s|:-]*", line) or METRIC.search(line):
            label, *cells = split_cells(line)
            found[-1][1].append(Row(label, dict(zip(heads, cells))))
    return found


def is_prediction(column):
    return "predict" in column.lower()


def unit_in(label):
    """The unit that a label or a column's head ends with, or None: '`launch_async`, us'."""
    found = re.search(rf", ({UNIT})\b(?!.*, (?:{UNIT})\b)", METRIC.sub("", label))
    return found[1] if found else None


def _number(match):
    whole, rest = match["whole"] or "0", match["rest"] or match["only"] or "0"
    if re.fullmatch(r"0[, ']\d{3}", whole):  # 0,583 is no thousand
        whole, rest = "0", whole[2:]
    value = float("".join(re.findall(r"\d", whole)) + f".{rest}{match['power'] or ''}")
    value *= {None: 1, "k": 1e3, "K": 1e3, "M": 1e6}[match["kilo"]]
    return -value if match["sign"] else value


def prediction(cell, unit=None, bare=None):
    """What a cell says, or None if it is empty. `unit` is what the metric is printed in, `bare`
    what a number without a unit is in, if that is another.

    Understands 3.5, 3,5, ~3, "about 3 us", 12,000, 12k, 1e4, "2 .. 4" and "2-4" (the middle),
    and another unit of time; anything else is kept as a word.
    """
    text = re.sub(r"<!--.*?-->", " ", cell).replace("\u00b5", "u").replace("\u03bc", "u")
    text = re.sub(r"[`*_~\u2248<>=\u2264\u2265]", " ", text.replace("\u2212", "-")).strip()
    if text.lower() in NOTHING:
        return None
    said = re.sub(r"<!--.*?-->", "", cell).replace("`", "").strip()
    figures = list(FIGURE.finditer(text))
    if not figures:
        return Prediction(said)
    values, given = [_number(figures[0])], figures[0]["unit"] or bare
    if len(figures) > 1 and RANGE.fullmatch(text[figures[0].end():figures[1].start()]):
        values.append(_number(figures[1]))
        given = figures[1]["unit"] or given
    value = sum(values) / len(values)
    if given in SECONDS and unit in SECONDS:
        value *= SECONDS[given] / SECONDS[unit]
    # 1e999 is as good as a word: nothing can be said of how far it is off.
    return Prediction(said, float(f"{value:.12g}") if math.isfinite(value) else None)


def meant(row, head, alone, units):
    """The metric that a cell predicts, or None: the row's own where the column is the only one
    or is headed by a unit; else the one named after it, as class_two_streams after two_streams."""
    if not row.metric or alone or re.fullmatch(UNIT, head):
        return row.metric
    named = [name for name in units if name.endswith("_" + row.metric)]
    return named[0] if len(named) == 1 else None


def predictions(text, units):
    """({metric: Prediction}, [(label, text) of filled cells that name no metric]).

    `units` says what each metric is printed in. A figure in the table of Compare wins over one
    in the table of Predict: it is the later of the two.
    """
    found, others = {}, []
    for title in ("Predict", "Compare"):
        for heads, rows in tables(section(text, title)):
            wanted = [h for h in heads if is_prediction(h)]
            if title == "Predict":
                wanted = wanted or heads
            for row in rows:
                for head in wanted:
                    metric = meant(row, head, len(wanted) == 1, units)
                    said = prediction(row.cells.get(head, ""), units.get(metric),
                                      unit_in(row.label) or unit_in(", " + head))
                    if not said:
                        continue
                    if not metric:
                        others.append((f"{plain(row.label)} / {plain(head)}", said.text))
                        continue
                    if row.relative:
                        said.value = None
                    found[metric] = said
    return found, others


def plain(text):
    """Markdown of a cell without its marks."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


class Hint:
    """One hint: its title (TODO(1)), the TODO's number or None, and its Markdown."""

    def __init__(self, title, body):
        todo = re.search(r"TODO\((\d+)\)", title)
        self.title, self.body, self.todo = title.strip(), body.strip(), int(todo[1]) if todo else None


def hints(text):
    return [Hint(title, body) for title, body in re.findall(
        r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", section(text, "Hints"), re.DOTALL)]
