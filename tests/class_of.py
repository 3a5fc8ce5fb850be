# SPDX-License-Identifier: MIT
"""A made-up class: recorded outputs, each student's a little different, some wrong on purpose.

No figure of such a class is a measurement of anything.
"""
import random
import re
from pathlib import Path

import kit

TIMES = re.compile(r"(?m)^(measured \S+ = )(\S+)( (?:ns|us|ms|s) \(median of \d+, )(?:quartiles (\S+) (\S+), )?min (\S+), max (\S+)\)")
FIRST = ["Ada", "Zoë", "李", "محمد", "Grace", "Søren", "María", "Łukasz", "Anne-Marie", "Noor", "😀 Kim"]
LAST = ["O'Brien", "Núñez", "王伟", "العربي", "Smith, Jr.", "=cmd()", "van der Berg", "Müller", "\"Q\" Quinn", "Ivanov"]


def drift(text, factor):
    """Every measured time in an output, times a factor; the spread goes along."""
    def one(m):
        a, value, b, q1, q3, low, high = m.groups()
        value, q1, q3, low, high = (x and f"{float(x) * factor:.6g}" for x in (value, q1, q3, low, high))
        quartiles = f"quartiles {q1} {q3}, " if q1 else ""
        return f"{a}{value}{b}{quartiles}min {low}, max {high})"
    return TIMES.sub(one, text)


def make(folder, students):
    """FOLDER/submissions and FOLDER/roster.csv."""
    folder, dice = Path(folder), random.Random(1)
    labs = [(p.stem, p.read_text()) for p in sorted(kit.RECORDED.glob("*.txt"))]
    lines = ["Student,ID,SIS User ID,SIS Login ID,Section"]
    for number in range(1, students + 1):
        login = f"user{number:03d}"
        name = f"{LAST[number % len(LAST)]} {FIRST[number % len(FIRST)]} {number}"
        quoted = name.replace('"', '""')
        lines.append(f'"{quoted}",{1000 + number},S{number},{login},"A, 1"')
        mine = folder / "submissions" / login
        mine.mkdir(parents=True)
        for stem, text in labs:
            luck = dice.random()
            text = drift(text, dice.lognormvariate(0, 0.02))
            if luck < 0.05:
                text = drift(text, 30)
            elif luck < 0.08:
                text = text[:len(text) // 2]
            elif luck < 0.12:
                continue
            (mine / f"{stem}.txt").write_text(text)
    (folder / "roster.csv").write_text("\n".join(lines) + "\n")
