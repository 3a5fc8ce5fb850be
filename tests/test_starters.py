# SPDX-License-Identifier: MIT
"""labs/ is made from solutions/, and nobody's edits are lost on the way."""
import os
import shutil
import sys
import unittest

import kit
from make_starters import StarterError, starter_of

GOOD = """int f(void) {
    int x = 0;
    // TODO(1): store one in x. (1 line)
    // BEGIN SOLUTION
    x = 1;
    // END SOLUTION
    return x;
}
"""


class Markers(unittest.TestCase):
    def test_solution_lines_are_replaced_by_one_comment(self):
        self.assertEqual(starter_of(GOOD, "x.cu"), """int f(void) {
    int x = 0;
    // TODO(1): store one in x. (1 line)
    // Your lines here.
    return x;
}
""")

    def test_wrong_markers_are_named_with_their_line(self):
        cases = {
            "inside the one of line": GOOD.replace("    x = 1;", "    // BEGIN SOLUTION\n    x = 1;"),
            "never closed": GOOD.replace("    // END SOLUTION\n", ""),
            "without a BEGIN": GOOD.replace("    // BEGIN SOLUTION\n", ""),
            "stands alone": GOOD.replace("    x = 1;", "    x = 1;  // END SOLUTION"),
            "no TODO": "int f(void) { return 0; }\n",
            "right above it": GOOD.replace("// TODO(1): store", "// store"),
            "not 1, 2, 3": GOOD.replace("TODO(1)", "TODO(2)"),
            "which is what": GOOD.replace("(1 line)", "(2 lines)"),
            r"end the TODO with \(1 lines": GOOD.replace(" (1 line)", ""),
            "would vanish": GOOD.replace("    x = 1;", "    // TODO(2): and more\n    x = 1;"),
        }
        for words, text in cases.items():
            with self.subTest(words=words):
                with self.assertRaisesRegex(StarterError, r"x\.cu.*" + words):
                    starter_of(text, "x.cu")


class Command(unittest.TestCase):
    def test_labs_are_what_solutions_make(self):
        code, out, err = kit.call("make", "-s", "starters-check", env=kit.clean_environment())
        self.assertEqual((code, err), (0, ""))
        self.assertIn("labs are what solutions/ makes", out)

    def test_check_fails_on_any_difference_and_make_refuses_uncommitted_edits(self):
        with kit.folder() as folder:
            copy = kit.copy_of_kit(folder)
            environment = kit.clean_environment(GIT_CONFIG_GLOBAL="/dev/null", GIT_AUTHOR_NAME="t",
                                                GIT_AUTHOR_EMAIL="t@t", GIT_COMMITTER_NAME="t",
                                                GIT_COMMITTER_EMAIL="t@t")

            def run(*command):
                return kit.call(*command, cwd=copy, env=environment)
            run("git", "init", "-q")
            run("git", "add", "-A")
            run("git", "commit", "-qm", "as shipped")
            lab = copy / "labs" / f"{kit.STEMS[0]}.cu"
            edited = lab.read_text().replace("// Your lines here.", "us = 1.0;  // mine", 1)
            lab.write_text(edited)
            code, _, err = run("make", "-s", "starters-check")
            self.assertNotEqual(code, 0)
            self.assertIn(f"labs/{lab.name}", err)
            code, _, err = run("make", "-s", "starters")
            self.assertNotEqual(code, 0)
            self.assertIn("uncommitted edits", err)
            self.assertEqual(lab.read_text(), edited)
            for tool in ("/nowhere", os.environ["PATH"]):  # without git, and out of any checkout
                shutil.move(copy / ".git", copy / "away")
                code, out, err = kit.call(sys.executable, "solutions/make_starters.py", cwd=copy,
                                          env={**environment, "PATH": tool})
                shutil.move(copy / "away", copy / ".git")
                self.assertEqual((code, out), (1, ""))
                self.assertIn(f"edits would be lost in: {lab.name}", err)
                self.assertEqual(lab.read_text(), edited)
            run("git", "commit", "-qam", "kept")
            self.assertEqual(run("make", "-s", "starters")[0], 0)
            self.assertNotIn("// mine", lab.read_text())
            (copy / "labs" / "99_stray.cu").write_text("")
            code, _, err = run("make", "-s", "starters-check")
            self.assertIn("labs/99_stray.cu: has no solution of that name", err)
            self.assertNotEqual(code, 0)
            (copy / "labs" / "99_stray.cu").unlink()
            lab.unlink()
            code, _, err = run("make", "-s", "starters-check")
            self.assertIn(f"labs/{lab.name}: is not what its solution makes", err)
            self.assertNotEqual(code, 0)
