# SPDX-License-Identifier: MIT
"""compare.py: what a student wrote, what machines printed, and the two side by side.

Figures and devices in here are made up.
"""
import os
import re
import subprocess
import unittest

import kit
import worksheet

MINE = """lab 01 nullKernelAsync
backend {backend}
device Test device, sm_89, 20 SMs, 2000 MHz, driver 13.0, runtime 13.0
measured first_launch = 200.0 us (median of 1, min 200.0, max 200.0)
measured launch_async = 7.106 us (median of 3, min 7.000, max 7.200)
unmeasured launch_sync us
unmeasured sync_over_async x
finished 01 nullKernelAsync after 1.00 s
"""


class Predictions(unittest.TestCase):
    """What a cell of a worksheet means."""

    def test_numbers_as_students_write_them(self):
        for cell, value in (("3", 3), ("3.5 us", 3.5), ("3,5", 3.5), ("~3", 3), ("about 3 \u00b5s", 3),
                            ("12,000", 12000), ("65 536", 65536), ("12k", 12000), ("1e4", 10000),
                            ("2 .. 4", 3), ("2-4", 3), ("2 to 4 us", 3), ("0.5 ms", 500),
                            ("10 ns", 0.01), ("0,583", 0.583), ("< 1", 1), ("**8**", 8), (".5", 0.5),
                            ("-1", -1), ("20 <!-- or 30? -->", 20)):
            with self.subTest(cell):
                self.assertAlmostEqual(worksheet.prediction(cell, "us").value, value)

    def test_words_stay_words_and_empty_cells_are_none(self):
        said = worksheet.prediction("`cudaErrorNotReady`")
        self.assertEqual((said.text, said.value), ("cudaErrorNotReady", None))
        for cell in ("1e999", "-1e999 .. 1e999", "1e308 s"):
            with self.subTest(cell):
                said = worksheet.prediction(cell, "us")
                self.assertEqual((said.text, said.value), (cell, None))
        for cell in ("", " ", "?", "-", "...", "\u2026", "TODO", "<!-- yours -->"):
            with self.subTest(cell):
                self.assertIsNone(worksheet.prediction(cell))

    def test_tables_of_several_columns(self):
        text = ("## Predict\n\n| case | ms | which? |\n|---|---|---|\n"
                "| `two`: in two streams | 3 | concurrent |\n| `far`, in units of one | 2 | |\n"
                "| anything else | 4 | |\n\n## Compare\n\n| | prediction | yours |\n|---|---|---|\n"
                "| `two`, us | | |\n| `far`, us | | |\n| `other`, us | 5 | |\n"
                "| `class_two` | in turn | |\n")
        found, others = worksheet.predictions(text, {"two": "us", "far": "us", "other": "us",
                                                     "class_two": None})
        self.assertEqual({name: (p.text, p.value) for name, p in found.items()},
                         {"two": ("3", 3000.0), "class_two": ("in turn", None),
                          "far": ("2", None), "other": ("5", 5.0)})
        self.assertEqual(others, [("anything else / ms", "4")])

    def test_every_worksheet_has_a_question_and_tables_to_fill(self):
        for path in sorted((kit.KIT / "worksheets").glob("[0-9][0-9]_*.md")):
            text = path.read_text()
            with self.subTest(path.stem):
                rows = [r for _, rows in worksheet.tables(worksheet.section(text, "Compare"))
                        for r in rows]
                self.assertTrue(rows and all(row.metric for row in rows))
                predicted = [r.metric for _, rows in worksheet.tables(worksheet.section(
                    text, "Predict")) for r in rows]
                self.assertTrue(set(predicted) & {row.metric for row in rows})
                self.assertTrue(worksheet.question(text))


class Compare(kit.Copy):
    """On a copy of the kit, in git or not."""

    def setUp(self):
        super().setUp()
        self.sheet = self.copy / "worksheets" / "01_nullKernelAsync.md"
        self.kept = self.copy / "results" / "compare_01_nullKernelAsync.md"

    def compare(self, *arguments, code=0, **more):
        out, err = self.tool("compare", *arguments, code=code, **more)
        return out if code == 0 else err

    def predict(self, old, new):
        text = self.sheet.read_text()
        self.assertIn(old, text)
        self.sheet.write_text(text.replace(old, new, 1))

    def result(self, text=MINE, backend="cuda", folder=None, stem="01_nullKernelAsync"):
        return self.keep(f"{folder or f'results/{backend}/labs'}/{stem}.txt", text.format(
            backend="hardware" if backend == "cuda" else "simulated"))

    def git(self, *arguments, at=None):
        subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@example.org",
                        *arguments], cwd=self.copy, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null",
                                                       **({"GIT_COMMITTER_DATE": f"@{at} +0000"} if at else {})})

    def recorded(self, machine, metric):
        text = (kit.KIT / f"worksheets/recorded/{machine}/01_nullKernelAsync.txt").read_text()
        return re.search(rf"^\w+ {metric} = (\S+)", text, re.MULTILINE)[1]

    def row(self, out, name):
        return next(line.split() for line in out.splitlines() if line.startswith(name))

    def test_without_anything_of_the_student_it_says_what_makes_it(self):
        out = self.compare("--lab", "1")
        self.assertIn("yours (missing): make grade LAB=01", out)
        self.assertIn("write it, before you run, into\n", out)
        self.assertIn("worksheets/01_nullKernelAsync.md", out)
        self.assertEqual(self.row(out, "launch_async, us")[2:],
                         ["-", self.recorded("simulated-h200", "launch_async"),
                          self.recorded("nvidia-h200", "launch_async"), "-"])
        self.assertIn("published: RTX 3060: CUDA Handbook 6.1.1", out)

    def test_prediction_and_figures_side_by_side_with_their_ratios(self):
        self.predict("| `launch_async`, us | |", "| `launch_async`, us | about 14 us |")
        before = self.sheet.read_bytes()
        self.result()
        out = self.compare("--lab", "01")
        simulated, h200, *others = (self.recorded(machine, "launch_async") for machine in (
            "simulated-h200", "nvidia-h200", "h200-2", "h200-3", "h200-4"))
        ratio = f"{7.106 / float(h200):.2f}"
        self.assertEqual(self.row(out, "launch_async, us")[2:],
                         ["14", simulated, h200, "7.106", ratio, "x", "0.51", "x"])
        self.assertEqual(self.row(out, "launch_sync, us")[-3:], ["-", "-", "-"])
        self.assertIn("yours (unmeasured: launch_sync, sync_over_async): fill in the next", out)
        self.assertIn("prediction (missing: launch_sync, sync_over_async, first_launch, ...)", out)
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        self.assertEqual(self.sheet.read_bytes(), before)
        text = self.kept.read_text()
        published = " | ".join(re.findall(r"(?m)^.*,launch_async,([^,]+),us,", (
            kit.KIT / "worksheets/recorded/published.csv").read_text()))
        self.assertIn(f"| `launch_async`, us | 14 | {simulated} | {h200} | {' | '.join(others)} | {published} | "
                      f"7.106 | {ratio} x | 0.51 x |", text)
        self.assertIn("| unmeasured |  |  |", text)
        self.assertIn("](cuda/labs/01_nullKernelAsync.txt), Test device", text)

    def test_a_prediction_that_is_no_finite_number_stands_as_written(self):
        self.predict("| `launch_async`, us | |", "| `launch_async`, us | 1e999 |")
        self.result()
        row = self.row(self.compare("--lab", "01"), "launch_async, us")
        self.assertEqual((row[2], row[5]), ("1e999", "7.106"))
        self.assertNotIn("yours / prediction", self.compare("--lab", "01"))

    def test_hardware_goes_before_simulated_and_simulated_is_labelled(self):
        self.result(backend="sim")
        out = self.compare("--lab", "01")
        self.assertRegex(out, r"recorded +SIMULATED")
        self.assertIn("| yours (SIMULATED) |", self.kept.read_text())
        self.result()
        self.assertNotIn("SIMULATED", self.compare("--lab", "01"))

    def test_own_recordings_are_columns(self):
        for machine in ("my-laptop", "the-cluster"):
            self.result(folder=f"worksheets/recorded/{machine}")
        out = self.compare("--lab", "01")
        self.assertIn("recorded: my-laptop: Test device", out)
        row = next(line for line in self.kept.read_text().splitlines() if "`launch_async`" in line)
        self.assertEqual(row.count("7.106"), 2)

    def test_a_row_may_be_a_point_of_a_series(self):
        stem = "06_blockingSyncVsSpin"
        self.result(MINE.replace("01 nullKernelAsync", "06 blockingSyncVsSpin").replace(
            "unmeasured launch_sync us", "measured cpu_spin[ms=10] = 4400 us (median of 3, min 4400, max "
            "4400)"), stem=stem)
        recorded = re.search(r"cpu_spin\[ms=10\] = (\S+)", (kit.RECORDED / f"{stem}.txt").read_text())[1]
        row = self.row(self.compare("--lab", "6"), "cpu_spin[ms=10], us")
        self.assertEqual(row[-4:-1], [recorded, "4400", f"{4400 / float(recorded):.2f}"])

    def test_words_are_compared_as_answers(self):
        # A lab of words, made up: the tool knows no lab by its number.
        words = ("lab 01 nullKernelAsync\nbackend hardware\ndevice Test device, sm_89, 20 SMs, 2000 "
                 "MHz, driver 13.0, runtime 13.0\nobserved answer = cudaErrorInvalidResourceHandle\n"
                 "finished 01 nullKernelAsync after 1.00 s\n")
        self.sheet.write_text("**What?**\n\n## Predict\n\n| | my prediction |\n|---|---|\n| `answer` |"
                              " not ready |\n\n## Compare\n\n| | prediction | yours |\n|---|---|---|\n"
                              "| `answer` | | |\n\n## Hints\n")
        self.result(words)
        self.result(words, folder="worksheets/recorded/nvidia-h200")
        out = self.compare("--lab", "01")
        self.assertIn("not ready: prediction; cudaErrorInvalidResourceHandle: H200, yours", out)
        self.assertIn("| `answer` | not ready |  | cudaErrorInvalidResourceHandle | "
                      "cudaErrorInvalidResourceHandle | same | differs |", self.kept.read_text())

    def test_what_only_hardware_has_is_not_missing_on_the_simulated_device(self):
        ini = self.copy / "grading/ranges/01_nullKernelAsync.ini"
        ini.write_text(ini.read_text() + "\n[extra]\nunit = us\nmin = 0\nif_low = x\npoints = 1\n"
                       "why = made up\nonly = hardware\n")
        self.predict("| `first_launch`, us | | | ", "| `extra`, us | | | | | | | | |\n"
                     "| `first_launch`, us | | | ")
        self.result(MINE.replace("unmeasured launch_sync us\nunmeasured sync_over_async x",
                                 "unmeasured extra us"), backend="sim")
        out = self.compare("--lab", "01")
        self.assertIn("extra: a simulated device has none", out)
        self.assertNotIn("yours (unmeasured", out)
        self.result(MINE.replace("unmeasured launch_sync us\nunmeasured sync_over_async x",
                                 "unmeasured extra us"))
        self.assertIn("yours (unmeasured: extra)", self.compare("--lab", "01"))

    def test_output_that_is_no_good_gets_one_line(self):
        self.result("lab 01 nullKernelAsync\nbackend hardware\n")
        out = self.compare("--lab", "01")
        self.assertIn("yours: results/cuda/labs/01_nullKernelAsync.txt:2: ends without 'finished'", out)

    def test_prediction_before_the_output_by_the_files_times(self):
        self.predict("| `launch_async`, us | |", "| `launch_async`, us | 3 |")
        made = self.result()
        os.utime(self.sheet, (1000, 1000))
        self.assertIn("Your prediction was there before this output", self.compare("--lab", "01"))
        os.utime(made, (500, 500))
        out = self.compare("--lab", "01").replace("\n  ", " ")
        self.assertIn("Whether your prediction came before the output cannot be told", out)
        self.assertIn("No points depend on it.", out)

    def test_prediction_before_the_output_by_git(self):
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-qm", "kit", at=1000)
        self.predict("| `launch_async`, us | |", "| `launch_async`, us | 3 |")
        self.git("commit", "-qam", "prediction", at=2000)
        made = self.result()
        os.utime(made, (3000, 3000))
        self.sheet.write_text(self.sheet.read_text() + "\nAn answer.\n")
        self.git("commit", "-qam", "an answer", at=4000)
        self.assertIn("was committed to git", self.compare("--lab", "01"))
        self.predict("| `launch_async`, us | 3 |", "| `launch_async`, us | 7 |")
        self.git("commit", "-qam", "afterwards", at=5000)
        self.assertIn("cannot be told", self.compare("--lab", "01").replace("\n  ", " "))
        self.predict("| `launch_async`, us | 7 |", "| `launch_async`, us | 3 |")
        self.git("commit", "-qam", "back again, after the output", at=6000)
        self.assertIn("cannot be told", self.compare("--lab", "01").replace("\n  ", " "))

    def test_without_git_it_goes_by_the_files_times(self):
        self.predict("| `launch_async`, us | |", "| `launch_async`, us | 3 |")
        self.result()
        os.utime(self.sheet, (1000, 1000))
        out = self.compare("--lab", "01", env={**os.environ, "PATH": "/nowhere"})
        self.assertIn("was there before this output", out)

    def test_all_labs_at_once(self):
        self.result()
        out = self.compare()
        self.assertIn("02 breakevenKernelAsync: nothing of yours yet: make grade LAB=02", out)
        self.assertIn("7.106", out)

    def test_mistakes_get_one_line(self):
        err = self.compare("--lab", "99", code=2)
        self.assertRegex(err, r"\Ano lab 99 in labs; there are: [^\n]+\n\Z")
        self.sheet.unlink()
        err = self.compare("--lab", "01", code=2)
        self.assertRegex(err, r"\Aworksheets/01_nullKernelAsync.md: No such file[^\n]+git checkout"
                         r"[^\n]+\n\Z")

    def test_as_a_make_target(self):
        code, out, err = kit.call("make", "compare", "LAB=1", cwd=self.copy,
                                  env=kit.clean_environment())
        self.assertEqual(code, 0, err)
        self.assertIn("as Markdown: results/compare_01_nullKernelAsync.md", out)
        self.assertTrue(self.kept.exists())
