# SPDX-License-Identifier: MIT
"""The sandbox alone: what a program in it can see and do, what ends it."""
import os
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import kit
import runner
import sandbox
import workshop
from test_class import LAB, NO_SANDBOX, Class, full, recorded, solution
from test_make import FAKE_NVCC, fake_driver

SMALL = sandbox.Limits(memory=300 << 20, processes=32, file=4 << 20)


@unittest.skipIf(NO_SANDBOX, f"no sandbox here: {NO_SANDBOX}")
class Inside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ways = sandbox.ways()

    def run_in(self, script, limits=SMALL, time_limit=20, folders=(), **more):
        for way in self.ways:
            box = sandbox.Sandbox(folders, limits, way=way, **more)
            yield runner.run_command(["/bin/sh", "-c", script], time_limit=time_limit, box=box)

    def test_nothing_of_the_machine_is_seen(self):
        os.environ["SECRET_OF_THE_TEST"] = "1"
        self.addCleanup(os.environ.pop, "SECRET_OF_THE_TEST")
        for run in self.run_in("cat /etc/passwd /etc/hostname; for d in /*; do echo top $d; done; "
                               "ls /etc; ls -A /tmp /kit; env; cat /proc/1/environ; echo; ls /proc | grep -c '^[0-9]'"):
            out = run.out.decode()
            self.assertNotIn("root:", out)
            self.assertNotIn("SECRET", out)
            names = set(out.split("\n"))
            self.assertFalse(names & {"passwd", "shadow", "hosts", "hostname"})
            self.assertLessEqual({name[5:] for name in names if name.startswith("top /")}, {
                "bin", "dev", "etc", "kit", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr"})
            self.assertLess(int(out.split()[-1]), 8)

    def test_nothing_can_be_written_but_tmp_and_shm_which_are_gone_afterwards(self):
        script = ("for d in / /usr /etc /kit /dev /proc /sys /lib; do touch $d/labs-test-file 2>/dev/null && "
                  "echo wrote $d; done; for d in /tmp /dev/shm; do echo x > $d/labs-test-file && ls $d; done")
        for run in self.run_in(script):
            self.assertEqual(run.out.decode().split(), ["labs-test-file"] * 2)
        for folder in ("/tmp", "/dev/shm"):
            self.assertFalse(Path(folder, "labs-test-file").exists())

    def test_no_network_and_no_privileges(self):
        code = ("import socket, os\n"
                "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                "try: s.connect(('192.0.2.1', 9)); print('NETWORK')\n"
                "except OSError: print('none')\n"
                "print(os.getuid(), *[x.split()[1] for x in open('/proc/self/status') if 'CapEff' in x])\n"
                "try: os.setuid(0); print('ROOT')\nexcept OSError: print('nobody')\n")
        if not shutil.which("python3", path="/usr/bin"):
            self.skipTest("no /usr/bin/python3")
        for run in self.run_in(f'/usr/bin/python3 -c "{code}"'):
            self.assertEqual(run.out.decode().split(), ["none", "65534", "0" * 16, "nobody"], run.err)

    def test_a_fork_bomb_is_ended(self):
        for bomb in ("b() { b | b & b; }; b", "while :; do sleep 100 & done"):
            for run in self.run_in(bomb):
                self.assertRegex(run.problem, "it started over 32 processes|Cannot fork|fork: ")
        for run in self.run_in("echo fine"):
            self.assertEqual(run.out, b"fine\n")

    def test_memory_is_limited_of_all_its_processes_and_files_together(self):
        eat = "/usr/bin/python3 -c \"import time; a = b'x' * %d; time.sleep(2)\""
        if not shutil.which("python3", path="/usr/bin"):
            self.skipTest("no /usr/bin/python3")
        for script in (eat % (400 << 20), " & ".join([eat % (60 << 20)] * 6) + "; wait",
                       "for i in $(seq 100); do for d in /tmp /dev/shm; do head -c 3000000 /dev/zero > $d/$i; done; "
                       "done; sleep 2"):  # each of the two may have a size of its own, below the limit
            before = sandbox.files_in_memory()
            for run in self.run_in(script):
                self.assertIn("of memory", run.problem)
                # The kernel frees what was in its /tmp a little later.
                kit.until(lambda: sandbox.files_in_memory() <= before + (50 << 20), seconds=10)

    def test_files_in_memory_that_may_be_those_of_others_are_no_fault_of_it(self):
        if not shutil.which("python3", path="/usr/bin"):
            self.skipTest("no /usr/bin/python3")
        before = sandbox.files_in_memory()
        hides = ("import os, time; f = os.memfd_create('x')\n"
                 "while True: os.write(f, bytes(1 << 20)) if os.fstat(f).st_size < 400 << 20 else time.sleep(1)")
        large = sandbox.Limits(SMALL.memory, SMALL.processes, file=1 << 30)
        for way in self.ways:
            kit.until(lambda: sandbox.files_in_memory() <= before + (50 << 20))
            with self.assertRaisesRegex(sandbox.Disturbed, "files of others"):
                runner.run_command(["/usr/bin/python3", "-c", hides], time_limit=20,
                                   box=sandbox.Sandbox((), large, way=way))
        kit.until(lambda: sandbox.files_in_memory() <= before + (50 << 20))
        with tempfile.TemporaryFile(dir="/dev/shm") as others:
            class Beside(sandbox.Sandbox):
                def start(self, command):
                    child = super().start(command)
                    others.write(bytes(400 << 20))
                    return child
            with self.assertRaises(sandbox.Disturbed):
                runner.run_command(["/bin/sleep", "20"], box=Beside((), SMALL, way=self.ways[0]))
        shop = workshop.Workshop("x", "sim")
        with mock.patch.object(runner, "run_command", side_effect=sandbox.Disturbed("it was stopped")):
            with self.assertRaisesRegex(workshop.Infrastructure, "^it was stopped$"):
                shop._run(["x"], (), sandbox.PROGRAM, gpu=False, time_limit=1)

    def test_a_file_is_limited(self):
        for run in self.run_in("head -c 10000000 /dev/zero > /tmp/x; wc -c < /tmp/x"):
            self.assertEqual(int(run.out.split()[-1]), 4 << 20)

    def test_output_that_drips_and_closed_output_do_not_get_round_the_time_limit(self):
        for script in ("while :; do echo x; sleep 0.05; done", "exec >&- 2>&-; sleep 60",
                       "trap '' TERM INT HUP; while :; do :; done", "(sleep 60 &) ; sleep 60"):
            with self.subTest(script):
                for run in self.run_in(script, time_limit=0.5):
                    self.assertIn("was stopped after", run.problem)
                    self.assertLess(run.wall, 60)  # it was not waited for

    def test_background_processes_end_with_it(self):
        for run in self.run_in("(setsid sleep 3333 &); (setsid sleep 3333 >/dev/null 2>&1 &); echo done"):
            self.assertEqual((run.out, run.problem), (b"done\n", ""))

        def left():
            return [p for p in Path("/proc").glob("[0-9]*/cmdline") if sleeps(p)]
        kit.until(lambda: not left(), seconds=5)
        self.assertEqual(left(), [])

    def test_ends_are_told_apart(self):
        for script, code, words in (("exit 0", 0, ""), ("exit 3", 3, "exit code 3"),
                                    ("exit 255", 255, "exit code 255"), ("kill -64 $$", -64, "signal SIGRTMAX"),
                                    ("kill -SEGV $$", -11, "signal SIGSEGV"), ("exit 77", 77, "")):
            for run in self.run_in(script):
                self.assertEqual((run.code, run.problem), (code, words and f"ended with {words}"))

    def test_a_sandbox_that_cannot_be_made_is_no_result_of_the_program(self):
        box = sandbox.Sandbox([("/no/such/folder", "/kit/labs", False)], way=self.ways[0])
        with self.assertRaises(sandbox.NoSandbox):
            runner.run_command(["/bin/true"], box=box)


def sleeps(path):
    try:
        return path.read_bytes() == b"sleep\0" b"3333\0"
    except OSError:
        return False


@unittest.skipIf(NO_SANDBOX, f"no sandbox here: {NO_SANDBOX}")
class Hardware(Class):
    """The way that a class takes on a machine with a GPU."""

    @unittest.skipUnless(kit.NVCC, "no nvcc on this machine")
    def test_nvcc_builds_in_the_sandbox_and_reads_nothing_else(self):
        shop = workshop.Workshop(self.out, "cuda", part="build", arch="sm_90")
        shop.look()
        shop.open()
        self.addCleanup(shop.close)
        with shop.place("x", {LAB: solution(), "03_eventTiming": b"#include \"/etc/passwd\"\n"}) as place:
            self.assertEqual(shop.build(place, LAB)[0], "")
            self.assertIn("fatal error", shop.build(place, "03_eventTiming")[0])
            run = shop.run(place, LAB)  # in a sandbox without a GPU
            self.assertIn(run.code, (0, runner.SKIPPED), run.problem)

    def fake_machine(self, text):
        """A copy of the kit with this solution, a driver with one GPU and a compiler that makes scripts."""
        copy = kit.copy_of_kit(self.folder)
        tools = self.folder / "toolkit" / "bin"
        tools.mkdir(parents=True)
        (tools / "nvcc").write_text(FAKE_NVCC)
        (tools / "nvcc").chmod(0o755)
        for path in (self.folder, tools.parent, tools):
            path.chmod(0o755)
        fake_driver(self.folder)
        (copy / f"solutions/{LAB}.cu").write_text(text)
        self.environment = kit.clean_environment(LD_LIBRARY_PATH=str(self.folder), NVCC=str(tools / "nvcc"))
        return copy

    def class_there(self, copy, expect=0):
        code, _, err = kit.call(sys.executable, copy / "grading/grade.py", "class", self.submissions,
                                "--out", self.out, "--labs", "1", env=self.environment)
        self.assertEqual(code, expect, err)
        return err

    def script(self, data, more=""):
        """A "source" whose program prints this output."""
        return "".join(f"//> {line}\n" for line in data.decode().splitlines()) + f"//! {more}\n"

    def test_a_class_on_a_machine_with_a_gpu(self):
        good = recorded()
        noisy = good.replace(b"measured left_running", b"measured left_running = 4.0 us (median of 9, "
                             b"min 0.4, max 9)\nnoise")
        copy = self.fake_machine(self.script(good, "sleep 0.1"))
        self.hand_in("good", f"{LAB}.cu", self.script(good, "sleep 1"))
        self.hand_in("noisy", f"{LAB}.cu", self.script(noisy, "sleep 1"))
        self.hand_in("slow", f"{LAB}.cu", self.script(re.sub(
            rb"launch_async = .*", b"launch_async = 9.553 us (median of 1, min 9.553, max 9.553)", good),
            "sleep 2.5"))
        self.hand_in("broken", f"{LAB}.cu", "#error\n")
        self.hand_in("skips", f"{LAB}.cu", "//> skipped 01 nullKernelAsync: no CUDA device\n//! exit 77\n")
        self.hand_in("other_gpu", f"{LAB}.cu", self.script(good.replace(b"NVIDIA H200", b"NVIDIA B300"),
                                                           "sleep 1"))
        self.class_there(copy)
        self.assertEqual(self.of("good")[0]["points"], full())
        noisy = self.lab("noisy")
        self.assertEqual(len(noisy["attempts"]), 3)
        self.assertIn("inconclusive", [c["verdict"] for c in noisy["checks"]])
        self.assertEqual(len(list((self.out / "students/noisy").glob("*.attempt?.txt"))), 3)
        slow = {c["check"]: c for c in self.lab("slow")["checks"]}["launch_async"]
        self.assertIn("the solution measures", slow["message"])
        self.assertEqual(len(self.lab("slow")["attempts"]), 3)
        self.assertEqual((self.lab("broken")["state"], self.of("broken")[0]["state"]),
                         ("did not build", "graded"))
        self.assertIn("where the solution runs", self.lab("skips")["reason"])
        self.assertEqual(self.lab("other_gpu")["claims"], "NVIDIA B300")
        self.assertEqual(self.lab("good")["claims"], "")

    def test_a_lab_that_the_machine_skips_counts_for_nobody(self):
        skip = "//> skipped 01 nullKernelAsync: needs two devices\n//! exit 77\n"
        copy = self.fake_machine(skip)
        self.hand_in("alice", f"{LAB}.cu", skip)
        self.class_there(copy)
        self.assertEqual((self.lab("alice")["state"], self.of("alice")[0]["of"]), ("skipped", 0))

    def test_a_gpu_that_is_gone_is_no_students_zero(self):
        gone = "//> skipped 01 nullKernelAsync: no CUDA device (none listed)\n//! exit 77\n"
        copy = self.fake_machine(gone)
        self.hand_in("alice", f"{LAB}.cu", gone)
        err = self.class_there(copy, expect=3)
        self.assertIn("the GPU is not seen in the sandbox", err)
        self.assertEqual(self.of("alice")[0]["state"], "could not grade")
