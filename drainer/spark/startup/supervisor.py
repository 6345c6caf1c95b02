"""Runs the JVM as a child process; kills it and all its descendants when the drainer has ended.

    python -I -S drainer/spark/startup/supervisor.py <pid of the drainer> <words> <helper>… <program> <argument>…

<words>: the number of words in the helper's command line; 0: no helper. The helper is started first and is killed with
the other descendants.

The drainer holds the other end of standard input. When it closes it, the JVM ends by itself once its gateway is up, in
the time for which the drainer waits. When the drainer has ended, in whatever way and at whatever stage of the start,
all descendants are killed immediately: a starting JVM would not end by itself, because it waits for connections after
it failed to write its port. Orphaned descendants become children of this process (Linux), so none is missed. If this
process is killed, the kernel kills the JVM, and the JVM's children end when their pipes and sockets close.

It imports only what it needs, because every start waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# How often to check that the drainer lives, in addition to the end of the pipe.
POLL_MS = 1000
POLL_CLOSED_MS = 100
AGAIN_S = 0.01


def main(argv: list[str]) -> int:
    """Returns the exit code of the program, or 128 + the signal that ended it."""
    drainer, words = int(argv[0]), int(argv[1])
    helper, command = argv[2 : 2 + words], argv[2 + words :]
    # One byte for each signal, so that a child's end wakes the poll below.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # Only the drainer ends the JVM, not a signal to the process group. SIGINT is ignored in the JVM, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _nothing)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if helper:
        _start(helper, (woken, wake), reads=False)
    child = _start(command, (woken, wake))
    code = _watch(drainer, child, woken)
    _kill_descendants(None if code is not None else child)
    return code or 0


def _nothing(_number: int, _frame: object) -> None:
    """Not SIG_IGN, which the JVM would inherit."""


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _start(command: list[str], private: tuple[int, ...], *, reads: bool = True) -> int:
    """Start the program with our standard output and error, and our input if it `reads`; returns its process id."""
    ours = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == ours:  # else this process ended before the line above took effect
            for number in private:
                os.close(number)
            if not reads:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _watch(drainer: int, child: int, woken: int) -> int | None:
    """Wait until the child has ended, or the drainer is gone; returns the child's exit code, None if it still runs."""
    poll = select.poll()
    poll.register(0, 0)  # nothing but the end of the pipe
    poll.register(woken, select.POLLIN)
    closed = False
    while True:
        code = dict(ended()).get(child)
        if code is not None:
            return code
        # A changed parent id means that the drainer has ended, also before this loop began.
        if os.getppid() != drainer:
            return None
        for number, _ in poll.poll(POLL_CLOSED_MS if closed else POLL_MS):
            if number == woken:
                os.read(woken, 512)
            else:
                closed = True
                poll.unregister(0)


def ended() -> Iterator[tuple[int, int]]:
    """Reap all ended children, and yield (process id, exit code, or 128 + the signal that ended it) of each."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            yield found[0], code if code >= 0 else 128 - code


def _kill_descendants(child: int | None) -> None:
    """Send SIGKILL to every child until none is left: the children of a killed child become children of this process.
    `child`: one that still runs.
    """
    if child is not None:
        os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still its own
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(AGAIN_S)


def _children() -> list[int]:
    ours = os.getpid()
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208  pathlib takes as long as all the rest
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                    # "pid (name, which may hold anything) state ppid …"
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
                if parent == ours:
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
