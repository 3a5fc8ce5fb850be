#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns a .cu file into C++ for the simulated device.

    rewrite.py labs/01_nullKernelAsync.cu > build/sim/labs/01_nullKernelAsync.cpp

Only these change, and no line moves:
  Kernel<<<grid, block>>>(x)       SIM_LAUNCH("Kernel", (Kernel), grid, block)(x)
  extern __shared__ T name[];      static T *const name = (T *)sim_dynamic_shared;
  __shared__ T name[N];            the same, and sim_static_shared(sizeof name);
  asm("mov.u64 %0, %%clock64;" : "=l"(t))      t = clock64(), likewise %globaltimer, %smid
A `//` comment with `unordered on purpose`, on a launch's or copy's line or above it, keeps the
device from reporting it. Comments, strings and raw strings are left alone.
"""

import re
import sys

SKIP = re.compile(r'''//[^\n]*(?:\\\n[^\n]*)*      # comments
                    | /\*.*?\*/
                    | R"(?P<raw>[^(\s\\]{0,16})\(.*?\)(?P=raw)"
                    | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'   # but not 1'000
                    | "(?:\\.|[^"\\\n])*"''', re.S | re.X)
REGISTERS = {"globaltimer": "sim_globaltimer()", "clock64": "clock64()", "clock": "clock()",
             "smid": "sim_smid()"}
ASM = re.compile(r'asm\s*(?:volatile|__volatile__)?\s*\('
                 r'\s*"\s*mov\.[bsu](?:32|64)\s+%0\s*,\s*'
                 r'%%?(\w+)\s*;\s*"\s*:\s*"=[lr]"\s*\(([^()]*(?:\([^()]*\))*[^()]*)\)\s*'
                 r'(?:::\s*"memory"\s*)?\)')
SHARED = re.compile(r'extern\s+__shared__\s+((?:\w+\s+)*?\w+(?:\s*::\s*\w+)*)\s+'
                    r'(\w+)\s*\[\s*\]\s*;')
STATIC_SHARED = re.compile(r'(?<!extern )(?<!extern\t)__shared__\s+[^;=(){}]*?(\w+)\s*'
                           r'(?:\[[^;{}]*\])*\s*;')
CLOSERS = {")": "(", "]": "[", "}": "{", ">": "<"}


class RewriteError(Exception):
    """A launch that cannot be understood; the text says where."""


def mask(source):
    """The source with comments and literals blanked out: same length, same lines."""
    return SKIP.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def kernel_start(masked, at):
    """Where the kernel's name begins whose launch has its `<<<` at `at`."""
    i = at
    depth = []
    while i > 0:
        c = masked[i - 1]
        if c in CLOSERS and (depth or c in ")>" and masked[i:at].strip() == ""):
            depth.append(CLOSERS[c])
        elif depth:
            if c == depth[-1]:
                depth.pop()
        elif c.isalnum() or c in "_:" or masked[i:at].strip() == "" and c.isspace():
            pass
        elif c.isspace() and masked[i:].lstrip()[:1] in ("<", "("):
            pass  # between a name and its template arguments
        elif c == "\\" and masked[i:i + 1] == "\n" and masked[i:at].strip() == "":
            pass
        else:
            break
        # A word before the name, as in `else Kernel<<<`, does not belong to it.
        if not depth and c.isspace() and re.match(r"\s*[A-Za-z_(]", masked[i:at]):
            break
        i -= 1
    return i + len(masked[i:at]) - len(masked[i:at].lstrip())


def config_end(masked, start):
    """The place of the `>>>` that ends the launch configuration that begins at `start`."""
    depth = 0
    for i in range(start, len(masked)):
        c = masked[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth < 0:
                return -1
        elif depth == 0 and c == ";":
            return -1
        elif depth == 0 and masked.startswith(">>>", i):
            return i
    return -1


def launches(source):
    """The source with every launch turned into a call."""
    masked = mask(source)
    out, done, at = [], 0, masked.find("<<<")
    while at >= 0:
        line = masked.count("\n", 0, at) + 1
        start, end = kernel_start(masked, at), config_end(masked, at + 3)
        kernel = source[start:at].strip()
        if not kernel or end < 0:
            raise RewriteError(f"{line}: cannot read this launch: "
                               "expected kernel<<<grid, block>>>(arguments)")
        name = re.sub(r"\s+", " ", kernel).replace("\\", "").replace('"', "")
        out += [source[done:start], f'SIM_LAUNCH("{name}", (', source[start:at], "), ",
                source[at + 3:end], ")"]
        done = end + 3
        at = masked.find("<<<", done)
    return "".join(out) + source[done:]


def replace_code(pattern, replacement, source):
    """Substitutes where the match does not begin inside a comment or a literal."""
    masked = mask(source)

    def one(match):
        if masked[match.start()] != source[match.start()]:
            return match.group()
        new = replacement(match)
        return new + "\n" * (match.group().count("\n") - new.count("\n"))
    return pattern.sub(one, source)


def register_read(match):
    if match.group(1) not in REGISTERS:
        return f'sim_does_not_model_register_{match.group(1)}()'
    return f"{match.group(2)} = {REGISTERS[match.group(1)]}"


def purpose_lines(source):
    """The lines of each statement that a comment says is unordered on purpose."""
    lines, code, open_ended = [], mask(source).split("\n"), False
    for number, line in enumerate(source.split("\n"), 1):
        open_ended |= bool(re.search(r"//.*[Uu]nordered on purpose", line))
        if open_ended:
            lines.append(number)
            open_ended = ";" not in code[number - 1]
    return lines


def rewrite(source, path):
    """The whole translation of one file; `path` is what messages will call it."""
    text = replace_code(ASM, register_read, source)
    text = replace_code(SHARED, lambda m: f"static {m.group(1)} *const {m.group(2)} = "
                                          f"({m.group(1)} *)sim_dynamic_shared;", text)
    text = replace_code(STATIC_SHARED, lambda m: f"{m.group()} sim_static_shared("
                                                 f"sizeof {m.group(1)});", text)
    text = launches(text)
    head = []
    lines = purpose_lines(source)
    if lines:
        head += ['extern "C" void sim_unordered_on_purpose(const char *, const int *);',
                 "static const int sim_purpose_lines[] = {"
                 + ", ".join(map(str, lines)) + ", 0};",
                 "static const bool sim_purpose = (sim_unordered_on_purpose("
                 f'"{path}", sim_purpose_lines), true);']
    return "\n".join(head + [f'#line 1 "{path}"', text])


def main():
    if len(sys.argv) != 2:
        sys.stderr.write("usage: rewrite.py FILE.cu > FILE.cpp\n")
        return 2
    path = sys.argv[1]
    try:
        with open(path, encoding="utf-8") as file:
            sys.stdout.write(rewrite(file.read(), path))
    except OSError as error:
        sys.stderr.write(f"rewrite.py: {path}: {error.strerror}\n")
        return 2
    except RewriteError as error:
        sys.stderr.write(f"{path}:{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
