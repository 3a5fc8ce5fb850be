#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Show the next hint of a lab's worksheet, one at a time.

    hint.py --lab NN [--dir labs] [--again]

The TODO whose figures the last output lacks comes first. results/hints.json remembers what has
been shown. Exit 0, 1 if that cannot be kept, 2 for a mistake in the call.
"""
import argparse
import json
import re
import sys
import textwrap

import compare
import ranges
import runner
import verdict
import worksheet
from graded import grade_data

WIDTH = 80
SHOWN = runner.KIT / "results" / "hints.json"


def shown_so_far():
    """{stem: [index of each hint shown]}. A file that cannot be read counts as none."""
    try:
        kept = json.loads(SHOWN.read_text(encoding="utf-8"))
        return {stem: [i for i in seen if isinstance(i, int)] for stem, seen in kept.items()
                if isinstance(seen, list)}
    except (OSError, ValueError, AttributeError):
        return {}


def todos_open(stem, folder):
    """The TODOs that the last output leaves open, in order: unmeasured before failed; none where
    there is no output that can be judged."""
    path = compare.result_of(stem, folder)
    if path is None:
        return []
    try:
        graded = grade_data(path.read_bytes(), str(path), ranges.HERE, stem)
    except OSError:
        return []
    found = []
    for state in (verdict.UNMEASURED, verdict.FAIL):
        numbers = {int(n) for v in graded.verdicts if v.state == state
                   for n in re.findall(r"TODO\((\d+)\)", v.message)[:1]}
        found += [n for n in sorted(numbers) if n not in found]
    return found


def choose(hints, seen, wanted):
    """The index of the next hint: of the first open TODO that has one left, else in order."""
    left = [i for i in range(len(hints)) if i not in seen]
    for todo in wanted:
        for i in left:
            if hints[i].todo == todo:
                return i
    return left[0] if left else None


def for_terminal(markdown, bold):
    """Paragraphs, lists and code of a hint, wrapped; `code` is bold on a terminal."""
    lines = []
    for block in re.split(r"\n\s*\n", markdown.strip()):
        if block.lstrip().startswith("```"):
            lines += ["    " + line for line in block.strip().split("\n")[1:]
                      if line.strip() != "```"] + [""]
            continue
        for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.)\s)", block):
            text = re.sub(r"\[([^\]]+)\]\(([^)]*)\)", r"\1 (\2)", " ".join(item.split()))
            text = re.sub(r"`[^`]{1,60}`", lambda code: code[0].replace(" ", "\0"), text)
            mark = re.match(r"(?:[-*]|\d+\.)\s+", text)
            text = textwrap.fill(text, WIDTH, initial_indent="  ", break_on_hyphens=False,
                                 subsequent_indent="  " + " " * len(mark[0] if mark else ""),
                                 break_long_words=False).replace("\0", " ")
            lines += (re.sub(r"`([^`]+)`", "\x1b[1m\\1\x1b[0m", text) if bold else text).split("\n")
        lines.append("")
    return "\n".join(lines).rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="labs")
    parser.add_argument("--lab", required=True)
    parser.add_argument("--again", action="store_true", help="start over")
    options = parser.parse_args()
    try:
        stem = runner.find_labs(runner.KIT / "labs", options.lab)[0]
        hints = worksheet.hints(worksheet.read(stem))
    except (runner.UsageError, worksheet.WorksheetError) as error:
        print(str(error).replace(f"{runner.KIT}/", ""), file=sys.stderr)
        return 2
    number, name = stem.split("_", 1)
    if not hints:
        print(f"worksheets/{stem}.md has no hints", file=sys.stderr)
        return 2
    kept = shown_so_far()
    seen = [] if options.again else [i for i in kept.get(stem, []) if i < len(hints)]
    index = choose(hints, seen, todos_open(stem, options.dir))
    if index is None:
        print(f"all {len(hints)} hints of lab {number} have been shown; make hint LAB={number} "
              f"AGAIN=1 starts over, make grade LAB={number} says what the figures mean")
        return 0
    print(f"{number} {name}, {hints[index].title}: hint {len(seen) + 1} of {len(hints)}\n")
    print(for_terminal(hints[index].body, sys.stdout.isatty()) + "\n")
    kept[stem] = seen + [index]
    runner.save(SHOWN, json.dumps(kept, indent=1).encode())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped")
    except runner.CannotKeep as error:
        sys.exit(str(error))
    except BrokenPipeError:
        sys.exit(0)
