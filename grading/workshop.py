# SPDX-License-Identifier: MIT
"""Build and run what students hand in, over a pristine kit, in the sandbox or (unsafe) without.

A workshop is a folder with a copy of the Makefile and common/; each student has a place in it,
removed when it is done with.
"""
import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import gpu
import runner
import sandbox

LOG_KEPT = 20000    # bytes of a compiler's messages
FREE_NEEDED = 200 << 20  # bytes: below, the disk and not the student is at fault


class Infrastructure(Exception):
    """This machine, not the student, is at fault. The text is one line."""


class Place:
    """Where one student's labs are built: sources in, programs out."""

    def __init__(self, folder):
        self.folder, self.source, self.built = folder, folder / "labs", folder / "built"


class Workshop:
    """sort is bubblewrap or unsafe; where none can be made, `missing` says why.

    On a cluster two machines share the work by way of a folder of builds, `shelf`: with the part
    "build" this one needs no GPU and fills it, with "run" it needs no compiler and takes from it.
    The part "" does both, and needs no shelf."""

    def __init__(self, out, backend, unsafe=False, time_limit=runner.TIME_LIMIT, extra=(), part="",
                 arch="", shelf=None, version=""):
        self.backend, self.unsafe, self.time_limit = backend, unsafe, time_limit
        self.extra, self.way = [str(path) for path in extra], "self"
        self.devices, self.device, self.nvcc, self.sort = [], "", "", "unsafe"
        self.part, self.arch, self.shelf, self.version = part, arch, shelf, version
        self.folder = folder_for(out)
        self.kit = self.folder / "kit"

    def look(self):
        """What there is to build and run with. Raises Infrastructure."""
        try:
            if not self.unsafe:
                self.sort, self.way = sandbox.Sandbox.sort, sandbox.ways()[0]
            if self.backend == "cuda" and self.part != "build":
                self._find_gpu()
            if self.backend == "cuda" and self.part != "run":
                self._find_compiler()
        except sandbox.NoSandbox as error:
            raise Infrastructure(
                f"no sandbox: {error}. Programs of others are not run without one, unless you say "
                "--unsafe") from None

    def open(self):
        """Lay out the pristine kit. Raises Infrastructure."""
        try:
            self._copy_kit()
        except OSError as error:
            raise Infrastructure(f"{error.filename or self.folder}: {error.strerror}") from None

    def _find_gpu(self):
        self.devices, why = gpu.visible_devices()
        if not self.devices:
            raise Infrastructure(f"no GPU: {why}")
        self.device = ", ".join(d["name"] for d in self.devices) + " " + driver_version()
        self.arch = self.arch or gpu.architecture()

    def _find_compiler(self):
        self.nvcc = gpu.find_nvcc()
        if not self.nvcc:
            raise Infrastructure("no nvcc: install the CUDA Toolkit, or say NVCC=/path/to/nvcc")
        toolkit = str(Path(os.path.realpath(self.nvcc)).parent.parent)
        self.extra += [path for path in (toolkit,) if not path.startswith("/usr/")]

    def _copy_kit(self):
        if self.part == "run":  # beside other students of the class on the same node
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}."))
            self.kit = self.folder / "kit"
        with contextlib.suppress(FileNotFoundError):
            if self.folder.lstat().st_uid == os.getuid() and not self.folder.is_symlink():
                shutil.rmtree(self.folder)  # left over by a run that was killed
        try:
            self.folder.mkdir(mode=0o711)
        except FileExistsError:
            self.folder = Path(tempfile.mkdtemp(prefix="labs-class."))
            self.kit = self.folder / "kit"
        self.folder.chmod(0o711)
        (self.folder / "places").mkdir()
        shutil.copytree(runner.KIT / "common", self.kit / "common")
        shutil.copy2(runner.KIT / "Makefile", self.kit)
        (self.kit / "labs").mkdir()
        (self.kit / "build" / self.backend / "labs").mkdir(parents=True)
        if self.backend == "sim" and self.part != "run":
            self._build_engine()
        for path in [self.kit, *self.kit.rglob("*")]:  # readable for nobody, whatever the umask
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))

    def _build_engine(self):
        """The simulated device, once for all; what is built in this kit already is taken."""
        built = runner.KIT / "build" / "sim" / "engine"
        if built.is_dir():
            shutil.copytree(built, self.kit / "build" / "sim" / "engine")
        objects = [f"build/sim/engine/{p.stem}.o" for p in (self.kit / "common/sim").glob("*.c")]
        made = subprocess.run(["make", "-s", f"-j{os.cpu_count() or 1}", "BACKEND=sim", *objects],
                              cwd=self.kit, stdin=subprocess.DEVNULL, capture_output=True)
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise Infrastructure(f"the simulated device cannot be built: {said[0]}")

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- one student ----

    @contextlib.contextmanager
    def place(self, name, sources):
        """A Place with these sources: stem -> bytes."""
        place = Place(self.folder / "places" / name)
        shutil.rmtree(place.folder, ignore_errors=True)
        place.source.mkdir(parents=True)
        if self.unsafe:  # without a sandbox nothing is bound beside the sources
            (place.folder / "common").symlink_to(self.kit / "common")
        place.built.mkdir()
        for folder in (place.folder, place.source, place.built):
            folder.chmod(0o755)
        if self.way != "self":
            os.chown(place.built, sandbox.NOBODY, sandbox.NOBODY)
        for stem, data in sources.items():
            path = place.source / f"{stem}.cu"
            path.write_bytes(data)
            path.chmod(0o644)
        try:
            yield place
        finally:
            shutil.rmtree(place.folder, ignore_errors=True)

    def build(self, place, stem):
        """(why it did not build, or nothing; what the compiler said)."""
        if not self.shelf:
            return self._build(place, stem)
        source = (place.source / f"{stem}.cu").read_bytes()
        name = hashlib.sha256(repr((stem, source, self.version, self.backend, self.arch, self.unsafe,
                                    self.time_limit)).encode()).hexdigest()[:24]
        kept = self.shelf / f"{name}.zip"
        built = self._take(kept, place)
        if built:
            return built
        if self.part == "run":
            raise Infrastructure(f"{stem} is not built: it or the kit changed after the job was "
                                 "submitted; the same command builds and submits it again")
        built = self._build(place, stem)
        self._keep(kept, place, stem, built)
        return built

    def _keep(self, kept, place, stem, built):
        """On the shelf, whole or not at all; packed, as a program of CUDA is a megabyte."""
        part = kept.with_name(runner.part_of(kept))
        kept.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("why", built[0])
            archive.writestr("said", built[1])
            for path in (self._programs(place) / stem, self._programs(place) / f"{stem}.debug"):
                if path.is_file() and not path.is_symlink():  # a student's compiler made it
                    archive.write(path, path.name)
        os.replace(part, kept)

    def _take(self, kept, place):
        """What build returned then, its programs in place; None where it is not there, whole."""
        try:
            with zipfile.ZipFile(kept) as archive:
                self._programs(place).mkdir(parents=True, exist_ok=True)
                for name in archive.namelist()[2:]:
                    path = self._programs(place) / name
                    path.write_bytes(archive.read(name))  # which compares the checksum
                    path.chmod(0o755)
                return archive.read("why").decode(), archive.read("said").decode()
        except (FileNotFoundError, zipfile.BadZipFile, EOFError):
            return None

    def _programs(self, place):
        """Where make leaves them, seen from outside."""
        return self.kit / "build" / self.backend / self._name(place) if self.unsafe else place.built

    def _build(self, place, stem):
        folders = [(self.kit, sandbox.INSIDE, False), (place.source, f"{sandbox.INSIDE}/labs", False),
                   (place.built, self._inside(), True)]
        command = ["make", "-s", "build", f"DIR={place.source if self.unsafe else 'labs'}",
                   f"LAB={stem[:2]}", f"BACKEND={self.backend}"]
        if self.backend == "cuda":
            command += [f"NVCC={self.nvcc}"] + ([f"ARCH={self.arch}"] if self.arch else [])
        run = self._run(command, folders, sandbox.COMPILER, gpu=False, time_limit=self.time_limit)
        said = run.err[:LOG_KEPT].decode(errors="replace").replace(str(place.source), "labs")
        if run.problem.startswith("was stopped"):
            return f"the compiler {run.problem.replace(': does a loop never end?', '')}", said
        if run.code:
            lines = [line.strip() for line in said.splitlines()]
            first = next((line for line in lines if re.search(r"\berror\b|fatal|SIGXFSZ|memory", line)),
                         lines[0] if lines else "the compiler gave no message")
            self.disk_left()
            return first[:300], said
        return "", said

    def run(self, place, stem):
        """A runner.Run of one program that build made, alone on the GPU."""
        if not self.unsafe:
            program = f"{self._inside()}/{stem}"
        else:
            program = str(self._programs(place) / stem)
        with self._alone(stem):
            return self._run([program], [(place.built, self._inside(), False)], sandbox.PROGRAM,
                             gpu=self.backend == "cuda", time_limit=self.time_limit)

    def _inside(self):
        return f"{sandbox.INSIDE}/build/{self.backend}/labs"

    def _name(self, place):
        """How the Makefile calls a folder of labs outside the kit."""
        return str(place.source.resolve()).strip("/").replace("/", "_")

    def _run(self, command, folders, limits, gpu, time_limit):
        if self.unsafe:
            box = Bare(self.kit)
        else:
            box = sandbox.Sandbox(folders, limits, gpu, self.extra, way=self.way)
        try:
            return runner.run_command(command, time_limit=time_limit, box=box)
        except sandbox.Disturbed as error:
            raise Infrastructure(str(error)) from None
        except (OSError, sandbox.NoSandbox) as error:
            raise Infrastructure(f"{command[0]} could not be started: {error}") from None

    @contextlib.contextmanager
    def _alone(self, stem):
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(runner.alone(self.devices, stem))
            except SystemExit as error:  # from gpu.locked
                raise Infrastructure(str(error)) from None
            yield

    def disk_left(self):
        """Raises Infrastructure where the disk is as good as full."""
        free = os.statvfs(self.folder)
        if free.f_bavail * free.f_frsize < FREE_NEEDED or (free.f_files and not free.f_favail):
            raise Infrastructure(f"{self.folder}: the disk is full")


class Bare(runner.Plain):
    """No sandbox: --unsafe."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, command):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True, cwd=self.folder,
                                env={k: v for k, v in os.environ.items()
                                     if not k.startswith(("MAKE", "MFLAGS"))})


def folder_for(out):
    """One of its own for each class and user, in the place for such folders: not below OUT,
    which the sandbox's user may not be able to reach."""
    tail = hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"labs-class.{os.getuid()}.{tail}"


@functools.lru_cache(maxsize=1)
def driver_version():
    with contextlib.suppress(OSError), open("/proc/driver/nvidia/version") as file:
        found = re.search(r"\d+\.\d+[\d.]*", file.readline())
        return found[0] if found else ""
    return ""
