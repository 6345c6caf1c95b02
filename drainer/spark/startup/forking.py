"""Decide whether Spark's Python processes are forked from one that has imported everything (fork_server.py), and
prepare it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drainer.spark.startup import fork_client
from drainer.spark.startup.spark_settings import python_of

SOCKET = "fork.sock"
PYTHON = "python"
SOCKET_PATH_BYTES_MAX = 107
SERVER = "drainer.spark.startup.fork_server"


@dataclass(frozen=True, slots=True)
class Forking:
    """`python`: the program that Spark runs instead of Python; `server`: the command line of the fork server."""

    python: str
    server: tuple[str, ...]


def forking(folder: Path, master: str, conf: Mapping[str, str]) -> Forking | None:
    """Prepare the fork server's files in `folder`. Return None if Spark must run Python itself: on other machines, with
    another interpreter, and if programs in `folder` cannot be executed or its path is too long for a socket."""
    if not (sys.platform == "linux" and master.startswith("local") and python_of(conf) == sys.executable):
        return None
    python, path = folder / PYTHON, folder / SOCKET
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        return None
    words = (sys.executable, "-I", "-S", fork_client.__file__, str(path))
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    if not os.access(python, os.X_OK):  # a file system that is mounted without permission to execute
        return None
    return Forking(str(python), (sys.executable, "-m", SERVER, str(path)))
