# SPDX-License-Identifier: MIT
"""Right programs are never accused: recorded, published, noisy, on slow and fast devices."""
import unittest

import honest
import kit


class Honest(unittest.TestCase):
    def all_full(self, tally, at_least):
        self.assertGreaterEqual(tally.total(honest.FULL), at_least)
        self.assertEqual((tally.total(honest.ACCUSED), tally.total(honest.INCONCLUSIVE)), (0, 0), tally.of)

    def test_recorded_outputs_and_their_traces(self):
        self.all_full(honest.recorded(), 2 * len(kit.STEMS))

    def test_published_figures(self):
        self.all_full(honest.published(), 10)

    def test_noise_is_inconclusive_at_worst(self):
        tally = honest.noise(20)
        self.assertEqual(tally.total(honest.ACCUSED), 0)
        self.assertGreater(tally.total(honest.INCONCLUSIVE), 100)  # or it was no noise
        self.assertGreater(tally.total(honest.FULL), 100)

    def test_a_tenth_and_five_times_as_fast(self):
        kit.build_solutions("sim")
        tallies = honest.devices()
        self.assertEqual(len(tallies), 2)
        for tally in tallies:
            with self.subTest(tally.title):
                self.all_full(tally, len(kit.STEMS))
