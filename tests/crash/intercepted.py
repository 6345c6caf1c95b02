"""`python -m tests.crash.intercepted SOCKET NUMBERS MODULE …`: runs a module in a process whose system calls of these
numbers wait for whoever listens at SOCKET (tests/crash/syscalls.py). The program itself knows nothing of it.

A seccomp filter sends those calls to a listener, which outlives exec and holds for every thread."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys

SECCOMP = {"x86_64": 317, "aarch64": 277}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SET_MODE_FILTER, NEW_LISTENER = 1, 1 << 3
NO_NEW_PRIVILEGES = 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF: of a word, against a constant
AT_NUMBER, AT_ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def program(numbers: list[int]) -> bytes:
    """The filter: these system calls of this architecture are told, every other one goes on."""
    count = len(numbers)
    lines = [(LOAD, 0, 0, AT_ARCHITECTURE), (JUMP_IF_EQUAL, 0, count + 1, ARCHITECTURE[platform.machine()])]
    lines.append((LOAD, 0, 0, AT_NUMBER))
    lines += [(JUMP_IF_EQUAL, count - place, 0, number) for place, number in enumerate(numbers)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def listener(numbers: list[int]) -> int:
    """Install the filter; the descriptor on which its calls are told. OSError where the kernel refuses it."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program(numbers)
    filter_ = Program(len(code) // 8, code)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    number = SECCOMP[platform.machine()]
    descriptor = libc.syscall(number, SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(filter_))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    return int(descriptor)


def main() -> None:
    address, numbers, *command = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as to_test:
        to_test.connect(address)
        socket.send_fds(to_test, [b"f"], [listener([int(number) for number in numbers.split(",")])])
    os.execv(sys.executable, [sys.executable, "-m", *command])


if __name__ == "__main__":
    main()
