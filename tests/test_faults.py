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

    def test_no_exception_is_out_of_date(self):
        """Each call that a lab is said to read is one that it makes."""
        for lab, call in faults.READ:
            text = "".join((kit.KIT / "solutions" / f"{stem}.cu").read_text(encoding="utf-8")
                           for stem in kit.STEMS if stem.startswith(lab))
            text += (kit.KIT / "common" / "device.h").read_text(encoding="utf-8")
            with self.subTest(lab=lab, call=call):
                self.assertIn(call, text)
