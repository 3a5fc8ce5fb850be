# SPDX-License-Identifier: MIT
"""The Makefile and the runner, with a compiler that makes shell scripts instead of programs."""
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

import gpu
import kit
import runner

# Stands in for nvcc: the "program" prints what the source's comment lines `//> ` say and ends
# with the exit code of `//! `. Like nvcc it writes dependencies, and refuses `#error`.
FAKE_NVCC = r"""#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in -o) out=$2; shift ;; -MF) deps=$2; shift ;; *.cu) source=$1 ;; esac
    shift
done
echo "$source" >> "${FAKE_LOG:-/dev/null}"
if grep -q '#error' "$source"; then echo "$source(1): error: #error says so" >&2; exit 1; fi
echo "$out : $source common/lab.h" > "$deps"
{ echo '#!/bin/sh'; echo "cat <<'EOF'"; sed -n 's,^//> ,,p' "$source"; echo EOF
  sed -n 's,^//! ,,p' "$source"; } > "$out"
chmod +x "$out"
"""


def fake_driver(folder):
    """A libcuda.so.1 of a machine with one GPU, in a folder."""
    code, _, err = kit.call("cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", "tests/fake_driver.c")
    assert code == 0, err


class Kit(kit.Copy):
    """A copy of the kit with a fake compiler, a fake driver and three small labs in mine/."""

    def setUp(self):
        super().setUp()
        fake_driver(self.copy)
        self.nvcc, self.log = self.copy / "nvcc", self.copy / "log"
        self.nvcc.write_text(FAKE_NVCC)
        self.nvcc.chmod(0o755)
        (self.copy / "mine").mkdir()
        for number in ("01", "02", "03"):
            self.lab(number, f"//> lab {number} x\n")

    def lab(self, number, text):
        (self.copy / "mine" / f"{number}_x.cu").write_text(text)

    def make(self, *arguments, driver=None):
        self.log.write_text("")
        environment = kit.clean_environment(FAKE_LOG=str(self.log),
                                            LD_LIBRARY_PATH=driver or str(self.copy))
        return kit.call("make", f"NVCC={self.nvcc}", "DIR=mine", "BACKEND=cuda", *arguments,
                        cwd=self.copy, env=environment)

    def compiled(self):
        return sorted(Path(line).name for line in self.log.read_text().split())

    def test_rebuilds_for_a_header_a_source_and_another_arch_and_nothing_else(self):
        everything = ["01_x.cu", "02_x.cu", "03_x.cu"]
        self.assertEqual(self.make("build", "-j4")[0], 0)
        self.assertEqual(self.compiled(), everything)
        self.make("build")
        self.assertEqual(self.compiled(), [])
        header = self.copy / "common" / "lab.h"
        os.utime(header, (time.time() + 5,) * 2)
        self.make("build")
        self.assertEqual(self.compiled(), everything)
        os.utime(header, (time.time() - 5,) * 2)
        os.utime(self.copy / "mine" / "02_x.cu", (time.time() + 5,) * 2)
        self.make("build")
        self.assertEqual(self.compiled(), ["02_x.cu"])
        self.make("build", "ARCH=sm_75")
        self.assertEqual(self.compiled(), everything)
        self.make("build", "LAB=2", "ARCH=sm_90")
        self.assertEqual(self.compiled(), ["02_x.cu"])

    def test_run_goes_on_after_failures_and_fails_at_the_end(self):
        self.lab("01", "//> lab 01 x\n//! echo broken >&2; exit 3\n")
        self.lab("02", "#error\n")
        code, out, err = self.make("run")
        self.assertNotEqual(code, 0)
        self.assertIn("lab 03 x", out)
        self.assertIn("[3/3] 03_x", err)
        self.assertIn("ended with exit code 3: broken", err)
        self.assertIn("did not build: mine/02_x.cu(1): error", err)
        self.assertIn("failed: 01_x 02_x", err)
        self.assertEqual((self.copy / "results/cuda/mine/03_x.txt").read_text(), "lab 03 x\n")

    def test_grade_goes_on_where_one_lab_does_not_build(self):
        (self.copy / "mine" / "03_x.cu").unlink()
        self.lab("02", "#error\n")
        good = (kit.RECORDED / "01_nullKernelAsync.txt").read_text()
        (self.copy / "mine" / "01_x.cu").rename(self.copy / "mine" / "01_nullKernelAsync.cu")
        (self.copy / "mine" / "01_nullKernelAsync.cu").write_text(
            "".join(f"//> {line}\n" for line in good.splitlines()) + "//! sleep 2\n")
        code, out, err = self.make("grade")
        self.assertIn("did not build", out)
        self.assertIn("13/13", out)
        self.assertNotEqual(code, 0)

    def test_mistakes_in_the_call_are_named(self):
        for arguments, words in ((["LAB=7"], "no lab 7"), (["DIR=nowhere"], "no lab"),
                                 (["BACKEND=abacus"], "BACKEND is")):
            with self.subTest(arguments):
                code, _, err = self.make("build", *arguments)
                self.assertNotEqual(code, 0)
                self.assertIn(words, err)
        code, _, err = self.make("record")
        self.assertIn("which machine", err)
        self.assertNotEqual(code, 0)
        code, _, err = self.make("record", "MACHINE=simulated-h200")
        self.assertIn("outputs of the simulated device, and no others", err)
        self.assertNotEqual(code, 0)
        with kit.folder() as none:
            code, _, err = self.make("run", driver=kit.no_driver(none))
        self.assertNotEqual(code, 0)
        self.assertIn("BACKEND=cuda, but no", err)

    def test_make_and_the_runner_call_a_folder_the_same(self):
        (self.copy / "_own" / "more").mkdir(parents=True)
        for folder, name in ((".", "kit"), ("_own/more/", "_own_more"), (f"{self.copy}/mine", "mine")):
            shutil.copy(self.copy / "mine/01_x.cu", self.copy / folder / "04_x.cu")
            with self.subTest(folder):
                code, out, err = self.make("run", f"DIR={folder}", "LAB=4")
                self.assertEqual((code, out.splitlines()[-1]), (0, "lab 01 x"), err)
                self.assertTrue((self.copy / f"results/cuda/{name}/04_x.txt").exists())

    def test_the_device_is_picked_and_named_once(self):
        with kit.folder() as none:
            environment = kit.clean_environment(LD_LIBRARY_PATH=kit.no_driver(none))
            for target in ("run", "record", "timeline"):
                with self.subTest(target):  # -n: what each of the makes says, and no more
                    code, _, err = kit.call("make", "-n", target, "MACHINE=simulated-x", cwd=self.copy, env=environment)
                    self.assertEqual((code, err.count("using the SIMULATED device")), (0, 1), err)

    def test_record_keeps_only_what_finished(self):
        self.lab("02", "//> half an output\n//! exit 3\n")
        self.make("record", "MACHINE=my-gpu")
        kept = sorted(p.name for p in (self.copy / "worksheets/recorded/my-gpu").glob("*.txt"))
        self.assertEqual(kept, ["01_x.txt", "03_x.txt"])

    def test_help_names_every_public_target(self):
        out = self.make("help")[1]
        phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", (self.copy / "Makefile").read_text(), re.MULTILINE)
        for target in set(phony[1].replace("\\", " ").split()) - {"help", "trace", "check-nvcc", "FORCE"}:
            with self.subTest(target):
                self.assertRegex(out, rf"(?m)(^make |; ){target}(?![\w-])")
        makefile = (self.copy / "Makefile").read_text()
        for variable in set(re.findall(r"\$\(if \$\((?:filter-out 0,\$\()?([A-Z]+)\)", makefile)):
            with self.subTest(variable):
                self.assertRegex(out, rf"(?m)(?:^|\s){variable}=")
        self.assertLessEqual(max(map(len, out.splitlines())), 80)

    def test_compile_commands_name_every_source_and_clang_understands_them(self):
        code, out, err = kit.call("make", "NVCC=", "compile-commands", cwd=self.copy,
                                  env=kit.clean_environment())
        self.assertEqual((code, err), (0, ""))
        listed = json.loads((self.copy / "compile_commands.json").read_text())
        files = {entry["file"]: entry["arguments"] for entry in listed}
        for pattern in ("labs/*.cu", "solutions/*.cu", "common/sim/*.c"):
            for path in self.copy.glob(pattern):
                self.assertIn(str(path.relative_to(self.copy)), files)
        for file, command in files.items():
            if shutil.which(command[0]) and not file.startswith("tests/"):
                with self.subTest(file):
                    code, out, err = kit.call(*command, "-fsyntax-only", cwd=self.copy)
                    self.assertEqual(code, 0, err)
        if shutil.which("clangd"):
            code, out, err = kit.call("clangd", "--check=labs/08_copyComputePipeline.cu",
                                      cwd=self.copy, timeout=120)
            self.assertEqual(code, 0, err)
            self.assertIn("All checks completed, 0 errors", err)

    def test_without_nvcc_it_says_what_to_install(self):
        environment = kit.clean_environment(PATH="/usr/bin:/bin", CUDA_HOME="/nowhere")
        code, _, err = kit.call("make", "NVCC=", "BACKEND=cuda", "build", env=environment)
        self.assertNotEqual(code, 0)
        self.assertIn("no nvcc found", err)


class Programs(unittest.TestCase):
    """runner.run_lab on programs that misbehave."""

    def program(self, text):
        held = kit.folder()
        self.addCleanup(held.cleanup)
        path = Path(held.name) / "program"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_endless_is_stopped(self):
        run = runner.run_lab(self.program("sleep 100\n"), time_limit=0.3)
        self.assertIn("was stopped after", run.problem)

    def test_endless_output_is_stopped(self):
        run = runner.run_lab(self.program("yes\n"))
        self.assertIn("it printed over 1 MB", run.problem)

    def test_a_crash_is_named(self):
        run = runner.run_lab(self.program("echo oops >&2; kill -SEGV $$\n"))
        self.assertEqual(run.problem, "ended with signal SIGSEGV: oops")

    def test_background_processes_do_not_outlive_it(self):
        run = runner.run_lab(self.program("sleep 100 >/dev/null 2>&1 & echo $!\n"))
        kit.until(lambda: not Path(f"/proc/{int(run.out)}/exe").exists())
        self.assertFalse(Path(f"/proc/{int(run.out)}/exe").exists())

    def test_it_reads_nothing(self):
        self.assertEqual(runner.run_lab(self.program("cat; echo end\n")).out, b"end\n")


class Lock(unittest.TestCase):
    HOLD = ("import sys; sys.path.insert(0, sys.argv[1]); import gpu\n"
            "with gpu.locked('0000:01:00.0', sys.argv[2]): print('held', flush=True); "
            "sys.stdin.read()\n")

    def hold(self, folder):
        """A process that holds the lock until its input ends."""
        return subprocess.Popen([sys.executable, "-c", self.HOLD, kit.KIT / "grading", folder], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_a_second_program_waits_and_says_so(self):
        with kit.folder() as folder:
            first = self.hold(folder)
            self.assertEqual(first.stdout.readline(), "held\n")
            second = self.hold(folder)
            self.assertIn("waiting for another measuring program on GPU 0000:01:00.0",
                          second.stderr.readline())
            first.communicate()
            self.assertEqual(first.returncode, 0)
            self.assertEqual(second.communicate(timeout=60)[0], "held\n")

    def test_the_lock_ends_with_its_holder_however_it_ends(self):
        with kit.folder() as folder:
            first = self.hold(folder)
            first.stdout.readline()
            first.kill()
            first.communicate()
            self.assertEqual(self.hold(folder).communicate(timeout=60)[0], "held\n")

    def test_every_user_can_take_it_and_no_link_is_followed(self):
        with kit.folder() as folder:
            with gpu.locked("x", folder):
                mode = os.stat(Path(folder) / "cuda-timing-labs.x.lock").st_mode & 0o777
            self.assertEqual(mode, 0o444)
            target = Path(folder) / "precious"
            os.symlink(target, Path(folder) / "cuda-timing-labs.y.lock")
            with self.assertRaises(SystemExit):
                with gpu.locked("y", folder):
                    pass
            self.assertFalse(target.exists())

    def test_what_is_no_plain_file_is_not_waited_for_and_left_closed(self):
        with kit.folder() as folder:
            os.mkfifo(Path(folder) / "cuda-timing-labs.0000:01:00.0.lock")
            held = self.hold(folder)
            self.assertIn("is no plain file", held.communicate(timeout=60)[1])
            (Path(folder) / "cuda-timing-labs.x.lock").mkdir()
            before = os.listdir("/proc/self/fd")
            with self.assertRaises(SystemExit):
                with gpu.locked("x", folder):
                    pass
            self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_every_gpu_that_a_lab_measures_on_is_locked(self):
        def held(path):
            with open(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
            return False
        devices = [{"bus_id": "b"}, {"bus_id": "a"}, {"bus_id": "c"}]
        for stem, names in (("01_x", "b"), ("12_x", "ab")):
            with kit.folder() as folder, mock.patch.object(gpu, "LOCK_FOLDER", folder):
                with runner.alone(devices, stem):
                    self.assertEqual(sorted(path.suffixes[0][1:] for path in Path(folder).iterdir() if held(path)),
                                     list(names))
                self.assertFalse(any(map(held, Path(folder).iterdir())))
        both = {stem[:2] for stem in kit.STEMS
                if "cudaSetDevice(1)" in (kit.KIT / f"solutions/{stem}.cu").read_text()}
        self.assertEqual(both, set(runner.GPUS))
