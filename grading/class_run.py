# SPDX-License-Identifier: MIT
"""grade.py class: grade what a class handed in, one JSON a student.

OUT/class.json                 what was graded, against what
OUT/students/NAME/grade.json   written whole or not at all, when the student is done
and what grader.py keeps of each student and of the solutions

A grade carries a key: a hash of the submission, the kit, the ranges, the device and the
options that matter. A student with a grade of the same key is not graded again, so a run that
was stopped, however, goes on where it was. With --slurm the students whose programs are run are
graded by tasks of a cluster (slurm.py), each of which is this program with --task.
"""
import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import sys
import time
import traceback
from pathlib import Path

import grades
import intake
import roster
import runner
import slurm
from grader import Grader, solution_of
from grades import GRADED, SKIPPED
from workshop import Infrastructure

ALL_GRADED, USAGE, COULD_NOT, IN_THE_QUEUE, STOPPED = 0, 2, 3, 4, 130


def labs_wanted(options):
    """The stems to grade: all that have ranges, or those of --labs. Raises UsageError."""
    stems = sorted(p.stem for p in Path(options.ranges).glob("[0-9][0-9]_*.ini"))
    if not stems:
        raise runner.UsageError(f"{options.ranges}: no range file in it")
    if not options.labs:
        return stems
    numbers = [part.strip() for part in options.labs.split(",") if part.strip()]
    chosen = []
    for text in numbers:
        found = [s for s in stems if text.isdecimal() and int(s[:2]) == int(text)]
        if not found:
            raise runner.UsageError(f"--labs {text}: no such lab; there are: "
                                    + " ".join(s[:2] for s in stems))
        chosen += found
    return sorted(set(chosen))


class Progress:
    """One line that renews itself on a terminal, elsewhere a line a student."""

    def __init__(self, total, done="done"):
        self.total, self.done, self.failed, self.begun = total, 0, 0, time.monotonic()
        self.word = done
        self.tty = sys.stderr.isatty()

    def show(self, what):
        """On a terminal: how far it is, and what is under way."""
        if not self.tty:
            return
        left = (time.monotonic() - self.begun) / max(self.done, 1) * (self.total - self.done)
        text = (f"{self.done}/{self.total} {self.word}, {self.failed} could not be graded, "
                f"{duration(left) if self.done else '?'} left  {intake.printable(what)}")
        print(f"\r\x1b[K{text[:os.get_terminal_size(2).columns - 1]}", end="", file=sys.stderr,
              flush=True)

    def add(self, name, state, points):
        self.done += 1
        self.failed += state != GRADED
        self.show(name)
        if not self.tty:
            name = intake.printable(name)
            print(f"[{self.done}/{self.total}] {name}: {points if state == GRADED else state}",
                  file=sys.stderr, flush=True)

    def close(self):
        if self.tty and self.done:
            print(file=sys.stderr)


def duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def claim(out):
    """Lock OUT for this run; the lock goes with the process. Raises UsageError."""
    try:
        (out / "students").mkdir(parents=True, exist_ok=True)
        fd = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise runner.UsageError(f"{out}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise runner.UsageError(f"{out}: another run is grading into it; wait for it to end") from None
    except OSError:
        pass  # a file system without locks
    return fd


def survey(grader, entries):
    """For each student (digest, the labs whose programs are to be run), or why it is not known."""
    found = []
    for entry in entries:
        try:
            submission = entry.read(grader.stems)
            found.append((submission.digest(), grader.runs(submission)))
        except Exception as error:  # when its turn comes it is the same, and is said
            found.append((str(error), []))
    return found


def to_do(options, grader, entries, found):
    """(indexes of the entries to grade, how many keep a grade, how many of those are old)."""
    todo, kept, old = [], 0, 0
    for index, entry in enumerate(entries):
        grade = None if options.force else grades.read(folder_of(options.out, entry))
        if grade is None or grade["state"] != GRADED:
            todo.append(index)
            continue
        # A cluster's GPU is not known here: a grade stands, whichever of them measured it.
        device = grade.get("device", "") if grader.part == "build" else None
        if device and not device.startswith(f"{grader.backend} "):
            device = None
        same = grade["key"] == grader.key(entry.name, *found[index], device)
        if same or options.only_failed:
            kept, old = kept + 1, old + (not same)
        else:
            todo.append(index)
    return todo, kept, old


def folder_of(out, entry):
    return Path(out) / "students" / intake.slug(entry.name)


def one_student(grader, entry):
    """Grade and keep. (state, points as text)."""
    folder = folder_of(grader.out, entry)
    try:
        grade = grader.grade(entry, folder)
    except Infrastructure as error:
        grade = grader._broken(entry, str(error))
    except OSError:
        raise  # a full disk, say: no student would fare better
    except Exception as error:  # a mistake of the grader's own costs nobody else the grade
        grade = grader._broken(entry, f"the grader failed: {traceback_in_a_line(error)}")
    grades.write(folder, grade)
    return grade["state"], f"{grade['points']}/{grade['of']}"


def traceback_in_a_line(error):
    steps = [f"{Path(step.filename).name}:{step.lineno}" for step in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({' '.join(steps[-6:])})"


def build_student(grader, entry):
    """Only build, for tasks of a cluster; the same returns."""
    submission = entry.read(grader.stems)
    sources = {stem: submission.files[stem, ".cu"] for stem in grader.runs(submission)}
    with grader.workshop.place(intake.slug(entry.name), sources) as place:
        built = list(grader._build_all(place, sources).values())
    for one in built:
        if isinstance(one, Infrastructure):  # so would all others fail
            raise OSError(0, str(one))
    return GRADED, f"{sum(not why for why, _ in built)} of {len(built)} labs build"


def run_here(grader, entries, todo, progress, work=one_student):
    """In this process: where programs are timed, and where there is little to do."""
    grader.under_way = progress.show
    for index in todo:
        progress.add(entries[index].name, *work(grader, entries[index]))


def run_workers(grader, options, entries, todo, progress, jobs, held, work=one_student):
    """In `jobs` processes, each taking the next student when it is done with one."""
    grader.build_in_parallel = False
    take, give = os.pipe()
    results, report = os.pipe()
    workers = []
    try:
        # Ctrl-C reaches all of the group; it is for the parent alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, runner.ENDING)
        for _ in range(jobs):
            pid = os.fork()
            if pid == 0:
                for fd in (give, results, held):  # the lock on OUT is the parent's alone
                    os.close(fd)
                worker(grader, options, take, report, work)  # never returns
            workers.append(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, runner.ENDING)
        os.close(take)
        os.close(report)
        take = report = None
        left, pending = list(todo), b""
        while True:
            reads, writes, _ = select.select([results], [give] if left else [], [])
            if writes:
                os.write(give, struct.pack("=I", left.pop(0)))
                if not left:
                    os.close(give)
                    give = None
            if reads:
                data = os.read(results, 65536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    index, state, points = json.loads(line)
                    if state == "stop":
                        raise OSError(0, points, "")
                    progress.add(entries[index].name, state, points)
    except BrokenPipeError:
        pass  # every worker has ended
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
        for fd in (take, report, give, results):
            if fd is not None:
                os.close(fd)


def worker(grader, options, take, report, work):
    """A process that grades what it is told to; it ends with its parent, however that ends, and
    the program that it runs with it."""
    code = 1
    try:
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        for one in (signal.SIGINT, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, runner.ENDING)  # not handed down blocked
        # Opened anew: a zip that several processes read through one descriptor is read wrongly.
        entries, _ = intake.discover(options.submissions, grader.stems, options.single)
        while True:
            data = os.read(take, 4)
            if not data:
                break
            index = struct.unpack("=I", data)[0]
            try:
                result = (index, *work(grader, entries[index]))
            except OSError as error:
                result = (index, "stop", told(error))
            os.write(report, json.dumps(result).encode() + b"\n")
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def told(error):
    """An OSError in one line: the file, where there is one, and what is wrong."""
    return ": ".join(map(str, filter(None, [error.filename, error.strerror or str(error)])))


def main(options):
    """The exit code of grade.py class."""
    runner.heed_signals()
    try:
        return grade_class(options)
    except (runner.UsageError, intake.IntakeError, roster.RosterError) as error:
        print(error, file=sys.stderr)
        return USAGE
    except slurm.SlurmError as error:
        print(error, file=sys.stderr)
        return COULD_NOT
    except OSError as error:
        print(f"{told(error)}: stopped; what is graded is kept, and the same "
              "command goes on from there", file=sys.stderr)
        return COULD_NOT


def grade_class(options):
    options.jobs = options.jobs or os.cpu_count() or 1
    check_slurm_options(options)
    stems = labs_wanted(options)
    entries, notes = intake.discover(options.submissions, stems, options.single)
    if options.task:
        return grade_task(options, stems, entries)
    students = roster.load(options.roster) if options.roster else []
    for note in notes:
        print(note, file=sys.stderr)
    out = Path(options.out)
    if inside(out, options.submissions):
        raise runner.UsageError(f"--out {out} lies in {options.submissions}: choose a folder outside it")
    grader = Grader(options, stems)
    cluster = slurm.Cluster(options, options.backend or "cuda") if options.slurm else None
    if options.dry_run:
        return print_scripts(options, grader, entries, cluster)
    held = claim(out)
    progress = None
    try:
        queue = cluster.queue() if cluster else {}
        found = survey(grader, entries)
        with_code = [runs for _, runs in found if runs]
        if with_code:
            grader.open_workshop()
        todo, kept, old = to_do(options, grader, entries, found)
        there = []
        if cluster and not grader.no_workshop:
            there = [i for i in todo if found[i][1] and intake.slug(entries[i].name) not in queue]
            todo = [i for i in todo if not found[i][1]]
        matches = roster.match([{"student": e.name, "hints": e.hints} for e in entries], students)
        if grader.workshop and not grader.no_workshop and any(found[i][1] for i in todo + there):
            try:
                grader.workshop.open()
            except Infrastructure as error:
                grader.no_workshop = str(error)
                todo, there = sorted(todo + there), []
        write_class(out, options, grader, entries, students)
        if grader.no_workshop:
            print(f"{len(with_code)} of {len(entries)} students' programs cannot be graded: "
                  f"{grader.no_workshop}", file=sys.stderr)
        elif with_code and options.unsafe:
            print("--unsafe: programs run WITHOUT a sandbox, as you", file=sys.stderr)
        say_plan(kept, old, options)
        progress = Progress(len(todo))
        grade_here(options, grader, entries, found, todo, progress, held)
        progress.close()
        if there:
            cluster.check([intake.slug(entries[i].name) for i in there])
            progress = Progress(len(there), "built")
            build_first(grader, options, entries, there, progress, held)
            progress.close()
        if cluster:
            queue = on_cluster(cluster, options, entries, there, queue)
            if queue is None:
                return STOPPED
            write_class(out, options, grader, entries, students)
        return summary(options, grader, entries, matches, cluster, queue)
    except KeyboardInterrupt:
        if progress:
            progress.close()
        done = progress.done if progress else 0
        print(f"\nstopped after {done} student(s), which are kept; the same command goes on from there",
              file=sys.stderr)
        return STOPPED
    finally:
        grader.close()
        os.close(held)


# ---- on a cluster ----

def check_slurm_options(options):
    """Raises UsageError for what makes no sense without, or with, a cluster."""
    if options.slurm and options.outputs:
        raise runner.UsageError("--slurm with --outputs: nothing is run, so nothing needs a cluster")
    if options.slurm and not options.dry_run and not shutil.which("sbatch"):
        raise runner.UsageError("no sbatch on this machine: --slurm is for one from which a cluster's "
                                "jobs are submitted")
    for name in ("wait", "dry_run", "partition", "gres", "account", "job_time", "at_most", "array_size",
                 "sbatch"):
        if getattr(options, name) and not options.slurm:
            raise runner.UsageError(f"--{name.replace('_', '-')} is for --slurm")


def print_scripts(options, grader, entries, cluster):
    """--dry-run: what would be submitted now."""
    found = survey(grader, entries)
    if any(runs for _, runs in found):
        grader.open_workshop()
    todo, _, _ = to_do(options, grader, entries, found)
    try:
        queue = cluster.queue()
    except slurm.SlurmError as error:
        print(f"the queue is taken to be empty: {error}", file=sys.stderr)
        queue = {}
    there = [intake.slug(entries[i].name) for i in todo if found[i][1]]
    there = [student for student in there if student not in queue]
    arrays = cluster.arrays(there)
    for number, part in arrays:
        print(cluster.script(number, len(part)), end="" if number == arrays[-1][0] else "\n")
    print(f"{len(there)} student(s) to submit, in {len(arrays)} array(s); nothing is built or "
          "submitted", file=sys.stderr)
    return ALL_GRADED


def build_first(grader, options, entries, there, progress, held):
    """All that the tasks will run, solutions first. Raises OSError where that cannot be."""
    if options.force:
        shutil.rmtree(grader.shelf(), ignore_errors=True)
    for stem in grader.stems:
        source = solution_of(stem)
        if not source.exists():
            continue
        try:
            with grader.workshop.place(f"reference.{stem}", {stem: source.read_bytes()}) as place:
                why, _ = grader.workshop.build(place, stem)
        except Infrastructure as error:
            why = str(error)
        if why:
            raise OSError(0, f"the solution of {stem} does not build here: {why}")
    jobs = min(options.jobs, len(there))
    if jobs <= 1:
        run_here(grader, entries, there, progress, build_student)
    else:
        run_workers(grader, options, entries, there, progress, jobs, held, build_student)


def on_cluster(cluster, options, entries, there, queue):
    """Submit, and wait if asked to. The queue after that; None where Ctrl-C ended the waiting."""
    try:
        if there:
            cluster.submit([intake.slug(entries[i].name) for i in there], queue)
        if options.wait:
            cluster.wait([intake.slug(e.name) for e in entries])
        return cluster.queue()
    except KeyboardInterrupt:
        print(f"\nstopped waiting; the job goes on. To cancel it: {cluster.cancel()}; to go on, or "
              "to gather the grades: the same command", file=sys.stderr)
        return None


def grade_task(options, stems, entries):
    """--task: one student, on a node of the cluster. 0 if there is a grade."""
    entry = next((e for e in entries if intake.slug(e.name) == options.task), None)
    if entry is None:
        raise runner.UsageError(f"--task {options.task}: no such student in {options.submissions}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal, as by scancel"))
    grader = Grader(options, stems)
    try:
        grader.open_workshop()
        if not grader.no_workshop:
            try:
                grader.workshop.open()
            except Infrastructure as error:
                grader.no_workshop = str(error)
        if slurm.started_again() > slurm.RESTARTS:
            reason = f"its task was lost, with its node mostly, {slurm.started_again()} times"
            grade = grades.read(folder_of(options.out, entry)) or grader._broken(entry, reason)
            grades.write(folder_of(options.out, entry), grade)
            state, points = grade["state"], reason
        else:
            state, points = one_student(grader, entry)
        print(f"{options.task}: {points if state == GRADED else state}", file=sys.stderr)
        return ALL_GRADED if state == GRADED else COULD_NOT
    finally:
        grader.close()


def grade_here(options, grader, entries, found, todo, progress, held):
    """Those whom this machine grades: on a GPU one after the other, else several at once."""
    programs = bool(grader.workshop) and not grader.no_workshop and not options.slurm
    timed = programs and grader.backend == "cuda"
    jobs = min(options.jobs, len(todo))
    if programs and not timed and jobs > 1:
        references_first(grader, sorted({stem for i in todo for stem in found[i][1]}))
    if timed or jobs <= 1:
        run_here(grader, entries, todo, progress)
    else:
        run_workers(grader, options, entries, todo, progress, jobs, held)


def inside(out, submissions):
    out, folder = Path(os.path.realpath(out)), Path(os.path.realpath(submissions))
    return folder.is_dir() and (out == folder or folder in out.parents)


def references_first(grader, stems):
    """Before workers start, so that each solution runs once and not once a worker."""
    for stem in stems:
        with contextlib.suppress(Infrastructure):
            grader.reference(stem)


def say_plan(kept, old, options):
    if kept:
        print(f"{kept} student(s) are graded already" + (
            f"; {old} of them by another kit, submission or device (without --only-failed they would "
            "be graded again)" if old else ""), file=sys.stderr)
    if options.backend == "sim" and not options.credit_simulated:
        print("SIMULATED device: practice, which earns no points (--credit-simulated gives them)",
              file=sys.stderr)


def write_class(out, options, grader, entries, students):
    """class.json: who belongs to the class, and what it is graded against."""
    device = grader.workshop.device if grader.workshop else ""
    if grader.part:  # what the tasks found on their nodes
        found = [grades.read(folder_of(out, entry)) for entry in entries]
        device = ", ".join(sorted({g.get("device", "").partition(" ")[2] for g in found if g} - {""}))
    data = {"submissions": str(options.submissions), "labs": grader.stems,
            "of": {stem: grader.points_of(stem) for stem in grader.stems},
            "ranges": str(Path(options.ranges).resolve()),
            "kit": grader.kit, "backend": grader.backend or "outputs",
            "device": device,
            "credit_simulated": options.credit_simulated,
            "students": {e.name: intake.slug(e.name) for e in entries},
            "roster": students, "begun": time.strftime("%Y-%m-%dT%H:%M:%S")}
    runner.save(out / "class.json", json.dumps(data, indent=1, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"))


def summary(options, grader, entries, matches, cluster=None, queue=()):
    """Close with one line, and the lines that a person must read. The exit code."""
    found = {e.name: grades.read(folder_of(options.out, e)) for e in entries}
    queued = [name for name in found if intake.slug(name) in queue]
    could_not = [name for name, g in found.items() if (g is None or g["state"] != GRADED)
                 and name not in queued]
    for name in could_not[:10]:
        reason = found[name]["reason"] if found[name] else cluster.why_missing(
            intake.slug(name)) if cluster else "the process that graded it was killed"
        print(f"could not grade {intake.printable(name)}: {reason}", file=sys.stderr)
    if len(could_not) > 10:
        print(f"... and {len(could_not) - 10} more", file=sys.stderr)
    labs = [lab for g in found.values() if g for lab in g["labs"]]
    for stem in grader.stems:
        its = [lab for lab in labs if lab["lab"] == stem]
        skipped = sum(lab["state"] == SKIPPED for lab in its)
        if its and skipped > len(its) / 2:
            print(f"{stem}: skipped by {skipped} of {len(its)}; to leave it out, name the others in "
                  "--labs", file=sys.stderr)
    for line in roster.problems(matches):
        print(line, file=sys.stderr)
    practice = sum(any(lab["practice"] for lab in g["labs"]) for g in found.values() if g)
    if practice:
        print(f"{practice} student(s) handed in or ran simulated figures, which are practice and earn no "
              "points (--credit-simulated gives them)", file=sys.stderr)
    graded = len(entries) - len(could_not) - len(queued)
    print(f"{graded} of {len(entries)} students graded" + (
        f", {len(could_not)} could not be" if could_not else "") + (
        f", {len(queued)} in the queue (the same command gathers their grades)" if queued else "")
        + f"; grades are in {options.out}/: "
        f"grade.py report {options.out} --file class.html", file=sys.stderr)
    if queued:
        return IN_THE_QUEUE
    if cluster and not could_not:
        shutil.rmtree(grader.shelf(), ignore_errors=True)
    return COULD_NOT if could_not else ALL_GRADED
