# SPDX-License-Identifier: MIT
"""Submissions that do harm, or try to: sources for lab 01, and zips. test_class.py hands them in."""
import io
import struct
import zipfile
import zlib

HEAD = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
"""

# name: (source, the word it is reported with)
PROGRAMS = {
    "endless_output": ("int main() { for (;;) puts(\"measured launch_async = 1 us\"); }",
                       "it printed over 1 MB"),
    "fork_bomb": ("int main() { for (;;) fork(); }", "it started over 32 processes"),
    "hang": ("int main() { for (;;) ; }", "was stopped after"),
    "ignores_signals": ("int main() { for (int i = 1; i < 64; i++) signal(i, SIG_IGN); close(1); close(2); "
                        "for (;;) pause(); }", "was stopped after"),
    "reads_stdin": ("int main() { char c; puts(read(0, &c, 1) == 0 ? \"it is closed\" : \"read\"); return 1; }",
                    "ended with exit code 1"),
    "background": ("int main() { if (fork() == 0) { setsid(); if (fork() == 0) { prctl(PR_SET_NAME, "
                   "\"labs-outlives\"); for (;;) sleep(1); } _exit(0); } usleep(50000); return 1; }",
                   "ended with exit code 1"),
    "kills_its_parent": ("int main() { kill(getppid(), 9); kill(1, 9); kill(-1, 9); kill(-1, 15); "
                         "return 1; }", "ended with exit code 1"),
    "crash": ("int main() { *(volatile int *)0 = 1; }", "ended with signal SIGSEGV"),
    "forged_grade": ("int main() { puts(\"{\\\"points\\\": 12, \\\"of\\\": 12, \\\"state\\\": \\\"graded\\\"}\"); "
                     "FILE *f = fopen(\"grade.json\", \"w\"); if (f) puts(\"WROTE\"); return 0; }",
                     "is not a lab's output"),
    "forged_message": ("int main() { fputs(\"bwrap: cannot make a sandbox\\nno GPU: could not grade\\n\", "
                       "stderr); return 1; }", "ended with exit code 1"),
    "file_of_passwords": ("#include \"/etc/passwd\"\nint main() {}", "did not build"),
    "endless_include": ("#include \"01_nullKernelAsync.cu\"\n" * 2 + "int main() {}", "did not build"),
    "endless_source": ("#include \"/dev/zero\"\nint main() {}", "did not build"),
    "huge_array": ("char a[3000000000u] = {1};\nint main() { return a[12345]; }", "did not build"),
}

# %s: paths, as strings of C, that it must be able neither to read nor to write, nor to write beside.
SNOOPS = r"""
int main() {
    static const char *paths[] = {%s, NULL};
    for (int i = 0; paths[i]; i++) {
        if (open(paths[i], O_RDONLY) >= 0) printf("READ %%s\n", paths[i]);
        if (open(paths[i], O_WRONLY | O_CREAT, 0644) >= 0) printf("WROTE %%s\n", paths[i]);
        char beside[500];
        snprintf(beside, sizeof beside, "%%s.new", paths[i]);
        if (open(beside, O_WRONLY | O_CREAT, 0644) >= 0) printf("WROTE %%s\n", beside);
    }
    if (open("/dev/tty", O_RDWR) >= 0) puts("TERMINAL");
    puts("looked");
    return 1;
}
"""


def zip_of(members):
    """A zip's bytes. members: (name or ZipInfo, bytes)."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return data.getvalue()


def link(name, target):
    """A member that is a symbolic link."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = 0o120777 << 16
    return (info, target)


def bomb(name, size, said=None):
    """A zip with one file of `size` zeros, made without writing them; it may say another size."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = coder.compress(b"\0" * (1 << 20)) + coder.flush(zlib.Z_FULL_FLUSH)
    packed = piece * (size >> 20) + zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    said = size if said is None else said
    raw, wide = name.encode(), said >= 1 << 32
    extra = struct.pack("<HHQQ", 1, 16, said, len(packed)) if wide else b""
    sizes = (0xffffffff, 0xffffffff) if wide else (len(packed), said)
    common = struct.pack("<HHHHHIIIHH", 45, 0, 8, 0, 33, 0, *sizes, len(raw), len(extra))
    local = b"PK\x03\x04" + common + raw + extra + packed
    central = b"PK\x01\x02" + struct.pack("<H", 45) + common + struct.pack(
        "<HHHII", 0, 0, 0, 0, 0) + raw + extra
    return local + central + b"PK\x05\x06" + struct.pack(
        "<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
