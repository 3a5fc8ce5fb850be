#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What grading a class costs: 300 students x 13 recorded outputs, and the sandbox a run.

    make bench-class
"""
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "grading")]
import class_of  # noqa: E402
import kit  # noqa: E402
import runner  # noqa: E402
import sandbox  # noqa: E402

STUDENTS = 300


def cost_of(*command):
    """(seconds, seconds of CPU time, MB of memory at most, exit code) of a command and its children."""
    begun, most = time.monotonic(), 0
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.execv(sys.executable, [sys.executable, *map(str, command)])
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        most = max(most, sum(map(sandbox.resident, sandbox.tree(pid, 100))))
        time.sleep(0.01)
    seconds = time.monotonic() - begun
    _, status, used = os.wait4(pid, 0)
    return seconds, used.ru_utime + used.ru_stime, most / 1e6, os.waitstatus_to_exitcode(status)


def measure():
    """[(what, seconds, seconds of CPU time, MB)] of class, export and report."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="labs-bench.") as folder:
        folder = Path(folder)
        class_of.make(folder, STUDENTS)
        grade, out = kit.KIT / "grading" / "grade.py", folder / "out"
        for what, command in (
                ("class", ("class", folder / "submissions", "--out", out, "--jobs", 2, "--outputs")),
                ("export", ("export", out, "--to", "canvas", "--roster", folder / "roster.csv",
                            "--file", folder / "grades.csv")),
                ("report", ("report", out, "--file", folder / "class.html"))):
            seconds, cpu, memory, code = cost_of(grade, *command)
            assert code == 0, (what, code)
            rows.append((what, seconds, cpu, memory))
    return rows


def sandbox_cost():
    """Milliseconds that one run takes in the sandbox and without, medians."""
    way = sandbox.ways()[0]

    def median(make_box):
        took = []
        for _ in range(40):
            begun = time.monotonic()
            runner.run_command(["/usr/bin/true"], box=make_box())
            took.append((time.monotonic() - begun) * 1e3)
        return statistics.median(took)
    return median(lambda: sandbox.Sandbox(way=way)), median(lambda: None)


def main():
    rows = measure()
    for what, seconds, cpu, memory in rows:
        print(f"{what:<8} {seconds:6.2f} s  {cpu:6.2f} s of CPU  {memory:6.0f} MB")
    print(f"together {sum(r[1] for r in rows):6.2f} s  {sum(r[2] for r in rows):6.2f} s of CPU  "
          f"{max(r[3] for r in rows):6.0f} MB at most, of {STUDENTS} students x {len(kit.STEMS)} outputs")
    try:
        inside, outside = sandbox_cost()
        print(f"a run    {inside:6.1f} ms in the sandbox, {outside:.1f} ms without")
    except sandbox.NoSandbox as error:
        print(f"no sandbox to measure: {error}")


if __name__ == "__main__":
    main()
