# SPDX-License-Identifier: MIT
"""Grading a class: what is taken, who is blamed, and that nothing is lost or graded twice."""
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import class_of
import class_run
import graded
import grader
import grades
import hostile
import intake
import kit
import output
import ranges
import roster
import runner
import sandbox
import verdict
import workshop

LAB = "01_nullKernelAsync"


def no_sandbox():
    try:
        sandbox.ways()
        return ""
    except sandbox.NoSandbox as error:
        return str(error)


NO_SANDBOX = no_sandbox()


def recorded(stem=LAB, machine="nvidia-h200"):
    return (kit.KIT / f"worksheets/recorded/{machine}/{stem}.txt").read_bytes()


def full(stem=LAB):
    """The points of a recorded output."""
    return graded.grade_data(recorded(stem), "x", ranges.HERE).points_of


def solution(stem=LAB):
    return (kit.KIT / f"solutions/{stem}.cu").read_bytes()


def contents(out):
    """Every file of a class's result but what is of a cluster, without the times."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        if path.is_file() and name.parts[0] not in ("slurm", ".lock"):
            found[str(name)] = re.sub(rb'"begun": "[^"]*"', b"", path.read_bytes())
    return found


class Class(unittest.TestCase):
    """A folder of submissions and what `class` makes of it."""

    def setUp(self):
        held = kit.folder()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)
        self.submissions, self.out = self.folder / "submissions", self.folder / "out"
        self.submissions.mkdir()

    def hand_in(self, student, name, data):
        path = self.submissions / student / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def make_class(self, students):
        """Instead of what was handed in a made-up class; its roster."""
        class_of.make(self.folder / "made", students)
        self.submissions = self.folder / "made" / "submissions"
        return self.folder / "made" / "roster.csv"

    def grade(self, *more, expect=0, **options):
        code, out, err = kit.grade("class", self.submissions, "--out", self.out, *more, **options)
        self.assertEqual(code, expect, err)
        self.assertEqual(out, "")
        self.assertNotIn("Traceback", err)
        return err

    def of(self, student, stem=LAB):
        """A student's grade, and the lab's."""
        grade = json.loads((self.out / "students" / intake.slug(student) / "grade.json").read_text())
        return grade, next(lab for lab in grade["labs"] if lab["lab"] == stem)

    def lab(self, student, stem=LAB):
        return self.of(student, stem)[1]


class Outputs(Class):
    def test_outputs_alone_are_checked_without_a_gpu_or_a_sandbox(self):
        for stem in kit.STEMS:
            self.hand_in("alice", f"{stem}.txt", recorded(stem))
        self.hand_in("bob", f"{LAB}.txt", recorded())
        self.grade("--labs", ",".join(s[:2] for s in kit.STEMS), env=kit.clean_environment(PATH="/nowhere"))
        alice, lab = self.of("alice")
        self.assertEqual(alice["points"], alice["of"])
        self.assertEqual((lab["source"], lab["state"]), ("output handed in", "graded"))
        bob = self.of("bob")[0]
        self.assertEqual((bob["points"], bob["of"]), (full(), alice["of"]))
        self.assertEqual(alice["of"], sum(map(full, kit.STEMS)))
        self.assertEqual(self.lab("bob", kit.STEMS[1])["state"], "not handed in")
        report = (self.out / "students/bob/report.txt").read_text()
        self.assertIn("not handed in", report)
        self.assertIn("hardware: NVIDIA H200", report)

    def test_a_simulated_figure_earns_points_only_on_demand(self):
        self.hand_in("alice", f"{LAB}.txt", recorded(machine="simulated-h200"))
        err = self.grade("--labs", "1")
        alice, lab = self.of("alice")
        self.assertEqual((alice["points"], lab["practice"], lab["points"]), (0, True, lab["of"]))
        self.assertIn("practice", err)
        self.grade("--labs", "1", "--credit-simulated")
        self.assertEqual(self.of("alice")[0]["points"], lab["of"])

    def test_what_the_student_got_wrong_is_the_students_zero_with_a_reason(self):
        cases = {"empty": (b"", "is empty"), "cut": (recorded()[:400], "ends without 'finished'"),
                 "binary": (b"\x7fELF\xff\xfe\0", "is not text"),
                 "other": (recorded("03_eventTiming"), "is the output of 03_eventTiming")}
        for student, (data, _) in cases.items():
            self.hand_in(student, f"{LAB}.txt", data)
        self.hand_in("good", f"{LAB}.txt", recorded())
        self.grade("--labs", "1")
        for student, (_, words) in cases.items():
            with self.subTest(student):
                grade, lab = self.of(student)
                self.assertEqual((grade["state"], grade["points"], lab["state"]),
                                 ("graded", 0, "unreadable"))
                self.assertIn(words, lab["reason"])
                report = (self.out / f"students/{student}/report.txt").read_text()
                self.assertIn(f"01 nullKernelAsync  unreadable  0/{full()}\n  ", report)
                self.assertIn(words, " ".join(report.split()))
                self.assertNotIn("could not grade", report)
        self.assertEqual(self.of("good")[0]["points"], self.lab("good")["of"])

    def test_a_mistake_of_the_graders_own_costs_nobody_else_the_grade(self):
        for student in ("alice", "bob", "cy"):
            self.hand_in(student, f"{LAB}.txt", recorded())
        for name, place, jobs in (("a.txt", "output.parse", "1"), ("b.txt", "output.parse", "2"),
                                  ("c.txt", "intake.Submission.digest", "1")):
            (self.submissions / "bob" / f"{LAB}.txt").write_bytes(recorded() + name.encode())
            poisoned = ("import sys; sys.path.insert(0, 'grading'); import intake, output, grade\n"
                        f"right = {place}\n"
                        "def wrong(self, *more):\n"
                        f"    if {name!r} in str(self if more else self.files): raise ValueError('one\\ntwo')\n"
                        "    return right(self, *more)\n"
                        f"{place} = wrong; sys.exit(grade.main())")
            code, _, err = kit.call(sys.executable, "-c", poisoned, "class", self.submissions, "--out", self.out,
                                    "--labs", "1", "--jobs", jobs)
            with self.subTest(place, jobs=jobs):
                self.assertEqual(code, 3, err)
                self.assertIn("2 of 3 students graded, 1 could not be", err)
                self.assertRegex(err, r"could not grade bob: the grader failed: ValueError: one two \(.*<string>:4\)\n")
                self.assertNotIn("Traceback", err)

    def test_skipped_earns_nothing_and_is_said(self):
        self.hand_in("alice", f"{LAB}.txt", "skipped 01 nullKernelAsync: no CUDA device\n")
        err = self.grade("--labs", "1")
        lab = self.lab("alice")
        self.assertEqual((lab["state"], lab["points"], lab["of"]), ("skipped", 0, full()))
        self.assertIn("skipped by 1 of 1", err)
        self.assertIn(f"skipped  0/{full()}\n  no CUDA device", (self.out / "students/alice/report.txt").read_text())

    def test_a_broken_range_file_is_no_students_zero(self):
        ranges = self.folder / "ranges"
        shutil.copytree(kit.KIT / "grading/ranges", ranges)
        (ranges / f"{LAB}.ini").write_text("[x]\nmni = 1\n")
        self.hand_in("alice", f"{LAB}.txt", recorded())
        self.hand_in("alice", "03_eventTiming.txt", recorded("03_eventTiming"))
        err = self.grade("--labs", "1,3", "--ranges", ranges, expect=3)
        alice, lab = self.of("alice")
        self.assertEqual((alice["state"], lab["state"]), ("could not grade", "could not grade"))
        self.assertIn("no key 'mni'", lab["reason"])
        self.assertIn("could not grade alice", err)
        self.assertEqual(self.lab("alice", "03_eventTiming")["points"], full("03_eventTiming"))

    def test_programs_without_a_gpu_could_not_be_graded_and_the_others_are(self):
        self.hand_in("alice", f"{LAB}.cu", solution())
        self.hand_in("bob", f"{LAB}.txt", recorded())
        err = self.grade("--labs", "1", expect=3, env=kit.clean_environment(CUDA_VISIBLE_DEVICES=""))
        self.assertEqual(self.of("alice")[0]["state"], "could not grade")
        self.assertIn("no GPU", self.lab("alice")["reason"])
        self.assertEqual(self.of("bob")[0]["points"], full())
        self.assertIn("--backend sim", err)
        self.grade("--labs", "1", "--outputs")
        self.assertIn("--outputs", self.lab("alice")["reason"])

    def test_programs_without_a_sandbox_are_refused(self):
        self.hand_in("alice", f"{LAB}.cu", solution())
        err = self.grade("--labs", "1", "--backend", "sim", expect=3,
                         env=kit.clean_environment(PATH="/nowhere"))
        self.assertIn("bubblewrap is not installed", err)
        self.assertIn("--unsafe", self.lab("alice")["reason"])
        self.assertEqual(self.of("alice")[0]["state"], "could not grade")

    def test_a_full_disk_stops_with_one_line_and_goes_on_later(self):
        import resource
        for number in range(6):
            for stem in kit.STEMS if number > 2 else [LAB]:
                self.hand_in(f"s{number}", f"{stem}.txt", recorded(stem))

        def little():
            resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        err = self.grade("--jobs", "1", expect=3, preexec_fn=little)
        self.assertIn("the same command goes on", err)
        self.assertEqual(err.count("File too large"), 1)
        self.assertEqual(list(self.out.rglob("*.part")), [])
        self.assertIn("3 student(s) are graded already", self.grade("--jobs", "1"))
        self.assertEqual(self.of("s5")[0]["state"], "graded")

    def test_mistakes_in_the_call_get_one_line(self):
        self.hand_in("alice", f"{LAB}.txt", recorded())
        single, empty, text = self.submissions / "alice", self.folder / "empty", self.folder / "x.txt"
        empty.mkdir()
        text.write_text("hello")
        good = ["class", self.submissions, "--out", self.out]
        cases = [(["class", self.folder / "none", "--out", self.out], "No such file"),
                 (["class", single, "--out", self.out], "--single"),
                 (["class", empty, "--out", self.out], "holds no folder and no zip"),
                 (["class", text, "--out", self.out], "is neither a folder nor a zip"),
                 (["class", self.submissions, "--out", self.submissions / "out"], "lies in"),
                 (["class", self.submissions, "--out", text], "Not a directory"),
                 ([*good, "--labs", "1,77"], "no such lab; there are: 01"),
                 ([*good, "--ranges", empty], "no range file"),
                 ([*good, "--roster", self.folder / "none.csv"], "No such file"),
                 ([*good, "--roster", text], "names no column"),
                 ([*good, "--jobs", "0"], "--jobs"),
                 (["export", empty, "--to", "csv"], "holds no grades"),
                 (["report", empty], "holds no grades")]
        for arguments, words in cases:
            with self.subTest(words):
                code, out, err = kit.grade(*arguments)
                self.assertEqual((code, out), (2, ""), err)
                self.assertIn(words, err)
                self.assertNotIn("Traceback", err)
                if "--jobs" not in arguments:
                    self.assertEqual(err.count("\n"), 1, err)


class Intake(Class):
    """Only the labs' own files are taken; whatever is refused is named."""

    def read(self, entry_items, stems=tuple(kit.STEMS)):
        return intake.Entry("alice", entry_items).read(stems)

    def zipped(self, data):
        path = self.folder / "alice.zip"
        path.write_bytes(data)
        return self.read(intake.zip_entry_items(intake.opener(path), len(data), "alice.zip"))

    def test_a_plain_zip_is_read(self):
        data = hostile.zip_of([(f"labs/{LAB}.cu", "x"), (f"{LAB}.txt", "y"), ("notes.pdf", "z")])
        taken = self.zipped(data)
        self.assertEqual(taken.files, {(LAB, ".cu"): b"x", (LAB, ".txt"): b"y"})
        self.assertEqual((taken.refused, taken.broken), ({}, ""))
        self.assertIn("notes.pdf is not graded", taken.notes)

    def test_members_that_are_refused(self):
        name, huge = f"{LAB}.cu", b"\0" * (3 << 20)
        fifo = zipfile.ZipInfo(name)
        fifo.external_attr, fifo.create_system = 0o010644 << 16, 3
        out = "leads out of the zip"
        cases = [(out, (f"../{name}", "x")), (out, (f"a/../../../{name}", "x")), (out, (f"/etc/{name}", "x")),
                 (out, (f"..\\..\\{name}", "x")), (out, (f"C:\\{name}", "x")),
                 ("is a symbolic link", hostile.link(name, "/etc/passwd")), ("is no plain file", (fifo, "")),
                 ("like a zip bomb", (name, huge)), ("is no text", (name, "int x;\0"))]
        for words, member in cases:
            with self.subTest(words, member=member[0]):
                taken = self.zipped(hostile.zip_of([member]))
                self.assertEqual(taken.files, {})
                self.assertIn(words, taken.refused[LAB])
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["alice.zip", "submissions"])

    def test_bombs(self):
        taken = self.zipped(hostile.bomb(f"{LAB}.cu", 10 << 30))
        self.assertIn("unpacks from", taken.refused[LAB])
        self.assertIn("10.0 GB", taken.refused[LAB])
        taken = self.zipped(hostile.bomb(f"{LAB}.cu", 50 << 20, said=100000))
        self.assertIn("cannot be unpacked", taken.refused[LAB])
        deep = hostile.zip_of([(f"{LAB}.cu", "x")])
        for _ in range(5):
            deep = hostile.zip_of([("more.zip", deep)])
        taken = self.zipped(deep)
        self.assertEqual(taken.files, {})
        self.assertIn("is a zip in a zip: not opened", taken.notes[0])
        many = hostile.zip_of([(f"{i}.txt", "") for i in range(intake.MEMBERS + 1)])
        self.assertIn(f"holds over {intake.MEMBERS} files", self.zipped(many).broken)

    def test_zips_that_are_none(self):
        good = hostile.zip_of([(f"{LAB}.cu", os.urandom(3000).hex())])
        for data in (b"Rar!\x1a\x07\0", b"", good[:200]):
            with self.subTest(data[:10]):
                self.assertIn("cannot be opened as a zip", self.zipped(data).broken)
        at = good.index(b"PK\x01\x02")
        locked = bytearray(good)
        locked[6] |= 1
        locked[at + 8] |= 1
        self.assertIn("is encrypted", self.zipped(bytes(locked)).refused[LAB])
        spoilt = bytearray(good)
        spoilt[60:70] = b"\xff" * 10
        self.assertIn("cannot be unpacked", self.zipped(bytes(spoilt)).refused[LAB])
        outer = bytearray(hostile.zip_of([("labs.zip", good)]))
        outer[60:70] = b"\xff" * 10
        self.assertIn("labs.zip cannot be unpacked", self.zipped(bytes(outer)).broken)
        beside = self.zipped(hostile.zip_of([(f"{LAB}.cu", "x"), ("labs.zip", b"Rar!")]))
        self.assertEqual((beside.broken, beside.files), ("", {(LAB, ".cu"): b"x"}))
        self.assertIn("labs.zip cannot be opened", " ".join(beside.notes))

    def test_links_devices_and_sizes_in_a_folder(self):
        alice = self.submissions / "alice"
        alice.mkdir()
        secret = self.folder / "secret.txt"
        secret.write_bytes(recorded())
        (alice / f"{LAB}.txt").symlink_to(secret)
        os.mkfifo(alice / "02_breakevenKernelAsync.txt")
        with open(alice / "03_eventTiming.cu", "wb") as file:
            file.truncate(100 << 20)
        (alice / "linked").symlink_to("/etc")
        (self.submissions / "eve").symlink_to("/etc")
        self.grade()
        self.assertIn("is a symbolic link", self.lab("alice")["reason"])
        self.assertIn("is no plain file", self.lab("alice", "02_breakevenKernelAsync")["reason"])
        self.assertIn("is 100 MB", self.lab("alice", "03_eventTiming")["reason"])
        self.assertIn("linked is a symbolic link", " ".join(self.of("alice")[0]["notes"]))
        self.assertIn("is a symbolic link", self.lab("eve")["reason"])
        self.assertEqual(self.of("eve")[0]["points"], 0)

    def test_a_folder_too_deep_is_named(self):
        deep = "/".join("abcdefghi")
        self.hand_in("alice", f"{deep}/{LAB}.cu", "x")
        self.hand_in("alice", f"{deep[:-2]}/03_eventTiming.cu", "y")
        taken = self.read(lambda: intake.folder_items(self.submissions / "alice"))
        self.assertEqual(taken.files, {("03_eventTiming", ".cu"): b"y"})
        self.assertEqual(taken.notes, [f"{deep} lies too deep: hand in the labs in one folder"])

    def test_names(self):
        cases = {f"{LAB.upper()}.CU": True, f"{LAB}-2.cu": True, f"{LAB} (1).cu": True,
                 f"a/b/{LAB}.cu": True, f"solutions/{LAB}.cu": False, f"recorded/{LAB}.cu": False,
                 f"__MACOSX/._{LAB}.cu": False, "77_nothing.cu": False, f"{LAB}.cu.exe": False}
        for name, taken in cases.items():
            with self.subTest(name):
                read = self.zipped(hostile.zip_of([(name, "x")]))
                self.assertEqual(read.files, {(LAB, ".cu"): b"x"} if taken else {})
                if "/0" in name and not taken:
                    self.assertIn(f"{name} is not graded", " ".join(read.notes))
        read = self.zipped(hostile.zip_of([(f"{LAB}.cu", "old"), (f"{LAB}-1.cu", "new"), ("lab3.txt", "")]))
        self.assertEqual(read.files[LAB, ".cu"], b"new")
        self.assertIn("its name must be 03_eventTiming.txt", " ".join(read.notes))
        for name in ("a\nb", "\x1b[31m", "\udc80", "..", "-rf", "x" * 200, "\u202egnp.exe"):
            with self.subTest(repr(name)):
                self.assertRegex(intake.slug(name), r"\A[\w.@+-]{1,80}\Z")
                self.assertNotIn(intake.slug(name)[0], ".-")
                self.assertTrue(intake.printable(name).isprintable())
        self.assertEqual(len({intake.slug(n) for n in ("a b", "a_b", "a\u0301", "A_b")}), 4)

    def test_every_course_systems_shape(self):
        out = recorded()
        metadata = ("submission_31:\n  :submitters:\n  - :name: Ada L\n    :sid: '77'\n"
                    "    :email: ada@x.edu\n")
        shapes = {
            "folders": {f"alice/{LAB}.txt": out, f"bob/{LAB}.txt": out},
            "zips": {"alice.zip": hostile.zip_of([(f"{LAB}.txt", out)]),
                     "bob.zip": hostile.zip_of([(f"bob/{LAB}.txt", out)])},
            "canvas": {f"lovelaceada_LATE_11_22_{LAB}.txt": out,
                       f"turingalan_12_23_{LAB}-1.txt": out},
            "moodle": {f"Ada Lovelace_101_assignsubmission_file/{LAB}.txt": out,
                       "Alan Turing_102_assignsubmission_file/labs.zip":
                           hostile.zip_of([(f"labs/{LAB}.txt", out)])},
            "gradescope": {"submission_metadata.yml": metadata.encode(),
                           f"submission_31/{LAB}.txt": out, f"submission_32/{LAB}.txt": out,
                           "submission_32/submission_metadata.yml": metadata.replace("Ada", "Eve").encode()},
        }
        hints = {"canvas": [("canvas", "11"), ("name", "lovelaceada")],
                 "moodle": [("participant", "101"), ("name", "Ada Lovelace")],
                 "gradescope": [("name", "Ada L"), ("id", "77"), ("email", "ada@x.edu")]}
        stems = [LAB]
        for shape, files in shapes.items():
            for wrapped in ("folder", "zip", "zip with a folder"):
                with self.subTest(shape, wrapped=wrapped):
                    place = self.folder / f"{shape} {wrapped}"
                    if wrapped == "folder":
                        for name, data in files.items():
                            (place / name).parent.mkdir(parents=True, exist_ok=True)
                            (place / name).write_bytes(data)
                    else:
                        top = "export/" if "folder" in wrapped else ""
                        place.write_bytes(hostile.zip_of([(top + n, d) for n, d in files.items()]))
                    entries, notes = intake.discover(place, stems)
                    self.assertEqual((len(entries), notes), (2, []), [e.name for e in entries])
                    for entry in entries:
                        self.assertEqual(entry.read(stems).files, {(LAB, ".txt"): out})
                    self.assertEqual(entries[0].hints, hints.get(shape, []))

    def test_a_folder_and_a_zip_of_one_name_are_both_graded_and_said(self):
        self.hand_in("alice", f"{LAB}.txt", recorded())
        (self.submissions / "alice.zip").write_bytes(hostile.zip_of([(f"{LAB}.txt", recorded())]))
        (self.folder / "r.csv").write_text("name,username\nAlice,alice\n")
        self.hand_in("alice (2)", f"{LAB}.txt", b"")
        err = self.grade("--labs", "1", "--roster", self.folder / "r.csv")
        self.assertIn("has several submissions: alice, alice (2), alice (3)", err)
        self.assertEqual([self.of(s)[0]["points"] for s in ("alice (2)", "alice (3)")], [0, full()])


class Roster(unittest.TestCase):
    def match(self, names, table):
        with kit.folder() as folder:
            path = Path(folder) / "r.csv"
            path.write_text(table)
            students = roster.load(path)
        return students, roster.match([{"student": n, "hints": h} for n, h in names], students)

    def test_each_systems_names_find_their_student(self):
        canvas = "Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"
        cases = [
            (canvas + '"Lovelace, Ada",11,s1,ada,A\n', ("x_11", [("canvas", "11")])),
            (canvas + '"Lovelace, Ada",11,s1,ada,A\n', ("lovelaceada_11", [("name", "lovelaceada")])),
            (canvas + '"Lovelace, Ada",11,s1,ada,A\n', ("ADA", [])),
            ("Identifier,Full name,Grade\nParticipant 101,Ada Lovelace,\n",
             ("Ada Lovelace_101_x", [("participant", "101")])),
            ("Full name,Email address\nAda Lovelace,a@x\n", ("z", [("name", "Lovelace, Ada")])),
            ("identifier,github_username\nAda,ada-l\n", ("labs-ada-l", [])),
            ("UID;name\nada@x.edu;Ada\n", ("ada@x.edu_1_labs_2", [])),
            ("first name,last name\nAda,Lovelace\n", ("Lovelace Ada", [])),
        ]
        for table, who in cases:
            with self.subTest(who):
                _, found = self.match([who], table)
                self.assertEqual(found.of, {who[0]: 0})

    def test_of_several_columns_of_names_it_is_always_the_same(self):
        for table, name in (("Name,Student\nshown,real\n", "real"), ("Surname,Last name,First name\nB,C,A\n", "A C")):
            self.assertEqual(self.match([], table)[0][0]["name"], name)
        for names in (roster.NAMES, roster.FIRST, roster.LAST):  # a set has another order in each process
            self.assertIsInstance(names, tuple)

    def test_all_that_is_not_one_to_one_is_named(self):
        table = "name,username,id\nAda,ada,1\nBob,bob,1\nCy,cy,3\nDan,dan,4\nDan,dan2,5\n"
        _, found = self.match([("ada", []), ("labs-ada", []), ("1", []), ("Dan", []), ("zoe", [])], table)
        said = "\n".join(roster.problems(found))
        for words in ("1 stands for several: Ada (line 2), Bob (line 3)", "zoe: is not in the roster",
                      "1: fits several of the roster", "Ada (line 2) has several submissions: ada, labs-ada",
                      "Cy (line 4): no submission"):
            self.assertIn(words, said)


class Resume(Class):
    """Stopped at any moment, a class goes on where it was, and ends with the same grades."""

    def test_kill_9_at_any_moment(self):
        dice = random.Random(8)
        self.make_class(80)
        self.grade()
        wanted = contents(self.out)
        again, kills = self.folder / "again", 0
        command = [*kit.GRADE, "class", str(self.submissions), "--out", str(again), "--jobs", "2"]

        def graded():
            return sum(1 for _ in again.rglob("grade.json"))
        while graded() < 60:
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=kit.KIT)
            upto = graded() + dice.randint(0, 25)
            while child.poll() is None and graded() < upto:
                time.sleep(0.002)
            time.sleep(dice.random() * 0.02)
            kills += child.poll() is None
            child.kill()
            child.wait()
            for path in again.rglob("grade.json"):
                self.assertIn("labs", json.loads(path.read_text()))
        self.assertGreater(kills, 2)
        for _ in range(50):  # its workers end with it; the lock of OUT is free at once
            code, _, err = kit.call(*command)
            if code == 0:
                break
            self.assertIn("another run is grading", err)
        self.assertEqual(contents(again), wanted)

    def test_a_second_run_grades_nobody_again_unless_something_changed(self):
        self.make_class(5)
        self.grade()
        self.assertIn("5 student(s) are graded already", self.grade())
        path = self.out / "students/user002/grade.json"
        before = path.stat().st_mtime_ns
        victim = next((self.submissions / "user002").glob("*.txt"))
        victim.write_text(victim.read_text().replace("finished", "finishes"))
        err = self.grade()
        self.assertIn("[1/1] user002", err)
        self.assertNotEqual(path.stat().st_mtime_ns, before)
        ranges = self.folder / "ranges"
        shutil.copytree(kit.KIT / "grading/ranges", ranges)
        with open(ranges / f"{LAB}.ini", "a") as file:
            file.write("\n# changed\n")
        err = self.grade("--ranges", ranges, "--only-failed")
        self.assertIn("5 of them by another kit", err)
        self.assertNotIn("user002:", err)
        self.assertIn("[5/5]", self.grade("--ranges", ranges))
        self.assertIn("[5/5]", self.grade("--ranges", ranges, "--force"))

    def test_half_a_grade_is_none(self):
        self.make_class(2)
        self.grade()
        path = self.out / "students/user001/grade.json"
        path.write_bytes(path.read_bytes()[:100])
        self.assertIn("[1/1] user001", self.grade())

    def test_could_not_grade_is_tried_again(self):
        self.hand_in("alice", f"{LAB}.cu", solution())
        self.hand_in("bob", f"{LAB}.txt", recorded())
        none = {"env": kit.clean_environment(CUDA_VISIBLE_DEVICES="")}
        self.grade("--labs", "1", expect=3, **none)
        err = self.grade("--labs", "1", expect=3, **none)
        self.assertIn("[1/1] alice", err)

    def test_ctrl_c_says_how_to_go_on(self):
        self.make_class(200)
        child = subprocess.Popen([*kit.GRADE, "class", str(self.submissions), "--out", str(self.out), "--jobs", "2"],
                                 stderr=subprocess.PIPE, text=True, cwd=kit.KIT, start_new_session=True)
        child.stderr.readline()
        os.killpg(child.pid, signal.SIGINT)
        err = child.stderr.read()
        child.stderr.close()
        self.assertEqual(child.wait(), 130, err)
        self.assertIn("the same command goes on from there", err)
        self.assertNotIn("Traceback", err)

    def test_two_runs_into_one_folder_do_not_mix(self):
        self.hand_in("alice", f"{LAB}.txt", recorded())
        self.grade()
        import fcntl
        with open(self.out / ".lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("another run is grading", self.grade(expect=2))

    def test_progress_is_one_line_on_a_terminal(self):
        self.make_class(12)
        kit.needs_terminal(self)
        master, slave = pty.openpty()
        child = subprocess.Popen([*kit.GRADE, "class", str(self.submissions), "--out", str(self.out), "--jobs", "1"],
                                 stderr=slave, cwd=kit.KIT)
        os.close(slave)
        text = kit.read_to_end(master)
        self.assertEqual(child.wait(), 0)
        self.assertEqual(text.count("\r\x1b[K"), 12)
        self.assertRegex(text, r"12/12 done, 0 could not be graded, \d+ s left")


@unittest.skipIf(NO_SANDBOX, f"no sandbox here: {NO_SANDBOX}")
class Programs(Class):
    """Students' programs, built and run in the sandbox on the simulated device."""

    def run_class(self, *more, expect=0):
        return self.grade("--labs", "1", "--backend", "sim", "--credit-simulated", *more, expect=expect)

    def test_the_solution_has_full_marks_and_a_starter_has_not(self):
        self.hand_in("good", f"{LAB}.cu", solution())
        self.hand_in("starter", f"labs/{LAB}.cu", (kit.KIT / f"labs/{LAB}.cu").read_bytes())
        self.hand_in("both", f"{LAB}.cu", solution())
        self.hand_in("both", f"{LAB}.txt", "not looked at")
        self.run_class()
        grade, lab = self.of("good")
        self.assertEqual((grade["points"], lab["source"], lab["sandbox"]), (full(), "run here", "bubblewrap"))
        kept = self.out / "students/good"
        self.assertEqual((kept / f"{LAB}.txt").read_bytes(), recorded(machine="simulated-h200"))
        self.assertEqual((kept / f"{LAB}.attempt1.txt").read_bytes(), (kept / f"{LAB}.txt").read_bytes())
        self.assertTrue((self.out / f"reference/{LAB}.txt").exists())
        self.assertEqual(self.of("starter")[0]["points"], 0)
        self.assertEqual(self.of("both")[0]["points"], full())
        self.assertFalse(workshop.folder_for(self.out).exists())

    def test_a_lab_gives_as_much_to_whom_it_is_not_judged(self):
        """Lab 02 is asked one thing more where a solution runs beside it."""
        other, half = "02_breakevenKernelAsync", b"int main() { return x; }"
        simulated = {stem: recorded(stem, "simulated-h200") for stem in (LAB, other)}
        run = full() + full(other) + 1
        self.hand_in("first", f"{LAB}.txt", simulated[LAB])
        self.hand_in("texts", f"{LAB}.txt", simulated[LAB])
        self.hand_in("texts", f"{other}.txt", simulated[other])
        wanted = {"first": (full(), run - 1, full()), "texts": (run - 1, run - 1, run - 1)}
        for more in {}, {"whole": (run, run, run), "one": (full(), run, full()), "broken": (full(), run, full())}:
            for student in more:
                self.hand_in(student, f"{LAB}.cu", solution())
            if more:  # then what nobody ran before counts as where it is run, too
                self.hand_in("whole", f"{other}.cu", solution(other))
                self.hand_in("broken", f"{other}.cu", half)
                wanted = {"first": (full(), run, full()), "texts": (run - 1, run - 1, run), **more}
            self.grade("--labs", "1,2", "--backend", "sim", "--credit-simulated")
            graded = grades.Class(self.out)
            self.assertEqual({g["student"]: (g["points"], g["of"], graded.points(g)) for g in graded.grades}, wanted)

    def test_unsafe_runs_without_and_says_so(self):
        self.hand_in("good", f"{LAB}.cu", solution())
        self.assertIn("WITHOUT a sandbox", self.run_class("--unsafe"))
        self.assertEqual(self.lab("good")["sandbox"], "unsafe")
        self.assertEqual(self.of("good")[0]["points"], full())

    def test_unsafe_programs_end_with_the_grader_however_that_ends(self):
        pids = self.folder / "pids"
        for student in ("alice", "bob"):
            self.hand_in(student, f"{LAB}.cu", "#include <cstdio>\n#include <unistd.h>\nint main() {"
                         f'FILE *f = fopen("{pids}", "a"); fprintf(f, "%d\\n", getpid()); fclose(f);'
                         "for (;;) pause(); }\n")
        for how, jobs, code in ((signal.SIGTERM, 1, 130), (signal.SIGHUP, 2, 130), (signal.SIGKILL, 2, -9)):
            pids.write_text("")
            child = subprocess.Popen([*kit.GRADE, "class", str(self.submissions), "--out", str(self.out), "--labs", "1",
                                      "--backend", "sim", "--unsafe", "--jobs", str(jobs)], cwd=kit.KIT,
                                     stderr=subprocess.PIPE, text=True)
            kit.until(lambda: pids.read_text().count("\n") == jobs)
            child.send_signal(how)
            err = child.communicate(timeout=60)[1]
            running = [Path(f"/proc/{pid}/exe") for pid in pids.read_text().split()]
            kit.until(lambda: not any(path.exists() for path in running))
            with self.subTest(how):
                self.assertEqual((child.returncode, len(running)), (code, jobs), err)
                self.assertFalse(any(path.exists() for path in running))
                self.assertNotIn("Traceback", err)

    def test_a_program_on_the_simulated_device_cannot_say_hardware(self):
        said = recorded().decode().replace("\n", "\\n").replace('"', '\\"')
        said = re.sub(r"(measured left_running = ).*?\)", r"\g<1>4 us (median of 9, min 0.4, max 9)", said)
        self.hand_in("copy", f"{LAB}.cu", hostile.HEAD + f'int main() {{ fputs("{said}", stdout); }}')
        self.grade("--labs", "1", "--backend", "sim")
        grade, lab = self.of("copy")
        self.assertEqual((grade["points"], lab["practice"], lab["claims"]), (0, True, "hardware"))
        self.assertIn("inconclusive", {check["verdict"] for check in lab["checks"]})
        self.assertEqual(len(lab["attempts"]), 1)  # it would say the same again

    def test_where_the_solution_fails_it_is_the_machine(self):
        copy = kit.copy_of_kit(self.folder)
        (copy / f"solutions/{LAB}.cu").write_text("#include <cstdlib>\nint main() { abort(); }\n")
        self.hand_in("alice", f"{LAB}.cu", solution())
        code, _, err = kit.call(sys.executable, copy / "grading/grade.py", "class", self.submissions, "--out",
                                self.out, "--labs", "1", "--backend", "sim")
        self.assertEqual(code, 3, err)
        self.assertIn("the solution ended with signal SIGABRT", self.lab("alice")["reason"])
        self.assertEqual(self.of("alice")[0]["state"], "could not grade")

    def test_kill_9_while_programs_run(self):
        for number in range(3):
            self.hand_in(f"s{number}", f"{LAB}.cu", solution() + b"\n// %d\n" % number)
        self.run_class()
        wanted = {s: self.of(s)[0] for s in ("s0", "s1", "s2")}
        self.out = self.folder / "again"
        command = [*kit.GRADE, "class", str(self.submissions), "--out", str(self.out), "--labs", "1",
                   "--backend", "sim", "--credit-simulated", "--jobs", "2"]
        for sign in (lambda: workshop.folder_for(self.out).exists(),
                     (self.out / f"reference/{LAB}.txt").exists,
                     lambda: any(self.out.glob("students/*/grade.json"))):
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=kit.KIT)
            while not sign():
                self.assertIsNone(child.poll())
                time.sleep(0.01)
            child.kill()
            self.assertEqual(child.wait(), -signal.SIGKILL)
        self.assertIn("graded already", self.run_class())
        self.assertEqual({s: self.of(s)[0] for s in wanted}, wanted)

    def test_hostile_submissions_are_contained_and_cost_nobody_else(self):
        paths = [kit.KIT / f"solutions/{LAB}.cu", kit.KIT / "Makefile", kit.KIT / "common/lab.h",
                 kit.KIT / f"grading/ranges/{LAB}.ini", self.submissions / f"good/{LAB}.cu",
                 self.out / "students/good/grade.json", "/kit/Makefile", "/kit/common/lab.h",
                 f"/kit/labs/{LAB}.cu", f"/kit/build/sim/labs/{LAB}.log", "/etc/passwd", "/root/x", "/home/x",
                 "../../../Makefile", "/kit/x", "/usr/x", "/dev/x"]
        snoop = hostile.SNOOPS % ", ".join(f'"{p}"' for p in paths)
        programs = {**hostile.PROGRAMS, "snoops": (snoop, "ended with exit code 1")}
        self.hand_in("good", f"{LAB}.cu", solution())
        for student, (source, _) in programs.items():
            self.hand_in(student, f"{LAB}.cu", hostile.HEAD + source)
        for name in ("Makefile", "common/lab.h", f"grading/ranges/{LAB}.ini", "grading/grade.py"):
            self.hand_in("overwrites", name, "all:\n\ttouch /tmp/overwritten\n")
        self.hand_in("overwrites", f"{LAB}.cu", solution())
        before = {p: (kit.KIT / p).read_bytes() for p in ("Makefile", "common/lab.h", f"solutions/{LAB}.cu")}
        self.run_class("--time-limit", "8")
        for student, (_, words) in programs.items():
            with self.subTest(student):
                grade, lab = self.of(student)
                self.assertEqual((grade["state"], grade["points"]), ("graded", 0))
                self.assertIn(words, f"{lab['state']}: {lab['reason']}")
                self.assertNotIn("\n", lab["reason"])
                for kept in (self.out / "students" / student).iterdir():
                    data = kept.read_bytes()
                    self.assertNotIn(b"root:", data)
                    self.assertNotIn(b"WROTE", data)
                    self.assertLess(len(data), 1200000)
        seen = (self.out / f"students/snoops/{LAB}.attempt1.txt").read_text()
        self.assertEqual([line for line in seen.splitlines() if line != f"READ /kit/build/sim/labs/{LAB}.log"],
                         ["looked"])
        self.assertIn("it is closed", (self.out / f"students/reads_stdin/{LAB}.attempt1.txt").read_text())
        self.assertEqual(self.of("good")[0]["points"], full())
        self.assertEqual(self.of("overwrites")[0]["points"], full())
        self.assertIn("Makefile is not graded", self.of("overwrites")[0]["notes"])
        for path, data in before.items():
            self.assertEqual((kit.KIT / path).read_bytes(), data)
        for path in Path("/proc").glob("[0-9]*/comm"):
            try:
                self.assertNotEqual(path.read_text().strip(), "labs-outlives")
            except OSError:
                pass


class Messages(unittest.TestCase):
    def test_what_stops_a_class_is_said_with_its_file_and_without_one(self):
        self.assertEqual(class_run.told(OSError(28, "No space left", "/x")), "/x: No space left")
        self.assertEqual(class_run.told(OSError(28, "No space left")), "No space left")
        self.assertEqual(class_run.told(OSError("cannot be unpacked")), "cannot be unpacked")


class Reference(unittest.TestCase):
    def test_one_that_another_process_has_spoiled_serves_once(self):
        run, spoiled = runner.Run(), recorded().replace(b"finished", b"warning another process is on this core\nfinished")
        with kit.folder() as folder:
            for run.out, runs in (recorded(), 1), (spoiled, 2):
                ours = grader.Grader.__new__(grader.Grader)
                ours.references, ours.out, ours.backend = {}, Path(folder), "cuda"
                ours.workshop = mock.MagicMock()
                ours.workshop.build.return_value, ours.workshop.run.return_value = ("", ""), run
                for _ in range(2):
                    self.assertEqual(ours.reference(LAB)[0].stem, LAB)
                self.assertEqual(ours.workshop.run.call_count, runs)


class Threshold(unittest.TestCase):
    def test_only_what_is_near_its_bound_or_too_noisy_is_tried_again(self):
        text = recorded().decode()

        def again(value, low=None, high=None):
            spread = f"min {low or value}, max {high or value}"
            changed = re.sub(r"measured launch_async = .*",
                             f"measured launch_async = {value} us (median of 9, {spread})", text)
            found = verdict.judge(output.parse(changed.encode(), "x"), ranges.load(LAB))
            return grader.worth_another_try(next(v for v in found if v.check.name == "launch_async"))
        self.assertFalse(again(3.5))
        self.assertFalse(again(300))
        self.assertTrue(again(105))
        self.assertTrue(again(0.47))
        self.assertFalse(again(0.2))
        self.assertTrue(again(300, low=50, high=400))


class Points(unittest.TestCase):
    def test_where_less_could_be_asked_the_rest_of_it_measures(self):
        with kit.folder() as folder:
            labs = {"outputs": [(13, 13), (0, 18)], "run": [(13, 13), (19, 19)], "skips": [(13, 13), (0, 0)],
                    "half": [(0, 13), (9, 18)]}
            for student, its in labs.items():
                grades.write(Path(folder) / "students" / student, {
                    "student": student, "key": "", "state": grades.GRADED, "hints": [], "kept": [], "labs": [
                        {"lab": f"{n:02}", "credit": credit, "of": of} for n, (credit, of) in enumerate(its, 1)]})
            (Path(folder) / "class.json").write_text(json.dumps({"students": {s: s for s in labs}, "labs": ["01", "02"]}))
            graded = grades.Class(folder)
            self.assertEqual((graded.top, {g["student"]: graded.points(g) for g in graded.grades}),
                             (32, {"outputs": 13, "run": 32, "skips": 32, "half": 9.5}))
