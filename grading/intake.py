# SPDX-License-Identifier: MIT
"""Take from what students handed in the files that are graded, and nothing else.

A class is a folder, or one zip, with a folder or a zip for each student, as course systems
export it; Canvas' flat files (name_1234_5678_01_lab.cu) are put together by student. Taken are
NN_name.cu, NN_name.md and NN_name.txt of the labs there are. Nothing is unpacked onto the disk
and no link is followed; whatever is refused is named with the reason.
"""
import contextlib
import hashlib
import io
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from pathlib import Path

SIZES = {".cu": 1 << 20, ".md": 1 << 20, ".txt": 4 << 20}  # bytes; a lab is a few thousand
ZIP_SIZE = 100 << 20      # of a student's zip
DIRECTORY_SIZE = 8 << 20  # of a zip's own list of its files: some fifty thousand
MEMBERS = 20000           # files of one student that are looked at
RATIO, RATIO_FROM = 200, 1 << 20  # text packs ten times smaller, not two hundred
NAMED = 20                # refused files that are named; the rest is counted
DEPTH = 8
# Folders that hold what the kit brings along or others made, in a copy of the kit.
OTHERS = {"solutions", "recorded", "common", "grading", "tests", "build", "__MACOSX"}

LAB_FILE = re.compile(r"(?P<stem>\d\d_\w+?)(?:-(?P<again>\d{1,3})| ?\((?P<copy>\d{1,3})\))?"
                      r"(?P<kind>\.(?:cu|md|txt))", re.I | re.A)
ALMOST = re.compile(r"\D{0,12}?0?(?P<number>\d{1,2})(?!\d).*\.(?:cu|cpp|c|cc|md|txt|log|out|docx?|rtf|pdf)",
                    re.I | re.A | re.S)
CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<user>\d+)_(?P<upload>\d+)_(?P<file>.+)", re.S)
MOODLE = re.compile(r"(?P<name>.+)_(?P<user>\d+)_assignsubmission_(?:file|onlinetext)_?", re.S)


class IntakeError(Exception):
    """A mistake in the call: the text is one line."""


class Unreadable(Exception):
    """A student's zip that cannot be opened; the text says why."""


class Item:
    """A file of a submission: where it stands in it, and how to read it."""

    def __init__(self, parts, size, open_it, refused="", packed=None):
        self.parts, self.size, self.open_it = parts, size, open_it
        self.refused, self.packed = refused, packed

    @property
    def path(self):
        return printable("/".join(self.parts))

    def read(self, most):
        """At most so many bytes, and one more if there are more, whatever the list said."""
        with self.open_it() as file:
            return file.read(most + 1)


class Submission:
    """What one student handed in.

    files: (stem, kind) -> bytes; refused: stem -> why; notes: on what was not taken.
    """

    def __init__(self, name, hints=()):
        self.name, self.hints = name, list(hints)
        self.files, self.refused, self.notes, self.broken = {}, {}, [], ""

    def stems(self, kind):
        return sorted(stem for stem, its in self.files if its == kind)

    def digest(self):
        """Of all that was taken and refused: what its grade depends on."""
        sum_ = hashlib.sha256()
        for (stem, kind), data in sorted(self.files.items()):
            sum_.update(f"{stem}{kind} {hashlib.sha256(data).hexdigest()}\n".encode())
        for text in [*sorted(map(str, self.refused.items())), *self.notes, self.broken]:
            sum_.update(text.encode(errors="replace") + b"\n")
        return sum_.hexdigest()


class Entry:
    """A student of the class: a name, and how to read what is theirs. `hints` are what else is
    known of who it is: numbers and addresses in the course system."""

    def __init__(self, name, items, hints=()):
        self.name, self.items, self.hints = name, items, list(hints)

    def read(self, stems):
        """The Submission. Raises OSError where this machine, not the student, is at fault."""
        submission = Submission(self.name, self.hints)
        try:
            take(submission, self.items(), stems)
        except Unreadable as error:
            submission.broken = str(error)
        return submission


def printable(text):
    """A name as one line of a message: control characters and broken encodings are shown."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= 120 else text[:117] + "..."


# ---- what a folder or a zip holds ----

def folder_items(folder, parts=()):
    """The files below a folder, each an Item. Links and devices are named, not followed."""
    with os.scandir(folder) as entries:
        entries = sorted(entries, key=lambda e: e.name)
    for entry in entries:
        here = (*parts, entry.name)
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if entry.name in (".git", "__MACOSX"):
                continue
            if len(here) <= DEPTH:
                yield from folder_items(entry.path, here)
            else:
                yield Item(here, 0, None, "lies too deep: hand in the labs in one folder")
        else:
            why = "" if stat.S_ISREG(mode) else what_it_is(mode)
            yield Item(here, entry.stat(follow_symlinks=False).st_size, opener(entry.path), why)


def what_it_is(mode):
    if stat.S_ISLNK(mode):
        return "is a symbolic link, which is not followed: hand in the file itself"
    return "is no plain file but a device, a pipe or a socket"


def opener(path):
    def open_it():
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(0, "is no plain file", path)
        return os.fdopen(fd, "rb")
    return open_it


class Limited(io.BufferedReader):
    """A file of which zipfile cannot read an enormous directory into memory at once."""

    def read(self, size=-1):
        everything = size is None or size < 0  # zipfile looks at the end in this way
        data = super().read(DIRECTORY_SIZE + 1 if everything else min(size, DIRECTORY_SIZE + 1))
        if len(data) > DIRECTORY_SIZE:
            raise zipfile.BadZipFile("its list of files is too long")
        return data

    def __del__(self):
        self.close()  # a class's zip stays open as long as one of its students may be read


def open_zip(file, name):
    """The ZipFile in an open file. Raises Unreadable."""
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, ValueError, EOFError,
            OverflowError, UnicodeError) as error:
        raise Unreadable(f"{printable(name)} cannot be opened as a zip: {error}") from None


def zip_items(archive):
    """The files in a ZipFile, each an Item."""
    for info in archive.infolist():
        # Python shows a name up to its first NUL, and `\` as written: Windows' tools mean `/`.
        name = info.filename.replace("\\", "/")
        if name.endswith("/"):
            continue
        steps, mode = name.split("/"), info.external_attr >> 16
        why = ""
        if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in steps:
            why = "leads out of the zip"
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            why = what_it_is(mode)
        elif info.flag_bits & 1:
            why = "is encrypted: hand in a zip without a password"
        yield Item(tuple(s for s in steps if s not in ("", ".")), info.file_size,
                   lambda info=info: archive.open(info), why, info.compress_size)


def zip_entry_items(open_it, size, name):
    """An Entry's items, of a zip."""
    def items():
        if size > ZIP_SIZE:
            raise Unreadable(f"{printable(name)} is {size >> 20} MB: a class's labs take less than "
                             f"{ZIP_SIZE >> 20}")
        try:
            with open_it() as file:
                data = io.BytesIO(file.read(ZIP_SIZE + 1))
        except Exception as error:  # what the zip around it raises where that is broken
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise Unreadable(f"{printable(name)} cannot be unpacked: {printable(str(error))}") from None
        yield from zip_items(open_zip(Limited(data), name))
    return items


# ---- which of them are taken ----

def take(submission, items, stems):
    by_name = {stem.casefold(): stem for stem in stems}
    found, others, opened, broken, aside = {}, [], 0, "", {}
    queue = [(item, 0) for item in bounded(items)]
    for item, inside in queue:
        name = item.parts[-1] if item.parts else ""
        if "__MACOSX" in item.parts or name.startswith("."):
            continue
        match = LAB_FILE.fullmatch(name)
        stem = by_name.get(match["stem"].casefold()) if match else None
        if set(item.parts[:-1]) & OTHERS:
            if stem and match["kind"].lower() != ".md":
                aside.setdefault(stem, item)
        elif stem:
            found.setdefault((stem, match["kind"].lower()), []).append((item, match))
        elif name.lower().endswith(".zip") and not item.refused:
            if inside or opened >= 3:
                submission.notes.append(f"{item.path} is a zip in a zip: not opened")
            else:
                opened += 1
                inner = zip_entry_items(item.open_it, item.size, item.path)
                try:
                    queue += [(Item((*item.parts[:-1], *i.parts), i.size, i.open_it, i.refused, i.packed), 1)
                              for i in bounded(inner())]
                except Unreadable as error:
                    broken = str(error)
                    submission.notes.append(broken)
        else:
            others.append((item, name))
    if broken and not found:
        raise Unreadable(broken)
    for (stem, kind), candidates in sorted(found.items()):
        choose(submission, stem, kind, candidates)
    for stem, item in sorted(aside.items()):
        if not any((stem, kind) in submission.files for kind in (".cu", ".txt")):
            submission.notes.append(f"{item.path} is not graded: what stands in a folder of that name is "
                                    "the kit's own")
    for item, name in others[:NAMED]:
        submission.notes.append(f"{item.path} {item.refused or 'is not graded'}"
                                + misnamed(name, stems, submission))
    if len(others) > NAMED:
        submission.notes.append(f"{len(others) - NAMED} more files are not graded")


def bounded(items):
    for count, item in enumerate(items):
        if count >= MEMBERS:
            raise Unreadable(f"holds over {MEMBERS} files: hand in the labs alone")
        yield item


def misnamed(name, stems, submission):
    """For a file whose name is nearly a lab's, whose lab is not there."""
    match = ALMOST.fullmatch(name)
    stem = next((s for s in stems if match and int(s[:2]) == int(match["number"])), None)
    if not stem or any((stem, kind) in submission.files for kind in (".cu", ".txt")):
        return ""
    kind = ".md" if name.lower().endswith((".md", ".docx", ".doc", ".rtf", ".pdf")) else (
        ".txt" if name.lower().endswith((".txt", ".log", ".out")) else ".cu")
    return f": if it is lab {stem[:2]}, its name must be {stem}{kind}"


def choose(submission, stem, kind, candidates):
    """Of several files of one name the latest upload in the outermost folder."""
    def rank(candidate):
        item, match = candidate
        return (len(item.parts), -int(match["again"] or match["copy"] or 0), item.parts)
    candidates.sort(key=rank)
    item = candidates[0][0]
    most = SIZES[kind]
    why = item.refused
    bomb = item.packed is not None and item.size > max(RATIO_FROM, RATIO * item.packed)
    if not why and bomb:
        why = (f"unpacks from {item.packed} bytes to {size_text(item.size)}, like a zip bomb: "
               "not unpacked")
    elif not why and item.size > most:
        why = f"is {size_text(item.size)}; no lab's {kind} is over {most >> 20} MB"
    if not why:
        try:
            data = item.read(most)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
            why = f"cannot be unpacked: {error}"
        except Exception as error:  # what a broken deflate, bzip2 or lzma stream raises
            if isinstance(error, OSError) and item.packed is None:
                raise
            why = f"cannot be unpacked: {printable(str(error))}"
        else:
            if len(data) > most:
                why = f"unpacks to more than {most >> 20} MB, more than the zip says: not taken"
            elif kind == ".cu" and b"\0" in data:
                why = "is no text: hand in the source, not the program"
    if why:
        submission.notes.append(f"{item.path} {why}")
        if kind != ".md":
            submission.refused[stem] = f"{item.path} {why}"
        return
    submission.files[stem, kind] = data
    for other, _ in candidates[1:]:
        submission.notes.append(f"{other.path} stands beside {item.path}, which is graded")


def size_text(size):
    return f"{size / (1 << 30):.1f} GB" if size >= 1 << 30 else f"{max(1, size >> 20)} MB"


# ---- a class ----

def discover(path, stems, single=False):
    """(entries, notes): the students of a class, in the order of their names. Raises
    IntakeError where the path cannot be a class."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise IntakeError(f"{path}: {error.strerror}") from None
    if single:
        name = path.resolve().name
        return [Entry(name, one(path, mode))], []
    if stat.S_ISDIR(mode):
        entries, notes = of_folder(path, stems)
    elif zipfile.is_zipfile(path):
        entries, notes = of_zip(path, stems)
    else:
        raise IntakeError(f"{path}: is neither a folder nor a zip with a folder or a zip a student")
    if not entries:
        raise IntakeError(f"{path}: holds no folder and no zip, so no student's work")
    unique_names(entries)
    return sorted(entries, key=lambda e: e.name), notes


def one(path, mode):
    if stat.S_ISDIR(mode):
        return lambda: folder_items(path)
    return zip_entry_items(opener(path), path.stat().st_size, path.name)


def is_lab_file(name, stems):
    match = LAB_FILE.fullmatch(name)
    return bool(match) and match["stem"].casefold() in {s.casefold() for s in stems}


def ignored(name):
    return name.startswith(".") or name in ("__MACOSX", "submission_metadata.yml")


def of_folder(path, stems):
    loose, entries, notes = [], [], []
    who = gradescope_metadata(path / "submission_metadata.yml")
    with os.scandir(path) as found:
        found = sorted(found, key=lambda e: e.name)
    for entry in found:
        if ignored(entry.name):
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            entries.append(named(entry.name, lambda p=entry.path: folder_items(p), who))
        elif stat.S_ISLNK(mode):
            entries.append(Entry(entry.name, refuse(f"{printable(entry.name)} {what_it_is(mode)}")))
        elif stat.S_ISREG(mode):
            size = entry.stat(follow_symlinks=False).st_size
            loose.append(Item((entry.name,), size, opener(entry.path)))
    add_loose(loose, entries, notes, stems, path, who)
    return entries, notes


def of_zip(path, stems):
    archive, loose, groups, notes = None, [], {}, []
    try:
        archive = open_zip(Limited(io.FileIO(path)), path.name)
    except Unreadable as error:
        raise IntakeError(f"{path}: {error}") from None
    items = list(zip_items(archive))
    outer = {item.parts[0] for item in items if len(item.parts) > 1 and not ignored(item.parts[0])}
    flat = [item for item in items if len(item.parts) == 1 and not ignored(item.parts[0])]
    # A zip of one folder, in which the students' are: that folder is only a wrapper.
    if len(outer) == 1 and not flat and not any(
            is_lab_file(item.parts[1], stems) for item in items if len(item.parts) == 2):
        for item in items:
            if len(item.parts) > 1:
                item.parts = item.parts[1:]
    who = {}
    for item in items:  # beside the students' folders: in one it is a student's
        if item.parts == ("submission_metadata.yml",) and not item.refused:
            with contextlib.suppress(OSError, zipfile.BadZipFile, zlib.error):
                who = gradescope_text(item.read(8 << 20))
    for item in items:
        if not item.parts or ignored(item.parts[0]):
            continue
        if len(item.parts) == 1:
            loose.append(item)
        else:
            groups.setdefault(item.parts[0], []).append(item)
    entries = [named(name, lambda group=group: [
        Item(i.parts[1:], i.size, i.open_it, i.refused, i.packed) for i in group], who)
        for name, group in groups.items()]
    add_loose(loose, entries, notes, stems, path, who)
    return entries, notes


def add_loose(loose, entries, notes, stems, path, who):
    """Files that stand beside the students' folders: zips, and those of Canvas' export."""
    together = {}
    for item in loose:
        name = item.parts[0]
        canvas = CANVAS.fullmatch(name)
        if canvas:
            together.setdefault((canvas["name"], canvas["user"]), []).append((item, canvas["file"]))
        elif name.lower().endswith(".zip"):
            items = refuse(f"{item.path} {item.refused}") if item.refused else zip_entry_items(
                item.open_it, item.size, name)
            entries.append(named(name[:-4], items, who))
        elif is_lab_file(name, stems):
            raise IntakeError(f"{path}: holds {printable(name)} itself, so it is one student's work: "
                              "pass the folder that holds the students', or add --single")
        else:
            notes.append(f"{item.path} is neither a folder nor a zip: not graded")
    for (name, user), files in sorted(together.items()):
        entries.append(Entry(f"{name}_{user}", lambda files=files: [
            Item((file,), i.size, i.open_it, i.refused, i.packed) for i, file in files],
            [("canvas", user), ("name", name)]))


def refuse(why):
    def items():
        raise Unreadable(why)
    return items


def named(name, items, who):
    """An Entry, with what the name says of who it is."""
    moodle, hints = MOODLE.fullmatch(name), list(who.get(name, ()))
    if moodle:
        hints += [("participant", moodle["user"]), ("name", moodle["name"])]
    return Entry(name, items, hints)


def gradescope_metadata(path):
    with contextlib.suppress(OSError), opener(path)() as file:
        return gradescope_text(file.read(8 << 20))
    return {}


def gradescope_text(data):
    """submission_1234 -> hints, of the metadata that Gradescope exports beside the folders."""
    who, current = {}, None
    for line in data.decode("utf-8", "replace").splitlines():
        top = re.match(r"(\S+):\s*$", line)
        if top:
            current = who.setdefault(top[1], [])
        found = re.match(r"\s+(?:-\s*)?:(name|sid|email):\s*(.+)$", line)
        if found and current is not None:
            text = found[2].strip().strip("'\"")
            current.append(({"sid": "id"}.get(found[1], found[1]), text))
    return who


def unique_names(entries):
    """Two of one name (a folder and a zip): the later is called after its place, too."""
    def key(name):
        return unicodedata.normalize("NFC", name).casefold()
    seen, all_of_them = set(), {key(entry.name) for entry in entries}
    for entry in entries:
        plain, number = entry.name, 2
        while key(entry.name) in seen:
            name, number = f"{plain} ({number})", number + 1
            if key(name) not in all_of_them:
                entry.name = name
        seen.add(key(entry.name))


def slug(name):
    """A file's name for a student's: the same where it is plain, else told apart by a hash."""
    plain = re.sub(r"[^\w.@+-]+", "_", unicodedata.normalize("NFC", name), flags=re.ASCII).strip("._-")
    if plain == name and len(plain) <= 80 and plain.lower() == plain:
        return plain
    tail = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{plain[:60] or 'student'}-{tail}"
