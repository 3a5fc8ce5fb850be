# SPDX-License-Identifier: MIT
"""plot, watch, hint, doctor and the progress line. Figures and devices in here are made up."""
import contextlib
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

import doctor
import hint
import kit
import output
import plot
import progress
import test_make
import tracing
import worksheet

GNUPLOT = shutil.which("gnuplot")
PLOT_ROW = {  # lab: a row that its picture must be drawn from, as made_up() has it
    "02": "12000 8", "03": "255 8 510", "06": "10 5", "07": "0.55 12 1.1", "08": "640 7566",
    "10": "1021 16000", "11": "100 0.71"}
PLOT_TEXT = {  # lab: what a picture must say besides the machines
    "02": ["cycles that the kernel waits", "microseconds a launch", "NULL launch: 3 us",
           "2 x NULL: 6 us", "break-even: 8000 cycles"],
    "03": ["microseconds", "wall_enqueue", "event_first", "the 500 us asked for"],
    "06": ["length of the kernel waited for, ms", "CPU time, % of the time waited", "sleeping"],
    "07": ["microseconds", "record_disable_timing", "hop_timing"],
    "08": ["chunks that the data is cut into", "microseconds for all of them", "predicted: first",
           "one after the other"],
    "10": ["number of the launch", "microseconds until it returns", "1020 return at once"],
    "11": ["nodes in the chain", "microseconds a node", "as a graph", "as calls"],
}


def made_up(stem, factor=1.0, backend="hardware", device="Test device"):
    """An output of a lab, made up for these tests: plausible shapes, no measurement."""
    number, name = stem.split("_")
    facts = {
        "02": [("launch_null", 3, "us"), ("breakeven_cycles", 8000, "cycles")] + [
            (f"launch_wait[cycles={c}]", max(3, c / 2000 + 2), "us") for c in range(1000, 12001, 1000)],
        "03": [("wall_enqueue", 5, "us"), ("wall_sync", 510, "us"), ("event_batch", 501, "us"),
               ("event_each_sync", 515, "us"), ("event_first", 700, "us")],
        "06": [(f"{what}_{way}[ms={ms}]", 1000 * ms * (0.05 if (what, way) == ("cpu", "block") else 1),
                "us") for ms in (0.1, 1, 10) for way in ("spin", "poll", "block")
               for what in ("wall", "cpu")],
        "07": [("record_timing", 1.1, "us"), ("record_disable_timing", 0.25, "us"),
               ("queued_timing", 3.6, "us"), ("queued_disable_timing", 1.6, "us"),
               ("hop_timing", 4.5, "us"), ("hop_disable_timing", 3.6, "us")],
        "08": [("copy_in", 300, "us"), ("kernel", 500, "us"), ("copy_out", 100, "us"),
               ("serial", 9100, "us")] + [(f"pipelined_chunks[n={n}]", 5000 + 4000 / n + 4 * n, "us")
                                          for n in (1, 2, 5, 10, 20, 40, 80, 160, 320, 640)],
        "10": [("queue_depth", 1020, "count"), ("enqueue[n=1021]", 16000, "us")] + [
            (f"enqueue[n={n}]", 3.4, "us") for n in (1, 4, 16, 64, 256, 1020, 1022, 1030)],
        "11": [(f"{kind}[n={n}]", cost + 1 / n, "us") for n in (1, 2, 5, 10, 20, 50, 100)
               for kind, cost in (("chain_node", 0.7), ("chain_streams", 3.3))],
    }[number]
    lines = [f"lab {number} {name}", f"backend {backend}",
             f"device {device}, sm_89, 20 SMs, 2000 MHz, driver 13.0, runtime 13.0"]
    for metric, value, unit in facts:
        value *= factor if unit == "us" and metric != "launch_null" else 1
        lines.append(f"measured {metric} = {value:.4g} {unit} (median of 3, min {value:.4g}, max "
                     f"{value:.4g})")
    return "\n".join(lines + [f"finished {number} {name} after 1.00 s", ""])


class Plot(kit.Copy):
    def stems(self):
        return [stem for stem in kit.STEMS if stem[:2] in plot.PICTURES]

    def prepare(self, stem, yours=True):
        if yours:
            self.keep(f"results/cuda/labs/{stem}.txt", made_up(stem, 1.3))
        self.keep(f"worksheets/recorded/nvidia-h200/{stem}.txt", made_up(stem))
        self.keep(f"worksheets/recorded/simulated-h200/{stem}.txt", made_up(
            stem, 0.9, "simulated", "Simulated test device"))

    @unittest.skipUnless(GNUPLOT, "no gnuplot on this machine")
    def test_every_picture_names_its_axes_units_and_machines(self):
        for stem in self.stems():
            with self.subTest(stem):
                self.prepare(stem)
                out, err = self.tool("plot", "--lab", stem[:2])
                self.assertEqual(err, "")
                svg = re.sub(r"<[^>]*>", "", (self.copy / f"results/{stem}.svg").read_text())
                for text in PLOT_TEXT[stem[:2]] + ["yours: Test device", "H200, recorded", "simulated"]:
                    self.assertIn(text, svg)
                *picture, last = out.splitlines()
                self.assertEqual(last, f"drawn in results/{stem}.svg")
                self.assertGreater(len(picture), 18)
                self.assertLessEqual(len(picture), 24)
                self.assertLessEqual(max(map(len, picture)), 80)
                self.assertIn("yours: Test device", out)

    @unittest.skipUnless(GNUPLOT, "no gnuplot on this machine")
    def test_pictures_are_grey(self):
        stem = "02_breakevenKernelAsync"
        self.prepare(stem)
        self.tool("plot", "--lab", "02")
        svg = (self.copy / f"results/{stem}.svg").read_text()
        for colour in re.findall(r"rgb\( *(\d+), *(\d+), *(\d+)\)", svg):
            self.assertEqual(len(set(colour)), 1, colour)

    def test_three_machines_have_three_dashes(self):
        for stem in self.stems():
            out = output.parse(made_up(stem).encode(), "test")
            script = plot.PICTURES[stem[:2]]([plot.Source(name, out) for name in "abc"], False).script()
            lines = re.findall(r"with linespoints .* dt (\S+) lc", script)
            with self.subTest(stem):
                self.assertIn(len(set(lines)), (0, 3))  # 0: of bars

    @unittest.skipUnless(GNUPLOT, "no gnuplot on this machine")
    def test_without_an_output_of_the_student_it_draws_the_others_and_says_so(self):
        self.prepare("02_breakevenKernelAsync", yours=False)
        out, err = self.tool("plot", "--lab", "2")
        self.assertEqual(err, "lab 02: nothing of yours yet: make grade LAB=02\n")
        self.assertIn("H200, recorded", out)
        self.assertNotIn("yours", out)

    @unittest.skipUnless(GNUPLOT, "no gnuplot on this machine")
    def test_an_output_that_is_not_done_yet_draws_what_it_has(self):
        stem = "02_breakevenKernelAsync"
        self.prepare(stem)
        self.keep(f"results/cuda/labs/{stem}.txt", re.sub(
            "(?m)^measured breakeven_cycles .*$", "unmeasured breakeven_cycles cycles", made_up(stem)))
        out, _ = self.tool("plot", "--lab", "2")
        self.assertIn("yours: Test device", out)
        self.assertNotIn("break-even", out)
        self.keep(f"results/cuda/labs/{stem}.txt", re.sub(
            r"^(measured|derived) (\w+).*$", r"unmeasured \2 us", made_up(stem), flags=re.MULTILINE
        ).replace("unmeasured launch_wait us\n", ""))
        out, _ = self.tool("plot", "--lab", "2")
        self.assertIn("H200, recorded", out)
        for machine in ("nvidia-h200", "simulated-h200"):
            (self.copy / f"worksheets/recorded/{machine}/{stem}.txt").unlink()
        _, err = self.tool("plot", "--lab", "2", code=1)
        self.assertRegex(err, r"\Alab 02: no output holds launch_wait yet: make grade LAB=02\n\Z")

    def test_scripts_hold_the_figures(self):
        self.assertEqual(set(plot.PICTURES), set(PLOT_ROW))
        for stem in self.stems():
            out = output.parse(made_up(stem).encode(), "test")
            for dumb in (False, True):
                with self.subTest(stem, dumb=dumb):
                    script = plot.PICTURES[stem[:2]]([plot.Source("yours", out)], dumb).script()
                    self.assertIn("set terminal " + ("dumb" if dumb else "svg"), script)
                    self.assertIn("plot $data0", script)
                    if (stem[:2], dumb) != ("06", True):  # whose letters stand beside each other
                        self.assertIn(f"\n{PLOT_ROW[stem[:2]]}\n", script)
        out = output.parse(made_up("08_copyComputePipeline").encode(), "test")
        script = plot.chunks([plot.Source("yours", out)], False).script()
        self.assertIn("\n1 9000\n", script)  # predicted: all of 10 x 900 us in one chunk

    def test_without_gnuplot_it_says_what_to_install(self):
        self.prepare("02_breakevenKernelAsync")
        _, err = self.tool("plot", "--lab", "2", code=3, env={**os.environ, "PATH": "/nowhere"})
        self.assertEqual(err, "gnuplot is not installed: sudo apt-get install -y gnuplot-nox\n")

    def test_mistakes_get_one_line(self):
        for arguments, text in ((["--lab", "1"], "lab 01 has no picture; 02 03 06 "),
                                (["--lab", "77"], "no lab 77 in labs")):
            _, err = self.tool("plot", *arguments, code=2)
            self.assertIn(text, err)
            self.assertEqual(err.count("\n"), 1)


class Hint(kit.Copy):
    LAB = "01_nullKernelAsync"

    def titles(self, *more):
        return self.tool("hint", "--lab", "1", *more)[0].split("\n")[0]

    def test_one_at_a_time_then_no_more_then_again(self):
        self.assertEqual(self.titles(), "01 nullKernelAsync, TODO(1): hint 1 of 3")
        self.assertEqual(self.titles(), "01 nullKernelAsync, TODO(2): hint 2 of 3")
        self.assertEqual(self.titles(), "01 nullKernelAsync, TODO(3): hint 3 of 3")
        self.assertIn("all 3 hints of lab 01 have been shown", self.titles())
        self.assertEqual(self.titles("--again"), "01 nullKernelAsync, TODO(1): hint 1 of 3")

    def test_the_todo_that_the_last_output_lacks_comes_first_and_what_failed_next(self):
        text = (kit.RECORDED / f"{self.LAB}.txt").read_text()
        for metric in ("launch_sync", "sync_over_async"):
            text = re.sub(rf"^(measured|derived) {metric} .*$", f"unmeasured {metric} us", text,
                          flags=re.MULTILINE)
        self.keep(f"results/sim/labs/{self.LAB}.txt", text)
        self.assertEqual(self.titles(), "01 nullKernelAsync, TODO(3): hint 1 of 3")
        self.assertEqual(self.titles(), "01 nullKernelAsync, TODO(1): hint 2 of 3")
        text = re.sub(r"^measured launch_async .*$", "measured launch_async = 50 us (median of 3, min 50, "
                      "max 50)", text, flags=re.MULTILINE)  # more than the run took
        self.keep(f"results/sim/labs/{self.LAB}.txt", text)
        for todo, place in ((3, 1), (2, 2), (1, 3)):  # unmeasured, failed, and what is left
            more = ["--again"] if place == 1 else []
            self.assertEqual(self.titles(*more), f"01 nullKernelAsync, TODO({todo}): hint {place} of 3")

    def test_every_todo_has_a_hint_that_fits_a_terminal(self):
        for stem in kit.STEMS:
            todos = re.findall(r"// TODO\((\d+)\):", (kit.KIT / f"labs/{stem}.cu").read_text())
            hints = worksheet.hints(worksheet.read(stem))
            with self.subTest(stem):
                self.assertEqual([str(one.todo) for one in hints], todos)
                for one in hints:
                    text = hint.for_terminal(one.body, False)
                    self.assertNotIn("<", re.sub(r"<<<.*?>>>|`[^`]*`", "", text, flags=re.DOTALL))
                    self.assertIn(max(map(len, text.splitlines())), range(1, 81))

    def test_a_spoilt_memory_counts_as_none(self):
        for text in ("{", "[]", '{"01_nullKernelAsync": 3}', '{"01_nullKernelAsync": ["x", 99]}'):
            with self.subTest(text):
                self.keep("results/hints.json", text)
                self.assertIn("hint 1 of 3", self.titles())

    def test_markdown_for_a_terminal(self):
        text = hint.for_terminal("See [the guide](https://x.org/a) and\n`a = b;`.\n\n- one\n- two\n\n"
                                 "```c\nint  x;\n```", False)
        self.assertEqual(text, "  See the guide (https://x.org/a) and `a = b;`.\n\n  - one\n  - two\n\n"
                         "    int  x;")
        self.assertIn("\x1b[1ma = b;\x1b[0m", hint.for_terminal("`a = b;`", True))

    def test_mistakes_get_one_line(self):
        _, err = self.tool("hint", "--lab", "77", code=2)
        self.assertRegex(err, r"\Ano lab 77 in labs; there are: [^\n]+\n\Z")
        code, _, err = kit.call("make", "hint", cwd=self.copy, env=kit.clean_environment())
        self.assertIn("which lab? make hint LAB=01", err)
        self.assertNotEqual(code, 0)


class FakeGpu(kit.Copy):
    """A copy of the kit with a compiler that makes shell scripts, and a driver with one GPU."""

    def setUp(self):
        super().setUp()
        test_make.fake_driver(self.copy)
        nvcc = self.keep("nvcc", test_make.FAKE_NVCC)
        nvcc.chmod(0o755)
        self.environment = kit.clean_environment(
            NVCC=str(nvcc), FAKE_LOG=str(self.copy / "log"), LD_LIBRARY_PATH=str(self.copy))
        self.good = "".join(f"//> {line}\n" for line in (
            kit.RECORDED / "01_nullKernelAsync.txt").read_text().splitlines())
        self.lab = self.keep("mine/01_nullKernelAsync.cu", self.good)

    def save(self, text):
        self.lab.write_text(text)
        now = time.time()
        os.utime(self.lab, (now + self.saves, now + self.saves))
        self.saves += 1

    saves = 2


def read_until(fd, pattern, seconds=60):
    """What comes from a descriptor until the pattern does; None if it does not."""
    text, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            text += data.decode(errors="replace")
        if re.search(pattern, text):
            return text
    return None


class Watch(FakeGpu):
    def start(self):
        child = subprocess.Popen(
            [sys.executable, self.copy / "grading/watch.py", "--dir", "mine", "--lab", "1",
             "--backend", "cuda"], cwd=self.copy, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def seen(self, child):
        text = read_until(child.stdout.fileno(), "Ctrl-C ends\n")
        self.assertIsNotNone(text)
        return text

    def test_each_save_is_graded_verdict_first_and_ctrl_c_ends_it(self):
        self.lab.write_text(self.good + "//! sleep 2\n")
        child = self.start()
        text = self.seen(child)
        self.assertRegex(text, r"01 nullKernelAsync  13/13  full marks  NVIDIA H200\n")
        self.save(re.sub(r"(derived sync_over_async = )\S+", r"\g<1>1.000", self.good))
        text = self.seen(child)
        verdict = text[text.index("01 nullKernelAsync  "):].splitlines()
        self.assertRegex(verdict[0], r"01 nullKernelAsync  \d/13  2 of 7 checks to go")
        self.assertRegex(verdict[2], r"  FAIL sync_over_async: 1.000 x, wanted 1.2 .. 100")
        self.assertIn("recomputed", verdict[3] + verdict[4])
        self.save("#error\n")
        text = self.seen(child)
        self.assertIn("could not grade, 0/13", text)
        self.assertIn("01_nullKernelAsync.cu(1): error: #error says so", text)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(10), 0)
        self.assertNotIn("Traceback", child.stdout.read().decode())

    def test_a_save_during_a_run_starts_anew_and_the_old_program_ends(self):
        pid = self.copy / "pid"
        self.lab.write_text(f"//! echo $$ > {pid}; sleep 100\n")
        child = self.start()
        kit.until(lambda: pid.exists() and pid.read_text().strip())
        old = int(pid.read_text())
        self.save(self.good)
        self.assertIn("01 nullKernelAsync  ", self.seen(child))
        self.assertFalse(Path(f"/proc/{old}/exe").exists())
        self.save(f"//! echo $$ > {pid}; sleep 100\n")
        kit.until(lambda: pid.read_text() not in ("", f"{old}\n"))
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(10), 0)
        self.assertFalse(Path(f"/proc/{int(pid.read_text())}/exe").exists())

    def test_in_a_terminal_ctrl_c_ends_make_without_an_error(self):
        kit.needs_terminal(self)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.copy)
            os.execvpe("make", ["make", "watch", "LAB=1", "DIR=mine", "BACKEND=cuda"],
                       self.environment)
        text = read_until(terminal, "Ctrl-C ends\r\n")
        self.assertIn("\x1b[H\x1b[2J", text or "")
        os.write(terminal, b"\x03")
        rest = kit.read_to_end(terminal)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertNotIn("rror", rest)

    def test_mistakes_get_one_line(self):
        _, err = self.tool("watch", "--dir", "mine", "--lab", "9", "--backend", "sim", code=2)
        self.assertEqual(err, "no lab 9 in mine; there are: 01\n")
        code, _, err = kit.call("make", "watch", cwd=self.copy, env=kit.clean_environment())
        self.assertIn("*** which lab? make watch LAB=01", err)
        self.assertNotEqual(code, 0)


class Run(FakeGpu):
    """grade.py run."""

    stem = "01_nullKernelAsync"

    def setUp(self):
        super().setUp()
        self.environment["FAKE_NAME"] = "NVIDIA H200"

    def grade(self, *more):
        """(what was said, the lab's report)."""
        code, out, err = kit.call(sys.executable, "-W", "error", "grading/grade.py", "run", "--dir", "mine", "--backend",
                                  "cuda", "--format", "json", *more, cwd=self.copy, env=self.environment)
        self.assertNotIn("Traceback", err)
        return err, json.loads(out)["labs"][0]

    def test_only_an_output_of_this_device_is_the_solution_of_minutes_ago(self):
        self.keep(f"solutions/{self.stem}.cu", self.good)
        good = (kit.RECORDED / f"{self.stem}.txt").read_text()
        kept = self.copy / f"results/cuda/solutions/{self.stem}.txt"
        self.assertIn("the solution first", self.grade()[0])
        self.assertNotIn("the solution first", self.grade()[0])
        for other in (good[:400], good.replace("NVIDIA H200", "NVIDIA B300"),
                      f"skipped {self.stem.replace('_', ' ', 1)}: no CUDA device\n"):
            kept.write_text(other)
            self.assertIn("the solution first", self.grade()[0])
            self.assertEqual(kept.read_text(), good)
        self.environment["FAKE_NAME"] = "NVIDIA B300"
        self.assertIn("is no output of this device", self.grade()[0])

    def test_the_attempt_with_most_points_counts_and_is_kept(self):
        good = (kit.RECORDED / f"{self.stem}.txt").read_text()
        noisy = re.sub(r"measured left_running = .*", "measured left_running = 4.0 us (median of 9, min 0.4, "
                       "max 9)", good)
        noisier = re.sub(r"(derived sync_over_async = )\S+", r"\g<1>1.000", noisy)
        for number, text in enumerate((noisier, noisy, noisier, good), 1):
            self.keep(f"attempt{number}", text)
        self.lab.write_text(f"//! cd {self.copy}; echo >> count; cat attempt$(wc -l < count)\n")
        err, report = self.grade("--no-reference")
        self.assertEqual(err.count("too noisy to say"), 3)
        self.assertEqual((self.copy / "results/cuda/mine" / f"{self.stem}.txt").read_text(), noisy)
        states = {check["check"]: check["verdict"] for check in report["checks"]}
        self.assertEqual((states["sync_over_async"], states["left_running"]), ("pass", "inconclusive"))


    def test_what_cannot_be_kept_gets_one_line(self):
        self.lab.write_text(self.good + '//! [ -z "$LAB_TRACE" ] || cp tests/hardware_sample.log $LAB_TRACE\n')
        self.keep(os.path.relpath(tracing.LIBRARY, kit.KIT), "")
        mine = ("--dir", "mine", "--backend", "cuda")
        kit.call("make", "-s", "build", "DIR=mine", "BACKEND=cuda", cwd=self.copy, env=self.environment)

        def fails(name, *arguments, code=1, words="(Not a directory|File exists)", **more):
            with self.subTest(name, words=words):
                _, err = self.tool(name, *arguments, code=code, env=self.environment, **more)
                said = [line for line in err.splitlines() if "cannot be kept" in line]
                self.assertEqual(said, err.splitlines()[-1:])
                self.assertRegex(said[0], rf"^{self.copy}/results.*: {words}: ")
        full = {"words": "File too large", "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))}
        fails("runner", *mine, **full)
        fails("compare", "--lab", "1", **full)
        self.assertEqual(list(self.copy.glob("results/**/*.part")), [])
        shutil.rmtree(self.copy / "results")
        self.keep("results", "")
        fails("runner", *mine)
        fails("grade", "run", "--no-reference", *mine, code=3)
        fails("timeline", *mine)
        fails("compare", "--lab", "1")
        fails("hint", "--lab", "1")
        if shutil.which("gnuplot"):
            fails("plot", "--lab", "2")


class Progress(FakeGpu):
    def in_terminal(self, *command):
        """(exit code, all that came to the terminal)."""
        kit.needs_terminal(self)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.copy)
            os.execvpe(str(command[0]), [str(c) for c in command], self.environment)
        text = kit.read_to_end(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text

    def test_a_silent_command_is_not_silent_on_a_terminal(self):
        code, text = self.in_terminal(sys.executable, "grading/progress.py", "building", "sh", "-c",
                                      "sleep 2.5; echo done; exit 3")
        self.assertEqual(code, 3)
        self.assertRegex(text, r"\r\x1b\[K  building: \d+ s\r\x1b\[K  building: \d+ s")
        self.assertTrue(text.endswith("\r\x1b[Kdone\r\n"), repr(text))

    def test_a_silent_lab_says_its_time_and_the_expected_one(self):
        self.lab.write_text(self.good + "//! sleep 2.8\n")
        code, text = self.in_terminal("make", "run", "DIR=mine", "BACKEND=cuda", "LAB=1")
        self.assertEqual(code, 0)
        recorded = progress.expected("01_nullKernelAsync", "cuda", "/nowhere")
        self.assertIn(f"[1/1] 01_nullKernelAsync  (0 s of about {recorded:.0f} s)", text)
        self.assertRegex(text, rf"  01_nullKernelAsync: \d+ s of about {recorded:.0f} s")
        last = progress.expected("01_nullKernelAsync", "cuda", self.copy / "results/cuda/mine")
        self.assertGreaterEqual(last, 2.8)
        code, text = self.in_terminal("make", "run", "DIR=mine", "BACKEND=cuda", "LAB=1")
        self.assertIn(f"(0 s of about {last:.0f} s)", text)

    def test_in_a_log_output_is_passed_on_and_no_control_codes(self):
        code, out, err = kit.call(sys.executable, "grading/progress.py", "x", "sh", "-c",
                                  "echo one; sleep 1.5; echo two >&2; exit 5")
        self.assertEqual((code, out, err), (5, "one\n", "two\n"))

    def test_a_log_hears_of_it_now_and_then(self):
        with mock.patch.object(progress, "IN_A_LOG", 0.3), \
                mock.patch.object(sys, "stderr", open(self.copy / "err", "w")) as err, \
                progress.Ticker("lab", 2):
            time.sleep(0.8)
        err.close()
        self.assertRegex((self.copy / "err").read_text(), r"\A(  lab: \d+ s of about 2 s\n)+\Z")

    def test_an_interrupted_run_takes_its_program_along(self):
        pid = self.copy / "pid"
        self.lab.write_text(f"//! echo $$ > {pid}; sleep 100\n")
        code, _, err = kit.call("make", "-s", "build", "DIR=mine", "BACKEND=cuda", cwd=self.copy,
                                env=self.environment)
        self.assertEqual(code, 0, err)
        self.keep(os.path.relpath(tracing.LIBRARY, kit.KIT), "")
        for command, how in (("runner.py", signal.SIGINT), ("runner.py", signal.SIGTERM), ("runner.py", signal.SIGHUP),
                             ("grade.py run", signal.SIGTERM), ("timeline.py", signal.SIGHUP)):
            pid.unlink(missing_ok=True)
            child = subprocess.Popen([sys.executable, *f"grading/{command}".split(), "--dir", "mine", "--backend",
                                      "cuda"], cwd=self.copy, env=self.environment,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            kit.until(lambda: pid.exists() and pid.read_text().strip())
            child.send_signal(how)
            err = child.communicate(timeout=60)[1].decode()
            with self.subTest(command, how=how):
                self.assertEqual(child.returncode, 1)
                self.assertIn("stopped", err)
                self.assertNotIn("Traceback", err)
                self.assertFalse(Path(f"/proc/{int(pid.read_text())}/exe").exists())

    def test_expected_seconds(self):
        recorded = re.search(r"after ([\d.]+) s", (kit.RECORDED / "01_nullKernelAsync.txt").read_text())
        with kit.folder() as folder:
            self.assertEqual(progress.expected("01_nullKernelAsync", "cuda", folder), float(recorded[1]))
            self.assertEqual(progress.expected("01_nullKernelAsync", "sim", folder), progress.SIMULATED)
            progress.keep(folder, "01_nullKernelAsync", 7.5)
            progress.keep(folder, "02_breakevenKernelAsync", 1.25)
            self.assertEqual(progress.expected("01_nullKernelAsync", "cuda", folder), 7.5)
            (Path(folder) / progress.KEPT).write_text("spoilt")
            self.assertEqual(progress.expected("01_nullKernelAsync", "cuda", folder), float(recorded[1]))


# What doctor asks of the tools, answered as the environment says.
FAKE_TOOLKIT = r"""#!/bin/sh
case "$*" in
*--version*) echo "${FAKE_RELEASE-Cuda compilation tools, release 13.0, V13.0.88}" ;;
*--list-gpu-arch*) printf 'compute_75\ncompute_80\ncompute_89\ncompute_90\n' ;;
*) [ -z "$FAKE_ERROR" ] || { echo "$FAKE_ERROR" >&2; exit 1; } ;;
esac
"""
FAKE_SMI = r"""#!/bin/sh
case "$*" in
*compute-apps*) [ -z "$FAKE_APPS" ] || echo "$FAKE_APPS" ;;
*mig*) echo "${FAKE_MIG-[N/A]}" ;;
esac
"""


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        held = kit.folder()
        cls.addClassCleanup(held.cleanup)
        cls.here = Path(held.name)
        (cls.here / "none").mkdir()
        cls.none = kit.no_driver(cls.here / "none")
        test_make.fake_driver(cls.here)
        for name, text in (("nvcc", FAKE_TOOLKIT), ("nvidia-smi", FAKE_SMI),
                           ("broken", "#!/bin/sh\nexit 9\n")):
            (cls.here / name).write_text(text)
            (cls.here / name).chmod(0o755)

    def path_without(self, *names):
        """A PATH that has all programs of this machine but these."""
        held = kit.folder()
        self.addCleanup(held.cleanup)
        folder = Path(held.name)
        for place in ("/bin", "/usr/bin"):
            for program in os.listdir(place):
                if program not in names and not (folder / program).exists():
                    with contextlib.suppress(FileExistsError):
                        os.symlink(f"{place}/{program}", folder / program)
        return str(folder)

    def examine(self, code=0, gpu=True, **changes):
        """{item: (state, text)} of a whole run, on a machine with a GPU or without."""
        environment = {k: v for k, v in kit.clean_environment().items()
                       if not k.startswith(("CUDA_", "NVCC"))}
        environment.update(PATH=f"{self.here}:/usr/bin:/bin" if gpu else "/usr/bin:/bin",
                           NVCC=str(self.here / "nvcc"),
                           LD_LIBRARY_PATH=str(self.here) if gpu else self.none)
        environment.update(changes)
        got, out, err = kit.call(sys.executable, "-W", "error", "grading/doctor.py", env=environment)
        self.assertEqual((got, err), (code, ""), out)
        items = {}
        for line in out.splitlines():
            self.assertRegex(line, r"\A(ok  |-   |FIX ) \S")
            items[line[5:32].strip()] = (line[:4].strip(), line[32:].strip())
        return items

    def finds(self, name, state, *words, **changes):
        item = self.examine(**changes)[name]
        self.assertEqual(item[0], state, item)
        for word in words:
            self.assertIn(word, item[1])

    def test_a_machine_on_which_all_is_well(self):
        items = self.examine()
        self.assertEqual([n for n, (state, _) in items.items() if state == "FIX"], [])
        self.assertEqual(items["labs"], ("ok", "run on the GPU"))
        self.assertIn("Fake GPU, 0000:7f:00.0", items["device"][1])
        self.assertEqual(items["architecture"], ("ok", "sm_89, which nvcc compiles for"))
        for name in ("python", "make", "g++", "nvcc", "host compiler", "driver", "other processes",
                     "MIG", "MPS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "WSL",
                     "virtual machine"):
            self.assertEqual(items[name][0], "ok", name)
        for name in ("gnuplot", "bubblewrap", "Slurm"):
            self.assertIn(name, items)

    def test_a_machine_without_a_gpu_runs_the_simulated_device(self):
        items = self.examine(gpu=False)
        self.assertEqual(items["driver"][0], "-")
        self.assertEqual(items["device"], ("-", "none; labs run on the simulated device"))
        self.assertEqual(items["labs"][0], "ok")
        self.assertIn("SIMULATED device only", items["labs"][1])

    def test_toolkit(self):
        self.finds("nvcc", "FIX", "12.0 or later",
                   FAKE_RELEASE="Cuda compilation tools, release 10.2, V10.2.89")
        self.finds("nvcc", "FIX", "does not answer --version", NVCC=str(self.here / "broken"))
        self.finds("nvcc", "FIX", "NVCC=/no/nvcc is no program", NVCC="/no/nvcc")
        self.finds("host compiler", "FIX", "g++ 15 is the newest: sudo apt-get install -y g++-15",
                   "NVCCFLAGS='-O2 -ccbin g++-15'", FAKE_ERROR="host_config.h:137:2: error: #error -- "
                   "unsupported GNU version! gcc versions later than 15 are not supported!")
        self.finds("host compiler", "FIX", "make ARCH=sm_89",
                   FAKE_ERROR="nvcc fatal   : Value 'native' is not defined for option 'gpu-architecture'")
        items = self.examine(FAKE_ERROR="nvcc fatal : cannot find cicc")
        self.assertEqual(items["host compiler"][0], "FIX")
        self.assertIn("cannot find cicc", items["host compiler"][1])
        self.assertIn("BACKEND=sim", items["labs"][1])

    def test_no_toolkit(self):
        with mock.patch.object(doctor, "elsewhere", lambda: None), \
                mock.patch.dict(os.environ, {"NVCC": ""}):
            item, release = doctor.check_nvcc(None, True)
            self.assertEqual((item.state, release), ("FIX", None))
            self.assertIn("CUDA Toolkit, 12.0 or later: https://", item.text)
            self.assertEqual(doctor.check_nvcc(None, False)[0].state, "-")
        with mock.patch.object(doctor, "elsewhere", lambda: "/usr/local/cuda-12.4/bin/nvcc"):
            self.assertIn("export PATH=/usr/local/cuda-12.4/bin:$PATH",
                          doctor.check_nvcc(None, True)[0].text)

    def test_driver_and_device(self):
        self.finds("driver", "FIX", "knows CUDA 12.4 and the Toolkit is 13.0", FAKE_DRIVER="12040")
        self.finds("driver", "ok", "the same major version is enough", FAKE_DRIVER="12040",
                   FAKE_RELEASE="release 12.8, V12.8.1")
        self.finds("device", "FIX", "does nvidia-smi list one?", FAKE_COUNT="0")
        self.finds("device", "FIX", "CUDA_VISIBLE_DEVICES='' hides every GPU", FAKE_COUNT="0",
                   CUDA_VISIBLE_DEVICES="")
        self.finds("architecture", "FIX", "sm_61 is older", "sm_75 and later", FAKE_ARCH="61")
        self.finds("architecture", "FIX", "sm_120 is not among", "up to sm_90", FAKE_ARCH="120")
        self.finds("labs", "ok", "SIMULATED device only (see architecture above)", FAKE_ARCH="120")

    def test_others_on_the_gpu(self):
        self.finds("other processes", "FIX", "python3 (4711)", "30 x",
                   FAKE_APPS="00000000:7F:00.0, 4711, python3")
        self.finds("other processes", "ok", FAKE_APPS="00000000:80:00.0, 4711, python3")
        self.finds("MIG", "FIX", "whole one", FAKE_NAME="Fake GPU MIG 1g.18gb")
        self.finds("MIG", "FIX", "is enabled", FAKE_MIG="Enabled")
        self.finds("MPS", "FIX", "nvidia-cuda-mps-control", CUDA_MPS_PIPE_DIRECTORY="/tmp/x")
        with mock.patch.object(doctor, "call", lambda *a, **k: (None, "")), \
                mock.patch.object(doctor, "processes_by_library", lambda bus_id: None):
            self.assertEqual(doctor.check_processes("0000:7f:00.0").state, "-")
        with mock.patch.object(doctor, "call", lambda *a, **k: (9, "")), \
                mock.patch.object(doctor, "processes_by_library", lambda bus_id: 2):
            self.assertEqual(doctor.check_processes("0000:7f:00.0").state, "FIX")

    def test_variables(self):
        for name, value in (("CUDA_LAUNCH_BLOCKING", "1"), ("CUDA_MODULE_LOADING", "EAGER"),
                            ("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("NVCC_APPEND_FLAGS", "-G"),
                            ("CUDA_INJECTION64_PATH", "/x.so"), ("CUDA_VISIBLE_DEVICES", ""),
                            ("CUDA_FORCE_PTX_JIT", "1"), ("NVCC_PREPEND_FLAGS", "-G")):
            with self.subTest(name):
                self.finds(name, "FIX", f"unset {name}", **{name: value})
        self.finds("CUDA_LAUNCH_BLOCKING", "ok", CUDA_LAUNCH_BLOCKING="0")
        self.finds("CUDA_VISIBLE_DEVICES", "ok", "=1: only these", CUDA_VISIBLE_DEVICES="1")

    def test_what_is_needed_and_missing_ends_with_1(self):
        for name, package in (("g++", "g++"), ("make", "make"), ("cc", "g++")):
            with self.subTest(name):
                items = self.examine(code=1, gpu=False, PATH=self.path_without(name))
                item = items["g++" if name == "cc" else name]
                self.assertEqual(item[0], "FIX")
                self.assertIn(f"sudo apt-get install -y {package}", item[1])
                self.assertEqual(items["labs"][0], "FIX")
                self.assertIn("cannot run", items["labs"][1])

    def test_what_is_optional_and_missing_is_no_error(self):
        items = self.examine(gpu=False, PATH=self.path_without("gnuplot", "bwrap", "sbatch"))
        for name, package in (("gnuplot", "gnuplot-nox"), ("bubblewrap", "bubblewrap"),
                              ("Slurm", "slurm-client")):
            self.assertEqual(items[name][0], "-")
            self.assertIn(f"sudo apt-get install -y {package}", items[name][1])

    def test_bubblewrap_without_user_namespaces(self):
        with mock.patch.object(shutil, "which", lambda program: f"/usr/bin/{program}"), \
                mock.patch.object(doctor, "call", lambda *a, **k: (
                    1, "bwrap: No permissions to create new namespace")):
            item = doctor.check_sandbox()
        self.assertEqual(item.state, "-")
        self.assertIn("No permissions to create new namespace", item.text)

    def test_wsl_and_virtual_machines(self):
        with mock.patch.object(doctor, "read", lambda path: "Linux 5.15 microsoft-standard-WSL2"):
            self.assertIn("WSL2", doctor.check_wsl().text)
        with mock.patch.object(doctor, "read", lambda path: "Linux 4.4.0 Microsoft"), \
                mock.patch.object(os.path, "exists", lambda path: False):
            self.assertEqual(doctor.check_wsl().state, "FIX")
        with mock.patch.object(doctor, "read", lambda path: "flags : fpu hypervisor sse"), \
                mock.patch.object(doctor, "call", lambda *a, **k: (None, "cannot be run")):
            self.assertIn("a hypervisor", doctor.check_virtual().text)
        with mock.patch.object(doctor, "read", lambda path: "flags : fpu sse"), \
                mock.patch.object(doctor, "call", lambda *a, **k: (1, "none")):
            self.assertEqual(doctor.check_virtual().text, "no")

    def test_programs_that_hang_or_are_none(self):
        self.assertEqual(doctor.call("sleep", "30", seconds=0.2), (None, "did not answer in 0.2 s"))
        self.assertEqual(doctor.call("/no/such/program")[0], None)

    def test_grade_doctor_and_make_doctor_are_the_same(self):
        one = kit.call(sys.executable, "grading/doctor.py", env=kit.clean_environment())
        two = kit.grade("doctor", env=kit.clean_environment())
        three = kit.call("make", "doctor", f"PYTHON={sys.executable}", env=kit.clean_environment())
        self.assertEqual(one, two)
        self.assertEqual(one[1], three[1])
