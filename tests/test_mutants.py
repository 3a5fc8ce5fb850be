# SPDX-License-Identifier: MIT
"""Wrong programs are rejected, and told what is wrong: tests/mutants/, on the simulated device."""
import sys
import unittest

import kit
import mutants


class Patches(unittest.TestCase):
    def test_each_applies_and_every_lab_has_some(self):
        found = mutants.load()
        self.assertGreaterEqual(len(found), 60)
        self.assertEqual({m.stem for m in found}, set(kit.STEMS))
        for mutant in found:
            with self.subTest(mutant.name):
                self.assertNotEqual(mutants.applied(mutant), (
                    kit.KIT / "solutions" / f"{mutant.stem}.cu").read_text(encoding="utf-8"))

    def test_a_name_of_none_is_no_success(self):
        code, out, err = kit.call(sys.executable, "tests/mutants.py", "12_", "no_such")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no mutant's name contains no_such", err)

    def test_each_names_a_check_of_its_lab_and_a_todo_of_it(self):
        import ranges
        for mutant in mutants.load():
            with self.subTest(mutant.name):
                if mutant.says:
                    self.assertEqual(mutant.checks, ["program"])
                    continue
                checks = {c.name for c in ranges.load(mutant.stem)}
                self.assertLessEqual(set(mutant.checks), checks)
                lab = (kit.KIT / "labs" / f"{mutant.stem}.cu").read_text(encoding="utf-8")
                self.assertTrue(not mutant.todo or f"// TODO({mutant.todo}):" in lab)

    def test_one_that_no_longer_applies_is_named_with_its_line(self):
        mutant = mutants.load()[0]
        with kit.folder() as folder:
            patch = kit.Path(folder) / "old.patch"
            patch.write_text(mutant.path.read_text().replace("    CUDA_CHECK(", "    CUDA_CHUCK("))
            mutant.path = patch
            with self.assertRaisesRegex(mutants.Stale, r"old\.patch:3: no longer applies to solutions/"
                                        r"01_nullKernelAsync\.cu near line \d+: .*CUDA_CHUCK"):
                mutants.applied(mutant)


class Fate(unittest.TestCase):
    def test_95_of_100_are_rejected_and_90_with_the_right_message(self):
        fates = mutants.prove("sim")
        told = "\n".join([f.text() for f in fates if f.state != mutants.RIGHT] + mutants.table(fates))
        self.assertNotIn(mutants.SKIPPED, {f.state for f in fates})
        for share, promised in zip(mutants.shares(fates), mutants.PROMISED):
            self.assertGreaterEqual(share, promised, told)
