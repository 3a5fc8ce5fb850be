# SPDX-License-Identifier: MIT
"""The kit on the simulated device, as on a machine without a GPU."""
import concurrent.futures
import json
import os
import re
import sys
import unittest

import kit


def grade(folder, *more):
    code, out, err = kit.call("make", "-s", "-j2", "build", f"DIR={folder}", "BACKEND=sim",
                              env=kit.clean_environment())
    assert code == 0, err
    code, out, err = kit.grade("run", "--dir", folder, "--backend", "sim", "--format", "json", *more,
                               env=kit.clean_environment(SIM_DEVICES="2"))
    return code, json.loads(out), err


class Simulated(unittest.TestCase):
    def test_every_solution_has_full_marks_and_is_labelled(self):
        code, report, err = grade("solutions")
        for lab in report["labs"]:
            with self.subTest(lab["lab"]):
                self.assertEqual((lab["error"], lab["skipped"]), (None, None))
                self.assertEqual(lab["points"], lab["of"], [
                    c for c in lab["checks"] if c["verdict"] != "pass"])
                self.assertEqual(lab["backend"], "simulated")
                self.assertIn("imulated", lab["device"])
        self.assertEqual(code, 0)

    def test_every_lab_as_shipped_is_below_and_names_every_todo(self):
        code, report, err = grade("labs", "--no-reference")
        self.assertEqual(code, 1)
        for lab in report["labs"]:
            with self.subTest(lab["lab"]):
                self.assertEqual((lab["error"], lab["skipped"]), (None, None))
                self.assertLess(lab["points"], lab["of"])
                said = {int(n) for c in lab["checks"] for n in re.findall(r"TODO\((\d+)\)",
                                                                         c["message"])}
                todos = {int(n) for n in re.findall(
                    r"// TODO\((\d+)\):", (kit.KIT / f"labs/{lab['lab']}.cu").read_text())}
                self.assertEqual(said, todos)

    def test_recorded_simulated_outputs_are_what_it_prints_byte_for_byte(self):
        kit.build_solutions("sim")
        two_devices = kit.clean_environment(SIM_DEVICES="2")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            outputs = pool.map(lambda stem: kit.call(kit.KIT / "build/sim/solutions" / stem,
                                                     env=two_devices)[1], kit.STEMS)
            for stem, text in zip(kit.STEMS, outputs):
                with self.subTest(stem):
                    kept = kit.KIT / f"worksheets/recorded/simulated-h200/{stem}.txt"
                    self.assertEqual(text, kept.read_text())

    def test_it_is_near_the_recorded_h200(self):
        code, out, err = kit.call(sys.executable, "common/sim/fidelity.py", "--check")
        self.assertEqual((code, err), (0, ""), out)

    def test_without_a_gpu_it_is_chosen_and_said_in_one_line(self):
        code, out, err = kit.call(sys.executable, "grading/gpu.py",
                                  env=kit.clean_environment(CUDA_VISIBLE_DEVICES=""))
        self.assertEqual((code, out), (0, "sim\n"))
        self.assertEqual(err.count("\n"), 1)
        self.assertIn("SIMULATED", err)
