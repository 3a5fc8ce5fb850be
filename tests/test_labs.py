# SPDX-License-Identifier: MIT
"""The labs themselves: they compile clean, and without a GPU they say so and print no figure."""
import concurrent.futures
import os
import re
import unittest
from pathlib import Path

import kit

CLEAN = ["-O2", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror",
         "-gencode", "arch=compute_75,code=sm_75", "-gencode", "arch=compute_90,code=sm_90"]


@unittest.skipUnless(kit.NVCC, "no nvcc on this machine")
class Compile(unittest.TestCase):
    def test_every_lab_and_solution_without_warnings_for_sm_75_and_sm_90(self):
        with kit.folder() as folder:
            def compile_one(path):
                program = Path(folder) / f"{path.parent.name}_{path.stem}"
                return path, program, kit.call(kit.NVCC, *CLEAN, path, "-o", program)
            paths = sorted((kit.KIT / "labs").glob("*.cu")) + sorted((kit.KIT / "solutions").glob("*.cu"))
            self.assertEqual(len(paths), 2 * len(kit.STEMS))
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                for path, program, (code, out, err) in pool.map(compile_one, paths):
                    with self.subTest(path=str(path.relative_to(kit.KIT))):
                        self.assertEqual((code, out + err), (0, ""))
                        self.skips(program)

    def skips(self, program):
        """Without a visible device: exit 77, one line, no figure."""
        code, out, err = kit.call(program, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(code, 77)
        self.assertRegex(out, r"\Askipped \d\d \w+: [^\n]+\n\Z")
        self.assertEqual(err, "")


class Shape(unittest.TestCase):
    """What a student may rely on in every lab."""

    def test_same_stem_everywhere(self):
        for stem in kit.STEMS:
            for path in (f"labs/{stem}.cu", f"worksheets/{stem}.md", f"solutions/{stem}.md",
                         f"grading/ranges/{stem}.ini",
                         f"worksheets/recorded/nvidia-h200/{stem}.txt"):
                with self.subTest(path=path):
                    self.assertTrue((kit.KIT / path).exists())

    def test_the_header_comment_says_how_to_compile_and_to_grade_it(self):
        for stem in kit.STEMS:
            text = (kit.KIT / "labs" / f"{stem}.cu").read_text()
            with self.subTest(stem=stem):
                self.assertRegex(text, rf"(?m)^//     nvcc -O2 -arch=native labs/{stem}\.cu -o (\w+) && \./\1$")
                self.assertIn(f"make grade LAB={stem[:2]}", text)

    def test_common_headers_stay_small(self):
        lines = sum(len(p.read_text().splitlines()) for p in (kit.KIT / "common").glob("*.h"))
        self.assertLess(lines, 420)


class Figures(unittest.TestCase):
    """The H200 column of a worksheet's table is what is recorded."""

    def test_h200_column_is_recorded(self):
        for stem in kit.STEMS:
            sheet = (kit.KIT / f"worksheets/{stem}.md").read_text()
            recorded = (kit.RECORDED / f"{stem}.txt").read_text()
            rows = re.findall(r"^\| `([^`]+)`[^|]*\|(.*)\|$", sheet.split("## Compare")[1]
                              .split("\n## ")[0], re.MULTILINE)
            self.assertTrue(rows, stem)
            for name, cells in rows:
                shown = cells.split("|")[2].strip()
                line = re.search(rf"^(?:measured|derived|observed) {re.escape(name)} = (\S+)",
                                 recorded, re.MULTILINE)
                with self.subTest(stem=stem, name=name):
                    self.assertIsNotNone(line)
                    self.assertTrue(shown, f"the H200's column is empty: {line[1]} is recorded")
                    try:
                        wanted = float(line[1])
                    except ValueError:
                        self.assertEqual(shown.strip("`"), line[1])
                    else:
                        self.assertAlmostEqual(float(shown.replace(",", "")), wanted,
                                               delta=0.006 * abs(wanted))
