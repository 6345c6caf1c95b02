"""Children forked from a process that has the drainer imported already: a new interpreter takes a second of CPU.

The parent of all (`python -m tests.integration.sink.forks`) has no threads and does one request after another, a line
of JSON each: {"file": pickled (function, arguments), "module": the function's, imported before the fork, "crash": a
crash point or ""} forks and answers the child's pid; {"wait": pid} answers its exit code once it has ended.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog.runtime import crashpoint

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Child:
    """One forked process."""

    parent: Children
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, deadline_s: float = 240) -> int:
        """Its exit code, negative for a signal. It is killed, and TimeoutError raised, behind the deadline."""
        self.parent.send({"wait": self.pid})
        if not self.parent.answered(deadline_s):
            self.kill()
            self.parent.read()
            raise TimeoutError(f"a child did not end within {deadline_s} s")
        return self.parent.read()


class Children:
    """The process that forks. One child is waited for at a time."""

    def __init__(self) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", crashpoint.VARIABLE: ""}
        command = [sys.executable, "-m", "tests.integration.sink.forks"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=ROOT, text=True, bufsize=1
        )

    def start(self, function: Callable[..., object], arguments: tuple[Any, ...], directory: Path, crash: str) -> Child:
        file = directory / "child.pickle"
        file.write_bytes(pickle.dumps((function, arguments)))
        self.send({"file": str(file), "module": function.__module__, "crash": crash})
        return Child(self, self.read())

    def send(self, request: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")

    def answered(self, deadline_s: float) -> bool:
        return bool(select.select([self._process.stdout], [], [], deadline_s)[0])

    def read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@functools.cache
def children() -> Children:
    """One for this process, which ends it."""
    made = Children()
    atexit.register(made.close)
    return made


def _run(file: Path, crash: str) -> None:
    """In a fork: never returns."""
    code = 1
    try:
        os.environ[crashpoint.VARIABLE] = crash
        importlib.reload(crashpoint)  # which reads the variable once
        function, arguments = pickle.loads(file.read_bytes())
        function(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001  the fork must not go on as the parent of all
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what a child prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            importlib.import_module(request["module"])
            answer = os.fork()
            if answer == 0:
                _run(Path(request["file"]), request["crash"])
        os.write(answers, b"%d\n" % answer)


if __name__ == "__main__":
    main()
