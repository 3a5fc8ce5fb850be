# SPDX-License-Identifier: MIT
"""Run what students hand in so that it can harm nobody: in bubblewrap.

It sees /usr, the CUDA Toolkit, the GPU's device files, an empty /tmp, the folders it is given,
and what names the machine's parts: of /etc ld.so.cache and alternatives, of /sys processors and
PCI devices. No network, no other process, no more of /etc, nothing of /home or another submission.
Limits on time and output are runner.py's; here are those on memory, processes and files, looked
after by watching: the limits that a process inherits cannot express them, as CUDA reserves more
address space than the machine has memory. A fork bomb is faster than that, so the kernel's own
limit on processes stands behind it.
"""
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import runner

NOBODY = 65534
INSIDE = "/kit"  # where the kit stands in the sandbox
MB = 1 << 20


class NoSandbox(Exception):
    """There is no sandbox on this machine; the text says why and what to do."""


class Disturbed(Exception):
    """A program was stopped for what others may have done; the text says why."""


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


@functools.lru_cache(maxsize=None)
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
    (folder outside, path inside, writable). `extra` are more folders to see, read-only.

    way: how the program becomes somebody who may do nothing, of WAYS:
    self     in a user namespace of whoever grades
    nobody   root becomes nobody, and makes a user namespace
    root     where nobody may not make one: root makes the sandbox, and setpriv drops all rights
    In each the kernel counts its processes, which it does not do for root.
    """

    sort = "bubblewrap"
    poll = runner.POLL

    def __init__(self, folders=(), limits=PROGRAM, gpu=False, extra=(), cwd=INSIDE, way="self"):
        self.limits, self.way, self.status, self.stopped = limits, way, {}, False
        self.bwrap = shutil.which("bwrap")
        if not self.bwrap:
            raise NoSandbox("bubblewrap is not installed (apt-get install bubblewrap)")
        small = ["--size", str(256 * MB)] if version_of(self.bwrap) >= (0, 7) else []
        everybody = ["--perms", "1777"] if way == "root" else []
        self.arguments = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        if way == "root":
            self.arguments += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
            self.arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
            for path in ("/etc", "/sys", "/sys/bus", "/sys/devices", "/sys/devices/system", *parents(
                    [inside for _, inside, _ in folders] + [f"{path}/." for path in (cwd, *extra)])):
                self.arguments += ["--perms", "0755", "--dir", path]
        else:
            self.arguments += ["--unshare-all", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        self.arguments += [*system_folders(), "--proc", "/proc", "--dev", "/dev",
                           *(gpu_devices() if gpu else []),
                           *small, *everybody, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
                           *small, *everybody, "--tmpfs", "/tmp", "--dir", cwd]
        for path in extra:
            self.arguments += ["--ro-bind", str(path), str(path)]
        for outside, inside, writable in folders:
            self.arguments += ["--bind" if writable else "--ro-bind", str(outside), inside]
        self.arguments += ["--remount-ro", "/", "--chdir", cwd]
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
                            **{k: os.environ[k] for k in KEPT if k in os.environ}}

    def start(self, command):
        """For runner.run_command: the command, confined, and its limits set before it begins."""
        uid = os.getuid() if self.way == "self" else NOBODY
        # A user namespace counts its own processes since Linux 5.14; else all of the user's count.
        others = 0 if self.way != "root" and kernel() >= (5, 14) else tasks_of(uid)
        limits = [f"--nproc={others + 8 * self.limits.processes}", f"--fsize={self.limits.file}",
                  "--core=0", "--nofile=1024"]  # threads count as processes there
        if self.limits.address_space:
            limits.append(f"--as={self.limits.address_space}")
        drop = ["/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                "--bounding-set=-all", "--inh-caps=-all"] if self.way == "root" else []
        as_user = {} if self.way != "nobody" else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        reads, writes = os.pipe()
        try:
            child = subprocess.Popen(
                [self.bwrap, *self.arguments, "--json-status-fd", str(writes), "--", *drop,
                 "/usr/bin/prlimit", *limits, "--", *command],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, cwd="/", env=self.environment, pass_fds=(writes,), **as_user)
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        self.status[child.pid] = reads
        self.files_at_start = files_in_memory()
        return child

    def trouble(self, child):
        """Why it must be stopped now, or nothing. Counts every process that it has started."""
        found = tree(child.pid, self.limits.processes + 8)
        if len(found) - 3 > self.limits.processes:  # bwrap outside, bwrap inside, the program
            return self._stop(found, f"it started over {self.limits.processes} processes")
        much = f"{self.limits.memory / (1 << 30):.2g} GB of memory"
        growth = files_in_memory() - self.files_at_start  # first: its own go on growing meanwhile
        own = files_of(found[1:2])
        used, others = sum(map(resident, found)) + own, growth - own
        if used > self.limits.memory:
            return self._stop(found, f"it used over {much}")
        # Files that it hides from this count are the machine's. So are those of others: no blame.
        # A little more or less is in how they are counted.
        if others > self.limits.memory / 4 and used + others > self.limits.memory:
            self._stop(found, "")
            os.close(self.status.pop(child.pid))
            raise Disturbed(f"it was stopped: with files of others in memory (/dev/shm) over {much} went")
        return ""

    def _stop(self, found, why):
        self.stopped = True
        for pid in found[1:2]:  # the sandbox's first process: with it the kernel ends all others
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return f"was stopped: {why}"

    def exit_code(self, child, code):
        """The program's own. Raises NoSandbox where bubblewrap failed and nothing was run."""
        reads = self.status.pop(child.pid)
        with os.fdopen(reads, "rb") as file:
            status = file.read().decode(errors="replace")
        if code > 0 and '"exit-code"' not in status and not self.stopped:
            raise NoSandbox("bubblewrap cannot make a sandbox here")
        return 128 - code if 128 < code <= 192 else code  # there are 64 signals


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


def files_of(pids):
    """Bytes of the files in the /tmp and /dev/shm of sandboxes, by their first processes."""
    total = 0
    for pid in pids:
        for folder in ("/tmp", "/dev/shm"):
            with contextlib.suppress(OSError):
                inside = f"/proc/{pid}/root{folder}"
                if os.stat(inside).st_dev != os.stat(folder).st_dev:  # else it is not made yet
                    room = os.statvfs(inside)
                    total += (room.f_blocks - room.f_bfree) * room.f_frsize
    return total


def files_in_memory():
    """Bytes of files that live in memory (/tmp of a sandbox, memfd), of the whole machine."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("Shmem:"):
                return int(line.split()[1]) << 10
    return 0


def tasks_of(uid):
    """How many processes and threads a user has now."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def parents(paths):
    """Every folder above these paths, the outermost first."""
    found = {str(p) for path in paths for p in Path(path).parents} | {
        path[:-2] for path in paths if path.endswith("/.")}
    return sorted(found - {"/", "/usr", "/tmp"} - {p for p in found if p.startswith(("/usr/", "/tmp/"))})


def ways():
    """The ways of making a sandbox that work here. Raises NoSandbox, with the reason, if none."""
    found, why = [], ""
    for way in ("nobody", "root") if os.getuid() == 0 else ("self",):
        try:
            run = runner.run_command(["/usr/bin/true"], time_limit=20, box=Sandbox(cwd="/tmp", way=way))
            why = run.problem
            if not why:
                found.append(way)
        except NoSandbox as error:
            why = str(error)
            if "installed" in why:
                raise
        except (OSError, subprocess.SubprocessError) as error:
            why = str(error)
    if not found:
        raise NoSandbox(f"{why}: user namespaces may be switched off (kernel.unprivileged_userns_clone, "
                        "kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces), as in "
                        "most containers")
    return found
