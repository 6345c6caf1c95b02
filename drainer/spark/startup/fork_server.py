"""The fork server: the process from which Spark's Python processes on this machine are forked.

    python -m drainer.spark.startup.fork_server <path of its socket>

Spark starts four Python programs for a query, one after another: one makes the data source, one queries its reader for
offsets, one plans its tasks, and one is the daemon of the workers. Each would import pyspark, Arrow and most of this
package, for half a second to a second of CPU. The fork server imports them once, while the JVM starts. Spark runs
fork_client.py instead of Python. The client sends its arguments, its environment and its standard files through the
socket, and a child forked from the server executes them.

A request is one byte with the three descriptors (SCM_RIGHTS), then the arguments and the variables as `marshal` writes
them: only this package's client, with the same interpreter, sends some. The answers are one byte each: FORKED from the
child, and at its end its exit code. Later the client sends signals for the child, one byte each. The child is killed
when the client ends. It is also killed when this process ends: a client without an answer then runs Python itself, and
otherwise two processes would read Spark's input. The socket is in the drainer's own folder, which only its user can
enter.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from drainer.spark.startup.supervisor import PR_SET_PDEATHSIG, ended, prctl

FORKED = b"F"
FILES = 3


@dataclass(frozen=True, slots=True)
class Request:
    """`arguments`: those of Python: -m, a module, the module's own. `files`: standard input, output and error."""

    arguments: Sequence[str]
    variables: dict[str, str]
    files: Sequence[int]


def receive(connection: socket.socket) -> Request:
    """Receive a request. Raises OSError, EOFError or another error of `marshal` if the client has ended before it was
    complete, or is silent for too long."""
    _, files, _, _ = socket.recv_fds(connection, 1, FILES)
    try:
        with connection.makefile("rb") as source:
            arguments, variables = marshal.load(source)
        return Request(arguments, variables, files)
    except BaseException:
        _close(files)
        raise


class ForkServer:
    """Forks a child for each request until it is killed. The process has one Python thread, so forking is safe;
    pyarrow's memory pools handle forks of their threads themselves (pthread_atfork)."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()

    def run(self) -> None:
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # not SIG_IGN, because exit codes are needed
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(512)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._children:
                    self._pass_on(key.data)
            self._reap()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(60)
        try:
            request = receive(connection)
        except (OSError, EOFError, TypeError, ValueError) as error:
            _say(f"invalid request: {error}")
            connection.close()
            return
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _say(f"cannot fork: {error}")
            _close(request.files)
            connection.close()
            return
        if not pid:
            self._become(request, connection, server)
        _close(request.files)
        connection.setblocking(False)
        self._children[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, pid)

    def _become(self, request: Request, connection: socket.socket, server: int) -> NoReturn:
        """In the child: drop everything of the server except its imports."""
        code = 1
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # the server ended before the line above took effect
                os._exit(code)
            connection.send(FORKED)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for one in (self._listener, self._woken, self._wake, connection, *self._children.values()):
                one.close()
            code = run(request)
        finally:
            os._exit(code)

    def _pass_on(self, pid: int) -> None:
        """Pass the client's signals to the child, and kill the child when the client has ended."""
        with contextlib.suppress(BlockingIOError):
            numbers = b""
            with contextlib.suppress(ConnectionError):
                numbers = self._children[pid].recv(64)
            for number in numbers or (signal.SIGKILL,):
                os.kill(pid, number)  # not reaped yet, so the process id is still the child's
            if not numbers:
                self._selector.unregister(self._children[pid])

    def _reap(self) -> None:
        for pid, code in ended():
            connection = self._children.pop(pid)
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.send(bytes([code]))
            connection.close()


def run(request: Request) -> int:
    """Run the requested module; return its exit code."""
    for number, file in enumerate(request.files):
        os.dup2(file, number)
    _close(request.files)
    os.environ.clear()
    os.environ.update(request.variables)
    sys.path[1:1] = [part for part in os.environ.get("PYTHONPATH", "").split(":") if part and part not in sys.path]
    _, module, *arguments = request.arguments
    sys.argv = [module, *arguments]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*found in sys.modules.*", RuntimeWarning)  # raised by runpy
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = _exit_code(error.code)
    except BaseException:  # noqa: BLE001  as an interpreter would do
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def _exit_code(found: object) -> int:
    if found is None or isinstance(found, int):
        return (found or 0) & 0xFF
    sys.stderr.write(f"{found}\n")
    return 1


def _say(text: str) -> None:
    """Write to Spark's log."""
    sys.stderr.write(f"fork server: {text}\n")
    sys.stderr.flush()


def _close(files: Sequence[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)


def main(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        from drainer.spark.startup import worker_imports

        worker_imports.load()
        ForkServer(listener).run()


if __name__ == "__main__":
    main(sys.argv[1])
