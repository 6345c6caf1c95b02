"""System calls of a child process that fail as a test says: below the program, in the kernel's place.

`Interception` answers for the kernel, in a thread of the test: a call goes on, or has an error. Needs no rights and no
compiler, but a kernel that has seccomp's user notification and lets it be used."""

from __future__ import annotations

import fcntl
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.servers import ROOT

NUMBERS = {
    "x86_64": {"fsync": 74, "fdatasync": 75},
    "aarch64": {"fsync": 82, "fdatasync": 83},
}
RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_…
NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; number, architecture, instruction, six arguments
ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE

Rule = Callable[[str], int]  # the path of the file → an errno, or 0: the call goes on


class Interception:
    """fsync and fdatasync of one process, and of what it becomes by exec. `rule` may be changed at any moment."""

    def __init__(self, directory: Path) -> None:
        self.rule: Rule = lambda _: 0
        self.failed: list[str] = []  # the paths of calls that were given an error
        self._address = directory / "syscalls"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self._address))
        self._server.listen()
        self._thread = threading.Thread(target=self._run, name="syscalls", daemon=True)
        self._thread.start()

    @property
    def before(self) -> Sequence[str]:
        """What to put before a module and its arguments, behind `python -m`."""
        numbers = ",".join(str(number) for number in NUMBERS[platform.machine()].values())
        return ["tests.crash.intercepted", str(self._address), numbers]

    def close(self) -> None:
        """After the processes have ended."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    _, (listener,), _, _ = socket.recv_fds(connection, 1, 1)
                threading.Thread(target=self._answer, args=(listener,), daemon=True).start()

    def _answer(self, listener: int) -> None:
        """Until no process is left that has the filter."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        try:
            while True:
                ((_, events),) = poll.poll()
                if not events & select.POLLIN:
                    return
                buffer = bytearray(NOTIFICATION.size)
                with suppress(FileNotFoundError):  # the process died meanwhile
                    fcntl.ioctl(listener, RECEIVE, buffer)
                    ident, pid, _, _, _, _, descriptor, *_ = NOTIFICATION.unpack(buffer)
                    error = self._judge(pid, descriptor)
                    answer = ANSWER.pack(ident, 0, -error, 0 if error else GO_ON)
                    fcntl.ioctl(listener, SEND, bytearray(answer))
        finally:
            os.close(listener)

    def _judge(self, pid: int, descriptor: int) -> int:
        try:
            path = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
        except OSError:
            return 0
        error = self.rule(path)
        if error:
            self.failed.append(path)
        return error


def require_interception(directory: Path) -> None:
    """Skip with the kernel's reason where calls cannot be intercepted: a container may forbid it."""
    if platform.machine() not in NUMBERS:
        pytest.skip(f"the numbers of system calls on {platform.machine()} are not known here")
    (probing := directory / "probing").mkdir()
    interception = Interception(probing)
    try:
        command = [sys.executable, "-m", *interception.before, "tests.crash.sync_once", str(directory / "synced")]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    finally:
        interception.close()
    if ended.returncode:
        pytest.skip(f"system calls cannot be intercepted: {ended.stderr.strip().splitlines()[-1:]}")
