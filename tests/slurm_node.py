#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A Slurm of one node on this machine, with configuration, ports and files of its own.

    tests/slurm_node.py FOLDER [MAX_ARRAY_SIZE]    until its standard input ends, or Ctrl-C

Says `SLURM_CONF=FOLDER/slurm.conf`, which the commands of Slurm need in their environment.
The node has four CPUs, whatever this machine has, and two GPUs, which are none. A line `kill`
on the input ends the node's daemon and all that runs on it, as a node does that dies; `start`
starts it anew. When this process ends, so does all that it started, and the jobs on it, unless
it is ended by SIGKILL.
"""
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "grading"))
from sandbox import tree  # noqa: E402

ALL = 10000  # processes
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun", "scontrol")
CONFIGURATION = """ClusterName=labs
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
SlurmdTimeout=300
BatchStartTimeout=1
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MaxArraySize={array_size}
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=labs Nodes={host} Default=YES State=UP
"""
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def missing():
    """The programs that are not installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


def free_ports(count):
    """So many ports that nobody listens on."""
    with contextlib.ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def end(find):
    """Kill whatever find() finds until it finds nothing, and take leave of what was ours."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = find()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


class Node:
    def __init__(self, folder, array_size=1001):
        self.folder, self.host = Path(folder).resolve(), socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "key").write_bytes(os.urandom(128))
        (self.folder / "key").chmod(0o400)
        port, node_port = free_ports(2)
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(CONFIGURATION.format(
            folder=self.folder, host=self.host, user=pwd.getpwuid(os.getuid()).pw_name, port=port,
            node_port=node_port, array_size=array_size))
        (self.folder / "gres.conf").write_text("".join(
            f"NodeName={self.host} Name=gpu File=/dev/{name}\n" for name in ("null", "zero")))

    def start(self, *command):
        name = command[0]
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=self.folder, env={**os.environ, "PATH": PATH, "SLURM_CONF": str(self.conf)})

    def start_all(self):
        self.munged = self.start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                                 f"--key-file={self.folder}/key", f"--pid-file={self.folder}/munged.pid",
                                 f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")
        self.until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.controller = self.start("slurmctld", "-D")
        self.start_node()

    def start_node(self):
        self.start("slurmd", "-D", "-f", str(self.conf))

    def kill_node(self):
        """With all that runs on it: a task's own supervisor lives on without the daemon."""
        others = {pid for one in (self.controller, self.munged) for pid in tree(one.pid, ALL)}
        end(lambda: [pid for pid in tree(os.getpid(), ALL)[1:] if pid not in others])

    def until(self, true, what):
        begun = time.monotonic()
        while not true():
            if time.monotonic() > begun + 30:
                sys.exit(f"{what} does not start; {self.folder} holds what it said")
            time.sleep(0.05)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__.splitlines()[2].strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    if missing():
        print(f"not installed: {' '.join(missing())} (apt-get install slurm-wlm munge)", file=sys.stderr)
        return 2
    # Orphans become children of this process, so that none gets away when all is ended.
    ctypes.CDLL(None, use_errno=True).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda *_: sys.exit(1))
    try:
        node = Node(sys.argv[1], *map(int, sys.argv[2:]))
        node.start_all()
        print(f"SLURM_CONF={node.conf}", flush=True)
        for line in sys.stdin:
            if line.strip() == "kill":
                node.kill_node()
            elif line.strip() == "start":
                node.start_node()
            print(line.strip(), flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        end(lambda: tree(os.getpid(), ALL)[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
