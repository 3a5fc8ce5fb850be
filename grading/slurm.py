# SPDX-License-Identifier: MIT
"""grade.py class --slurm: the class as an array of Slurm jobs, one student a task.

OUT/slurm/N.txt     the students of the N-th array: task K grades the one in line K
OUT/slurm/N.sh      its script
OUT/slurm/N.K.log   what task K said, beside its grade
OUT/slurm/built/    the programs, built before the array starts (workshop.py)

What has been submitted is known from the queue and from nothing else: a job's name holds OUT
and N. So whatever is killed, whenever, no student is submitted twice; and one who is neither
in the queue nor graded is missing, and is submitted by the next call.
"""
import collections
import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import runner

POLL = 15.0      # seconds between looks at the queue, which many share; at first more often
PATIENCE = 20    # looks at the queue that may fail, one after another
DEFAULT_SIZE = 1001  # Slurm's own MaxArraySize; a task's number is below it
RESTARTS = 3     # times that Slurm may start a task again, until it is known to end nodes


class SlurmError(Exception):
    """Slurm is not there or says no; the text is one line."""


def call(*command):
    """What a command of Slurm's prints. Raises SlurmError."""
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]}: {getattr(error, 'strerror', '') or 'no answer'}") from None
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise SlurmError(f"{command[0]}: " + re.sub(r"^\w+: (error: )?", "", said[0]))
    return run.stdout.decode(errors="replace")


def quoted(text):
    """A word of a line #SBATCH."""
    return text if re.fullmatch(r"[\w.,:=/%@+-]+", text, re.ASCII) else (
        '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


class Cluster:
    """The arrays of one class."""

    def __init__(self, options, backend):
        self.options, self.backend = options, backend
        self.out = Path(os.path.abspath(options.out))
        self.folder = self.out / "slurm"
        if "\n" in str(self.out) or any("\n" in text for text in self._asked() + options.sbatch):
            raise runner.UsageError("Slurm takes no line break in --out or an option")
        self.name = "labs-class." + hashlib.sha256(
            os.fsencode(os.path.realpath(self.out))).hexdigest()[:12]

    def _numbers(self):
        """Of the arrays so far, the latest last."""
        return sorted(int(p.stem) for p in self.folder.glob("*.txt") if p.stem.isdigit())

    def _students(self, number):
        with contextlib.suppress(OSError):
            return (self.folder / f"{number}.txt").read_text().splitlines()
        return []

    def queue(self):
        """The students of whom a task waits or runs: folder -> (state, why it waits, job)."""
        said = call("squeue", "--noheader", "--array", f"--user={os.getuid()}",
                    "--format=%j|%K|%T|%F|%r")
        found, lists = {}, {}
        for line in said.splitlines():
            name, _, rest = line.partition("|")
            ours, _, number = name.rpartition(".")
            if ours != self.name or not number.isdigit():
                continue
            place, state, job, why = rest.split("|", 3)
            if number not in lists:
                lists[number] = self._students(int(number))
            students = lists[number]
            if not (place.isdigit() and 0 < int(place) <= len(students)):
                continue
            student = students[int(place) - 1]
            # Ending with a grade it is done; without, it may be about to start again.
            if state != "COMPLETING" or not self.is_graded(student):
                found[student] = (state, why, job)
        return found

    # ---- the script ----

    def _asked(self):
        """What sbatch is to be told, as on its command line; a later one overrules."""
        options = self.options
        gres = options.gres or ("gpu:1" if self.backend == "cuda" else "")
        named = (("partition", options.partition), ("account", options.account),
                 ("time", options.job_time), ("gres", gres))
        return [f"--{name}={value}" for name, value in named if value]

    def script(self, number, count, after=()):
        most = f"%{self.options.at_most}" if self.options.at_most else ""
        log = f"{self.folder}/{number}.".replace("%", "%%") + "%a.log"
        words = [f"--job-name={self.name}.{number}", f"--array=1-{count}{most}", f"--output={log}",
                 "--open-mode=append", "--requeue", "--nodes=1", "--ntasks=1", "--cpus-per-task=2",
                 *([f"--dependency=afterany:{':'.join(after)}"] if after else []), *self._asked()]
        lines = [*map(quoted, words), *self.options.sbatch]
        return "\n".join([
            "#!/bin/sh",
            f"# Task K grades the student in line K of {number}.txt. Two CPUs: one for the program",
            "# that is timed, one for the grader, which watches it. Lost with its node, a task is",
            "# started again by Slurm.",
            *(f"#SBATCH {line}" for line in lines),
            f'student=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(self.folder))}/{number}.txt)',
            f'exec {self._task()} \\\n    --task "$student"', ""])

    def _task(self):
        """The command of one student, but for who it is: the same options as this one's."""
        options = self.options
        words = [sys.executable, str(runner.KIT / "grading" / "grade.py"), "class",
                 os.path.abspath(options.submissions), "--out", str(self.out),
                 "--backend", self.backend, "--ranges", os.path.abspath(options.ranges),
                 "--attempts", str(options.attempts), "--time-limit", str(options.time_limit)]
        for name in ("labs", "arch"):
            if getattr(options, name):
                words.append(f"--{name}={getattr(options, name)}")
        words += [f"--bind={os.path.abspath(folder)}" for folder in options.bind or ()]
        words += ["--" + name.replace("_", "-") for name in ("single", "credit_simulated", "unsafe")
                  if getattr(options, name)]
        return " ".join(map(shlex.quote, words))

    def arrays(self, students):
        """[(number, its students)], each as large as the cluster allows."""
        size = self._size()
        first = max(self._numbers(), default=0) + 1
        return [(first + at // size, students[at:at + size]) for at in range(0, len(students), size)]

    def _size(self):
        try:
            found = re.search(r"MaxArraySize\s*=\s*(\d+)", call("scontrol", "show", "config"))
        except SlurmError:
            if not self.options.dry_run:
                raise
            found = None
        most = (int(found[1]) if found else DEFAULT_SIZE) - 1
        if most < 1:
            raise SlurmError("this cluster takes no job arrays (MaxArraySize)")
        return min(most, self.options.array_size or most)

    # ---- submitting and waiting ----

    def check(self, students):
        """Have Slurm look at the script before hours of building. Raises SlurmError."""
        number, part = self.arrays(students)[0]
        path = self.folder / f"{number}.sh"
        runner.save(path, self.script(number, len(part)).encode())
        try:
            call("sbatch", "--test-only", str(path))
        except SlurmError as error:
            # Where nodes are down it says no, too, though the job would wait for them.
            if re.search("invalid|unrecognized", str(error), re.IGNORECASE):
                raise runner.UsageError(str(error)) from None
        finally:
            path.unlink()

    def submit(self, students, queue):
        """Submit them; returns the jobs. Raises SlurmError if none was, else says so."""
        jobs, sent = [], 0
        after = sorted({job for _, _, job in queue.values()}) if self.options.at_most else []
        for number, part in self.arrays(students):
            try:
                job = self._submit(number, part, after)
            except SlurmError as error:
                if not jobs:
                    raise
                print(f"{error}: {sent} of {len(students)} students are submitted; the same command "
                      "submits the others", file=sys.stderr)
                break
            jobs, sent = jobs + [job], sent + len(part)
            after = [job] if self.options.at_most else []  # so that two arrays are no more at once
        print(f"{sent} student(s) submitted as job {' '.join(jobs)}; to cancel: scancel "
              f"{' '.join(jobs)}", file=sys.stderr)
        return jobs

    def _submit(self, number, part, after):
        listed, script = self.folder / f"{number}.txt", self.folder / f"{number}.sh"
        runner.save(listed, "".join(f"{student}\n" for student in part).encode())
        runner.save(script, self.script(number, len(part), after).encode())
        old = {}  # grades that no longer count: one that is there from now on is a task's
        for student in part:
            path = self.out / "students" / student / "grade.json"
            with contextlib.suppress(FileNotFoundError):
                old[path] = path.read_bytes()
                path.unlink()
        try:
            return call("sbatch", "--parsable", str(script)).strip().split(";")[0]
        except SlurmError:
            for path, data in old.items():
                runner.save(path, data)
            listed.unlink()
            script.unlink()
            raise

    def wait(self, students):
        """Until none of the class is in the queue; says how far it is. Raises SlurmError."""
        begun, failed, said, terminal = time.monotonic(), 0, "", sys.stderr.isatty()
        try:
            while True:
                try:
                    queue, failed = self.queue(), 0
                except SlurmError as error:  # the controller is busy, or started anew
                    failed += 1
                    if failed == PATIENCE:
                        raise SlurmError(f"{error}: the job goes on; the same command gathers its "
                                         "grades") from None
                else:
                    text = self._how_far(students, queue)
                    if terminal:
                        print(f"\r\x1b[K{text[:os.get_terminal_size(2).columns - 1]}", end="",
                              file=sys.stderr, flush=True)
                    elif text != said:
                        print(text, file=sys.stderr, flush=True)
                    said = text
                    if not queue:
                        return
                time.sleep(min(max(1.0, (time.monotonic() - begun) / 20), POLL))
        finally:
            if terminal and said:
                print(file=sys.stderr)

    def cancel(self):
        """The command that takes the class out of the queue."""
        try:
            jobs = sorted({job for _, _, job in self.queue().values()}, key=len)
        except SlurmError:
            jobs = []
        return f"scancel {' '.join(jobs)}" if jobs else f"scancel, for the jobs {self.name}.* of squeue"

    def _how_far(self, students, queue):
        graded = sum(self.is_graded(student) for student in students if student not in queue)
        states = collections.Counter(state for state, _, _ in queue.values())
        text = f"{graded} of {len(students)} students have their grade"
        text += "".join(f", {count} {state.lower()}" for state, count in sorted(states.items()))
        why = collections.Counter(why for state, why, _ in queue.values()
                                  if state == "PENDING" and why != "None")
        return text + (f" ({why.most_common(1)[0][0]})" if why else "")

    def is_graded(self, student):
        folder = self.out / "students" / student
        with contextlib.suppress(OSError):
            os.listdir(folder)  # a network file system then asks anew for what is in it
        return (folder / "grade.json").exists()

    def why_missing(self, student):
        """Of one who is neither graded nor in the queue."""
        for number in reversed(self._numbers()):
            students = self._students(number)
            if student in students:
                log = self.folder / f"{number}.{students.index(student) + 1}.log"
                with contextlib.suppress(OSError, IndexError):
                    last = log.read_text(errors="replace").strip().splitlines()[-1]
                    return f"its task ended without a grade: {last[:200]}"
                return "its task ended without a grade, or never started"
        return "it is not submitted"


def started_again():
    """How often Slurm has started this task again."""
    text = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdigit() else 0
