# SPDX-License-Identifier: MIT
"""grade.py export: a class's grades, as a course system reads them.

canvas         CSV for Gradebook > Import: the fixed columns, then `Title (number)`
moodle         the downloaded grading worksheet, its grades filled in; or idnumber and grade
csv            a table for a person or a spreadsheet, one column a lab
junit          XML after the windyroad schema, a suite a student
gradescope     results.json, prairielearn results.json, classroom base64 JSON: one a student

A cell that a spreadsheet would take for a formula is defused. Who has no grade keeps an empty
cell; everybody who is not matched one to one is named on standard error.
"""
import base64
import csv
import io
import json
import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import grades
import roster
import runner
from grades import COULD_NOT_GRADE, GRADED, MISSING, NOT_BUILT, SKIPPED, UNREADABLE

DONE, USAGE, COULD_NOT = 0, 2, 3
TEXT_LIMIT = 4000  # characters of one message; PrairieLearn takes 1 MB a student
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
HARMLESS = re.compile(r"-|[-+]?\d+([.,]\d+)?")


class ExportError(Exception):
    """A mistake in the call, in one line."""


def defused(cell):
    """The cell as text that no spreadsheet takes for a formula. Numbers stay numbers."""
    text = str(cell)
    if text.startswith(FORMULA) and not HARMLESS.fullmatch(text):
        return "'" + text
    return text


def table(rows, delimiter=",", end="\r\n", bom=False):
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(
        [defused(cell) for cell in row] for row in rows)
    return ("\ufeff" if bom else "") + file.getvalue()


def cell_of(points):
    return "" if points is None else points


def of_roster(graded, options):
    """(student, their grade or None) for the rows of a table: the roster's, or the one of --student."""
    every = [(student, graded.of_student(place)) for place, student in enumerate(graded.students)]
    return [(student, its) for student, its in every if its or not options.student]


# ---- a table of the class ----

def canvas(graded, options):
    """The columns that Canvas' importer asks for, in its order; the title's number names an
    assignment there is."""
    need_roster(graded, options, "Canvas' gradebook export (Grades > Export)")
    columns = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    places = [graded.table.column(roster.plain(name)) for name in columns]
    if all(place is None for place in places[1:4]):
        raise ExportError(f"{options.roster}: has none of the columns ID, SIS User ID, SIS Login ID, by "
                          "which Canvas knows students: pass its gradebook export")
    if not re.search(r"\(\d+\)$", options.title):
        say(f"Canvas makes a new assignment '{options.title}'; to fill one that exists, give its number "
            f"(the last in its address): --title '{options.title} (1234)'")
    rows = [[*columns, options.title], ["    Points Possible", "", "", "", "", graded.top]]
    for student, its in of_roster(graded, options):
        cells = [graded.table.cell(student["line"], place) for place in places]
        cells[0] = cells[0] or student["name"]
        rows.append([*cells, cell_of(graded.points(its))])
    return table(rows)


def moodle(graded, options):
    need_roster(graded, options, "Moodle's grading worksheet, or a table with a column idnumber")
    sheet = graded.table
    if sheet.column("identifier") is not None and sheet.column("grade") is not None:
        return moodle_worksheet(graded, options)
    for name in ("idnumber", "id number", "username", "email", "email address"):
        if sheet.column(name) is not None:
            break
    else:
        raise ExportError(f"{options.roster}: has neither Identifier and Grade, as Moodle's grading "
                          "worksheet, nor idnumber, username or email")
    rows = [[{"id number": "idnumber", "email address": "email"}.get(name, name), "grade"]]
    for student, its in of_roster(graded, options):
        who = sheet.cell(student["line"], sheet.column(name))
        if not who:
            say(f"{student['name']} (line {student['line']}): has no {name}, by which Moodle would know them")
        rows.append([who, cell_of(graded.points(its))])
    return table(rows)


def moodle_worksheet(graded, options):
    """Only Grade, and Feedback comments where empty, change; order and separators stay."""
    sheet = graded.table
    grade, most = sheet.column("grade"), sheet.column("maximum grade")
    comments = sheet.column("feedback comments")
    rows = [list(row) for row in sheet.rows]
    scaled = set()
    for student, its in of_roster(graded, options):
        row, points = rows[student["line"] - 1], graded.points(its)
        if points is None:
            continue
        top = sheet.cell(student["line"], most)
        comma = "," in top and "." not in top
        try:
            wanted = float(top.replace(",", "."))
        except ValueError:
            wanted = graded.top
        if wanted != graded.top and graded.top:
            scaled.add(wanted)
            points = grades.rounded(points * wanted / graded.top)
        row += [""] * (max(grade, comments or 0) + 1 - len(row))
        row[grade] = str(points).replace(".", ",") if comma else points
        if comments is not None and not row[comments].strip():
            row[comments] = "; ".join(f"{lab['lab'][:2]}: {lab['credit']}/{lab['of']}" + (
                f" ({lab['state']})" if lab["state"] != GRADED else "") for lab in its["labs"])
    for wanted in sorted(scaled):
        say(f"the worksheet's maximum grade is {wanted:g}, the labs give {graded.top}: scaled")
    return table(rows, sheet.delimiter, sheet.end, sheet.bom)


def plain_csv(graded, options):
    rows = [["name", "submission", "state", "points", "of", "percent", *graded.labs, "note"]]
    name_of = {name: graded.students[place]["name"] for name, place in graded.matches.of.items()}
    for grade in graded.grades:
        name = grade["student"]
        note = "" if not graded.students else (
            "fits several of the roster" if name in graded.matches.ambiguous else
            "not in the roster" if name in graded.matches.unmatched else
            "one of several submissions" if len(graded.matches.submission_of().get(
                graded.matches.of[name], [])) > 1 else "")
        labs = {lab["lab"]: lab["credit"] for lab in grade["labs"]}
        known = grade["state"] == GRADED
        rows.append([name_of.get(name, ""), shown(name), grade["state"], grade["points"] if known else "",
                     grade["of"] if known else "",
                     round(100 * grade["points"] / grade["of"], 1) if known and grade["of"] else "",
                     *(labs.get(stem, "") if known else "" for stem in graded.labs),
                     "; ".join(filter(None, [note, grade["reason"]]))])
    for place in graded.matches.absent:
        rows.append([graded.students[place]["name"], "", "no submission", "", "", "",
                     *[""] * len(graded.labs), ""])
    return table(rows)


def junit(graded, options):
    """One suite a student, one case a check; the elements and attributes that the schema demands,
    in its order."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for number, grade in enumerate(graded.grades):
        cases, count = [], {"failures": 0, "errors": 0, "skipped": 0}
        for test in tests(grade):
            open_ = f"<testcase name={attribute(test['check'])} classname={attribute(test['lab'])} time=\"0\""
            kind = test["kind"]
            if kind == "passed":
                cases.append(open_ + "/>")
                continue
            count[{"failed": "failures", "error": "errors", "skipped": "skipped"}[kind]] += 1
            inner = "<skipped/>" if kind == "skipped" else (
                f"<{'failure' if kind == 'failed' else 'error'} type={attribute(test['word'])} "
                f"message={attribute(test['text'])}/>")
            cases.append(f"{open_}>{inner}</testcase>")
        said = "".join(f"{note}\n" for note in grade["notes"])
        lines += [f'<testsuite id="{number}" package="labs" name={attribute(grade["student"])} '
                  f'timestamp="{graded.meta.get("begun", "1970-01-01T00:00:00")}" hostname="localhost" '
                  f'tests="{len(cases)}" failures="{count["failures"]}" errors="{count["errors"]}" '
                  f'skipped="{count["skipped"]}" time="0">', "<properties/>", *cases,
                  f"<system-out>{escape(xml_text(said))}</system-out>", "<system-err/>", "</testsuite>"]
    return "\n".join([*lines, "</testsuites>", ""])


def xml_text(text):
    """What XML 1.0 can hold of a text."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def attribute(text):
    return quoteattr(" ".join(xml_text(text).split()) or "?")


# ---- one student ----

def tests(grade):
    """Every check as {lab, check, kind, word, text, score, most}; a lab without verdicts is one."""
    for lab in grade["labs"]:
        title = lab["lab"].replace("_", " ", 1)
        if not lab["checks"]:
            kind = "skipped" if lab["state"] == SKIPPED and not lab["of"] else (
                "error" if lab["state"] in (NOT_BUILT, UNREADABLE, COULD_NOT_GRADE) else "failed")
            yield {"lab": title, "check": title, "kind": kind, "word": lab["state"], "score": 0,
                   "most": lab["of"], "text": f"{lab['state']}: {lab['reason']}".rstrip(": ")}
            continue
        for check in lab["checks"]:
            text = f"{check['value'] or '-'}, plausible: {check['range']}"
            if check.get("message"):
                text += f". {check['message']}"
            if lab["practice"]:
                text += ". Simulated: practice, which earns no points"
            yield {"lab": title, "check": check["check"], "text": text,
                   "word": "practice" if lab["practice"] else check["verdict"],
                   "kind": "passed" if check["verdict"] == "pass" and not lab["practice"] else "failed",
                   "score": 0 if lab["practice"] else check["points"], "most": check["of"]}


def gradescope(grade):
    return json.dumps({
        "score": grade["points"], "output": summary_of(grade), "output_format": "text",
        "visibility": "visible", "stdout_visibility": "hidden",
        "tests": [{"name": name_of(t), "score": t["score"], "max_score": t["most"],
                   "status": "passed" if t["kind"] in ("passed", "skipped") else "failed",
                   "output": t["text"][:TEXT_LIMIT], "output_format": "text", "visibility": "visible"}
                  for t in tests(grade)]}, indent=1, ensure_ascii=False) + "\n"


def name_of(test):
    return test["lab"] if test["check"] == test["lab"] else f"{test['lab']}: {test['check']}"


def summary_of(grade):
    lines = [f"{lab['lab'].replace('_', ' ', 1)}: {lab['credit']}/{lab['of']}" + (
        f", {lab['state']}" if lab["state"] != GRADED else "") + (
        ", simulated: practice, which earns no points" if lab["practice"] else "")
        for lab in grade["labs"]]
    return "\n".join([*lines, *(f"not graded: {note}" for note in grade["notes"])])[:TEXT_LIMIT]


def prairielearn(grade):
    """gradable false where nothing that was handed in could be judged: costs no attempt."""
    handed_in = [lab for lab in grade["labs"] if lab["state"] != MISSING]
    unfit = [lab for lab in handed_in if lab["state"] in (NOT_BUILT, UNREADABLE)]
    if unfit and len(unfit) == len(handed_in):
        return json.dumps({"gradable": False, "format_errors": [
            f"{lab['lab']} {lab['state']}: {lab['reason']}"[:TEXT_LIMIT] for lab in unfit]},
            indent=1, ensure_ascii=False) + "\n"
    return json.dumps({
        "gradable": True, "score": round(grade["points"] / grade["of"], 6) if grade["of"] else 0.0,
        "message": f"{grade['points']} of {grade['of']} points", "output": summary_of(grade),
        "tests": [{"name": name_of(t), "points": t["score"], "max_points": t["most"],
                   "message": t["word"], "output": t["text"][:TEXT_LIMIT]} for t in tests(grade)]},
        indent=1, ensure_ascii=False) + "\n"


def classroom(grade):
    """What the autograding reporter takes in a step's RESULTS: base64 of JSON, version 1."""
    all_tests = [{"name": name_of(t), "status": {"passed": "pass", "skipped": "pass", "failed": "fail",
                                                 "error": "error"}[t["kind"]],
                  "score": t["score"], "message": t["text"][:TEXT_LIMIT], "test_code": "", "filename": "",
                  "line_no": 0, "execution_time": ""} for t in tests(grade)]
    words = {t["status"] for t in all_tests}
    status = "error" if "error" in words else "fail" if "fail" in words else "pass"
    data = {"version": 1, "status": status, "max_score": grade["of"], "tests": all_tests}
    return base64.b64encode(json.dumps(data).encode()).decode() + "\n"


TABLES = {"canvas": canvas, "moodle": moodle, "csv": plain_csv, "junit": junit}
ONE = {"gradescope": (gradescope, ".json"), "prairielearn": (prairielearn, ".json"),
       "classroom": (classroom, ".txt")}


# ---- the command ----

def shown(name):
    return name.encode("utf-8", "replace").decode()


def say(text):
    print(shown(text), file=sys.stderr)


def need_roster(graded, options, what):
    if graded.table is None:
        raise ExportError(f"--to {options.to} needs --roster FILE: {what}")


def write(text, path):
    """To a file, whole or not at all, or to standard output. A folder that is not there is a mistake."""
    data = text.encode("utf-8", "replace")
    if not path:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    runner.write_whole(Path(path), data)


def chosen(graded, options):
    if not options.student:
        return graded.grades
    found = [g for g in graded.grades if g["student"] == options.student]
    if not found:
        raise ExportError(f"--student {options.student}: is not in the class; there are: "
                          + ", ".join(shown(g["student"]) for g in graded.grades[:10])
                          + (", ..." if len(graded.grades) > 10 else ""))
    return found


def one_each(graded, options):
    make, ending = ONE[options.to]
    students = chosen(graded, options)
    if len(students) > 1 and not options.file:
        raise ExportError(f"--to {options.to} is one file a student, and there are {len(students)}: name "
                          "a folder with --file, or one of them with --student")
    without = [g for g in students if g["state"] != GRADED]
    students = [g for g in students if g["state"] == GRADED]
    for grade in without:
        say(f"{grade['student']}: could not be graded, so nothing is written: {grade['reason']}")
    if len(graded.grades) == 1 or options.student or not options.file:
        for grade in students:
            write(make(grade), options.file)
    else:
        folder = Path(options.file)
        folder.mkdir(parents=True, exist_ok=True)
        for grade in students:
            write(make(grade), folder / (graded.meta["students"][grade["student"]] + ending))
        say(f"{len(students)} files are in {folder}/")
    return COULD_NOT if without else DONE


def main(options):
    """The exit code of grade.py export."""
    try:
        graded = grades.Class(options.out, options.roster)
        if options.to in ONE:
            return one_each(graded, options)
        if options.student:
            graded.only(chosen(graded, options))
        write(TABLES[options.to](graded, options), options.file)
    except (ExportError, grades.GradesError, roster.RosterError) as error:
        say(str(error))
        return USAGE
    except OSError as error:
        say(f"{error.filename or 'standard output'}: {error.strerror}")
        return USAGE
    for line in roster.problems(graded.matches):
        say(line)
    without = [g for g in graded.grades if g["state"] != GRADED]
    for grade in without:
        say(f"{grade['student']}: could not be graded, so has no grade here: {grade['reason']}")
    return COULD_NOT if without else DONE
