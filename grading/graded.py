# SPDX-License-Identifier: MIT
"""One lab's grade."""
import output
import ranges
import verdict


class Graded:
    """One lab's grade: verdicts, or the error for which there are none."""

    def __init__(self, source, stem=None):
        self.source, self.stem, self.output, self.error = source, stem, None, ""
        self.verdicts, self.notes, self.points_of = [], [], 0

    @property
    def earned(self):
        return sum(v.earned for v in self.verdicts)

    @property
    def skipped(self):
        return self.output.skipped if self.output else None

    def as_dict(self):
        out = self.output
        return {"source": self.source, "lab": self.stem, "error": self.error or None,
                "skipped": self.skipped, "backend": out.backend if out else None,
                "device": out.device if out else None, "points": self.earned,
                "of": self.points_of, "notes": self.notes,
                "checks": [v.as_dict() for v in self.verdicts]}


def grade_data(data, source, ranges_folder, stem=None, reference=None, process_wall=None,
               process_cpu=None, trace=None):
    """Grade one output, given as bytes. Never raises for what the bytes or a range file hold."""
    graded = Graded(source, stem)
    try:
        if stem:
            # Until it is known what can be judged: without what takes a trace.
            graded.points_of = sum(c.points for c in ranges.load(stem, ranges_folder)
                                   if not (c.formula and c.formula.needs_trace))
        graded.output = out = output.parse(data, source)
        graded.notes = out.notes + [f"warning: {text}" for text in out.warnings]
        if stem and out.stem != stem:
            raise output.OutputError("malformed", source, f"is the output of {out.stem}, not of "
                                     f"{stem}")
        graded.stem = out.stem
        if out.skipped is None:
            checks = [c for c in ranges.load(out.stem, ranges_folder)
                      if not c.only or c.only == out.backend]
            graded.verdicts = verdict.judge(out, checks, reference, process_wall, process_cpu,
                                            trace)
            graded.points_of = sum(v.points for v in graded.verdicts)
        else:
            graded.points_of = 0
    except ranges.NoSuchLab as error:
        graded.output, graded.error = None, f"{source}: {error}"
    except (output.OutputError, ranges.RangeError) as error:
        graded.output, graded.error = None, str(error)
    return graded
