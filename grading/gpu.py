# SPDX-License-Identifier: MIT
"""Which GPU a program started now would use, and a lock so that one program measures on it.

Two processes on one GPU turn a synchronized launch of 8 us into one of 280: measurements need
it alone, also from the other users of the machine.
"""
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import sys
import time

LOCK_FOLDER = "/tmp"  # the one place that all users of a machine share and can write


def visible_devices():
    """([{"bus_id", "name"}], why there is none). Asks the driver, without creating a context,
    and so sees what CUDA_VISIBLE_DEVICES leaves, in the order that a program sees."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], "no NVIDIA driver (libcuda.so.1) on this machine"
    error, count = driver.cuInit(0), ctypes.c_int(0)
    if error == 0:
        error = driver.cuDeviceGetCount(ctypes.byref(count))
    if error != 0 or count.value == 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(error, ctypes.byref(text))
        return [], f"no CUDA device: {(text.value or b'none listed').decode()}"
    found = []
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(100)
        bus_id = ctypes.create_string_buffer(32)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, 100, device)
        driver.cuDeviceGetPCIBusId(bus_id, 32, device)
        found.append({"bus_id": bus_id.value.decode(), "name": name.value.decode()})
    return found, ""


def find_nvcc():
    """The compiler where the Makefile finds it, too: NVCC, CUDA_HOME, PATH, the usual place; or None."""
    home = os.environ.get("CUDA_HOME")
    places = (os.environ.get("NVCC"), home and f"{home}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc")
    return next((found for found in (shutil.which(p) for p in places if p) if found), None)


def architecture():
    """What nvcc's -arch=native would mean here, as sm_90; nothing where the driver does not say."""
    driver, device, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
    with contextlib.suppress(AttributeError):
        driver.cuDeviceGet(ctypes.byref(device), 0)
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            value = ctypes.c_int()
            if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0:
                found.append(str(value.value))
    return f"sm_{''.join(found)}" if len(found) == 2 else ""


def open_lock(path):
    """A descriptor of the lock file, whoever made it; never through a link, nor waiting for what
    else may have its name."""
    for _ in range(10):
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444)
                os.fchmod(fd, 0o444)  # readable for all, whatever the umask: flock needs no more
                return fd
    raise OSError(errno.EBUSY, "is made and removed again and again", path)


def wait_for(fd, bus_id):
    """Take the lock; until then say so, once a second on a terminal and seldom in a log."""
    begun, said = time.monotonic(), -60.0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            waited = time.monotonic() - begun
            if waited - said >= (1 if sys.stderr.isatty() else 60):
                said = waited
                print(f"waiting for another measuring program on GPU {bus_id}, {waited:.0f} s",
                      end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
            time.sleep(0.2)
    if said >= 0 and sys.stderr.isatty():
        print(file=sys.stderr)


@contextlib.contextmanager
def locked(bus_id, folder=None):
    """Hold the lock of one GPU; wait for it, and say so, while another program measures."""
    path = os.path.join(folder or LOCK_FOLDER, f"cuda-timing-labs.{bus_id}.lock")
    try:
        fd = open_lock(path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is no plain file", path)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}: the GPU cannot be locked; ask who made it to remove it")
    try:
        wait_for(fd, bus_id)
        yield
    finally:
        os.close(fd)


def pick_backend():
    """cuda where a GPU and a CUDA Toolkit are there, else sim, saying so in one line."""
    devices, why = visible_devices()
    # Who names one is to hear from make if it is not there.
    if devices and (os.environ.get("NVCC") or os.environ.get("CUDA_HOME") or find_nvcc()):
        return "cuda"
    why = why or "no nvcc, so no CUDA Toolkit, on this machine"
    print(f"{why}: using the SIMULATED device (BACKEND=cuda insists on hardware)",
          file=sys.stderr)
    return "sim"


if __name__ == "__main__":
    print(pick_backend())
