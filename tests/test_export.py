# SPDX-License-Identifier: MIT
"""Exports: each format as its system documents it, whatever students are called."""
import base64
import csv
import io
import json
import os
import re
import subprocess
import unittest
import xml.etree.ElementTree as xml

import export
import graded
import kit
import ranges
from test_class import LAB, Class, full, recorded

NAMES = ["Smith, John \"Jack\"", "李 小龍", "محمد العربي", "😀 Kim\u200d", "=HYPERLINK(\"http://x\")", "O'Brien"]


WRONG = re.sub(rb"(launch_async = \S+) us", rb"\1 ms", recorded())
FULL, PART = full(), graded.grade_data(WRONG, "x", ranges.HERE).earned  # of lab 01


def percent(points, decimals):
    return f"{round(100 * points / FULL, decimals):g}"


class Export(Class):
    def setUp(self):
        super().setUp()
        good = recorded()
        self.users = [f"user{i}" for i in range(len(NAMES))]
        for i, user in enumerate(self.users[:4]):
            self.hand_in(user, f"{LAB}.txt", good if i % 2 == 0 else WRONG)
        self.hand_in("user4", f"{LAB}.txt", b"cut off")
        self.hand_in("stranger", f"{LAB}.txt", good)
        self.grade("--labs", "1")  # user5 hands in nothing

    def csv_file(self, name, rows, **how):
        path = self.folder / name
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, **how).writerows(rows)
        return path

    def export(self, to, *more, expect=0):
        code, out, err = kit.grade("export", self.out, "--to", to, *more)
        self.assertEqual(code, expect, err)
        self.assertNotIn("Traceback", err)
        return out, err

    def canvas_roster(self):
        return self.csv_file("canvas.csv", [
            ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Quiz (7)", "Final Score"],
            ["    Points Possible", "", "", "", "", "10", "(read only)"],
            *([n, str(100 + i), f"S{i}", u, "A, 1", "5", ""] for i, (n, u) in enumerate(zip(NAMES, self.users)))])

    def rows(self, text, delimiter=","):
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))

    def test_canvas(self):
        out, err = self.export("canvas", "--roster", self.canvas_roster(), "--title", "CUDA labs (4321)")
        rows = self.rows(out)
        self.assertEqual(rows[0], ["Student", "ID", "SIS User ID", "SIS Login ID", "Section",
                                   "CUDA labs (4321)"])
        self.assertEqual(rows[1], ["    Points Possible", "", "", "", "", str(FULL)])
        self.assertEqual([r[1] for r in rows[2:]], [str(100 + i) for i in range(6)])
        self.assertEqual([r[5] for r in rows[2:]], [str(FULL), str(PART)] * 2 + ["0", ""])
        self.assertEqual([r[0] for r in rows[2:]], [n if n[0] != "=" else "'" + n for n in NAMES])
        self.assertIn("stranger: is not in the roster", err)
        self.assertIn("O'Brien (line 8): no submission", err)
        self.assertNotIn("Canvas makes a new", err)
        self.assertIn("Canvas makes a new assignment", self.export(
            "canvas", "--roster", self.canvas_roster())[1])

    def test_moodle_fills_the_worksheet_in_place(self):
        header = ["Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade",
                  "Grade can be changed", "Last modified (submission)", "Last modified (grade)",
                  "Feedback comments"]
        rows = [header, *([f"Participant {i}", n, f"{u}", "Submitted", "", "100,00", "Yes", "Monday, 1", "-",
                           "" if i else "keep me"] for i, (n, u) in enumerate(zip(NAMES, self.users)))]
        path = self.folder / "moodle.csv"
        text = io.StringIO()
        csv.writer(text, delimiter=";", lineterminator="\n").writerows(rows)
        path.write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())
        out, err = self.export("moodle", "--roster", path)
        self.assertTrue(out.startswith("\ufeff"))
        self.assertNotIn("\r", out)
        filled = self.rows(out[1:], ";")
        self.assertEqual([r[4] for r in filled], ["Grade", *["100", percent(PART, 2).replace(".", ",")] * 2, "0", ""])
        self.assertEqual(filled[1][9], "keep me")
        self.assertIn(f"01: 0/{FULL} (unreadable)", filled[5][9])
        for before, after in zip(rows, filled):
            for i in (0, 2, 3, 5, 6, 7, 8):
                self.assertEqual(before[i], after[i])
        self.assertIn("scaled", err)

    def test_moodle_without_a_worksheet(self):
        path = self.csv_file("m.csv", [["idnumber", "username"], *([f"00{i}", u] for i, u in enumerate(self.users))])
        rows = self.rows(self.export("moodle", "--roster", path)[0])
        self.assertEqual(rows[:3], [["idnumber", "grade"], ["000", str(FULL)], ["001", str(PART)]])

    def test_a_short_row_of_the_roster_is_no_crash(self):
        path = self.folder / "short.csv"
        path.write_text("name,email\nuser0,a@x\nuser1\n")
        out, err = self.export("moodle", "--roster", path)
        self.assertEqual(self.rows(out), [["email", "grade"], ["a@x", str(FULL)], ["", str(PART)]])
        self.assertIn("user1 (line 3): has no email", err)
        path.write_text("Student,ID,Section\nuser0,7,A\nuser1\n")
        self.assertEqual([r[1] for r in self.rows(self.export("canvas", "--roster", path)[0])[2:]], ["7", ""])
        path.write_text("Identifier,Full name,Maximum grade,Grade\nParticipant 1,user0,10\nParticipant 2,user1\n")
        rows = self.rows(self.export("moodle", "--roster", path)[0])
        self.assertEqual([r[3] for r in rows], ["Grade", "10", str(PART)])

    def test_one_student_alone_in_every_table(self):
        roster = self.canvas_roster()
        alone = ["--student", "user1", "--roster"]
        out, err = self.export("canvas", *alone, roster)
        self.assertEqual(err.count("\n"), 1, err)  # that Canvas makes a new assignment
        rows = self.rows(out)
        self.assertEqual((rows[1][5], [(r[3], r[5]) for r in rows[2:]]), (str(FULL), [("user1", str(PART))]))
        self.assertEqual([r[1] for r in self.rows(self.export("csv", *alone, roster)[0])[1:]], ["user1"])
        path = self.csv_file("m.csv", [["idnumber", "username"], *([f"00{i}", u] for i, u in enumerate(self.users))])
        self.assertEqual(self.rows(self.export("moodle", *alone, path)[0])[1:], [["001", str(PART)]])
        path = self.csv_file("w.csv", [["Identifier", "Full name", "Email address", "Grade"],
                                       *([f"Participant {i}", u, u, "7"] for i, u in enumerate(self.users))])
        rows = self.rows(self.export("moodle", *alone, path)[0])
        self.assertEqual([r[3] for r in rows[1:]], ["7", str(PART), *["7"] * 4])
        out, err = self.export("canvas", "--student", "stranger", "--roster", roster)
        self.assertEqual((len(self.rows(out)), "stranger: is not in the roster" in err), (2, True))

    def test_what_cannot_be_written_leaves_nothing_behind(self):
        out, err = self.export("csv", "--file", self.out, expect=2)
        self.assertEqual((out, err), ("", f"{self.out}: Is a directory\n"))
        self.assertEqual(list(self.folder.rglob("*.part")), [])
        with open("/dev/full", "wb") as full_disk:
            for command in ["export", self.out, "--to", "csv"], ["report", self.out]:
                run = subprocess.run([*kit.GRADE, *command], stdout=full_disk, stderr=subprocess.PIPE)
                self.assertTrue(run.stderr.startswith(b"standard output: No space left on device\n"), run.stderr)

    def test_csv_lists_everybody(self):
        out, _ = self.export("csv", "--roster", self.canvas_roster())
        rows = {(r[1] or r[0]): r for r in self.rows(out)[1:]}
        self.assertEqual(set(rows), {"user0", "user1", "user2", "user3", "user4", "stranger", "O'Brien"})
        self.assertEqual(rows["stranger"][-1], "not in the roster")
        self.assertEqual(rows["O'Brien"][2], "no submission")
        self.assertEqual(rows["user1"][3:6], [str(PART), str(FULL), percent(PART, 1)])
        self.assertEqual(len(self.rows(self.export("csv")[0])), 7)

    def test_junit_is_what_the_schema_says(self):
        """The elements, attributes and patterns of windyroad's JUnit.xsd."""
        out, _ = self.export("junit")
        root = xml.fromstring(out.encode())
        self.assertEqual((root.tag, dict(root.attrib)), ("testsuites", {}))
        for number, suite in enumerate(root):
            self.assertEqual(suite.tag, "testsuite")
            self.assertEqual(set(suite.attrib), {"id", "package", "name", "timestamp", "hostname", "tests",
                                                 "failures", "errors", "skipped", "time"})
            self.assertEqual(suite.get("id"), str(number))
            self.assertRegex(suite.get("timestamp"), r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\Z")
            tags = [child.tag for child in suite]
            cases = suite.findall("testcase")
            self.assertEqual(tags, ["properties", *["testcase"] * len(cases), "system-out", "system-err"])
            self.assertEqual(suite.get("tests"), str(len(cases)))
            for name, counted in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
                self.assertEqual(suite.get(counted), str(sum(c.find(name) is not None for c in cases)))
            for case in cases:
                self.assertEqual(set(case.attrib), {"name", "classname", "time"})
                self.assertLessEqual(len(case), 1)
                for child in case:
                    self.assertIn("type", child.attrib)
        by_name = {suite.get("name"): suite for suite in root}
        self.assertEqual(by_name["user0"].get("failures"), "0")
        self.assertEqual(by_name["user4"].get("errors"), "1")
        self.assertNotEqual(by_name["user1"].get("failures"), "0")

    def test_gradescope(self):
        data = json.loads(self.export("gradescope", "--student", "user1")[0])
        self.assertEqual(data["score"], PART)
        self.assertEqual(sum(t["score"] for t in data["tests"]), PART)
        self.assertEqual(sum(t["max_score"] for t in data["tests"]), FULL)
        self.assertEqual({t["status"] for t in data["tests"]}, {"passed", "failed"})
        for test in data["tests"]:
            self.assertEqual(set(test), {"name", "score", "max_score", "status", "output", "output_format",
                                         "visibility"})
        self.assertIn(data["output_format"], ("text", "html", "simple_format", "md", "ansi"))
        self.assertIn(data["visibility"], ("hidden", "after_due_date", "after_published", "visible"))
        self.assertIn(data["stdout_visibility"], ("hidden", "after_due_date", "after_published", "visible"))

    def test_prairielearn(self):
        data = json.loads(self.export("prairielearn", "--student", "user1")[0])
        self.assertTrue(data["gradable"])
        self.assertAlmostEqual(data["score"], PART / FULL, places=5)
        self.assertEqual(sum(t["max_points"] for t in data["tests"]), FULL)
        broken = json.loads(self.export("prairielearn", "--student", "user4")[0])
        self.assertEqual((broken["gradable"], "score" in broken), (False, False))
        self.assertIn("unreadable", broken["format_errors"][0])

    def test_classroom(self):
        out = self.export("classroom", "--student", "user1")[0]
        self.assertRegex(out, r"\A[A-Za-z0-9+/=]+\n\Z")
        data = json.loads(base64.b64decode(out))
        self.assertEqual((data["version"], data["status"], data["max_score"]), (1, "fail", FULL))
        self.assertEqual(sum(t["score"] for t in data["tests"]), PART)
        self.assertLessEqual({t["status"] for t in data["tests"]}, {"pass", "fail", "error"})
        good = json.loads(base64.b64decode(self.export("classroom", "--student", "user0")[0]))
        self.assertEqual(good["status"], "pass")

    def test_one_file_a_student(self):
        self.assertIn("name a folder with --file", self.export("gradescope", expect=2)[1])
        self.export("gradescope", "--file", self.folder / "each")
        self.assertEqual(sorted(p.name for p in (self.folder / "each").iterdir()),
                         ["stranger.json", *(f"user{i}.json" for i in range(5))])
        self.assertEqual(self.export("csv", "--file", self.folder / "x.csv")[0], "")
        self.assertTrue((self.folder / "x.csv").read_text().startswith("name,submission"))

    def test_who_could_not_be_graded_has_no_grade(self):
        (self.out / "students/user0/grade.json").unlink()
        out, err = self.export("canvas", "--roster", self.canvas_roster(), expect=3)
        self.assertEqual(self.rows(out)[2][5], "")
        self.assertIn("user0: could not be graded", err)
        code, out, _ = kit.grade("export", self.out, "--to", "gradescope", "--student", "user0")
        self.assertEqual((code, out), (3, ""))

    def test_mistakes_in_the_call_get_one_line(self):
        other = self.csv_file("o.csv", [["name", "section"], ["x", "y"]])
        for arguments, words in ((["canvas"], "needs --roster"), (["moodle"], "needs --roster"),
                                 (["canvas", "--roster", other], "none of the columns"),
                                 (["moodle", "--roster", other], "neither Identifier"),
                                 (["gradescope", "--student", "nobody"], "is not in the class"),
                                 (["csv", "--roster", "/none"], "No such file"),
                                 (["csv", "--file", "/no/such/x"], "No such file")):
            with self.subTest(words):
                code, out, err = kit.grade("export", self.out, "--to", *arguments)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(words, err)
                self.assertNotIn("Traceback", err)

    def test_gradescopes_scripts(self):
        place = self.folder / "autograder"
        (place / "submission").mkdir(parents=True)
        (place / "source").symlink_to(kit.KIT)
        (place / "submission" / f"{LAB}.txt").write_bytes(recorded())
        script = kit.KIT / "grading/gradescope/run_autograder"
        self.assertTrue(os.access(script, os.X_OK))
        run = subprocess.run([script], env={**os.environ, "AUTOGRADER": str(place)}, capture_output=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        data = json.loads((place / "results/results.json").read_text())
        self.assertEqual(data["score"], FULL)
        (place / "source").unlink()
        broken = kit.copy_of_kit(self.folder)
        (broken / f"grading/ranges/{LAB}.ini").write_text("[x]\n")
        (place / "source").symlink_to(broken)
        run = subprocess.run([script], env={**os.environ, "AUTOGRADER": str(place)}, capture_output=True)
        self.assertNotEqual(run.returncode, 0)
        self.assertFalse((place / "results/results.json").exists())  # no zero for the student


class Cells(unittest.TestCase):
    def test_formulas_are_defused_and_nothing_else(self):
        for text in ("=1+1", "+cmd", "-x", "@SUM(A1)", "\tx", "\rx", "\n=x", "\uff1dx"):
            self.assertEqual(export.defused(text), "'" + text)
        for text in ("", "x=1", "12", -3, "-3.5", "+4", "1e5", "-", "O'Brien", "a@b"):
            self.assertEqual(export.defused(text), str(text))

    def test_xml_holds_any_name(self):
        for text in ("a\0b", "<&\"'>", "\ud800", "\x1b[0m", "", "😀", "\ufffe"):
            xml.fromstring(f"<x a={export.attribute(text)}/>")
