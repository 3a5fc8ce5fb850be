# SPDX-License-Identifier: MIT
"""A class's grades on disk: written by `class`, read by `export` and `report`."""
import json
from pathlib import Path

import roster
import runner

GRADED, MISSING, REFUSED, NOT_BUILT, FAILED, UNREADABLE, SKIPPED, COULD_NOT_GRADE = (
    "graded", "not handed in", "refused", "did not build", "failed", "unreadable", "skipped",
    "could not grade")


class GradesError(Exception):
    """There are no grades to read; the text is one line."""


def write(folder, grade):
    """grade.json, whole or not at all; then old files go."""
    lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in grade.items()
             if key != "labs"]
    labs = ",\n".join(json.dumps(lab, ensure_ascii=False) for lab in grade["labs"])
    text = "{\n" + ",\n".join(lines) + ',\n"labs": [\n' + labs + "\n]\n}\n"
    runner.save(folder / "grade.json", text.encode("utf-8", "surrogatepass"))
    for path in folder.iterdir():
        if path.name not in grade["kept"] and path.name != "grade.json":
            path.unlink()


def read(folder):
    """The grade in a student's folder, or None if there is none, or half of one."""
    try:
        grade = json.loads((folder / "grade.json").read_text(encoding="utf-8", errors="surrogatepass"))
        return grade if isinstance(grade, dict) and "key" in grade and "labs" in grade else None
    except (OSError, ValueError):
        return None


class Class:
    """All that `class` left in OUT. grades: in the order of names, one for each student of the
    class; one who is not graded yet has an empty grade that says so."""

    def __init__(self, out, roster_path=None):
        self.out = Path(out)
        try:
            self.meta = json.loads((self.out / "class.json").read_text(
                encoding="utf-8", errors="surrogatepass"))
            names = sorted(self.meta["students"].items())
        except (OSError, ValueError, KeyError, AttributeError):
            raise GradesError(f"{out}: holds no grades: grade.py class SUBMISSIONS --out {out} makes "
                              "them") from None
        self.labs = self.meta["labs"]
        self.grades = [read(self.out / "students" / folder) or not_yet(name)
                       for name, folder in names]
        self.table = roster.Table(roster_path) if roster_path else None
        self.students = (roster.students_of(self.table, roster_path) if roster_path
                         else self.meta.get("roster") or [])
        self.matches = roster.match(self.grades, self.students)
        self.by_name = {grade["student"]: grade for grade in self.grades}
        self.most = {}  # lab -> its points where most of it could be asked
        for lab in (lab for grade in self.grades if grade["state"] == GRADED for lab in grade["labs"]):
            self.most[lab["lab"]] = max(lab["of"], self.most.get(lab["lab"], 0))
        self.top = sum(self.most.values())

    def only(self, grades):
        """Leave the others out, who are not absent for that; what points are measured by stays."""
        self.grades, self.matches = grades, roster.match(grades, self.students)
        self.matches.absent = []

    def points(self, grade):
        """Of self.top. A lab of which less could be asked (an output has no solution beside it) is
        measured by the rest of it, a student of whom a lab could not be asked (it is skipped on
        this machine) by the others. None for one who could not be graded."""
        if grade is None or grade["state"] != GRADED:
            return None
        asked = [(lab["credit"] / lab["of"], self.most[lab["lab"]]) for lab in grade["labs"] if lab["of"]]
        of = sum(most for _, most in asked)
        return rounded(sum(share * most for share, most in asked) * self.top / of if of else 0)

    def of_student(self, place):
        """The grade of the roster's student, or None; of several submissions the best."""
        names = self.matches.submission_of().get(place, [])
        grades = [self.by_name[name] for name in sorted(names)]
        return max(grades, key=lambda g: (g["state"] == GRADED, g["points"]), default=None)


def rounded(points):
    """To two decimals, as course systems show them; a whole number as such."""
    points = round(points, 2)
    return int(points) if points == int(points) else points


def not_yet(name):
    return {"student": name, "key": "", "state": COULD_NOT_GRADE, "reason": "not graded yet",
            "points": 0, "of": 0, "hints": [], "notes": [], "worksheets": [], "kept": [], "labs": []}
