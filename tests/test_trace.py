# SPDX-License-Identifier: MIT
"""Traces: what they hold, what they say of a program, and what becomes of bad ones."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest
import unittest.mock
from pathlib import Path

import cheats
import formula
import kit
import mutants
import output
import ranges
import runner
import trace_rules
import tracing
import verdict

SOLUTIONS = kit.KIT / "solutions"
CUPTI = kit.NVCC and any(Path(kit.NVCC).resolve().parents[1].glob("**/include/cupti.h"))
_traces = {}


def built(test, sources):
    """A folder with .cu files, built for the simulated device, that removes itself."""
    held = kit.folder()
    folder = Path(held.name)
    test.addCleanup(held.cleanup)
    test.addCleanup(shutil.rmtree, kit.KIT / "build/sim" / runner.short_name(folder), True)
    for name, text in sources.items():
        (folder / f"{name}.cu").write_text(text)
    code, _, err = kit.call("make", "-s", "-j2", "build", f"DIR={folder}", "BACKEND=sim",
                            env=kit.clean_environment())
    test.assertEqual(code, 0, err)
    return folder


def solution(stem):
    """The trace of a solution on the simulated device; taken once."""
    if stem not in _traces:
        kit.call("make", "-s", "build", f"LAB={stem[:2]}", "DIR=solutions", "BACKEND=sim",
                 env=kit.clean_environment())
        with unittest.mock.patch.dict(os.environ, SIM_DEVICES="2" if stem.startswith("12") else "1"):
            run, _traces[stem], why = tracing.capture(runner.program_of(stem, SOLUTIONS, "sim"), "sim")
        assert not run.problem and not why, (run.problem, why)
    return _traces[stem]


def as_json(trace):
    return json.dumps(tracing.to_json(trace)).encode()


class Solutions(unittest.TestCase):
    """What the simulated device writes of the labs."""

    def test_the_files_are_such_as_perfetto_loads(self):
        for stem in kit.STEMS:
            data = as_json(solution(stem))
            with self.subTest(stem):
                self.assertEqual(trace_rules.problems(data), [])
                self.assertLess(len(data), 20e6)
                self.assertTrue(solution(stem).complete)

    def test_the_rules_find_what_they_are_for(self):
        good = tracing.to_json(solution("05_crossStreamWait"))
        self.assertGreater(sum(e["ph"] == "s" for e in good["traceEvents"]), 8)

        def longest(events):
            return max((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["dur"])

        for words, change in {
                "has no name": lambda events, *_: events[5].update(ph="Q"),
                "no whole number": lambda events, *_: events[5].update(tid=1.5),
                "has no ts": lambda events, *_: events[5].update(ts="now"),
                "is before the one above": lambda events, *_: events[5].update(ts=-1e9),
                "a row without a name": lambda events, *_: events[5].update(tid=7),
                "a negative one": lambda events, *_: events[5].update(dur=-1),
                "has ['s']": lambda _, flow, __: flow[0].update(id=0),
                "ends before it begins": lambda _, flow, __: flow[1].update(ts=0),
                "lies on no slice": lambda _, flow, __: flow[1].update(tid=202),  # stream 3, idle by then
                "no object with a list": lambda _, __, data: data.pop("traceEvents"),
                "ends after the slice": lambda events, _, data: data["traceEvents"].insert(
                    data["traceEvents"].index(longest(events)) + 1,
                    {**longest(events), "dur": longest(events)["dur"] + 5})}.items():
            data = json.loads(json.dumps(good))
            events = [e for e in data["traceEvents"] if e["ph"] != "M"]
            flow = [e for e in events if e.get("id") == 1]
            change(events, flow, data)
            with self.subTest(words):
                self.assertIn(words, "\n".join(trace_rules.problems(json.dumps(data))))
        self.assertIn("is no JSON", trace_rules.problems(b'{"traceEvents": [NaN]}')[0])

    def test_json_says_what_the_log_said(self):
        for stem in ("05_crossStreamWait", "08_copyComputePipeline", "11_graphCapture"):
            one = solution(stem)
            two = tracing.read_json(as_json(one))
            self.assertEqual(one.totals.keys(), two.totals.keys())
            for region in {visit.region for visit in one.visits}:
                with self.subTest(stem, region=region):
                    self.assertEqual(one.shape(region), two.shape(region))
                    self.assertEqual(one.waits(region), two.waits(region))
                    self.assertAlmostEqual(one.overlap_us(region)[0], two.overlap_us(region)[0],
                                           delta=0.1)

    def test_rows_and_edges_are_those_of_the_program(self):
        self.assertEqual(solution("05_crossStreamWait").shape("event_wait"), [
            "row stream 1: 1 Producer", "row stream 2: 1 Consumer", "row stream 3: 1 Bystander",
            "edge Producer 1 -> Consumer 1"])
        shape = solution("08_copyComputePipeline").shape("pipelined")
        self.assertEqual(shape[:3], ["row stream 1: 10 copy_in", "row stream 2: 10 StageKernel",
                                     "row stream 3: 10 copy_out"])
        self.assertEqual(shape[3:], [line for i in range(1, 11) for line in (
            f"edge copy_in {i} -> StageKernel {i}", f"edge StageKernel {i} -> copy_out {i}")])

    def test_a_wait_before_the_record_is_no_edge(self):
        self.assertEqual(solution("05_crossStreamWait").waits("wait_before_record")[0], 0)
        self.assertFalse([line for line in solution("05_crossStreamWait").shape("wait_before_record")
                          if line.startswith("edge")])

    def test_tracing_changes_no_figure_of_the_simulated_device(self):
        program = runner.program_of("05_crossStreamWait", SOLUTIONS, "sim")
        solution("05_crossStreamWait")
        self.assertEqual(tracing.capture(program, "sim")[0].out, runner.run_lab(program).out)

    def test_two_devices_have_rows_of_their_own(self):
        trace = solution("12_multiGpuEvents")
        self.assertEqual(trace.shape("wait_across"), [
            "row GPU 0 stream 1: 1 WaitKernel", "row GPU 1 stream 2: 1 WaitKernel",
            "edge WaitKernel 1 -> WaitKernel 2"])


class Sample(unittest.TestCase):
    """tests/hardware_sample.log: written by hand in the form of the CUPTI library, with numbers
    such as a GPU might give. It is no recording of one."""

    def setUp(self):
        self.data = (kit.KIT / "tests/hardware_sample.log").read_bytes()

    def test_it_reads_as_the_simulated_devices(self):
        trace = tracing.read_log(self.data)
        self.assertEqual(trace.backend, "hardware")
        self.assertEqual(trace.shape("event_wait"), solution("05_crossStreamWait").shape("event_wait"))
        self.assertEqual((trace.waits("event_wait")[0], trace.waits()[0], trace.device_syncs()[0]),
                         (1, 1, 0))
        self.assertAlmostEqual(trace.overlap_us("event_wait")[0], 503.21, delta=0.01)
        self.assertAlmostEqual(trace.overlap_us("event_wait/Producer", "event_wait/kernel")[0],
                               2012.345, delta=0.01)
        self.assertEqual(trace_rules.problems(as_json(trace)), [])

    def test_one_that_breaks_off_is_read_up_to_there(self):
        cut = self.data[:self.data.index(b"A\t0\t816") + 20] + b"\0" * 5000
        trace = tracing.read_log(cut)
        self.assertFalse(trace.complete)
        self.assertEqual([op.name for op in trace.ops], ["Bystander", "Producer"])

    def test_json_keeps_all_that_a_log_says(self):
        def told(trace):
            parts = [[v for k, v in vars(part).items() if k not in ("start", "end")]
                     for part in (*trace.visits, *trace.calls, *trace.ops)]
            return (trace.backend, trace.complete, trace.lost, trace.truncated,
                    {key: count for key, (count, _) in trace.totals.items()}, sorted(parts, key=str))
        cut = self.data[:self.data.index(b"Z\t0")]
        for log in (cut, cut.replace(b"\t-1\t-\n", b"\t-1\tx12\n") + b"D\tmany\t7\nZ\t3\n"):
            one = tracing.read_log(log)
            self.assertEqual(told(tracing.read_json(as_json(one))), told(one))

    def test_bad_ones_get_one_line(self):
        text = self.data.decode()
        cases = {"": "is no trace", "hello": "is no trace",
                 text.replace("hardware", "mine"): "is no trace",
                 text.replace("\t816\t", "\tx\t", 1): "is no number",
                 text.replace("2012345", "1e400"): "is no number",
                 text.replace("A\t0", "A\t3", 1): "has not begun",
                 text.replace("kernel", "colonel", 1): "no kind",
                 text.replace("353008.064\t", ""): "fields",
                 text.replace("Z\t0", "Q\t0"): "cannot be read",
                 text.replace("E\t0", "B\t0\tx"): "a second time"}
        for bad, words in cases.items():
            with self.subTest(words):
                with self.assertRaisesRegex(tracing.TraceError, words) as caught:
                    tracing.read_log(bad.encode() + b"\n", "x.log")
                self.assertRegex(str(caught.exception), r"\Ax\.log:\d+: [^\n]+\Z")

    def test_bad_json_gets_one_line(self):
        good = tracing.to_json(tracing.read_log(self.data))
        slices = [e for e in good["traceEvents"] if e["ph"] == "X" and e["cat"] == "kernel"]
        for change in (lambda: slices[0].update(dur=-5), lambda: slices[0].pop("ts"),
                       lambda: slices[0].update(cat="x"), lambda: slices[0].update(args=3),
                       lambda: slices[0]["args"].update(visit=9),
                       lambda: good["otherData"].update(totals=[1]),
                       lambda: good.update(traceEvents={"a": 1}), lambda: good.pop("otherData")):
            change()
            with self.assertRaisesRegex(tracing.TraceError, r"\Ax: [^\n]+\Z"):
                tracing.read_json(json.dumps(good).encode(), "x")
            good = tracing.to_json(tracing.read_log(self.data))
            slices = [e for e in good["traceEvents"] if e["ph"] == "X" and e["cat"] == "kernel"]
        for data in (b"", b"[", b"\xff", b"[" * 100000, b"null", b"{}"):
            with self.assertRaisesRegex(tracing.TraceError, r"\Ax: [^\n]+\Z"):
                tracing.read_json(data, "x")


class Evidence(unittest.TestCase):
    def test_cheating_programs_are_caught_by_what_ran_and_by_nothing_else(self):
        folder = built(self, {stem: cheats.source(stem) for stem in cheats.CHEATS})
        code, out, err = kit.grade("run", "--dir", folder, "--backend", "sim", "--no-reference",
                                   "--format", "json", env=kit.clean_environment())
        self.addCleanup(shutil.rmtree, kit.KIT / "results/sim" / runner.short_name(folder), True)
        self.assertEqual(code, 1, err)
        labs = json.loads(out)["labs"]
        self.assertEqual({lab["lab"] for lab in labs}, set(cheats.CHEATS))
        for lab in labs:
            needs = {c.name for c in ranges.load(lab["lab"]) if c.formula and c.formula.needs_trace}
            failed = {c["check"] for c in lab["checks"] if c["verdict"] == "FAIL"}
            with self.subTest(lab["lab"]):
                self.assertIsNone(lab["error"])
                self.assertLessEqual(cheats.CHEATS[lab["lab"]][3], failed)
                self.assertLessEqual(failed, needs)

    def test_every_check_of_what_ran_has_a_program_that_it_must_catch(self):
        asked = {(stem, c.name) for stem in kit.STEMS for c in ranges.load(stem)
                 if c.formula and c.formula.needs_trace}
        caught = {(stem, name) for stem, cheat in cheats.CHEATS.items() for name in cheat[3]}
        caught |= {(m.stem, name) for m in mutants.load() for name in m.checks}
        self.assertEqual(asked - caught, set())

    def test_without_a_trace_it_is_skipped_with_a_word_and_counts_neither_way(self):
        path = kit.RECORDED / "08_copyComputePipeline.txt"
        code, out, _ = kit.grade("check", path, "--format", "json")
        lab = json.loads(out)["labs"][0]
        skipped = [c for c in lab["checks"] if c["verdict"] == "skipped"]
        self.assertEqual((code, lab["points"]), (0, lab["of"]))
        self.assertEqual({c["check"] for c in skipped}, {"edges_ran", "overlap_ran", "pipeline_ran"})
        for c in skipped:
            self.assertEqual((c["of"], c["points"]), (0, 0))
            self.assertIn("needs a trace", c["message"])

    def test_processor_time_holds_what_was_printed(self):
        out = output.read(kit.RECORDED / "06_blockingSyncVsSpin.txt")
        checks = ranges.load(out.stem)

        def state(cpu):
            return {v.check.name: v.state for v in verdict.judge(out, checks, process_cpu=cpu)}[
                "cpu_time_fits"]
        self.assertEqual([state(None), state(0.9), state(0.1)],
                         [verdict.SKIPPED, verdict.PASS, verdict.FAIL])

    def test_formulas_ask_a_trace_and_nothing_else_of_it(self):
        trace = tracing.read_log((kit.KIT / "tests/hardware_sample.log").read_bytes())
        for text, wanted in {'trace.launches("Producer")': 1, "trace.launches": 3, "trace.waits": 1,
                             'trace.launches("event_wait/kernel")': 3, 'trace.waits("nowhere")': 0,
                             '2 * trace.overlap_us("event_wait") / a': 503.21}.items():
            asked = formula.Formula(text)
            self.assertTrue(asked.needs_trace)
            self.assertAlmostEqual(asked.evaluate({"a": (2.0, 2.0, 2.0)}, {}, trace)[0], wanted)
            with self.assertRaises(formula.NotHere):
                asked.evaluate({"a": (2.0, 2.0, 2.0)}, {})
        for text in ("trace", "trace.ops", "trace.__class__", "trace.launches(1)", "trace.launches()",
                     'trace.waits("a", "b")', "trace.span_us", 'trace.waits(name="a")', "a.waits",
                     'trace.waits("")', 'trace.waits.real', 'trace.waits("a").real', 'trace["waits"]',
                     'trace.waits(b"a")', 'trace.launches(trace.waits)', 'trace.launches(f"{a}")',
                     'slope(trace)'):
            with self.subTest(text):
                with self.assertRaises(formula.FormulaError):
                    formula.Formula(text)

    def test_every_region_that_a_check_names_is_one_of_its_lab(self):
        for stem in kit.STEMS:
            named = {name.split("/")[0] for check in ranges.load(stem) if check.formula and check.formula.needs_trace
                     for name in re.findall(r'"([^"]+)"', check.formula.text)} - {"NullKernel"}
            with self.subTest(stem):
                self.assertLessEqual(named, {visit.region for visit in solution(stem).visits})


BUSY = """#include "%s/common/lab.h"
#include <signal.h>
#include <unistd.h>
__global__ void NullKernel(void) {}
int main(int count, char **word) {
    lab_begin("05", "crossStreamWait");
    printf("%%s\\n", count > 1 ? word[1] : "");
    region_begin("many");
    for (int i = 0; i < 50; i++)
        NullKernel<<<1, 1>>>();
    CUDA_CHECK(cudaDeviceSynchronize());
    if (count > 1 && strcmp(word[1], "_exit") == 0)
        _exit(0);
    if (count > 1 && strcmp(word[1], "abort") == 0)
        abort();
    if (count > 1 && strcmp(word[1], "NULL") == 0)
        *(volatile int *)NULL = 1;
    if (count > 1)
        raise(atoi(word[1]));
    region_end();
    lab_end("05", "crossStreamWait");
    return 0;
}
"""


class Endings(unittest.TestCase):
    def run_busy(self, log, *arguments, launches=50):
        """Runs the program above with a log, once a way to end; yields the way and the log's trace."""
        program = built(self, {"05_busy": (BUSY % kit.KIT).replace("< 50", f"< {launches}")})
        program = runner.program_of("05_busy", program, "sim")
        for how in arguments or [None]:
            Path(log).unlink(missing_ok=True)
            subprocess.run([program] + ([how] if how else []), capture_output=True,
                           env={**os.environ, "SIM_TRACE": str(log)})
            yield how, tracing.read_log(Path(log).read_bytes())

    def setUp(self):
        held = kit.folder()
        self.addCleanup(held.cleanup)
        self.log = Path(held.name) / "log"

    def test_however_it_ends_what_was_written_is_there(self):
        for how, trace in self.run_busy(self.log, "_exit", "abort", "NULL", str(int(signal.SIGKILL)),
                                        str(int(signal.SIGTERM))):
            with self.subTest(how):
                self.assertFalse(trace.complete)
                self.assertEqual((len(trace.ops), trace.launches()[0]), (50, 50))
                self.assertEqual(trace_rules.problems(as_json(trace)), [])

    def test_a_region_of_very_many_calls_is_cut_short_and_says_so(self):
        (_, trace), = self.run_busy(self.log, launches=100000)
        self.assertTrue(trace.complete)
        self.assertLess(self.log.stat().st_size, 2e6)
        self.assertEqual(trace.launches()[0], 100000)
        self.assertGreater(trace.truncated["many"], 100000)
        with self.assertRaises(tracing.NoEvidence):
            trace.launches("many/NullKernel")

    def test_a_file_that_exists_is_not_overwritten(self):
        solution("05_crossStreamWait")
        self.log.write_text("precious")
        kit.call(runner.program_of("05_crossStreamWait", SOLUTIONS, "sim"),
                 env={**os.environ, "SIM_TRACE": str(self.log)})
        self.assertEqual(self.log.read_text(), "precious")


@unittest.skipUnless(CUPTI, "no CUPTI on this machine")
class Library(unittest.TestCase):
    """grading/trace/labtrace.c, as far as it goes without a GPU."""

    def setUp(self):
        code, out, err = kit.call("make", "-s", "trace", "BACKEND=cuda", env=kit.clean_environment())
        self.assertEqual((code, out + err), (0, ""))

    def test_it_compiles_without_warnings_and_shows_two_names(self):
        code, out, _ = kit.call("nm", "-D", "--defined-only", tracing.LIBRARY)
        self.assertEqual(code, 0)
        self.assertEqual({line.split()[-1] for line in out.splitlines()},
                         {"InitializeInjection", "lab_trace_region"})

    def test_where_cupti_finds_no_gpu_the_program_goes_on_and_one_line_says_why(self):
        with kit.folder() as folder:
            log = Path(folder) / "log"
            load = ("import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).InitializeInjection())")
            code, out, err = kit.call("python3", "-c", load, tracing.LIBRARY,
                                      env={**os.environ, "LAB_TRACE": str(log),
                                           "CUDA_VISIBLE_DEVICES": ""})
            self.assertEqual((code, out), (0, "1\n"))
            if not log.exists():
                self.assertRegex(err, r"\Ano trace: [^\n]+\n\Z")
            self.assertEqual(kit.call("python3", "-c", load, tracing.LIBRARY), (0, "1\n", ""))

    def test_a_program_that_the_traced_one_starts_leaves_no_log(self):
        load = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).InitializeInjection())"
        for parent, traced in ((os.getpid(), True), (1, False)):
            with self.subTest(traced=traced), kit.folder() as folder:
                log = Path(folder) / "log"
                code, out, err = kit.call("python3", "-c", load, tracing.LIBRARY, env={
                    **os.environ, "LAB_TRACE": str(log), "LAB_TRACE_PARENT": str(parent)})
                self.assertEqual((code, out), (0, "1\n"))
                self.assertEqual(log.exists() or "no trace" in err, traced)

    def test_without_cupti_make_says_what_to_install(self):
        with kit.folder() as folder:
            copy = kit.copy_of_kit(folder)
            (copy / "bin").mkdir()
            (copy / "bin" / "nvcc").write_text("#!/bin/sh\n")
            (copy / "bin" / "nvcc").chmod(0o755)
            code, _, err = kit.call("make", "-s", "trace", f"NVCC={copy}/bin/nvcc", "BACKEND=cuda",
                                    cwd=copy, env=kit.clean_environment())
            self.assertNotEqual(code, 0)
            self.assertIn("cuda-cupti-dev", err)


class RecordedOnHardware(unittest.TestCase):
    """Traces that an H200 left, beside the simulated device's of the same labs."""

    def test_they_load_and_have_the_same_rows_and_edges(self):
        paths = sorted(kit.RECORDED.glob("*.trace.json"))
        self.assertEqual([path.name[:2] for path in paths], ["05", "08", "09"])
        for path in paths:
            data, stem = path.read_bytes(), path.name.split(".")[0]
            self.assertEqual(trace_rules.problems(data), [])
            there = tracing.read_json(data, path.name)
            self.assertEqual(there.backend, "hardware")
            here = solution(stem)
            regions = dict.fromkeys(visit.region for visit in there.visits)
            self.assertEqual(regions, dict.fromkeys(visit.region for visit in here.visits))
            for region in regions:
                with self.subTest(stem, region=region):
                    self.assertEqual(there.shape(region), here.shape(region))
