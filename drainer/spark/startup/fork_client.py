"""The program that Spark runs instead of Python. It requests a child from fork_server.py, which executes the arguments.

    python -I -S fork_client.py <path of the server's socket> -m <module> <argument>…

The child gets this process's standard files, so Spark communicates with the child directly. This process forwards
SIGTERM and exits with the child's exit code. If there is no server, or the server ends before it has forked, this
process itself becomes the requested Python. It imports only what it needs, because each of Spark's Python processes
waits for it.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import sys

SERVER_LOST = 1


def main(argv: list[str]) -> None:
    path, arguments = argv[0], argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        if arguments[:1] == ["-m"] and _forked(connection, path, arguments):
            try:
                # Until this line SIGTERM ends this process, and with it a child.
                signal.signal(signal.SIGTERM, lambda number, _: connection.send(bytes([number])))
                code = connection.recv(1)
            except OSError:
                code = b""
            sys.exit(code[0] if code else SERVER_LOST)
    os.execv(sys.executable, [sys.executable, *arguments])


def _forked(connection: socket.socket, path: str, arguments: list[str]) -> bool:
    try:
        connection.connect(path)
        socket.send_fds(connection, [b"R"], [0, 1, 2])
        connection.sendall(marshal.dumps((arguments, dict(os.environ))))
        return bool(connection.recv(1))
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
