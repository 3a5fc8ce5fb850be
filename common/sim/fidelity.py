#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare the simulated device's figures with the recorded H200's, metric by metric.

    fidelity.py [--check]     make fidelity records the simulated outputs first

Writes the table into common/sim/README.md (--check: only compares). Fails unless every figure is
within a factor of 1.5 and nine in ten within 1.2. EXEMPT names what no such model can know.
"""
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(KIT / "grading"))
import output  # noqa: E402

EVERY, MOST, SHARE = 1.5, 1.2, 0.9
BEGIN, END = "<!-- fidelity: made by make fidelity -->", "<!-- end of fidelity -->"
EXEMPT = {
    ("04", "release_kernel"): "arithmetic takes no time in the model",
    ("04", "debug_kernel"): "needs nvcc -G",
    ("10", "enqueue[1023]"): "what the driver does right after a full queue",
    ("13", "clock_skew"): "the SMs' counters start apart anew at each boot: 7e5 to 1.6e7 cycles seen",
    ("13", "split_overhead"): "the small difference of two times of 800 us",
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


def rows():
    """(lab, metric, unit, recorded, simulated, ratio or None) of every figure."""
    for path in sorted((KIT / "worksheets/recorded/nvidia-h200").glob("[0-9][0-9]_*.txt")):
        other = KIT / "worksheets/recorded/simulated-h200" / path.name
        if not other.exists():
            continue
        (real, real_words), (model, model_words) = figures(path), figures(other)
        sweep = {name.split("[")[0] for name in real} & {name.split("[")[0] for name in model}
        for name, (value, unit) in real.items():
            if name in model:
                yield path.stem, name, unit, value, model[name][0], ratio_of(model[name][0], value)
            elif name.split("[")[0] not in sweep:
                yield path.stem, name, unit, value, None, float("inf")
        for name, word in real_words.items():
            same = word == model_words.get(name)
            yield path.stem, name, "", word, model_words.get(name), 1.0 if same else float("inf")


def shown(value):
    return value if isinstance(value, str) or value is None else f"{value:.4g}"


def main():
    table = [(*row, EXEMPT.get((row[0][:2], row[1]))) for row in rows()]
    judged = [row for row in table if row[6] is None]
    near = sum(row[5] <= MOST for row in judged)
    beyond = [row for row in judged if row[5] > EVERY]
    summary = (f"{near} of {len(judged)} figures ({100 * near / max(len(judged), 1):.0f} %) within "
               f"{MOST}, {len(judged) - len(beyond)} within {EVERY}; {len(table) - len(judged)} exempt")
    lines = ["| lab | metric | unit | H200 | simulated | factor |", "|---|---|---|---|---|---|"]
    lines += [f"| {lab[:2]} | {name} | {unit} | {shown(real)} | {shown(model)} | "
              + (f"exempt: {why} |" if why else f"{ratio:.2f} |")
              for lab, name, unit, real, model, ratio, why in table]
    for row in beyond:
        print(f"beyond {EVERY}: {row[0][:2]} {row[1]}: H200 {shown(row[3])}, simulated {shown(row[4])}")
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
