# SPDX-License-Identifier: MIT
"""Every CUDA call of every lab fails at its first time (make proof: and in the middle)."""
import unittest

import faults
import kit


class Faults(unittest.TestCase):
    def test_exit_3_named_no_figure_after_it_no_leak(self):
        outcomes = faults.prove(first_only=True)
        self.assertEqual({o.stem for o in outcomes}, set(kit.STEMS))
        self.assertGreater(len(outcomes), 150)
        self.assertEqual([f"{o.stem} {o.call}:{o.nth}: {o.wrong}" for o in outcomes if o.wrong], [])
        keys = {key for o in outcomes if o.read for key in ((o.stem[:2], o.call), ("", o.call))}
        self.assertLessEqual(set(faults.READ), keys)  # no exception is out of date

    def test_an_answer_that_is_printed_is_the_error_and_nothing_else(self):
        normal = "measured a = 1 us\nobserved b = cudaSuccess\nobserved c = yes\nfinished\n"
        for old, new, only in (("cudaSuccess", "cudaErrorUnknown", True), ("yes", "no", False), ("a = 1", "a = 2", False),
                               ("finished\n", "", False), ("yes", "yes", False)):
            with self.subTest(new):
                self.assertEqual(faults.only_answers_differ(normal.replace(old, new), normal), only)
