# SPDX-License-Identifier: MIT
"""The kit's own code under whatever finds mistakes in it: sanitizers, cppcheck, clang-tidy,
shellcheck, and Python that takes warnings for errors. What is not installed is skipped."""
import ast
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import unittest
import warnings

import faults
import grader
import kit
import output

ENGINE = sorted((kit.KIT / "common" / "sim").glob("*.c"))
SCRIPTS = sorted(p for folder in ("grading", "tests", "solutions", "common") for p in
                 (kit.KIT / folder).rglob("*.py"))


def shell_scripts():
    """All files whose first line asks for a shell."""
    found = []
    for path in [*kit.KIT.glob(".ci/*"), *(p for folder in ("common", "grading", "solutions", "tests")
                                           for p in (kit.KIT / folder).rglob("*"))]:
        if path.is_file():
            with open(path, "rb") as file:
                if re.match(rb"#!.*\b(?:ba|da)?sh\b", file.readline(100)):
                    found.append(path)
    return found


def needs(tool):
    return unittest.skipUnless(shutil.which(tool), f"no {tool} on this machine")


class Sanitized(unittest.TestCase):
    """Built with -fsanitize=address,undefined: no message, no leak."""

    @classmethod
    def setUpClass(cls):
        faults.build(os.cpu_count())

    def test_the_headers_of_common(self):
        program = faults.FOLDER / "headers"
        made = kit.call("g++", "-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror",
                        "-fsanitize=address,undefined", "-Icommon/sim/include", "-o", program,
                        "tests/headers.cpp", *sorted((faults.FOLDER / "engine").glob("*.o")), "-lm")
        self.assertEqual(made, (0, "", ""))
        code, out, err = kit.call(program)
        self.assertEqual((code, err), (0, ""), out)
        self.assertEqual(out.splitlines()[-1], "ok")
        read = output.parse(out.encode(), "headers")
        self.assertEqual(read.values["number_12"].value, 1e14)
        self.assertEqual(read.series["series"][0.1].low, 1)
        self.assertEqual((read.values["full"].low, read.values["full"].high), (256.8, 768.2))
        self.assertEqual(set(read.unmeasured), {"holed", "of_nothing", "unknown", "no_word"})
        code, out, err = kit.call(program, "readings")
        self.assertEqual((code, out, err.count("\n")), (1, "", 1))
        code, out, err = kit.call(program, "error")
        self.assertEqual((code, out), (3, ""))
        self.assertRegex(err, r"^tests/headers\.cpp:\d+: in main\(\): cudaStreamWaitEvent\(.*\n"
                              r"  cudaErrorInvalidResourceHandle \(400\): ")
        core = min(os.sched_getaffinity(0))  # one for two: each waits half of the time
        two = [subprocess.Popen([program, "core"], preexec_fn=lambda: os.sched_setaffinity(0, {core}))
               for _ in range(2)]
        self.assertIn(0, [one.wait() for one in two])

    def test_the_simulated_device(self):
        run = subprocess.run([sys.executable, "tests/sim/test_sim.py"], cwd=kit.KIT, text=True,
                             env=kit.clean_environment(SIM_SANITIZE="1"), capture_output=True)
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])


class Linters(unittest.TestCase):
    @needs("cppcheck")
    def test_cppcheck(self):
        # Where memory for its own tables is lacking the simulated device ends, by a crash.
        code, out, err = kit.call("cppcheck", "--enable=warning,performance,portability", "--quiet",
                                  "--std=c11", "--error-exitcode=1", "--library=tests/cppcheck.cfg",
                                  "--suppress=memleakOnRealloc", "-Icommon/sim", *ENGINE,
                                  "grading/trace/labtrace.c")
        self.assertEqual((code, out + err), (0, ""))
        code, out, err = kit.call("cppcheck", "--enable=warning,portability", "--quiet", "--std=c++17",
                                  "--language=c++", "--error-exitcode=1", "-Icommon/sim/include",
                                  "tests/headers.cpp")
        self.assertEqual((code, out + err), (0, ""))

    @needs("clang-tidy")
    def test_clang_tidy(self):
        def one(path):
            flags = (["-x", "c++", "-std=c++17", "-Icommon/sim/include"] if path.suffix == ".cpp" else
                     ["-std=c11", '-DSIM_INI_FILE="common/sim/h200.ini"'])
            return path, kit.call("clang-tidy", "--quiet", path, "--", *flags)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for path, (code, out, err) in pool.map(one, [*ENGINE, kit.KIT / "tests/headers.cpp"]):
                with self.subTest(path.name):
                    self.assertEqual((code, out), (0, ""))

    @needs("shellcheck")
    def test_shellcheck(self):
        scripts = shell_scripts()
        self.assertGreater(len(scripts), 2)
        self.assertEqual(kit.call("shellcheck", *scripts), (0, "", ""))

    def test_every_script_compiles_without_a_warning_and_for_python_3_9(self):
        for path in SCRIPTS:
            with self.subTest(str(path.relative_to(kit.KIT))), warnings.catch_warnings():
                warnings.simplefilter("error")
                source = path.read_text(encoding="utf-8")
                compile(source, str(path), "exec")
                ast.parse(source, str(path), feature_version=(3, 9))

    def test_nothing_is_imported_for_nothing(self):
        for path in SCRIPTS:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            for node in ast.walk(tree):
                for name in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else []:
                    with self.subTest(f"{path.relative_to(kit.KIT)}:{node.lineno}"):
                        self.assertIn((name.asname or name.name).split(".")[0], used)

    def test_a_grade_depends_on_all_that_makes_it_and_on_nothing_else(self):
        """grader.GRADING is what grader.py imports, and what that does, when it is loaded."""
        found, left = set(), ["grader"]
        while left:
            found.add(left[-1])
            tree = ast.parse((kit.KIT / f"grading/{left.pop()}.py").read_text(encoding="utf-8"))
            nodes = tree.body if len(found) > 1 else ast.walk(tree)  # grader.py loads grade when it needs it
            names = {name for node in nodes for name in (
                [one.name for one in node.names] if isinstance(node, ast.Import) else
                [node.module] if isinstance(node, ast.ImportFrom) else [])}
            left += [n for n in names - found - set(left) if (kit.KIT / f"grading/{n}.py").exists()]
        # How a program's wait is shown, how a grade is written down, and whose it is.
        self.assertEqual(found - {"progress", "grades", "roster"}, set(grader.GRADING))

    def test_every_command_tells_its_usage_without_a_warning(self):
        for path in SCRIPTS:
            if re.search(r"= argparse\.ArgumentParser\(", path.read_text(encoding="utf-8")):
                with self.subTest(str(path.relative_to(kit.KIT))):
                    code, out, err = kit.call(sys.executable, "-W", "error", path, "--help")
                    self.assertEqual((code, err), (0, ""))
