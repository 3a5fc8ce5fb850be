# SPDX-License-Identifier: MIT
"""The grader: full marks for real outputs, a clear word for everything else."""
import json
import re
import unittest
from pathlib import Path

import formula
import kit
import output
import ranges
import tracing
import verdict

LAB01 = "01_nullKernelAsync"


def recorded(stem=LAB01):
    return (kit.RECORDED / f"{stem}.txt").read_text()


def slower(name, times, stem=LAB01):
    """A recorded output with one figure that many times as large, and without any spread."""
    text = recorded(stem)
    value = times * float(re.search(rf"measured {name} = (\S+)", text)[1])
    return re.sub(rf"(measured {name} = )\S+ (\S+) .*",
                  rf"\g<1>{value:.3f} \2 (median of 1, min {value:.3f}, max {value:.3f})", text)


class Recorded(unittest.TestCase):
    def test_recorded_outputs_have_full_marks(self):
        code, out, err = kit.grade("check", *sorted(kit.RECORDED.glob("*.txt")))
        self.assertEqual((code, err), (0, ""), out)
        self.assertIn("full marks", out)
        self.assertLessEqual(max(map(len, out.splitlines())), 80)

    def test_every_metric_of_a_range_is_printed_and_every_todo_named(self):
        for stem in kit.STEMS:
            out, checks = output.read(kit.RECORDED / f"{stem}.txt"), ranges.load(stem)
            printed = {*out.values, *out.series, *out.words}
            for check in checks:
                with self.subTest(stem=stem, check=check.name):
                    self.assertEqual(check.names() - printed, set())
            todos = {int(n) for n in re.findall(r"// TODO\((\d+)\):",
                                                (kit.KIT / f"labs/{stem}.cu").read_text())}
            with self.subTest(stem=stem):
                self.assertEqual({c.todo for c in checks if c.todo}, todos)


class BadInput(unittest.TestCase):
    """Each gets one clear line with the file's name, and costs no other file its grade."""

    def judge(self, data, name="bad.txt"):
        with kit.folder() as folder:
            bad, good = Path(folder) / name, Path(folder) / "good.txt"
            good.write_text(recorded())
            if data is not None:
                bad.write_bytes(data if isinstance(data, bytes) else data.encode())
            code, out, err = kit.grade("check", bad, good, "--format", "json")
            self.assertEqual(err, "")
            bad_grade, good_grade = json.loads(out)["labs"]
            self.assertEqual(good_grade["points"], good_grade["of"])
            return code, bad_grade

    def refused(self, data, words):
        code, grade = self.judge(data)
        self.assertEqual(code, 3)
        self.assertEqual(grade["points"], 0)
        self.assertRegex(grade["error"], r"bad\.txt(:\d+)?: ")
        self.assertIn(words, grade["error"])
        self.assertNotIn("\n", grade["error"])

    def test_refused(self):
        text, line = recorded(), "measured launch_async = "
        value = re.search(r"launch_async = (\S+)", text)[1]
        cases = {
            "run the lab first": None,
            "is empty": b"",
            "is not text": b"\x7fELF\x02\x01\x01\xff\xfe\x80",
            "holds binary data": text.encode() + b"\0\0",
            "ends without 'finished'": text[:len(text) // 2],
            "a second run begins here": text + text,
            "a second run begins before": text[:text.index("finished")] + text,
            "printed a second time": text.replace(line, line + "1 us\n" + line),
            "is no measurement": text.replace(line + value, line + "nan"),
            "'inf' is no measurement": text.replace(line + value, line + "inf"),
            "larger than anything": text.replace(line + value, line + "1e300"),
            "larger than anything a": re.sub(r"(, sm_90, )\d+", rf"\g<1>1{'0' * 20}", text),
            "'999": re.sub(r"(async = .* of )\d+", rf"\g<1>{'9' * 400}", text),
            "longer than any line": re.sub(r"(async = .* of )\d+", rf"\g<1>{'9' * 5000}", text),
            "cannot be read": text.replace(line + value, line + "fast"),
            "is no unit": text.replace(f"{line}{value} us", f"{line}{value} furlongs"),
            "outside its own spread": text.replace(line + value, line + "0.001"),
            "no such lab": text.replace("01 nullKernelAsync", "77 nothing"),
            "not a lab's output": "hello\n",
            "but 01": text.replace("finished 01", "finished 02"),
            "was the start cut off": text[text.index("measured"):],
            "no 'backend'": text.replace("backend hardware\n", ""),
            "hardware or simulated": text.replace("backend hardware", "backend mine"),
            "is 4 MB": "x" * (5 << 20),
        }
        for words, data in cases.items():
            with self.subTest(words):
                self.refused(data, words)

    def test_no_shape_of_a_text_takes_long(self):
        text, much, digits = recorded(), 1 << 20, "1" * 68
        for line, error in (("measured a = " + "1" * much, "longer than any line"),
                            (f"measured a[b={digits}] = {digits} us (median of 1, quartiles {digits} {digits}, "
                             f"min {digits}, max {digits}!", "cannot be read"),
                            ("\x1b]" * (much // 2), None), ("\x1b]\n" * (much // 3), None),
                            ("\x1b[" + "1" * much, None), ("warning " + "x " * (much // 2), None),
                            ("as long as the program's own lines want to be " * 1000, None)):
            with self.subTest(line[:20]), kit.folder() as folder:
                path = Path(folder) / "long.txt"
                path.write_text(text.replace("finished", f"{line}\nfinished"))
                code, out, err = kit.grade("check", path, timeout=60)
                self.assertEqual((code, err), (3 if error else 0, ""))
                self.assertIn(error or "13/13", " ".join(out.split()))

    def test_a_long_word_costs_no_file_its_report(self):
        with kit.folder() as folder:
            lab, word = Path(folder) / "lab.txt", Path(folder) / "word.txt"
            lab.write_text(recorded().replace("nullKernelAsync", "n" * 90))
            stem = "09_kernelOverlap"
            word.write_text(re.sub(r"(observed class_same_stream = )\w+", rf"\g<1>{'w' * 90}", recorded(stem)))
            code, out, err = kit.grade("check", lab, word, kit.RECORDED / f"{LAB01}.txt")
            self.assertEqual((code, err), (3, ""))
            self.assertIn("there is no such lab", out)
            self.assertRegex(out, r"FAIL +class_same_stream +w{30} ")
            self.assertIn("13/13", out)

    def test_read_with_a_note(self):
        text = recorded()
        cases = {
            "Windows line ends": text.replace("\n", "\r\n").encode(),
            "UTF-16": ("\ufeff" + text.replace("\n", "\r\n")).encode("utf-16-le"),
            "colour codes": re.sub(r"(?m)^measured", "\x1b[1mmeasured\x1b[0m", text).encode(),
            "": b"\xef\xbb\xbf" + text.encode(),
        }
        for words, data in cases.items():
            with self.subTest(words):
                code, grade = self.judge(data)
                self.assertEqual((code, grade["error"]), (0, None))
                self.assertEqual(grade["points"], grade["of"])
                if words:
                    self.assertIn(words, grade["notes"][0])
                    self.assertIn("bad.txt:", grade["notes"][0])

    def test_mistakes_in_a_range_file_are_named_with_their_line(self):
        good = (kit.KIT / f"grading/ranges/{LAB01}.ini").read_text()
        cases = {
            "no key 'mni'": good.replace("min = 0.5", "mni = 0.5"),
            "is no number": good.replace("min = 0.5", "min = half"),
            "is above max": good.replace("min = 0.5", "min = 500"),
            "has no why": re.sub(r"why = handing.*\n", "", good),
            "has no points": good.replace("points = 1\n", ""),
            "already exists": good + "\n[launch_async]\npoints = 1\n",
            "is not arithmetic": good.replace("first_launch / launch_async", "first_launch ** 2"),
            "no function": good.replace("first_launch / launch_async", "open(first_launch)"),
            "no section": "min = 1\n" + good,
            "is no check of this file": good.replace("points = 1\n", "points = 1\nrests_on = me\n", 1),
            "no if_low": re.sub(r"if_low = faster.*\n", "", good),
        }
        for words, text in cases.items():
            with self.subTest(words), kit.folder() as folder:
                for stem in kit.STEMS:
                    source = (kit.KIT / f"grading/ranges/{stem}.ini").read_text()
                    (Path(folder) / f"{stem}.ini").write_text(text if stem == LAB01 else source)
                code, out, err = kit.grade("check", kit.RECORDED / f"{LAB01}.txt",
                                           kit.RECORDED / "03_eventTiming.txt", "--ranges", folder,
                                           "--format", "json")
                self.assertEqual((code, err), (3, ""))
                bad, good_grade = json.loads(out)["labs"]
                self.assertRegex(bad["error"], rf"{LAB01}\.ini:\d+: ")
                self.assertIn(words, bad["error"])
                self.assertEqual(good_grade["points"], good_grade["of"])


class Judgement(unittest.TestCase):
    def verdicts(self, text):
        out = output.parse(text.encode(), "out.txt")
        return {v.check.name: v for v in verdict.judge(out, ranges.load(out.stem))}

    def test_a_wrong_figure_fails_with_the_probable_mistake_and_the_todo(self):
        text = recorded()
        async_line = re.search(r"measured launch_async = .*\n", text)[0]
        text = re.sub(r"measured launch_sync = .*\n", async_line.replace("_async", "_sync"), text)
        text = re.sub(r"(sync_over_async = )\S+", r"\g<1>1.000", text)
        seen = self.verdicts(text)["sync_over_async"]
        self.assertEqual((seen.state, seen.earned), (verdict.FAIL, 0))
        self.assertIn("TODO(3)", seen.message)

    def test_the_grader_computes_derived_figures_again(self):
        text = re.sub(r"(derived sync_over_async = )\S+", r"\g<1>5.000", recorded())
        seen = self.verdicts(text)["sync_over_async"]
        self.assertEqual(seen.state, verdict.FAIL)
        self.assertIn("recomputed", seen.message)

    def test_a_wrong_unit_is_named(self):
        text = re.sub(r"(launch_async = \S+) us", r"\1 ms", recorded())
        self.assertIn("should be in us", self.verdicts(text)["launch_async"].message)

    def test_too_noisy_is_not_wrong(self):
        noisy = re.sub(r"measured left_running = .*",
                       "measured left_running = 4.0 us (median of 150, quartiles 0.5 6, "
                       "min 0.4, max 9)", recorded())
        quiet = noisy.replace("quartiles 0.5 6", "quartiles 3.9 4.1")
        self.assertEqual(self.verdicts(noisy)["left_running"].state, verdict.INCONCLUSIVE)
        self.assertEqual(self.verdicts(quiet)["left_running"].state, verdict.FAIL)

    def test_what_another_process_may_have_spoiled_is_not_wrong(self):
        wrong = re.sub(r"measured left_running = .*",
                       "measured left_running = 4.0 us (median of 1, min 4, max 4)", recorded())
        self.assertEqual(self.verdicts(wrong)["left_running"].state, verdict.FAIL)
        device_h = (kit.KIT / "common" / "device.h").read_text()
        said = re.findall(r'lab_warning\("((?:another process|MPS is) .*?)"\)', device_h)
        self.assertEqual(len(said), 3)
        for warning in said:
            with self.subTest(warning):
                seen = self.verdicts(wrong.replace("finished", f"warning {warning}\nfinished"))
                self.assertEqual(seen["left_running"].state, verdict.INCONCLUSIVE)
                self.assertIn(warning, seen["left_running"].message)
                self.assertEqual({v.state for v in seen.values()} - {verdict.SKIPPED},
                                 {verdict.PASS, verdict.INCONCLUSIVE})
        seen = self.verdicts(re.sub(r"(derived sync_over_async = )\S+", r"\g<1>5.000", recorded()).replace(
            "finished", f"warning {warning}\nfinished"))  # no process makes a program contradict itself
        self.assertEqual(seen["sync_over_async"].state, verdict.FAIL)

    def test_a_spoiled_run_excuses_only_what_was_taken_from_it(self):
        stem, warning = "08_copyComputePipeline", "another process is on this core: late"
        path = kit.RECORDED / f"{stem}.trace.json"
        out, trace = output.parse(recorded(stem).encode(), "a"), tracing.read_json(path.read_bytes())
        for op in trace.ops:  # what ran fits nothing that was printed
            op.end = op.start + (op.end - op.start) / 10
        for trace.warnings, state in ([], verdict.FAIL), ([warning], verdict.INCONCLUSIVE):
            seen = {v.check.name: v.state for v in verdict.judge(out, ranges.load(stem), trace=trace)}
            self.assertEqual(seen["overlap_ran"], state)
        slow = slower("launch_async", 3)
        out, there = output.parse(slow.encode(), "a"), output.parse(recorded().encode(), "b")
        for there.warnings, state in ([], verdict.FAIL), ([warning], verdict.INCONCLUSIVE):
            seen = {v.check.name: v.state for v in verdict.judge(out, ranges.load(LAB01), there)}
            self.assertEqual(seen["launch_async"], state)
        far = output.parse(slower("launch_async", 300).encode(), "a")
        seen = {v.check.name: v.state for v in verdict.judge(far, ranges.load(LAB01), there)}
        self.assertEqual(seen["launch_async"], verdict.FAIL)  # by its own bounds

    def test_a_word_rests_on_its_figure(self):
        stem = "09_kernelOverlap"
        text = re.sub(r"(observed class_same_stream = )\w+", r"\1concurrent", recorded(stem))
        was = float(re.search(r"measured same_stream = (\S+)", text)[1])
        noisy = re.sub(r"(measured same_stream = )\S+ us .*", rf"\g<1>{0.8 * was:.0f} us (median of 9, "
                       f"min {0.78 * was:.0f}, max {1.003 * was:.0f})", text)
        for data, figure, word in ((text, verdict.PASS, verdict.FAIL),
                                   (noisy, verdict.INCONCLUSIVE, verdict.INCONCLUSIVE)):
            seen = self.verdicts(data)
            self.assertEqual((seen["same_stream"].state, seen["class_same_stream"].state), (figure, word))
        self.assertIn("same_stream", seen["class_same_stream"].message)

    def test_figures_that_noise_left_underived_rest_on_the_noise(self):
        names = ("breakeven_cycles", "hidden_cycles", "tail_ns_per_cycle")
        text = re.sub(rf"derived ({'|'.join(names)}) = \S+ (\w+)", r"unmeasured \1 \2",
                      recorded("02_breakevenKernelAsync"))
        seen = self.verdicts(text)
        for name in names:
            self.assertEqual(seen[name].state, verdict.UNMEASURED, name)
        late = re.sub(r"measured launch_null = .*", "measured launch_null = 40 us (median of 11, "
                      "min 3.4, max 90)", text)
        seen = self.verdicts(late)
        for name in ("rises_to_twice", "tail_is_the_clock", *names):
            self.assertEqual(seen[name].state, verdict.INCONCLUSIVE, name)
        self.assertIn("never rises to the level", seen["breakeven_cycles"].message)

    def test_starters_name_every_todo(self):
        text = re.sub(r"(?m)^(?:measured|derived) (\S+?)(\[\S+\])? = \S+ (\S+).*",
                      r"unmeasured \1\2 \3", recorded())
        seen = self.verdicts(text).values()
        self.assertEqual({v.state for v in seen} - {verdict.SKIPPED}, {verdict.UNMEASURED})
        self.assertEqual({t for v in seen for t in re.findall(r"TODO\((\d)\)", v.message)},
                         {"1", "2", "3"})

    def test_the_solutions_figure_on_the_same_machine_is_the_yardstick(self):
        here = recorded()
        factor = slower("launch_async", 3)
        checks = ranges.load(LAB01)
        out, there = output.parse(factor.encode(), "a"), output.parse(here.encode(), "b")
        alone = {v.check.name: v.state for v in verdict.judge(out, checks)}
        beside = {v.check.name: v for v in verdict.judge(out, checks, there)}
        self.assertEqual(alone["launch_async"], verdict.PASS)
        self.assertEqual(beside["launch_async"].state, verdict.FAIL)
        self.assertIn("the solution measures", beside["launch_async"].message)
        self.assertIn(beside["launch_async"].check.if_high, beside["launch_async"].message)

    def test_what_only_the_solution_can_tell_is_skipped_without_it(self):
        stem = "02_breakevenKernelAsync"
        checks = [c for c in ranges.load(stem) if c.name == "hides_as_much"]
        there = output.parse(recorded(stem).encode(), "there")
        waits = output.parse(re.sub(r"(hidden_cycles = )\S+", r"\g<1>90", recorded(stem)).encode(), "a")
        alone, = verdict.judge(there, checks)
        self.assertEqual((alone.state, alone.points), (verdict.SKIPPED, 0))
        self.assertEqual(verdict.judge(there, checks, there)[0].state, verdict.PASS)
        beside, = verdict.judge(waits, checks, there)
        self.assertEqual(beside.state, verdict.FAIL)
        self.assertIn("TODO(2)", beside.message)

        for nothing in (re.sub(r"(?m)^.* hidden_cycles = .*\n", "", recorded(stem)),
                        f"skipped {stem.replace('_', ' ', 1)}: no CUDA device\n"):
            alone, = verdict.judge(there, checks, output.parse(nothing.encode(), "none"))
            self.assertEqual((alone.state, alone.points), (verdict.SKIPPED, 0))

    def test_a_series_is_compared_parameter_by_parameter(self):
        stem = "11_graphCapture"
        there = re.sub(r"(chain_node\[n=1\] = ).*", r"\g<1>9 us (median of 3, min 8.9, max 9.1)", recorded(stem))
        one = re.search(r"measured chain_node\[.*\n", there)[0]
        yardstick = output.parse(there.encode(), "there")
        for mine in (there.replace(one, "unmeasured chain_node[n=1] us\n"),
                     there.replace(one, "").replace("finished", f"{one}finished")):
            seen = {v.check.name: v for v in verdict.judge(
                output.parse(mine.encode(), "mine"), ranges.load(stem), yardstick)}
            self.assertEqual((seen["chain_node"].state, seen["chain_node"].message), (verdict.PASS, ""))

    def test_skipped_costs_nothing_and_earns_nothing(self):
        with kit.folder() as folder:
            path = Path(folder) / "skipped.txt"
            path.write_text("skipped 01 nullKernelAsync: no CUDA device (no driver)\n")
            code, out, _ = kit.grade("check", path, kit.RECORDED / f"{LAB01}.txt")
            self.assertEqual(code, 0)
            self.assertIn("1 skipped", out)
            self.assertEqual(kit.grade("check", path)[0], 1)

    def test_calls(self):
        self.assertEqual(kit.grade("check")[0], 2)
        self.assertEqual(kit.grade("nonsense")[0], 2)
        self.assertEqual(kit.grade("run", "--attempts", "0")[0], 2)
        code, out, err = kit.grade("run", "--dir", "no/such/folder")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("no such folder", err)
        code, _, err = kit.grade("run", "--dir", "labs", "--lab", "98")
        self.assertEqual(code, 2)
        self.assertIn("there are: 01", err)


class Formulas(unittest.TestCase):
    VALUES = {"a": (6.0, 5.0, 7.0), "b": (2.0, 1.0, 4.0), "zero": (0.0, 0.0, 0.0)}
    SERIES = {"s": {1.0: (1.0,) * 3, 2.0: (1.0,) * 3, 3.0: (2.0,) * 3, 5.0: (4.0,) * 3}}

    def test_values(self):
        cases = {"a / b": 3, "-a + b * 3": 0, "(a - b) / 4": 1, "max(a, b, 9)": 9, "min(a, b)": 2,
                 "abs(b - a)": 4, "median(a, b, 4)": 4, "s[5]": 4, "slope(s, 2)": 1,
                 "interpolate(s, 3)": 4, "first(s)": 1, "last(s)": 4, "count(s)": 4,
                 "max_fall(s)": 0}
        for text, wanted in cases.items():
            with self.subTest(text):
                self.assertAlmostEqual(formula.Formula(text).evaluate(self.VALUES, self.SERIES)[0],
                                       wanted)

    def test_the_interval_holds_every_combination(self):
        for text in ("a / b", "a * b", "a - b", "a + b", "abs(a - b)", "-a", "max(a, b)"):
            value, low, high = formula.Formula(text).evaluate(self.VALUES, self.SERIES)
            for a in (5.0, 6.0, 7.0):
                for b in (1.0, 2.0, 4.0):
                    with self.subTest(text, a=a, b=b):
                        one = formula.Formula(text).evaluate({"a": (a,) * 3, "b": (b,) * 3}, {})[0]
                        self.assertTrue(low <= one <= high)

    def test_nothing_else_can_be_expressed(self):
        for text in ("__import__('os')", "a ** b", "a.real", "[a]", "a if b else a", "a < b",
                     "lambda: a", "s[a]", "s[1:2]", "a and b", "'text'", "True", "a @ b", "a // b",
                     "f(a)", "slope(a, b, a)", "slope(3)", "a; b", "", "-" * 300 + "a", "a" * 600, "abs(a, b)", "max()", "slope(s, level=2)"):
            with self.subTest(text[:30]):
                with self.assertRaises(formula.FormulaError):
                    formula.Formula(text)

    def test_what_is_missing_is_named(self):
        for text in ("nothing + 1", "s", "s[99]", "a / zero", "slope(s, 99)", "interpolate(s, 99)"):
            with self.subTest(text):
                with self.assertRaises(formula.NoValue):
                    formula.Formula(text).evaluate(self.VALUES, self.SERIES)
