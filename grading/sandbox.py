# SPDX-License-Identifier: MIT
"""Run what students hand in so that it can harm nobody: in bubblewrap.

It sees /usr, the CUDA Toolkit, the GPU's device files, an empty /tmp, and the folders it is
given; no network, no other process, nothing of /etc, /home or another submission. Limits on
time and output are runner.py's; here are those on memory, processes and files, looked after
by watching, because the limits that a process inherits cannot express them: CUDA reserves
more address space than the machine has memory, and a count of processes is a user's, not a
program's.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

NOBODY = 65534
INSIDE = "/kit"  # where the kit stands in the sandbox
MB = 1 << 20


class NoSandbox(Exception):
    """There is no sandbox on this machine; the text says why and what to do."""


class Limits:
    """Of one run in the sandbox; memory, file and address_space in bytes."""

    def __init__(self, memory, processes, file, address_space=None):
        self.memory, self.processes, self.file = memory, processes, file
        self.address_space = address_space


def some_memory():
    """4 GB, or half of what a small machine has."""
    return min(4096 * MB, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


# A lab needs some hundred MB at most and one process, or two. Compilers start half a dozen.
PROGRAM = Limits(memory=some_memory(), processes=32, file=64 * MB)
COMPILER = Limits(memory=some_memory(), processes=64, file=256 * MB, address_space=8192 * MB)

# From outside to inside, these variables pass and no other.
KEPT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SIM_DEVICES")


def version_of(bwrap):
    said = subprocess.run([bwrap, "--version"], stdin=subprocess.DEVNULL, capture_output=True)
    found = re.search(r"(\d+)\.(\d+)", said.stdout.decode(errors="replace"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def system_folders():
    """bubblewrap's arguments for the system's programs and libraries, and nothing else of it."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for path in ("/etc/alternatives", "/etc/ld.so.cache", "/sys/devices/system/cpu",
                 "/sys/devices/system/node", "/sys/bus/pci", *map(str, Path("/sys/devices").glob("pci*"))):
        arguments += ["--ro-bind-try", path, path]
    return arguments


def gpu_devices():
    """The device files of NVIDIA's driver, and WSL2's."""
    found = [*sorted(Path("/dev").glob("nvidia*")), Path("/dev/dxg")]
    return [part for path in found for part in ("--dev-bind-try", str(path), str(path))]


class Sandbox:
    """One way of running commands. The folders are bound where the kit has them: a list of
    (folder outside, path inside, writable). `extra` are more folders to see, read-only."""

    sort = "bubblewrap"

    def __init__(self, folders=(), limits=PROGRAM, gpu=False, extra=(), cwd=INSIDE, user=None):
        self.limits, self.processes = limits, {}
        self.user = user
        self.bwrap = shutil.which("bwrap")
        if not self.bwrap:
            raise NoSandbox("bubblewrap is not installed (apt-get install bubblewrap)")
        small = ["--size", str(256 * MB)] if version_of_once(self.bwrap) >= (0, 7) else []
        self.arguments = ["--unshare-all", "--uid", str(NOBODY), "--gid", str(NOBODY),
                          "--die-with-parent", "--new-session", "--cap-drop", "ALL",
                          *system_folders()]
        for path in extra:
            self.arguments += ["--ro-bind", str(path), str(path)]
        self.arguments += ["--proc", "/proc", "--dev", "/dev", *(gpu_devices() if gpu else []),
                           *small, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
                           *small, "--tmpfs", "/tmp", "--dir", cwd]
        for outside, inside, writable in folders:
            self.arguments += ["--bind" if writable else "--ro-bind", str(outside), inside]
        self.arguments += ["--remount-ro", "/", "--chdir", cwd]
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
                            **{k: os.environ[k] for k in KEPT if k in os.environ}}

    def start(self, command):
        """For runner.run_command: the command, confined, and its limits set before it begins."""
        limits = [f"--fsize={self.limits.file}", "--core=0", "--nofile=1024"]
        if self.user is not None or os.getuid() != 0:
            # Counted in the sandbox alone since Linux 5.14; before, with all that the user runs.
            if kernel() >= (5, 14):
                limits.append(f"--nproc={8 * self.limits.processes}")
        if self.limits.address_space:
            limits.append(f"--as={self.limits.address_space}")
        reads, writes = os.pipe()
        as_user = {} if self.user is None else {"user": self.user, "group": self.user,
                                                "extra_groups": []}
        try:
            child = subprocess.Popen(
                [self.bwrap, *self.arguments, "--json-status-fd", str(writes), "--",
                 "/usr/bin/prlimit", *limits, "--", *command],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, cwd="/", env=self.environment, pass_fds=(writes,), **as_user)
        finally:
            os.close(writes)
        self.processes[child.pid] = reads
        self.files_at_start = files_in_memory()
        return child

    def trouble(self, child):
        """Why it must be stopped now, or nothing. Counts every process that it has started."""
        found = tree(child.pid, self.limits.processes + 8)
        if len(found) - 3 > self.limits.processes:  # bwrap outside, bwrap inside, the program
            return self._stop(found, f"it started over {self.limits.processes} processes")
        used = sum(map(resident, found)) + max(0, files_in_memory() - self.files_at_start)
        if used > self.limits.memory:
            return self._stop(found, f"it used over {self.limits.memory / (1 << 30):.2g} GB of memory")
        return ""

    def _stop(self, found, why):
        for pid in found[1:2]:  # the sandbox's first process: with it the kernel ends all others
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return f"was stopped: {why}"

    def exit_code(self, child, code):
        """The program's own. Raises NoSandbox where bubblewrap failed and nothing was run."""
        reads = self.processes.pop(child.pid)
        with os.fdopen(reads, "rb") as file:
            status = file.read().decode(errors="replace")
        if code > 0 and '"exit-code"' not in status:
            raise NoSandbox("bubblewrap cannot make a sandbox here")
        return 128 - code if code > 128 else code


def version_of_once(bwrap, known={}):
    if bwrap not in known:
        known[bwrap] = version_of(bwrap)
    return known[bwrap]


def kernel():
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def tree(pid, most):
    """pid and its descendants, the oldest first; stops after `most` of them."""
    found = [pid]
    for one in found:
        if len(found) > most:
            break
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{one}/task/{task}/children") as file:
                    found += map(int, file.read().split())
    return found


def resident(pid):
    """Bytes of memory that a process holds now; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def files_in_memory():
    """Bytes of files that live in memory (/tmp of a sandbox, memfd), of the whole machine."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("Shmem:"):
                return int(line.split()[1]) << 10
    return 0


def check(runner):
    """The user to run as: None for the one who grades, NOBODY where root grades and can become
    another. Raises NoSandbox, with the reason, where a sandbox cannot be made."""
    last = ""
    for user in ([NOBODY, None] if os.getuid() == 0 else [None]):
        try:
            run = runner.run_command(["/usr/bin/true"], time_limit=20, box=Sandbox(cwd="/tmp", user=user))
        except NoSandbox as error:
            last = str(error)
            if "installed" in last:
                raise
        except (OSError, subprocess.SubprocessError) as error:
            last = str(error)
        else:
            if not run.problem:
                return user
            last = run.problem
    raise NoSandbox(f"{last}: user namespaces may be switched off (kernel.unprivileged_userns_clone, "
                    "kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces), as in "
                    "most containers")
