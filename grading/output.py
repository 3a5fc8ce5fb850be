# SPDX-License-Identifier: MIT
"""Read what a lab printed.

One line a fact:

    measured NAME[key=value] = NUMBER UNIT (median of N, min NUMBER, max NUMBER)
    derived NAME = NUMBER UNIT
    observed NAME = WORD
    unmeasured NAME UNIT

between a header (lab, backend, device) and `finished`. Every other line is commentary.
"""
import math
import re

MAX_BYTES = 4 << 20  # a lab prints a few kilobytes; more is a loop that went wrong
LONGEST = 500        # characters; a lab's lines have a hundred
LARGEST = 1e15       # no unit of ours reaches it: a larger number is a garbled one
UNITS = {"ns", "us", "ms", "s", "x", "%", "count", "cycles", "MHz", "GB/s"}

NAME = r"[a-z][a-z0-9_]*"
# Whatever the text, there is one way to match it, or a long one would be tried for hours.
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|NaN|NAN|inf|INF)"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]*\x07")
VALUE = re.compile(
    rf"(?P<kind>measured|derived) (?P<name>{NAME})(?:\[(?P<key>{NAME})=(?P<at>{NUMBER})\])? = "
    rf"(?P<value>{NUMBER}) (?P<unit>\S+)"
    rf"(?: \(median of (?P<count>\d+), (?:quartiles (?P<q1>{NUMBER}) (?P<q3>{NUMBER}), )?"
    rf"min (?P<min>{NUMBER}), max (?P<max>{NUMBER})\))?")
OBSERVED = re.compile(rf"observed (?P<name>{NAME}) = (?P<word>\S+)")
UNMEASURED = re.compile(rf"unmeasured (?P<name>{NAME})(?:\[(?P<key>{NAME})=(?P<at>{NUMBER})\])? "
                        r"(?P<unit>\S+)")
LAB = re.compile(r"(?P<kind>lab|finished|skipped) (?P<number>\d\d) (?P<name>[A-Za-z]\w*)(?P<rest>.*)")
DEVICE = re.compile(r"device (?P<name>.+), sm_(?P<sm>\d+), (?P<sms>\d+) SMs, (?P<mhz>\d+) MHz, "
                    r"driver (?P<driver>[\d.]+), runtime (?P<runtime>[\d.]+)")
RESERVED = ("lab ", "backend ", "device ", "measured ", "observed ", "derived ", "unmeasured ",
            "finished ", "skipped ")


class OutputError(Exception):
    """Output that cannot be graded: the text says file, line, what, and what to do.

    `kind` is unreadable (no such file, binary), truncated, or malformed.
    """

    def __init__(self, kind, where, text):
        super().__init__(f"{where}: {text}")
        self.kind = kind


class Value:
    """A number with its spread: low and high are the quartiles, or the extremes of a few."""

    def __init__(self, value, unit, low=None, high=None, count=1, derived=False):
        self.value, self.unit, self.count, self.derived = value, unit, count, derived
        self.low = value if low is None else low
        self.high = value if high is None else high


class Output:
    """All that one run of one lab printed."""

    def __init__(self):
        self.number = self.name = self.backend = self.device = self.skipped = None
        self.device_mhz = self.device_sms = self.seconds = None
        self.values = {}      # name -> Value
        self.series = {}      # name -> {parameter: Value}, in the order printed
        self.words = {}       # name -> str
        self.unmeasured = {}  # name -> line number; a series' name stands for any of its points
        self.warnings, self.notes = [], []

    @property
    def stem(self):
        return f"{self.number}_{self.name}"


def decode(data, where):
    """Text of a file's bytes, and notes on what had to be undone. Raises OutputError."""
    notes = []
    if not data.strip(b"\0 \t\r\n"):
        raise OutputError("unreadable", where, "is empty: did the program run? Run it again")
    if len(data) > MAX_BYTES:
        raise OutputError("unreadable", where, f"is {len(data) >> 20} MB: no lab prints that "
                          "much; is this the lab's output?")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        notes.append(f"{where}:1: UTF-16 text, as a redirect in PowerShell makes it; read as such")
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise OutputError("unreadable", f"{where}:{line}", "is not text: hand in what the program "
                          "printed, not the program") from None
    if "\0" in text:
        line = text[:text.index("\0")].count("\n") + 1
        raise OutputError("unreadable", f"{where}:{line}", "holds binary data: hand in what the "
                          "program printed, not the program")
    if "\r\n" in text:
        notes.append(f"{where}:1: Windows line ends; read as such")
        text = text.replace("\r\n", "\n")
    coloured = ANSI.search(text)
    if coloured:
        line = text[:coloured.start()].count("\n") + 1
        notes.append(f"{where}:{line}: terminal colour codes; ignored")
        text = ANSI.sub("", text)
    return text, notes


def number(text, at):
    value = float(text)
    if math.isnan(value) or math.isinf(value):
        raise OutputError("malformed", at, f"'{text}' is no measurement: a division by zero? A "
                          "figure not taken yet is NAN and prints 'unmeasured'")
    if abs(value) > LARGEST:
        raise OutputError("malformed", at, f"{text} is larger than anything a lab can measure: "
                          "an uninitialised variable?")
    return value


def load(path):
    """A file's bytes, and no more than tells that it is too large. Raises OutputError."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise OutputError("unreadable", path, f"{error.strerror}: run the lab first (make run)") from None


def read(path):
    """The Output in a file. Raises OutputError."""
    return parse(load(path), str(path))


def parse(data, where):
    """The Output in bytes; `where` is the file's name in messages. Raises OutputError."""
    text, notes = decode(data, where)
    out, finished_at = Output(), None
    out.notes = notes
    lines = text.split("\n")
    last = lines.pop().rstrip()  # what stands after the last line end: whole only if it says so
    if LAB.fullmatch(last):
        lines.append(last)
    for line_number, line in enumerate(lines, 1):
        at, line = f"{where}:{line_number}", line.rstrip()
        if line.startswith("warning "):
            out.warnings.append(line[len("warning "):])
        if not line.startswith(RESERVED):
            continue
        if len(line) > LONGEST:
            raise OutputError("malformed", at, f"is longer than any line that a lab prints: "
                              f"'{line[:60]}...'; print it with the functions of common/print.h")
        if finished_at and line.startswith("lab "):
            raise OutputError("malformed", at, "a second run begins here: hand in one run a file")
        if finished_at:
            raise OutputError("malformed", at, f"stands after 'finished' of line {finished_at}")
        head = LAB.fullmatch(line)
        if head and head["kind"] == "skipped":
            out.number, out.name, out.skipped = head["number"], head["name"], head["rest"].strip(": ")
            return out
        if head and head["kind"] == "lab":
            if out.number:
                raise OutputError("malformed", at, "a second run begins before the first has "
                                  "finished: hand in one run a file")
            out.number, out.name = head["number"], head["name"]
        elif not out.number:
            raise OutputError("malformed", at, f"'{line.split()[0]}' comes before the line 'lab "
                              "NN name': was the start cut off?")
        elif head:
            if (head["number"], head["name"]) != (out.number, out.name):
                raise OutputError("malformed", at, f"finishes {head['number']} {head['name']}, "
                                  f"but {out.number} {out.name} was begun")
            seconds = re.fullmatch(rf" after ({NUMBER}) s", head["rest"])
            out.seconds = number(seconds[1], at) if seconds else None
            finished_at = line_number
        else:
            fact(out, line, at)
    if not out.number:
        raise OutputError("malformed", where + ":1", "no line 'lab NN name': this is not a lab's "
                          "output")
    if not finished_at:
        raise OutputError("truncated", f"{where}:{text.rstrip().count(chr(10)) + 1}", "ends "
                          "without 'finished': the program was stopped or failed, so nothing in "
                          "it counts; run it again and look for an error message")
    if not out.backend or not out.device:
        raise OutputError("malformed", where + ":1", "has no 'backend' or no 'device' line: keep "
                          "lab_begin as the lab's first call")
    return out


def fact(out, line, at):
    """Add one line's fact to out."""
    value, word, unmeasured = VALUE.fullmatch(line), OBSERVED.fullmatch(line), UNMEASURED.fullmatch(line)
    found = value or word or unmeasured
    if line.startswith("backend "):
        if line[8:] not in ("hardware", "simulated"):
            raise OutputError("malformed", at, f"backend is hardware or simulated, not '{line[8:]}'")
        if out.backend:
            raise OutputError("malformed", at, "a second 'backend' line")
        out.backend = line[8:]
        return
    if line.startswith("device "):
        device = DEVICE.fullmatch(line)
        if not device or out.device:
            raise OutputError("malformed", at, "a 'device' line reads: device NAME, sm_NN, N SMs, "
                              "N MHz, driver N, runtime N; and there is one")
        out.device, out.device_sms = device["name"], number(device["sms"], at)
        out.device_mhz = number(device["mhz"], at)
        return
    if not found:
        raise OutputError("malformed", at, f"cannot be read: '{line[:60]}'; print it with the "
                          "functions of common/print.h")
    name = found["name"]
    point = number(found["at"], at) if not word and found["at"] else None
    taken = (name in out.words or name in out.values or
             (name in out.series and (point is None or point in out.series[name])))
    if taken:
        raise OutputError("malformed", at, f"{name} is printed a second time")
    if not word and not (found["unit"] in UNITS or unmeasured and found["unit"] == "word"):
        raise OutputError("malformed", at, f"'{found['unit']}' is no unit; units are: "
                          + " ".join(sorted(UNITS)))
    if word:
        out.words[name] = word["word"]
    elif unmeasured:
        out.unmeasured[name] = int(at.rsplit(":", 1)[1])
    else:
        entry = Value(number(value["value"], at), value["unit"], derived=value["kind"] == "derived")
        if value["count"]:
            few = value["q1"] is None
            entry.low = number(value["min" if few else "q1"], at)
            entry.high = number(value["max" if few else "q3"], at)
            entry.count = int(number(value["count"], at))
            lowest, highest = number(value["min"], at), number(value["max"], at)
            if not lowest <= entry.low <= entry.value <= entry.high <= highest:
                raise OutputError("malformed", at, "the median is outside its own spread: was "
                                  "the line edited?")
        if point is None:
            out.values[name] = entry
        else:
            out.series.setdefault(name, {})[point] = entry
