#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every CUDA call of every lab fails once, on the simulated device: what does the lab do?

    tests/faults.py [--first] [--lab NN]    a table; --first without the calls in the middle

Each call that a solution makes fails at its first time, and once in the middle of the run. The
lab has to end with exit code 3, a message that names the call, its file and line, nothing
printed but what a run without the failure had printed by then, no leak, no hang. The device's
engine is built with the address, leak and undefined-behaviour sanitizers.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

import kit

FOLDER = kit.KIT / "build" / "sim" / "sanitized"
SECONDS = 120  # that a run may take; the slowest takes ten, with the sanitizers
SKIPPED, CUDA_ERROR = 77, 3

# How a message words a call: as the program writes it, or by what holds its answer.
WORDS = {"cudaLaunchKernel": "kernel launch", "cudaGetLastError": "kernel launch",
         "06 cudaEventQuery": r"in poll\(\): answer", "07 cudaEventQuery": r"in behind_gate_us\(\): gate"}

ANSWER = "what it answers is what the lab prints"
# Other calls whose failure a lab reads instead of ending, and why: (lab; call) where it goes on to
# its end, ("", call) where every lab ends with 77.
READ = {
    ("", "cudaGetDeviceCount"): "no device: the lab says so, prints no figure and ends with 77",
    ("12", "cudaStreamWaitEvent"): "what it answers is printed, and device 1 then does not wait",
    ("12", "cudaGetDeviceCount"): "asked twice; the first one's error is found behind the first launch",
}


def build(jobs):
    """The solutions with a sanitized engine."""
    def one(stem):
        environment = kit.clean_environment(SIM_CFLAGS="-g -fsanitize=address,undefined",
                                            SIM_OBJECTS=str(FOLDER / "engine"))
        return kit.call("sh", "common/sim/build.sh", f"solutions/{stem}.cu", FOLDER / stem,
                        env=environment)
    FOLDER.mkdir(parents=True, exist_ok=True)
    first = one(kit.STEMS[0])  # alone: it makes the engine's objects
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for code, out, err in [first, *pool.map(one, kit.STEMS[1:])]:
            if code != 0:
                raise RuntimeError(f"the solutions do not build with the sanitizers:\n{err}")


def run(stem, **more):
    """(exit code, standard output, standard error) of a sanitized solution; None for a hang."""
    environment = kit.clean_environment(SIM_DEVICES="2", UBSAN_OPTIONS="print_stacktrace=1",
                                        ASAN_OPTIONS="detect_stack_use_after_return=0", **more)
    child = subprocess.Popen([FOLDER / stem], cwd=kit.KIT, env=environment, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.communicate()
        return None, "", ""
    return child.returncode, out, err


def sanitizer_said(err):
    """What a sanitizer reports, or nothing."""
    found = re.search(r"runtime error: .*|(?:ERROR|SUMMARY): (?:Address|Leak|Undefined)\w*Sanitizer.*", err)
    return found[0] if found else ""


def quiet_run(stem, counts):
    """The output without a failure, and {call: how often it is made}."""
    code, out, err = run(stem, SIM_COUNT=str(counts))
    if code != 0 or sanitizer_said(err):
        raise RuntimeError(f"{stem}: without any failure: exit {code}: {sanitizer_said(err) or err}")
    pairs = (line.split() for line in counts.read_text().splitlines())
    return out, {call: int(times) for call, times in pairs}


class Outcome:
    """What one failing call did: `wrong` is empty if the lab ended as it should, `read` says why
    it may go on."""

    def __init__(self, stem, call, nth, wrong, read=""):
        self.stem, self.call, self.nth, self.wrong, self.read = stem, call, nth, wrong, read


def only_answers_differ(out, normal):
    """Whether a run printed what one without the failure does, but for errors where it tells what
    a call answered."""
    pairs = list(zip(out.splitlines(), normal.splitlines()))
    told = [re.fullmatch(r"observed \S+ = cudaError\w+", line) for line, other in pairs if line != other]
    return bool(told) and all(told) and out.count("\n") == normal.count("\n")


def inject(stem, call, nth, normal):
    code, out, err = run(stem, SIM_FAIL=f"{call}:{nth}")
    if code is None:
        return Outcome(stem, call, nth, f"did not end within {SECONDS} s")
    if sanitizer_said(err):
        return Outcome(stem, call, nth, sanitizer_said(err))
    word = WORDS.get(f"{stem[:2]} {call}", WORDS.get(call, call))
    wrong = ""
    if code != CUDA_ERROR:
        wrong = f"ended with {code} as if nothing had happened"
    elif not re.search(rf"^\S+\.(?:cu|h):\d+: (?=in \w+\(\): ).*{word}", err, re.MULTILINE):
        wrong = f"the message names no {word} with file and line: {err!r}"
    elif not normal.startswith(out):
        wrong = "printed what a run without the failure does not"
    read = ""
    if wrong and code == 0 and only_answers_differ(out, normal):
        read = ANSWER
    elif wrong and code in (0, CUDA_ERROR):
        read = READ.get((stem[:2], call), "")
    elif code == SKIPPED and "measured" not in out:
        read = READ.get(("", call), "")
    return Outcome(stem, call, nth, "" if read else wrong, read)


def prove(first_only=False, lab=None, jobs=None, say=None):
    """An Outcome for every failing call of every solution, or of one."""
    jobs = jobs or os.cpu_count() or 1
    build(jobs)
    stems = [s for s in kit.STEMS if not lab or int(s[:2]) == int(lab)]
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool, kit.folder() as folder:
        def quiet(stem):
            return quiet_run(stem, kit.Path(folder) / stem)
        cases, normal = [], {}
        for stem, (out, counts) in zip(stems, pool.map(quiet, stems)):
            normal[stem] = out
            for call, times in counts.items():
                places = [1] if first_only or times < 3 else [1, times // 2 + 1]
                cases += [(stem, call, nth) for nth in places]
        for outcome in pool.map(lambda case: inject(*case, normal[case[0]]), cases):
            outcomes.append(outcome)
            if say:
                say(outcome)
    return outcomes


def table(outcomes):
    """Lines: one a lab, the total, and the calls that are read."""
    rows = ["lab                     calls  failures  exit 3, named  read on purpose  wrong"]

    def row(title, some):
        rows.append(f"{title:<23} {len({(o.stem, o.call) for o in some}):>5}  {len(some):>8}  "
                    f"{sum(not o.wrong and not o.read for o in some):>13}  "
                    f"{sum(bool(o.read) for o in some):>15}  {sum(bool(o.wrong) for o in some):>5}")
    for stem in sorted({o.stem for o in outcomes}):
        row(stem, [o for o in outcomes if o.stem == stem])
    row("all", outcomes)
    told = sorted({(o.call, o.read, o.stem[:2] if o.read != READ.get(("", o.call)) else "") for o in outcomes if o.read})
    rows += [f"  read: {call}{f' in lab {lab}' if lab else ''}: {why}" for call, why, lab in told]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", action="store_true", help="only the first time of each call")
    parser.add_argument("--lab", help="number of one lab; all without it")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()

    def say(outcome):
        if outcome.wrong:
            print(f"{outcome.stem}: {outcome.call}:{outcome.nth}: {outcome.wrong}", flush=True)
    try:
        outcomes = prove(options.first, options.lab, options.jobs, say)
    except RuntimeError as error:
        sys.exit(str(error))
    print("\n".join(table(outcomes)))
    return 1 if any(o.wrong for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
