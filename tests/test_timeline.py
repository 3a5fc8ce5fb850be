# SPDX-License-Identifier: MIT
"""make timeline: a chart that fits a terminal, and what it leaves behind."""
import contextlib
import io
import json
import os
import re
import shutil
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import kit
import timeline
import trace_rules
import tracing


def make(*arguments):
    return kit.call("make", "-s", "timeline", "BACKEND=sim", *arguments, env=kit.clean_environment())


class Charts(unittest.TestCase):
    def test_the_pipeline_in_eighty_columns(self):
        kept = kit.KIT / "results/sim/solutions/08_copyComputePipeline.trace.json"
        kept.unlink(missing_ok=True)  # of an earlier run
        code, out, err = make("LAB=08", "DIR=solutions", "REGION=pipelined")
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertIn("imulated", lines[0])
        row = {line[:15].strip(): line[17:] for line in lines if re.match(r"(host|stream \d) ", line)}
        self.assertEqual(list(row), ["host", "stream 1", "stream 2", "stream 3"])
        self.assertGreater(row["stream 1"].count("i"), 10)
        self.assertGreater(row["stream 2"].count("S"), 30)
        self.assertGreater(row["stream 3"].count("."), 20)
        self.assertIn("=====", [line for line in lines if line.startswith("at the same time")][0])
        self.assertIn("event 1: copy_in 1 -> StageKernel 1, from stream 1 to 2", out)
        self.assertEqual(trace_rules.problems(kept.read_bytes()), [])
        self.assertIn("ui.perfetto.dev", err)

    def test_every_lab_fits_and_a_lab_without_regions_has_counts(self):
        code, out, err = make("DIR=solutions")
        self.assertEqual(code, 0, err)
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        self.assertIn("this lab names no region of interest: only counted", out)
        self.assertRegex(out, r"312,001 NullKernel")

    def test_mistakes_are_named(self):
        for arguments, words in ((["LAB=05", "DIR=solutions", "REGION=nothing"], "there are: warm_up"),
                                 (["LAB=98", "DIR=solutions"], "no lab 98")):
            code, out, err = make(*arguments)
            with self.subTest(words):
                self.assertNotEqual(code, 0)
                self.assertIn(words, err)
                self.assertNotIn("Traceback", err)

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot on this machine")
    def test_an_svg_that_names_the_rows_and_the_kernels(self):
        path = kit.KIT / "results/sim/solutions/05_crossStreamWait.event_wait.svg"
        path.unlink(missing_ok=True)  # of an earlier run
        code, _, err = make("LAB=05", "DIR=solutions", "REGION=event_wait")
        self.assertEqual(code, 0, err)
        text = ElementTree.parse(path).getroot()
        words = " ".join(text.itertext())
        for word in ("Producer", "stream 3", "host", "simulated"):
            self.assertIn(word, words)


class Pieces(unittest.TestCase):
    def sample(self):
        return tracing.read_log((kit.KIT / "tests/hardware_sample.log").read_bytes())

    def test_the_sample_is_drawn_as_any_other(self):
        lines = timeline.report(self.sample(), ["event_wait"])
        self.assertIn("hardware", lines[0])
        rows = [line for line in lines if line.startswith("stream")]
        self.assertRegex(rows[0], r"^stream 1 +P+$")
        self.assertRegex(rows[1], r"^stream 2 +\.+C$")
        self.assertRegex(rows[2], r"^stream 3 +B+$")

    def test_a_picture_that_gnuplot_does_not_draw_is_said_and_the_last_one_stays(self):
        with kit.folder() as folder:
            gnuplot, path, trace = Path(folder) / "gnuplot", Path(folder) / "kept/x.svg", self.sample()
            chart = timeline.Chart(trace, trace.representative("event_wait"))
            for said, drawn in ("echo '<svg/>'", True), ("echo half; echo 'line 3: no such font' >&2; exit 1", False):
                gnuplot.write_text(f"#!/bin/sh\n{said}\n")
                gnuplot.chmod(0o755)
                err = io.StringIO()
                with mock.patch.dict(os.environ, PATH=folder), contextlib.redirect_stderr(err):
                    self.assertEqual(timeline.svg(chart, path), drawn)
            self.assertEqual(err.getvalue(), "x.svg: gnuplot: line 3: no such font\n")
            self.assertEqual((path.read_text(), len(list(path.parent.iterdir()))), ("<svg/>\n", 1))

    def test_no_two_names_share_a_letter(self):
        trace = self.sample()
        for op, name in zip(trace.ops, ("Kernel", "KernelTwo", "copy_in")):
            op.name = name
        letters = timeline.letters_of(trace.ops)
        self.assertEqual(len(set(letters.values())), 3)
        self.assertEqual((letters["Kernel"], letters["KernelTwo"], letters["copy_in"]), ("K", "E", "i"))

    def test_axis(self):
        for length in (0.5, 3, 47, 999, 5530, 27580, 4e6):
            with self.subTest(length):
                line = timeline.ruler(length)
                self.assertLessEqual(len(line), timeline.CHART)
                marks = [(float(m[1]) * (1000 if m[2] == "ms" else 1), m.start())
                         for m in re.finditer(r"([\d.e+-]+)(us|ms)?", line)]
                self.assertGreaterEqual(len(marks), 2)
                for us, place in marks:
                    self.assertEqual(place, int(us * timeline.CHART / length))

    def test_of_several_visits_the_one_of_median_length_is_shown(self):
        trace = tracing.Trace()
        for visit, length in enumerate((30, 10, 20)):
            trace.visits.append(tracing.Visit("region", 0))
            trace.ops.append(tracing.Op(visit, visit + 1, "kernel", "Kernel", 0, 0, length, 0))
        self.assertEqual(trace.representative("region"), 2)

    def test_a_region_in_which_nothing_ran(self):
        trace = self.sample()
        trace.ops, trace.calls = [], []
        self.assertIn("  nothing ran", timeline.report(trace, ["event_wait"]))
        self.assertFalse(timeline.svg(timeline.Chart(trace, 0), Path("/nowhere/x.svg")))
        json.dumps(tracing.to_json(trace))
