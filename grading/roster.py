# SPDX-License-Identifier: MIT
"""A course system's list of students, and which submission belongs to which of them.

A roster is a CSV with a header: Canvas' gradebook export, Moodle's grading worksheet, GitHub
Classroom's roster, or any table with columns that say who somebody is (name, email, username,
id, ...; `submission` names the folder or the zip itself).
"""
import csv
import io
import re
import unicodedata

# The first of them that the table has goes before the others.
NAMES = ("student", "name", "full name", "fullname", "student name")
FIRST, LAST = ("first name", "firstname", "given name"), ("last name", "lastname", "surname", "family name")
IDS = {"submission", "folder", "id", "sid", "student id", "sis user id", "sis login id", "login",
       "login id", "username", "user name", "user", "uid", "email", "email address", "e-mail",
       "idnumber", "id number", "identifier", "github_username", "github username", "github",
       "github_id", "netid", "integration id"}
LEAST = 2  # characters of an id that may be a part of a submission's name


class RosterError(Exception):
    """A mistake in the roster: file and what is wrong, in one line."""


class Table:
    """A CSV as it was: its rows, and how it was written."""

    def __init__(self, path):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise RosterError(f"{path}: {error.strerror}") from None
        self.bom = data.startswith(b"\xef\xbb\xbf")
        try:
            text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        except UnicodeDecodeError:
            raise RosterError(f"{path}: is not UTF-8 text: export the roster as CSV (UTF-8)") from None
        first = text.split("\n", 1)[0]
        self.delimiter = max(",;\t", key=first.count)
        self.end = "\r\n" if "\r\n" in text else "\n"
        try:
            self.rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter))
        except csv.Error as error:
            raise RosterError(f"{path}: cannot be read as CSV: {error}") from None
        if not self.rows or not any(cell.strip() for cell in self.rows[0]):
            raise RosterError(f"{path}: is empty: its first line names the columns")
        self.header = [plain(cell) for cell in self.rows[0]]

    def column(self, *names):
        """The place of the first column of one of these names, or None."""
        return next((self.header.index(n) for n in names if n in self.header), None)

    def cell(self, line, place):
        """What stands in a line of the file at such a place; nothing where the row is shorter."""
        row = self.rows[line - 1]
        return row[place].strip() if place is not None and place < len(row) else ""


def plain(text):
    """A name or an id as it is compared: no case, no outer space, one form of each accent."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text).strip()).casefold()


def compact(text):
    """As Canvas makes a file name of a person's: letters and digits alone."""
    return "".join(c for c in plain(text) if c.isalnum())


def load(path):
    """The students of a roster: {"line", "name", "ids"}. Raises RosterError."""
    return students_of(Table(path), path)


def students_of(table, path):
    names = [table.header.index(n) for n in NAMES if n in table.header]
    parts = [table.column(*group) for group in (FIRST, LAST)]
    ids = [table.header.index(n) for n in table.header if n in IDS]
    if not names and not ids and None in parts:
        raise RosterError(f"{path}: its first line names no column that says who a student is: "
                          "name, email, username, id, ...")
    students = []
    for line, row in enumerate(table.rows[1:], 2):
        if not any(c.strip() for c in row) or "points possible" in plain(row[0]):
            continue
        named, in_parts, known = ([cell for cell in (table.cell(line, i) for i in places) if cell]
                                  for places in (names, parts, ids))
        name = named[0] if named else " ".join(in_parts)
        if name or known:
            students.append({"line": line, "name": name or known[0], "ids": known})
    return students


class Matches:
    """student of: submission's name -> place in the roster, and all that is not one to one."""

    def __init__(self):
        self.of, self.unmatched, self.ambiguous = {}, [], {}
        self.twice, self.absent, self.same_id = {}, [], []
        self.students = []

    def submission_of(self):
        """Place in the roster -> the names of its submissions."""
        found = {}
        for name, place in self.of.items():
            found.setdefault(place, []).append(name)
        return found


def match(submissions, students):
    """Matches of [{"student", "hints"}] and the students of a roster."""
    result = Matches()
    result.students = students
    if not students:
        return result
    by_id, by_name = {}, {}
    for place, student in enumerate(students):
        for known in student["ids"]:
            by_id.setdefault(plain(known), set()).add(place)
            number = re.fullmatch(r"\D* (\d+)", known)  # Moodle: Participant 1234
            if number:
                by_id.setdefault(number[1], set()).add(place)
        for form in name_forms(student["name"]):
            by_name.setdefault(form, set()).add(place)
    for known, places in sorted(by_id.items()):
        if len(places) > 1:
            result.same_id.append((known, sorted(places)))
    for submission in submissions:
        places = candidates(submission, by_id, by_name)
        if len(places) == 1:
            result.of[submission["student"]] = next(iter(places))
        elif places:
            result.ambiguous[submission["student"]] = sorted(places)
        else:
            result.unmatched.append(submission["student"])
    result.twice = {place: names for place, names in result.submission_of().items() if len(names) > 1}
    taken = set(result.of.values())
    result.absent = [p for p in range(len(students)) if p not in taken]
    return result


def name_forms(name):
    """The ways in which a course system writes a name: Doe, Jane and Jane Doe."""
    forms = {compact(name)}
    if "," in name:
        last, first = name.split(",", 1)
        forms.add(compact(f"{first} {last}"))
    else:
        words = name.split()
        forms.add(compact(" ".join(words[-1:] + words[:-1])))
    return forms - {""}


def candidates(submission, by_id, by_name):
    """The places that fit best: its whole name, what the export says, parts of its name, the
    student's name."""
    name = re.sub(r" \(\d+\)$", "", submission["student"])
    said = [text for kind, text in submission["hints"] if kind != "name"]
    parts = [name[m.end():] for m in re.finditer("-", name)] + [
        name[:m.start()] for m in re.finditer("_", name)]
    named = [name] + [text for kind, text in submission["hints"] if kind == "name"]
    for places in ([by_id.get(plain(name), ())], [by_id.get(plain(s), ()) for s in said],
                   [by_id.get(plain(p), ()) for p in parts if len(p) >= LEAST],
                   [by_name.get(compact(n), ()) for n in named]):
        found = set().union(*places)
        if found:
            return found
    return set()


def problems(result):
    """What a person must look at, a line each."""
    if not result.students:
        return []

    def who(place):
        return f"{result.students[place]['name']} (line {result.students[place]['line']})"
    lines = [f"in the roster, {known} stands for several: {', '.join(map(who, places))}"
             for known, places in result.same_id]
    lines += [f"{name}: fits several of the roster: {', '.join(map(who, places))}"
              for name, places in sorted(result.ambiguous.items())]
    lines += [f"{name}: is not in the roster" for name in result.unmatched]
    lines += [f"{who(place)} has several submissions: {', '.join(sorted(names))}"
              for place, names in sorted(result.twice.items())]
    lines += [f"{who(place)}: no submission" for place in result.absent]
    return lines
