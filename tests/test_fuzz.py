# SPDX-License-Identifier: MIT
"""What others wrote may be broken in any way: 2,000 cases here, make fuzz has 100,000."""
import unittest
from pathlib import Path

import fuzz
import kit


class Fuzz(unittest.TestCase):
    def test_no_crash_no_hang_no_pass_that_is_not_earned(self):
        with kit.folder() as folder:
            for kind, share in fuzz.SHARES.items():
                done, wrong = fuzz.fuzz(kind, int(2000 * share), 1, Path(folder))
                with self.subTest(kind):
                    self.assertEqual((done, wrong), (int(2000 * share), []))

    def test_it_finds_what_it_is_for(self):
        """A base with a figure that is read as another is found out."""
        base = fuzz.Base((kit.RECORDED / "01_nullKernelAsync.txt").read_bytes())
        forged = base.data.replace(b"measured launch_sync = ", b"measured launch_sync = 8")
        fuzz.judge_output(base, forged)  # another figure on another line: no parser can know
        base.read[next(line for line in base.read if " launch_sync = " in line)] = None
        with self.assertRaisesRegex(fuzz.Failure, "launch_sync = .* is read as another"):
            fuzz.judge_output(base, base.data)
