#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare the simulated device's figures with those of the recorded H200s, metric by metric.

    fidelity.py [--check]     make fidelity records the simulated outputs first

Machines of one model differ: a simulated figure counts as right anywhere between the least and
the greatest of them. Its factor is how far outside it lies. Writes the table into common/sim/README.md (--check: only
compares). Fails unless every figure is within a factor of 1.5 and nine in ten within 1.2. EXEMPT
names what no such model can know.
"""
import collections
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(KIT / "grading"))
import output  # noqa: E402

RECORDED = KIT / "worksheets" / "recorded"
EVERY, MOST, SHARE = 1.5, 1.2, 0.9
BEGIN, END = "<!-- fidelity: made by make fidelity -->", "<!-- end of fidelity -->"
EXEMPT = {
    ("04", "release_kernel"): "arithmetic takes no time in the model",
    ("04", "debug_kernel"): "needs nvcc -G",
}


def figures(path):
    """{metric: (value, unit)} of one output; a series has an entry a point."""
    out = output.read(path)
    found = {name: (v.value, v.unit) for name, v in out.values.items()}
    for name, points in out.series.items():
        found.update({f"{name}[{at:g}]": (v.value, v.unit) for at, v in points.items()})
    return found, out.words


def ratio_of(simulated, recorded):
    """How far apart, as a factor of at least 1; below a tenth of a unit both count as nothing."""
    if max(abs(simulated), abs(recorded)) < 0.1:
        return 1.0
    if simulated * recorded <= 0:
        return float("inf")
    return max(simulated / recorded, recorded / simulated)


class Row(collections.namedtuple("Row", "lab metric unit real low high model factor")):
    """One figure or word: what the H200 and the model have of it, and the least and greatest of all
    H200s. None where there is none."""

    @property
    def exempt(self):
        """Why it is not judged, or None."""
        return EXEMPT.get((self.lab, self.metric))


def rows():
    """A Row for every figure."""
    for path in sorted((RECORDED / "nvidia-h200").glob("[0-9][0-9]_*.txt")):
        if not (RECORDED / "simulated-h200" / path.name).exists():
            continue
        lab = path.stem[:2]
        real, real_words = figures(path)
        model, model_words = figures(RECORDED / "simulated-h200" / path.name)
        machines = [real, *(figures(other)[0] for other in RECORDED.glob(f"h200-*/{path.name}"))]
        sweep = {name.split("[")[0] for name in real} & {name.split("[")[0] for name in model}
        for name, (value, unit) in real.items():
            all_of_it = [machine[name][0] for machine in machines if name in machine]
            low, high = min(all_of_it), max(all_of_it)
            if name in model:
                nearest = min(max(model[name][0], low), high)
                yield Row(lab, name, unit, value, low, high, model[name][0], ratio_of(model[name][0], nearest))
            elif name.split("[")[0] not in sweep:
                yield Row(lab, name, unit, value, low, high, None, float("inf"))
        for name, word in real_words.items():
            same = word == model_words.get(name)
            yield Row(lab, name, "", word, None, None, model_words.get(name), 1.0 if same else float("inf"))


def shown(value):
    return value if isinstance(value, str) or value is None else f"{value:.4g}"


def main():
    table = list(rows())
    judged = [row for row in table if not row.exempt]
    near = sum(row.factor <= MOST for row in judged)
    beyond = [row for row in judged if row.factor > EVERY]
    measured = [row for row in judged if row.low is not None]
    alike = sum(ratio_of(row.low, row.high) <= MOST for row in measured)
    summary = (f"{near} of {len(judged)} figures ({100 * near / max(len(judged), 1):.0f} %) within "
               f"{MOST}, {len(judged) - len(beyond)} within {EVERY}; {len(table) - len(judged)} exempt. "
               f"The H200s are within {MOST} of one another in {alike} of {len(measured)}")
    lines = ["| lab | metric | unit | H200 | all H200s | simulated | factor |", "|---|---|---|---|---|---|---|"]
    for row in table:
        span = "" if row.low is None else f"{shown(row.low)} .. {shown(row.high)}"
        factor = f"exempt: {row.exempt}" if row.exempt else f"{row.factor:.2f}"
        lines.append(f"| {row.lab} | {row.metric} | {row.unit} | {shown(row.real)} | {span} | "
                     f"{shown(row.model)} | {factor} |")
    for row in beyond:
        print(f"beyond {EVERY}: {row.lab} {row.metric}: H200 {shown(row.real)}, simulated {shown(row.model)}")
    print(summary)
    page = KIT / "common/sim/README.md"
    text = page.read_text(encoding="utf-8")
    new = (text[:text.index(BEGIN)] + "\n".join([BEGIN, "", summary + ".", "", *lines, "", END])
           + text[text.index(END) + len(END):])
    stale = new != text and "--check" in sys.argv
    if stale:
        print("common/sim/README.md holds another table: run make fidelity", file=sys.stderr)
    elif new != text:
        page.write_text(new, encoding="utf-8")
    good = judged and not beyond and near >= SHARE * len(judged) and not stale
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
