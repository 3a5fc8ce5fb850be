# SPDX-License-Identifier: MIT
"""Grade one student of a class: build, run beside the solution, judge, and keep what was seen.

OUT/students/NAME/    what the student saw: the report, and every attempt's output
OUT/reference/        what the solutions printed on this machine

Whose fault it is decides what becomes of it: what a student's program does is a grade, what the
machine lacks is Infrastructure, and no grade at all.
"""
import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

import gpu
import intake
import output
import ranges
import runner
import verdict
from graded import grade_data
from grades import (COULD_NOT_GRADE, FAILED, GRADED, MISSING, NOT_BUILT, REFUSED, SKIPPED,
                    UNREADABLE)
from workshop import Infrastructure, Workshop

NEAR = 0.1               # a figure so near to its bound, relative, is measured again
# The modules that a grade depends on: when one changes, all are graded again.
GRADING = ("formula", "gpu", "grade", "graded", "grader", "intake", "output", "ranges", "runner", "sandbox",
           "verdict", "workshop")


def digest_of(*parts):
    sum_ = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        sum_.update(b"%d:" % len(data) + data)
    return sum_.hexdigest()[:16]


def kit_digest(ranges_folder, stems):
    """Of all of the kit that a grade depends on."""
    paths = [runner.KIT / "grading" / f"{name}.py" for name in GRADING]
    paths += [p for p in (runner.KIT / "common").rglob("*") if p.is_file() and p.suffix != ".md"]
    paths += [runner.KIT / "Makefile"]
    paths += map(solution_of, stems)
    parts = []
    for path in sorted(paths):
        if path.exists() and "__pycache__" not in path.parts:
            parts += [path.relative_to(runner.KIT), path.read_bytes()]
    for stem in stems:
        with contextlib.suppress(OSError):
            parts += [stem, (Path(ranges_folder) / f"{stem}.ini").read_bytes()]
    return digest_of(*parts)


def solution_of(stem):
    return runner.KIT / "solutions" / f"{stem}.cu"


class Grader:
    """Grades one student after the other. What it needs is made once, before workers start."""

    def __init__(self, options, stems):
        self.options, self.stems, self.out = options, stems, Path(options.out)
        self.ranges = Path(options.ranges)
        self.backend, self.workshop, self.no_workshop = options.backend or "", None, ""
        self.part = "run" if options.task else "build" if options.slurm else ""
        self.kit = kit_digest(options.ranges, stems)
        self.checks, self.range_errors = {}, {}
        for stem in stems:
            try:
                self.checks[stem] = ranges.load(stem, self.ranges)
            except ranges.RangeError as error:
                self.checks[stem], self.range_errors[stem] = [], str(error)
        self.references = {}

    # ---- what the machine has ----

    def open_workshop(self):
        """For the programs of a class that holds any; without one they cannot be graded."""
        if not self.backend:
            self.backend = "cuda" if self.part or gpu.visible_devices()[0] else ""
        if not self.backend:
            self.no_workshop = (f"no GPU: {gpu.visible_devices()[1]}; --outputs checks only the outputs "
                                "handed in, --backend sim runs on the simulated device, for practice")
            return
        self.workshop = Workshop(self.out, self.backend, self.options.unsafe, self.options.time_limit,
                                 self.options.bind or (), self.part, self.arch(), self.shelf(), self.kit)
        try:
            self.workshop.look()
        except Infrastructure as error:
            self.no_workshop = str(error)

    def arch(self):
        """For which GPU to build; where none is in sight, for all that nvcc knows."""
        return self.options.arch or ("all-major" if self.part and self.backend == "cuda" else "")

    def shelf(self):
        """Where programs lie that are built on one machine and run on another."""
        return self.out / "slurm" / "built" if self.part else None

    def close(self):
        if self.workshop:
            self.workshop.close()

    def device(self, runs):
        """On what a grade was measured; nothing where no program ran."""
        return f"{self.backend} {self.workshop.device if self.workshop else ''}" if runs else ""

    def key(self, name, digest, runs, device=None):
        """What the student's grade depends on, hashed. The device counts where programs run; where only
        others' do, that gives what is not handed in its points."""
        device = self.device(runs) if device is None else device
        options = (self.options.attempts, self.options.time_limit) if runs else (self.here,)
        return digest_of(name, digest, self.kit, ",".join(self.stems), device,
                         *options, self.options.credit_simulated, self.options.outputs)

    @property
    def here(self):
        """On what the class's programs run; nothing where none does."""
        return self.backend if self.workshop and not self.no_workshop else ""

    def points_of(self, stem):
        """What a lab gives to whom nothing of it is judged: as much as to those of whom it is."""
        beside = self.here and solution_of(stem).exists()
        return sum(check.points for check in self.checks[stem] if can_judge(check, self.here, beside))

    def runs(self, submission):
        """The labs of which the program is built and run here."""
        return [] if self.options.outputs else [s for s in submission.stems(".cu") if s in self.stems]

    # ---- the solution on this machine ----

    def reference(self, stem, again=False):
        """(Output or None, why there is none). Raises Infrastructure where the solution fails."""
        kept = self.references.get(stem)
        if kept and not again and time.monotonic() - kept[0] < runner.REFERENCE_AGE:
            return kept[1]
        source = solution_of(stem)
        if not source.exists():
            return None, "there is no solution to compare with"
        with self.workshop.place(f"reference.{os.getpid()}.{stem}", {stem: source.read_bytes()}) as place:
            why, _ = self.workshop.build(place, stem)
            if why:
                raise Infrastructure(f"the solution does not build here: {why}")
            run = self.workshop.run(place, stem)
        if run.problem:
            raise Infrastructure(f"the solution {run.problem} here")
        runner.save(self.out / "reference" / f"{stem}.txt", run.out)
        try:
            out = output.parse(run.out, f"reference/{stem}.txt")
        except output.OutputError as error:
            raise Infrastructure(f"the solution's output cannot be read: {error}") from None
        if out.skipped is not None:
            if self.backend == "cuda" and re.search(r"no CUDA device", out.skipped):
                raise Infrastructure(f"the GPU is not seen in the sandbox: {out.skipped}")
            result = (None, out.skipped)
        else:
            result = (out, "")
        if verdict.spoiled(out):  # serves once: the next one measures again
            self.references.pop(stem, None)
        else:
            self.references[stem] = (time.monotonic(), result)
        return result

    # ---- one student ----

    def grade(self, entry, folder):
        """The student's grade as a dict; keeps in `folder` what the student saw."""
        try:
            submission = entry.read(self.stems)
        except OSError as error:
            return self._broken(entry, f"cannot be read: {error.strerror or error}")
        kept = Kept(folder)
        runs = self.runs(submission)
        labs, judged = {}, []
        if runs and not self.no_workshop:
            with self.workshop.place(intake.slug(entry.name),
                                     {s: submission.files[s, ".cu"] for s in runs}) as place:
                built = self._build_all(place, runs)
                for stem in runs:
                    self.under_way(f"{entry.name} {stem}")
                    labs[stem] = self._lab_of_program(stem, place, built[stem], kept)
        for stem in self.stems:
            if stem not in labs:
                labs[stem] = self._lab_of_output(submission, stem, runs)
            labs[stem].setdefault("checks", [])
            judged.append(labs[stem].pop("graded", None))
        for stem in self.stems:
            lab = labs[stem]
            lab["practice"] = lab.get("backend") == "simulated" and not self.options.credit_simulated
            lab["credit"] = 0 if lab["practice"] else lab["points"]
        labs = [{"lab": stem, **labs[stem]} for stem in self.stems]
        could_not = [lab for lab in labs if lab["state"] == COULD_NOT_GRADE]
        kept.text("report.txt", student_report(entry.name, labs, judged, submission))
        return {"student": entry.name, "key": self.key(entry.name, submission.digest(), runs),
                "kit": self.kit, "device": self.device(runs),
                "state": COULD_NOT_GRADE if could_not else GRADED,
                "reason": could_not[0]["reason"] if could_not else "",
                "points": sum(lab["credit"] for lab in labs),
                "of": sum(lab["of"] for lab in labs),
                "hints": submission.hints, "notes": submission.notes + (
                    [submission.broken] if submission.broken else []),
                "worksheets": submission.stems(".md"), "kept": sorted(kept.names), "labs": labs}

    def _broken(self, entry, reason):
        return {"student": entry.name, "key": "", "kit": self.kit, "state": COULD_NOT_GRADE,
                "reason": reason, "points": 0, "of": sum(map(self.points_of, self.stems)),
                "hints": entry.hints, "notes": [], "worksheets": [], "kept": [], "labs": []}

    def _lab(self, stem, state, reason="", **more):
        return {"state": state, "reason": reason, "points": 0, "of": self.points_of(stem), **more}

    def _build_all(self, place, stems):
        """stem -> (why it did not build, what was said), as many at once as --jobs."""
        import concurrent.futures  # here: a class of outputs does not wait for it
        jobs = max(1, min(self.options.jobs, len(stems)) if self.build_in_parallel else 1)

        def one(stem):
            try:
                return self.workshop.build(place, stem)
            except Infrastructure as error:
                return error
        if jobs == 1:
            return {stem: one(stem) for stem in stems}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            return dict(zip(stems, pool.map(one, stems)))

    build_in_parallel = True

    def under_way(self, what):
        """Told which program runs now; run_here has it shown."""

    def _lab_of_program(self, stem, place, built, kept):
        more = {"source": "run here", "sandbox": self.workshop.sort}
        try:
            if stem in self.range_errors:
                raise Infrastructure(self.range_errors[stem])
            if isinstance(built, Infrastructure):
                raise built
            why, said = built
            if said:
                kept.text(f"{stem}.build.txt", said)
            reference, no_reference = self.reference(stem)  # if that fails, it is the machine
            if why:
                return self._lab(stem, NOT_BUILT, why, **more)
            lab = self._best_attempt(stem, place, reference, no_reference, kept)
            return {**lab, **more, **self._what_ran(lab, reference)}
        except Infrastructure as error:
            return self._lab(stem, COULD_NOT_GRADE, str(error), **more)

    def _best_attempt(self, stem, place, reference, no_reference, kept):
        """Run until nothing is inconclusive or near its bound; the attempt with most points
        counts, the earlier of equal ones. A failure is not tried again, only explained."""
        best, tries = None, []
        for attempt in range(1, runner.attempts(self.backend, self.options.attempts) + 1):
            run = self.workshop.run(place, stem)
            name = f"{stem}.attempt{attempt}.txt"
            kept.bytes(name, run.out)
            if run.err:
                kept.bytes(f"{stem}.attempt{attempt}.stderr.txt", run.err)
            if run.problem or run.code == runner.SKIPPED:
                return self._failed(stem, run, no_reference, best, tries + [{"output": name, "points": 0}])
            lab, graded = self._judge(run.out, f"{stem}.txt", stem, reference, run.wall)
            tries.append({"output": name, "points": lab["points"]})
            if best is None or lab["points"] > best[0]["points"]:
                best = (lab, graded, run.out)
            if not any(worth_another_try(v) for v in graded.verdicts):
                break
        kept.bytes(f"{stem}.txt", best[2])
        return {**best[0], "graded": best[1], "attempts": tries}

    def _what_ran(self, lab, reference):
        """Where a program ran is known here and not taken from what it prints."""
        if self.backend == "sim":
            told = lab.get("backend", "simulated") != "simulated"
            return {"backend": "simulated", "claims": "hardware" if told else ""}
        told = reference and lab.get("device") and lab["device"] != reference.device
        return {"claims": lab["device"] if told else ""}

    def _failed(self, stem, run, no_reference, best, tries):
        """The program failed or skipped. Where the solution now does too, it is the machine."""
        if run.problem:
            _, no_reference = self.reference(stem, again=True)
        if best:  # it ran before: that counts
            return {**best[0], "graded": best[1], "attempts": tries}
        if run.code == runner.SKIPPED and not run.problem:
            if no_reference:  # so does the solution: this machine has not what the lab needs
                return {**self._lab(stem, SKIPPED, f"here: {no_reference}"), "of": 0, "attempts": tries}
            return self._lab(stem, FAILED, "it says that it skips, where the solution runs",
                             attempts=tries)
        return self._lab(stem, FAILED, run.problem, attempts=tries)

    def _lab_of_output(self, submission, stem, runs):
        """A lab of which nothing ran here: its output is judged, or there is none."""
        if submission.broken:
            return self._lab(stem, REFUSED, submission.broken)
        if stem in self.range_errors:
            return self._lab(stem, COULD_NOT_GRADE, self.range_errors[stem])
        if stem in runs:
            return self._lab(stem, COULD_NOT_GRADE, self.no_workshop)
        data = submission.files.get((stem, ".txt"))
        if data is None:
            if stem in submission.refused:
                return self._lab(stem, REFUSED, submission.refused[stem])
            why = ""
            if self.options.outputs and (stem, ".cu") in submission.files:
                why = f"only the program, which --outputs does not run: hand in {stem}.txt"
            return self._lab(stem, MISSING, why)
        lab, graded = self._judge(data, f"{stem}.txt", stem)
        return {**lab, "graded": graded, "source": "output handed in"}

    def _judge(self, data, name, stem, reference=None, wall=None):
        """(the lab's dict, its Graded) of one output."""
        graded = grade_data(data, name, self.ranges, stem, reference, wall)
        out = graded.output
        lab = self._lab(stem, GRADED)
        if out is not None:
            lab.update(backend=out.backend, device=out.device)
        if graded.error:
            lab.update(state=UNREADABLE, reason=graded.error)
        elif out.skipped is not None:
            lab.update(state=SKIPPED, reason=out.skipped)
        else:
            # Of fewer points where a check is for hardware only, say.
            lab.update(points=graded.earned, of=graded.points_of, checks=[short(v) for v in graded.verdicts if v.state != verdict.SKIPPED],
                       figures=figures(out), without_spread=without_spread(out))
        lab["notes"] = graded.notes
        return lab, graded


def can_judge(check, here, beside):
    """Whether a class is asked this check, where its programs run (nowhere: an output of hardware is
    handed in), and whether a solution runs beside them. Of no run is there a trace, nor the
    processor time, which bubblewrap hides."""
    formulas = [f for f in (check.formula, check.recompute) if f]
    unknown = any(f.needs_trace or "process_cpu" in f.names for f in formulas)
    return not (unknown or check.only_compares and not beside or check.only and here == "sim")


def short(v):
    """A verdict for the JSON; why its range is what it is stands in the range file."""
    whole = v.as_dict()
    kept = {k: whole[k] for k in ("check", "verdict", "value", "range", "points", "of", "todo")}
    return {**kept, "message": whole["message"]} if whole["message"] else kept


def worth_another_try(v):
    """Too noisy to say, or failed by so little that noise may have done it."""
    if v.state == verdict.INCONCLUSIVE:
        return True
    if v.state != verdict.FAIL or v.check.equals:
        return False
    try:
        value = float(v.shown.split()[0])
    except (ValueError, IndexError):
        return False
    low, high = v.check.min, v.check.max
    if low is not None and value < low:
        return value >= low - NEAR * abs(low)
    if high is not None and value > high:
        return value <= high + NEAR * abs(high)
    return bool(v.check.reference_factor)  # inside its bounds, but not what the solution measures


def measured(out):
    """(name, Value) of every figure that is measured, and not derived from others."""
    values = [*out.values.items(), *((f"{name}[{at:g}]", value) for name, points in out.series.items()
                                     for at, value in points.items())]
    return [(name, value) for name, value in values if not value.derived]


def figures(out):
    """Short hashes of the measured lines that no second run prints: those with a spread. Equal
    ones in two submissions are one measurement."""
    if out.backend != "hardware":
        return []
    return [hashlib.sha256(f"{name} {v.value} {v.low} {v.high} {v.count}".encode()).hexdigest()[:10]
            for name, v in measured(out) if v.low < v.high]


def without_spread(out):
    """Whether not one of several timed figures spreads, as no real measurement does."""
    timed = [v for _, v in measured(out) if v.count >= 5 and v.unit in ("ns", "us", "ms", "s")]
    return out.backend == "hardware" and len(timed) >= 3 and all(v.low == v.high for v in timed)


def student_report(name, labs, judged, submission):
    """What the student sees: the report of `check` and `run`, and what was not graded."""
    import grade
    lines = [f"{intake.printable(name)}: {sum(lab['credit'] for lab in labs)} of "
             f"{sum(lab['of'] for lab in labs)} points", ""]
    for lab, graded in zip(labs, judged):
        if lab["state"] == GRADED:
            lines.append(grade.text_report([graded], False).rsplit("\n\n", 1)[0].rstrip("\n"))
            if lab["practice"]:
                lines.append("  simulated: practice, which earns no points")
        else:
            lines.append(f"{lab['lab'].replace('_', ' ', 1)}  {lab['state']}  0/{lab['of']}")
            if lab["reason"]:
                lines.append(grade.wrap(lab["reason"], "  "))
        lines.append("")
    if submission.broken:
        lines.append(submission.broken)
    lines += [f"not graded: {note}" for note in submission.notes]
    return "\n".join(lines).rstrip() + "\n"


class Kept:
    """What is kept of one student. Files of an earlier grading go when the new grade stands."""

    def __init__(self, folder):
        self.folder, self.names = folder, set()

    def bytes(self, name, data):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)
        self.names.add(name)

    def text(self, name, text):
        self.bytes(name, text.encode("utf-8", "replace"))
