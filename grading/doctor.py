#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Look over this machine: what the labs need, and what spoils their figures.

    doctor.py          or make doctor, or grade.py doctor

One line an item: ok; - for something optional that is not there; FIX with what to do. Exit 0
if labs can run, on a GPU or on the simulated device; 1 if not.
"""
import contextlib
import ctypes
import glob
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import gpu
import progress

OK, OPTIONAL, FIX = "ok", "-", "FIX"
APT = "sudo apt-get install -y {}"
TOOLKIT = "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/"
OLDEST_TOOLKIT, OLDEST_PYTHON, OLDEST_MAKE = (12, 0), (3, 9), (4, 0)

TRIAL = """#include <cuda_runtime.h>
__global__ void Kernel(void) {}
int main(void) { Kernel<<<1, 1>>>(); return cudaDeviceSynchronize() != cudaSuccess; }
"""
SIMULATED_TRIAL = "thread_local int x;\nint main() { return x; }\n"


class Item:
    """One line of the report."""

    def __init__(self, name, state, text):
        self.name, self.state, self.text = name, state, " ".join(text.split())

    def line(self):
        return f"{self.state:<4} {self.name:<27} {self.text}"


def call(*command, seconds=20, env=None):
    """(exit code or None if it is not there or hangs, output and errors as one text)."""
    try:
        child = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                                 start_new_session=True)
    except OSError as error:
        return None, f"cannot be run: {error.strerror}"
    try:
        said = child.communicate(timeout=seconds)[0].decode(errors="replace")
        return child.returncode, said.strip()
    except subprocess.TimeoutExpired:
        return None, f"did not answer in {seconds} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()
        child.wait()


def first_line(text, pattern=r"\S"):
    """The first line that matches, cut to a length that a line of the report can hold."""
    lines = text.splitlines()
    return next((line.strip() for line in lines if re.search(pattern, line)),
                lines[0].strip() if lines else "no message")[:200]


def version(text, pattern=r"(\d+)\.(\d+)"):
    found = re.search(pattern, text)
    return tuple(int(part) for part in found.groups()) if found else None


def dotted(numbers):
    return ".".join(map(str, numbers))


def read(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


# What both the GPU and the simulated device need.

def check_python():
    here = sys.version_info[:3]
    if here < OLDEST_PYTHON:
        return Item("python", FIX, f"{dotted(here)} is too old: 3.9 or later; say make "
                    "PYTHON=python3.11 if there is a newer one")
    return Item("python", OK, dotted(here))


def check_make():
    path = shutil.which("make")
    code, said = call("make", "--version") if path else (None, "")
    if code != 0:
        return Item("make", FIX, f"not found: {APT.format('make')}")
    have = version(said, r"GNU Make (\d+)\.(\d+)")
    if not have or have < OLDEST_MAKE:
        return Item("make", FIX, f"{first_line(said)}: GNU Make 4 or later is needed: "
                    f"{APT.format('make')}")
    return Item("make", OK, f"GNU Make {dotted(have)}")


def check_host_compiler():
    """g++ builds the simulated device, and nvcc calls it."""
    if not shutil.which("g++") or not shutil.which("cc"):
        return Item("g++", FIX, f"{'g++' if shutil.which('cc') else 'cc'} not found; the simulated "
                    f"device and nvcc need it: {APT.format('g++')}")
    with tempfile.TemporaryDirectory(prefix="doctor.") as folder:
        source = Path(folder) / "trial.cpp"
        source.write_text(SIMULATED_TRIAL)
        code, said = call("g++", "-std=c++17", "-O2", "-fsanitize=thread", "-c", "-o",
                          Path(folder) / "trial.o", source, seconds=60)
    if code != 0:
        return Item("g++", FIX, f"does not compile a line of C++17 ({first_line(said, 'error')}): "
                    f"{APT.format('g++')}")
    return Item("g++", OK, first_line(call("g++", "--version")[1]))


# The CUDA Toolkit.

def elsewhere():
    """A Toolkit that is installed where nobody looks."""
    found = sorted(glob.glob("/usr/local/cuda-*/bin/nvcc") + glob.glob("/opt/cuda/bin/nvcc"))
    return found[-1] if found else None


def check_nvcc(nvcc, wanted):
    """(Item, release). wanted: there is a GPU to compile for."""
    state = FIX if wanted else OPTIONAL
    if os.environ.get("NVCC") and not shutil.which(os.environ["NVCC"]):
        return Item("nvcc", FIX, f"NVCC={os.environ['NVCC']} is no program: unset it, or mend "
                    "it"), None
    if not nvcc:
        hidden = elsewhere()
        return Item("nvcc", state, f"not on PATH; it is here: export PATH={Path(hidden).parent}:$PATH"
                    if hidden else "not found; a real GPU needs the CUDA Toolkit, 12.0 or later: "
                    + TOOLKIT), None
    code, said = call(nvcc, "--version", seconds=60)
    release = version(said, r"release (\d+)\.(\d+)")
    if code != 0 or not release:
        return Item("nvcc", state, f"{nvcc} does not answer --version ({first_line(said)}): "
                    f"install the CUDA Toolkit again: {TOOLKIT}"), None
    if release < OLDEST_TOOLKIT:
        return Item("nvcc", state, f"CUDA {dotted(release)} ({nvcc}) is too old: 12.0 or later: "
                    f"{TOOLKIT}"), None
    return Item("nvcc", OK, f"CUDA {dotted(release)}, {nvcc}"), release


def check_nvcc_compiles(nvcc, wanted, arch=None):
    """Whether nvcc accepts this machine's host compiler: only a trial tells."""
    with tempfile.TemporaryDirectory(prefix="doctor.") as folder:
        source = Path(folder) / "trial.cu"
        source.write_text(TRIAL)
        with progress.Ticker("nvcc compiles three lines", 4):
            code, said = call(nvcc, "-O2", "-arch=native", "-o", Path(folder) / "trial", source,
                              seconds=180)
    state = FIX if wanted else OPTIONAL
    if code == 0:
        return Item("host compiler", OK, "nvcc compiles and links with it")
    if re.search(r"unsupported GNU version|unsupported clang version", said):
        limit = re.search(r"later than (\d+)", said)
        older = limit[1] if limit else "12"
        return Item("host compiler", state, f"nvcc does not accept g++ {host_version()}, "
                    f"g++ {older} is the newest: {APT.format('g++-' + older)}; then make "
                    f"NVCCFLAGS='-O2 -ccbin g++-{older}'")
    if re.search(r"native", said):
        return Item("host compiler", state, f"nvcc does not know -arch=native "
                    f"({first_line(said, 'native')}): make ARCH={arch or 'sm_75'}")
    if re.search(r"host compiler|g\+\+|gcc|No such file", said) and not shutil.which("g++"):
        return Item("host compiler", state, f"nvcc finds no g++: {APT.format('g++')}")
    return Item("host compiler", state, "nvcc does not compile three lines of CUDA: "
                + first_line(said, r"error|fatal|cannot|not found|did not answer"))


def host_version():
    return (version(call("g++", "-dumpfullversion", "-dumpversion")[1], r"(\d+)") or ("?",))[0]


# The driver and its devices.

def load_driver():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def check_driver(driver, release):
    if driver is None:
        return Item("driver", OPTIONAL, "no NVIDIA driver (libcuda.so.1): labs run on the simulated "
                    "device; for a real GPU: " + TOOLKIT)
    number = ctypes.c_int(0)
    try:
        failed = driver.cuDriverGetVersion(ctypes.byref(number)) != 0 or number.value == 0
    except AttributeError:
        failed = True
    if failed:
        return Item("driver", FIX, "libcuda.so.1 does not tell its version: is it a stub of the "
                    "Toolkit? Install NVIDIA's driver")
    newest = (number.value // 1000, number.value % 1000 // 10)
    if release and newest[0] < release[0]:
        return Item("driver", FIX, f"knows CUDA {dotted(newest)} and the Toolkit is "
                    f"{dotted(release)}: update the driver, or install a Toolkit {newest[0]}.x")
    note = f", the Toolkit's {dotted(release)}: the same major version is enough" if (
        release and newest < release) else f", Toolkit {dotted(release)}" if release else ""
    return Item("driver", OK, f"knows CUDA {dotted(newest)}{note}")


def check_device(driver, devices, why):
    if devices:
        others = f" (the first of {len(devices)})" if len(devices) > 1 else ""
        return Item("device", OK, f"{devices[0]['name']}, {devices[0]['bus_id']}{others}")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if driver is None:
        return Item("device", OPTIONAL, "none; labs run on the simulated device")
    if hidden is not None:
        return Item("device", FIX, f"CUDA_VISIBLE_DEVICES='{hidden}' hides every GPU: unset "
                    "CUDA_VISIBLE_DEVICES")
    return Item("device", FIX, f"{why}: does nvidia-smi list one? After an update of the driver, "
                "restart the machine; in a container, pass the GPU in")


def check_architecture(arch, nvcc):
    if not arch:
        return Item("architecture", FIX, "the driver does not tell the device's architecture: "
                    "restart the machine")
    number = int(arch[len("sm_"):])
    if not nvcc:
        return Item("architecture", OK, arch)
    known = sorted(int(n) for n in re.findall(r"compute_(\d+)\b", call(
        nvcc, "--list-gpu-arch", seconds=60)[1]))
    if not known or number in known:
        return Item("architecture", OK, arch + (", which nvcc compiles for" if known else ""))
    if number < known[0]:
        return Item("architecture", FIX, f"{arch} is older than what this Toolkit compiles for "
                    f"(sm_{known[0]} and later): install an older one, such as 12.x: {TOOLKIT}")
    return Item("architecture", FIX, f"{arch} is not among what this Toolkit compiles for (up to "
                f"sm_{known[-1]}): install a newer one, or make ARCH=compute_{known[-1]}")


def processes_by_tool(bus_id):
    """Other programs that compute on the GPU by nvidia-smi; None if it does not say."""
    code, said = call("nvidia-smi", "--query-compute-apps=gpu_bus_id,pid,process_name",
                      "--format=csv,noheader")
    if code != 0:
        return None
    rows = [[part.strip() for part in line.split(",", 2)] for line in said.splitlines()]
    return [f"{row[2]} ({row[1]})" for row in rows
            if len(row) == 3 and row[0].lower()[-12:] == bus_id.lower()[-12:]]


def processes_by_library(bus_id):
    """How many by NVML, as the labs ask it; None if it does not say."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, room = ctypes.c_void_p(), ctypes.c_uint(0)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByPciBusId_v2(
                bus_id.encode(), ctypes.byref(handle)) == 0:
            nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(room), None)
            return room.value
    except (OSError, AttributeError):
        pass
    return None


def check_processes(bus_id):
    names = processes_by_tool(bus_id)
    if names is None:
        count = processes_by_library(bus_id)
        if count is None:
            return Item("other processes", OPTIONAL, "neither nvidia-smi nor libnvidia-ml.so.1 says "
                        "whether others compute on the GPU")
        names = [f"{count} of them"] if count else []
    if names:
        return Item("other processes", FIX, f"on the GPU: {', '.join(names[:4])}: synchronizing can "
                    "take 30 x longer; end them, or measure when they are done")
    return Item("other processes", OK, "none compute on the GPU")


def check_mig(name):
    mode = call("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader")
    if " MIG " in name or os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return Item("MIG", FIX, f"{name} is a slice of a GPU: fewer SMs and copy engines; labs 08 "
                    "and 09 need the whole one: ask for it, or compare with slices only")
    if mode[0] == 0 and "Enabled" in mode[1]:
        return Item("MIG", FIX, "is enabled on a GPU of this machine: if the labs get a slice, ask "
                    "for a whole GPU")
    return Item("MIG", OK, "not a slice")


def check_mps():
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    if pipe or os.path.exists("/tmp/nvidia-mps/control"):
        where = f"CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "/tmp/nvidia-mps/control"
        return Item("MPS", FIX, f"is running ({where}): the GPU may serve others between your "
                    "launches; echo quit | nvidia-cuda-mps-control, or unset "
                    "CUDA_MPS_PIPE_DIRECTORY")
    return Item("MPS", OK, "not running")


# The environment.

VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (lambda v: v != "0", "every launch waits for its kernel"),
    "CUDA_MODULE_LOADING": (lambda v: v.upper() == "EAGER", "first launches look cheaper"),
    "CUDA_DEVICE_MAX_CONNECTIONS": (lambda v: True, "streams may share one queue"),
    "CUDA_INJECTION64_PATH": (lambda v: True, "a profiler slows every call"),
    "CUDA_FORCE_PTX_JIT": (lambda v: v != "0", "each program compiles its kernels first"),
    "NVCC_APPEND_FLAGS": (lambda v: v.strip() != "", "every build gets other flags"),
    "NVCC_PREPEND_FLAGS": (lambda v: v.strip() != "", "every build gets other flags"),
}


def check_variables():
    items = []
    for name, (bad, effect) in VARIABLES.items():
        value = os.environ.get(name)
        if value is not None and bad(value):
            items.append(Item(name, FIX, f"={value}: {effect}; unset {name}"))
        elif name.startswith("CUDA_") and name not in ("CUDA_INJECTION64_PATH", "CUDA_FORCE_PTX_JIT"):
            items.append(Item(name, OK, "not set" if value is None else f"={value}"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    items.append(Item("CUDA_VISIBLE_DEVICES", OK, "not set") if visible is None else
                 Item("CUDA_VISIBLE_DEVICES", OK, f"={visible}: only these are used") if visible else
                 Item("CUDA_VISIBLE_DEVICES", FIX, "is empty and hides every GPU; unset "
                      "CUDA_VISIBLE_DEVICES"))
    return items


def check_wsl():
    said = read("/proc/version")
    if re.search(r"microsoft", said, re.IGNORECASE):
        if not re.search(r"WSL2", said) and not os.path.exists("/dev/dxg"):
            return Item("WSL", FIX, "this looks like WSL 1, which has no GPU: wsl --set-version "
                        "DISTRIBUTION 2, in Windows")
        return Item("WSL", OK, "WSL2: launches cost more, through Windows' driver; compare with "
                    "WSL2 machines")
    return Item("WSL", OK, "no, this is native Linux" if platform.system() == "Linux" else
                f"no, this is {platform.system()}")


def check_virtual():
    code, said = call("systemd-detect-virt", "--vm")
    kind = said.split("\n")[0].strip() if code is not None else ""
    if not kind and re.search(r"^flags\s*:.*\bhypervisor\b", read("/proc/cpuinfo"), re.MULTILINE):
        kind = "a hypervisor"
    if kind and kind != "none":
        return Item("virtual machine", OK, f"{kind}: what the host takes (launches, waking up) may "
                    "move by tens of per cent; run again, and compare medians")
    return Item("virtual machine", OK, "no")


# Optional programs.

def check_optional(name, program, package, gives):
    if not shutil.which(program):
        return Item(name, OPTIONAL, f"{gives}: {APT.format(package)}")
    return Item(name, OK, shutil.which(program))


def check_gnuplot():
    return check_optional("gnuplot", "gnuplot", "gnuplot-nox", "would draw make plot")


def check_sandbox():
    item = check_optional("bubblewrap", "bwrap", "bubblewrap", "would confine the programs of a "
                          "class that you grade")
    if item.state != OK:
        return item
    code, said = call("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")
    if code == 0:
        return Item("bubblewrap", OK, f"{item.text}, and user namespaces work")
    switch = next((name for name in ("kernel.apparmor_restrict_unprivileged_userns",
                                     "kernel.unprivileged_userns_clone")
                   if os.path.exists("/proc/sys/" + name.replace(".", "/"))), None)
    mend = (f"sudo sysctl {switch}={0 if 'restrict' in switch else 1}" if switch else
            "in a container, allow them from outside")
    return Item("bubblewrap", OPTIONAL, f"is here, but user namespaces are not allowed "
                f"({first_line(said)}): {mend}")


def check_slurm():
    return check_optional("Slurm", "sbatch", "slurm-client", "would spread a class over a cluster "
                          "(only on a cluster's machines)")


def examine():
    """Yield the Items, the last of them the verdict."""
    shared = [check_python(), check_make(), check_host_compiler()]
    yield from shared
    driver = load_driver()
    devices, why = gpu.visible_devices() if driver else ([], "no NVIDIA driver")
    nvcc, arch = gpu.find_nvcc(), gpu.architecture() if devices else ""
    toolkit, release = check_nvcc(nvcc, bool(devices))
    yield toolkit
    hardware = [check_driver(driver, release)]
    if release:
        hardware.append(check_nvcc_compiles(nvcc, bool(devices), arch))
        yield hardware[-1]
    yield hardware[0]
    hardware.append(check_device(driver, devices, why))
    yield hardware[-1]
    if devices:
        hardware.append(check_architecture(arch, nvcc if release else None))
        yield hardware[-1]
        yield check_processes(devices[0]["bus_id"])
        yield check_mig(devices[0]["name"])
        yield check_mps()
    yield from check_variables()
    yield check_wsl()
    yield check_virtual()
    yield check_gnuplot()
    yield check_sandbox()
    yield check_slurm()
    simulated = all(item.state == OK for item in shared)
    on_gpu = bool(devices) and bool(release) and simulated and all(i.state == OK for i in hardware)
    if on_gpu:
        yield Item("labs", OK, "run on the GPU")
    elif simulated:
        why_not = next((i.name for i in [toolkit] + hardware if i.state != OK), "device")
        yield Item("labs", OK, f"run on the SIMULATED device only (see {why_not} above)"
                   + (": until that is mended say BACKEND=sim" if devices and toolkit.state == OK
                      else ""))
    else:
        yield Item("labs", FIX, "cannot run: see "
                   + ", ".join(i.name for i in shared if i.state != OK) + " above")


def main():
    for item in examine():
        print(item.line(), flush=True)
    return 0 if item.state == OK else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped")
    except BrokenPipeError:
        sys.exit(0)
