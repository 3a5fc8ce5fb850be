# SPDX-License-Identifier: MIT
"""A class on a cluster: a real Slurm of one node, and stand-ins for its commands where the
answer matters and no job does."""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
import unittest
from pathlib import Path

import grader
import intake
import kit
import ranges
import slurm_node
import test_class
import workshop
from test_class import LAB, NO_SANDBOX, contents, full, recorded, solution

SIMULATED = ("--labs", "1", "--backend", "sim", "--credit-simulated")
# A student's program that goes on when a file is there: so no test depends on how long it takes.
GATE = b"""
#include <unistd.h>
__attribute__((constructor)) static void wait_at_gate(void) {
    while (access("%s", F_OK) != 0) usleep(20000);
}
"""


# Stands in for sbatch: a queue of which nothing ever runs.
SBATCH = r"""
test "$1" != --test-only || exit 0
echo "$2" >> log
job=$((100 + $(wc -l < log)))
name=$(sed -n 's/^#SBATCH --job-name=//p' "$2")
for place in $(seq "$(sed -n 's/^#SBATCH --array=1-\([0-9]*\).*/\1/p' "$2")"); do
    echo "$name|$place|PENDING|$job|Priority" >> queue
done
echo "$job"
"""


class Commands(test_class.Class):
    """With stand-ins for sbatch, squeue and scontrol."""

    @classmethod
    def setUpClass(cls):
        kit.call("make", "-s", "build", "BACKEND=sim", "DIR=solutions", "LAB=01")  # the engine, once

    def setUp(self):
        super().setUp()
        self.bin, self.log, self.queue = (self.folder / name for name in ("bin", "log", "queue"))
        self.bin.mkdir()
        self.log.touch()
        self.queue.write_text("other|N/A|RUNNING|7|None\n")
        self.stand_in("sbatch", SBATCH)
        self.stand_in("squeue", "cat queue")
        self.stand_in("scontrol", "echo 'MaxArraySize            = 1001'")
        self.environment = kit.clean_environment(PATH=f"{self.bin}:{os.environ['PATH']}")

    def stand_in(self, name, text):
        (self.bin / name).write_text(f"#!/bin/sh\ncd {shlex.quote(str(self.folder))}\n{text}\n")
        (self.bin / name).chmod(0o755)

    def hand_in_all(self, count):
        for number in range(1, count + 1):
            self.hand_in(f"s{number:02}", f"{LAB}.cu", solution())

    def on_slurm(self, *more, expect=4, env=None):
        return self.grade("--slurm", "--unsafe", *SIMULATED, *more, expect=expect,
                          env=env or self.environment)

    def let_end(self, *kept):
        """Let all tasks end but these: job|place."""
        lines = self.queue.read_text().splitlines()
        self.queue.write_text("".join(f"{line}\n" for line in lines if any(
            re.fullmatch(rf".*\.\d+\|{task.split('|')[1]}\|PENDING\|{task.split('|')[0]}\|.*", line)
            for task in kept)))

    def test_without_sbatch_it_says_so_in_one_line(self):
        self.hand_in_all(1)
        err = self.on_slurm(expect=2, env=kit.clean_environment(PATH="/nowhere"))
        self.assertRegex(err, r"^no sbatch on this machine: .*\n$")
        self.assertFalse(self.out.exists())

    def test_what_makes_no_sense_is_a_mistake_in_the_call(self):
        self.hand_in_all(1)
        for word in ("--wait", "--dry-run", "--partition=x", "--gres=x", "--account=x", "--job-time=1",
                     "--at-most=3", "--array-size=2", "--sbatch=--exclusive"):
            self.assertIn(f"{word.partition('=')[0]} is for --slurm", self.grade(word, expect=2))
        self.assertIn("--outputs", self.on_slurm("--outputs", expect=2))
        self.assertIn("line break", self.on_slurm("--sbatch=--x\n--y", expect=2))

    def test_dry_run_prints_the_script_and_does_nothing(self):
        self.hand_in_all(3)
        self.out = self.folder / "it's 100%"
        code, out, err = kit.grade(
            "class", self.submissions, "--out", self.out, "--slurm", "--dry-run", "--partition", "gpu",
            "--gres", "gpu:h200:1", "--at-most", "2", "--account", "c s", "--job-time", "30:00",
            "--sbatch=--constraint=fast", "--labs", "1", "--arch", "sm_90", "--bind", "/opt/x y",
            env=kit.clean_environment(PATH="/nowhere"))
        self.assertEqual(code, 0, err)
        self.assertIn("3 student(s) to submit, in 1 array(s); nothing is built or submitted", err)
        lines = out.splitlines()
        asked = [line[8:] for line in lines if line.startswith("#SBATCH ")]
        self.assertIn("--array=1-3%2", asked)
        self.assertEqual(asked[-5:], ["--partition=gpu", '"--account=c s"', "--time=30:00",
                                      "--gres=gpu:h200:1", "--constraint=fast"])
        self.assertIn(f'"--output={self.folder}/it\'s 100%%/slurm/1.%a.log"', asked)
        self.assertIn("--requeue", asked)
        words = shlex.split(out[out.index("exec "):])
        self.assertEqual(words[1:4], [sys.executable, str(kit.KIT / "grading/grade.py"), "class"])
        self.assertEqual(words[words.index("--out") + 1], str(self.out))
        self.assertLessEqual({"--labs=1", "--arch=sm_90", "--bind=/opt/x y", "cuda"}, set(words))
        self.assertFalse(self.out.exists())

    def test_arrays_are_as_large_as_allowed_and_at_most_n_run_at_once(self):
        self.hand_in_all(7)
        self.stand_in("scontrol", "echo 'MaxArraySize            = 4'")
        err = self.on_slurm("--at-most", "2")
        self.assertIn("[7/7]", err)
        self.assertIn("7 student(s) submitted as job 101 102 103; to cancel: scancel 101 102 103", err)
        self.assertIn("0 of 7 students graded, 7 in the queue", err)
        scripts = [(self.out / f"slurm/{n}.sh").read_text() for n in (1, 2, 3)]
        for script, array, after in zip(scripts, ("1-3%2", "1-3%2", "1-1%2"), ("", "101", "102")):
            self.assertIn(f"--array={array}\n", script)
            self.assertEqual("".join(re.findall("afterany:(.*)", script)), after)
        self.assertEqual((self.out / "slurm/2.txt").read_text(), "s04\ns05\ns06\n")
        self.let_end("101|2", "103|1")
        err = self.on_slurm("--array-size", "2", "--at-most", "1")
        self.assertIn("5 student(s) submitted as job 104 105 106", err)
        self.assertIn("afterany:101:103\n", (self.out / "slurm/4.sh").read_text())
        self.assertEqual((self.out / "slurm/4.txt").read_text(), "s01\ns03\n")

    def test_what_slurm_refuses_costs_no_grade_and_builds_nothing(self):
        self.hand_in_all(2)
        self.stand_in("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
        err = self.on_slurm(expect=2)
        self.assertIn("\nsbatch: invalid partition specified: x\n", err)
        self.assertNotIn("[1/", err)
        self.grade("--unsafe", *SIMULATED)
        before = contents(self.out)
        self.stand_in("sbatch", "test $1 = --test-only || { echo 'sbatch: error: Job violates "
                                "accounting/QOS policy' >&2; exit 1; }")
        self.assertIn("sbatch: Job violates accounting/QOS policy\n", self.on_slurm("--force", expect=3))
        self.assertEqual(contents(self.out), before)
        self.assertEqual(list(self.out.glob("slurm/*.*")), [])

    def test_what_is_graded_on_one_machine_is_not_submitted(self):
        self.hand_in_all(2)
        self.grade("--unsafe", *SIMULATED)
        self.assertIn("2 of 2 students graded;", self.on_slurm(expect=0))
        self.assertEqual(self.log.read_text(), "")

    def test_a_grade_stands_on_whichever_node_it_was_measured(self):
        self.hand_in_all(1)
        self.grade("--unsafe", *SIMULATED)
        options = types.SimpleNamespace(
            out=self.out, ranges=ranges.HERE, backend="sim", task=None, slurm=True, attempts=3,
            time_limit=120, credit_simulated=True, outputs=False)
        ours = grader.Grader(options, [LAB])
        entry = intake.discover(self.submissions, [LAB])[0][0]
        grade, path = self.of("s01")[0], self.out / "students/s01/grade.json"
        self.assertEqual(grade["device"], "sim ")
        for device, code, err in (("cuda H200", 4, "1 in the queue"), ("sim another", 0, "1 of 1 students graded;")):
            grade["device"] = device
            grade["key"] = ours.key("s01", entry.read([LAB]).digest(), [LAB], device)
            path.write_text(json.dumps(grade))
            self.assertIn(err, self.on_slurm(expect=code))
            self.let_end()
        self.assertIn("[1/1] s01", self.grade("--unsafe", *SIMULATED))

    def test_who_handed_in_outputs_only_is_graded_here(self):
        self.hand_in("alice", f"{LAB}.txt", recorded())
        self.hand_in_all(1)
        err = self.on_slurm()
        self.assertIn(f"[1/1] alice: {full()}/{full()}", err)
        self.assertIn("1 of 2 students graded, 1 in the queue", err)
        self.assertEqual((self.out / "slurm/1.txt").read_text(), "s01\n")
        self.assertIn("1 in the queue", self.on_slurm())
        self.assertEqual(len(self.log.read_text().splitlines()), 1)

    def task(self, student, *more, expect=0, **environment):
        return self.grade("--unsafe", *SIMULATED, "--task", student, *more, expect=expect,
                          env={**self.environment, **environment})

    def test_a_task_runs_what_was_built_and_nothing_else(self):
        self.hand_in_all(1)
        self.on_slurm()
        none = {"PATH": "/nowhere"}  # no compiler, no make, no Slurm
        self.assertIn(f"s01: {full()}/{full()}\n", self.task("s01", **none))
        self.hand_in("s01", f"{LAB}.cu", solution() + b"// another\n")
        self.assertIn("s01: could not grade\n", self.task("s01", expect=3, **none))
        self.assertIn("changed after the job was submitted", self.of("s01")[0]["reason"])
        self.let_end()
        self.assertIn("[1/1] s01: 1 of 1 labs build", self.on_slurm())
        for path in (self.out / "slurm/built").glob("*.zip"):
            path.write_bytes(path.read_bytes()[:-100])  # as a full disk leaves it
        self.task("s01", expect=3)
        self.let_end()
        self.on_slurm()
        self.task("s01")
        self.let_end()
        self.assertIn("1 of 1 students graded;", self.on_slurm(expect=0))
        self.assertFalse((self.out / "slurm/built").exists())
        self.assertIn("no such student", self.task("nobody", expect=2))
        folder = workshop.folder_for(self.out)
        self.assertEqual(list(folder.parent.glob(f"{folder.name}*")), [])

    def test_a_task_that_ends_its_node_is_not_run_for_ever(self):
        self.hand_in_all(1)
        self.on_slurm()
        self.task("s01", expect=3, SLURM_RESTART_COUNT="4")
        grade = json.loads((self.out / "students/s01/grade.json").read_text())
        self.assertEqual((grade["state"], grade["reason"]),
                         ("could not grade", "its task was lost, with its node mostly, 4 times"))
        self.let_end()
        self.assertIn("1 student(s) submitted", self.on_slurm())
        self.task("s01", SLURM_RESTART_COUNT="3")

    def test_ctrl_c_says_how_to_cancel_and_how_to_go_on(self):
        self.hand_in_all(1)
        self.on_slurm()
        with subprocess.Popen(
                [*kit.GRADE, "class", str(self.submissions), "--out", str(self.out), "--slurm",
                 "--unsafe", *SIMULATED, "--wait"], stderr=subprocess.PIPE, text=True, cwd=kit.KIT,
                env=self.environment, start_new_session=True) as child:
            while True:
                line = child.stderr.readline()
                if not line or "have their grade" in line:
                    break
            self.assertEqual(line, "0 of 1 students have their grade, 1 pending (Priority)\n")
            os.killpg(child.pid, signal.SIGINT)
            err = child.stderr.read()
        self.assertEqual(child.returncode, 130, err)
        self.assertIn("To cancel it: scancel 101; to go on, or to gather the grades: the same command", err)
        self.assertNotIn("Traceback", err)

    def test_make_run_without_srun_says_so(self):
        code, _, err = kit.call(shutil.which("make"), "run", "SLURM=--gres=gpu:1",
                                env=kit.clean_environment(PATH="/nowhere"))
        self.assertNotEqual(code, 0)
        self.assertIn("no srun on this machine", err)


@unittest.skipIf(slurm_node.missing(), f"not installed: {' '.join(slurm_node.missing())} (slurm-wlm, munge)")
class Cluster(test_class.Class):
    """A real Slurm, of one node that dies."""

    def setUp(self):
        super().setUp()
        self.node = subprocess.Popen(
            [sys.executable, str(Path(slurm_node.__file__)), str(self.folder / "node"), "9"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end_node)
        conf = self.node.stdout.readline().strip().partition("=")[2]
        self.assertTrue(conf, "the node does not start")
        scratch = self.folder / "tmp"  # a task that is killed leaves its folder there
        scratch.mkdir()
        self.folder.chmod(0o711)  # for the sandbox's user
        self.environment = kit.clean_environment(SLURM_CONF=conf, TMPDIR=str(scratch))
        self.until(lambda: "idle" in self.slurm("sinfo", "-h", "-o", "%T"))
        self.box = ("--unsafe",) if NO_SANDBOX else ()

    def end_node(self):
        self.node.stdin.close()  # which it takes for the end
        self.node.stdout.close()
        self.node.wait()

    def tell_node(self, word):
        self.node.stdin.write(f"{word}\n")
        self.node.stdin.flush()
        self.assertEqual(self.node.stdout.readline(), f"{word}\n")

    def slurm(self, *command):
        return kit.call(*command, env=self.environment)[1]

    def until(self, true, seconds=100):
        deadline = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), deadline, self.slurm("squeue", "-r"))
            time.sleep(0.1)

    def state(self, task):
        return self.slurm("squeue", "-h", "-r", "-j", task, "-o", "%T").strip()

    def given_up(self, tasks):
        """Whether Slurm knows that they run no more; if not, it is to have the node say so."""
        if not {"RUNNING", "COMPLETING"} & set(map(self.state, tasks)):
            return True
        self.slurm("scontrol", "reconfigure")
        time.sleep(2)
        return False

    def hurry(self):
        """Slurm has a task that is lost with its node wait for two minutes; these shall begin now."""
        for line in self.slurm("squeue", "-h", "-r", "-t", "PENDING", "-o", "%F_%K %r").splitlines():
            task, _, reason = line.partition(" ")
            if reason == "BeginTime":
                self.slurm("scontrol", "update", f"jobid={task}", "StartTime=now")

    def lose_two(self, waiting, said, gates):
        """While the class is graded: cancel s03's task, and have the node die under s07's."""
        self.until(lambda: "submitted as job" in said.read_text() or waiting.poll() is not None)
        first = re.search(r"12 student\(s\) submitted as job (\d+) \d+;", said.read_text())[1]
        self.until(lambda: self.state(f"{first}_3") == "RUNNING")
        self.slurm("scancel", f"{first}_3")
        self.until(lambda: self.state(f"{first}_7") == "RUNNING")
        lost = self.slurm("squeue", "-h", "-r", "-t", "RUNNING", "-o", "%F_%K").split()
        self.tell_node("kill")
        time.sleep(11)  # a younger job Slurm takes for one that is just starting,
        self.tell_node("start")
        self.until(lambda: self.given_up(lost))  # so ask again until it is old enough
        (gates / "s07").touch()
        self.until(lambda: self.hurry() or waiting.poll() is not None)

    def test_a_class_of_twelve_two_of_whom_are_lost(self):
        gates = self.folder / "gates"
        gates.mkdir()
        for number in range(1, 13):
            self.hand_in(f"s{number:02}", f"{LAB}.cu", solution())
        self.hand_in("s02", f"{LAB}.cu", (kit.KIT / f"labs/{LAB}.cu").read_bytes())
        self.hand_in("s04", f"{LAB}.cu", "int main(")
        self.hand_in("s05", f"{LAB}.cu", "#include <cstdlib>\nint main() { abort(); }\n")
        for student in ("s03", "s07"):
            self.hand_in(student, f"{LAB}.cu", solution() + GATE % os.fsencode(gates / student))
        options = (*SIMULATED, *self.box, "--bind", str(gates))

        command = [*kit.GRADE, "class", str(self.submissions), "--out", str(self.out), *options,
                   "--slurm", "--gres", "gpu:1", "--wait"]
        said = self.folder / "said"
        with open(said, "wb") as err, subprocess.Popen(command, stderr=err, cwd=kit.KIT,
                                                       env=self.environment) as waiting:
            try:
                self.lose_two(waiting, said, gates)
            except BaseException:
                waiting.kill()
                raise
        err = said.read_text()
        self.assertEqual(waiting.returncode, 3, err)
        # Slurm started again what was lost with the node, all but the one that it was just ending.
        missing = re.findall(r"could not grade (s\d+): its task ended without a grade", err)
        self.assertIn("s03", missing)
        self.assertNotIn("s07", missing)
        self.assertIn(f"{12 - len(missing)} of 12 students graded, {len(missing)} could not be", err)
        self.assertFalse((self.out / "students/s03/grade.json").exists())
        self.assertIn("not graded yet", kit.grade("report", self.out)[1])
        (gates / "s03").touch()
        err = self.grade(*options, "--slurm", "--wait", env=self.environment)
        self.assertIn(f"{len(missing)} student(s) submitted", err)
        there, self.out = contents(self.out), self.folder / "here"
        self.grade(*options, expect=0)
        here = contents(self.out)
        self.assertEqual(sorted(there), sorted(here))
        for name, data in here.items():
            self.assertEqual(there[name], data, name)
        self.assertEqual([self.of(f"s{n:02}")[0]["points"] // full() for n in range(1, 8)], [1, 0, 1, 0, 0, 1, 1])

    def test_make_run_runs_labs_through_srun(self):
        code, out, err = kit.call("make", "run", "SLURM=-n1 --gres=gpu:1 --job-name=lab", "BACKEND=sim",
                                  "LAB=01", "DIR=solutions", env=self.environment)
        self.assertEqual(code, 0, err)
        self.assertIn("finished 01 nullKernelAsync", out)
        self.assertIn("JobName=lab", self.slurm("scontrol", "show", "job", "1"))
