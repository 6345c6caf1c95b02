"""Processes that are forked in the place of Python: what the caller sees is what it would see of an interpreter."""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from drainer.spark.startup import fork_client
from drainer.spark.startup.fork_server import receive
from tests.support.servers import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")

# The server without what it would import for Spark.
SERVER = """
import socket, sys
from drainer.spark.startup.fork_server import ForkServer
import preloaded
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(64)
print("ready", flush=True)
ForkServer(listener).run()
"""
# What children run; `preloaded` tells whether they were forked.
MODULES = {
    "preloaded": "import os\nserver = os.getpid()\n",
    "tell": "import os, sys\n"
    "how = 'forked' if 'preloaded' in sys.modules else 'alone'\n"
    "print(how, sys.argv[1:], os.environ.get('ASKED'), sys.stdin.read())\n"
    "print('an error', file=sys.stderr)\n",
    "fails": "raise ValueError('of the child')\n",
    "leaves": "import sys\nsys.exit({'text': 'a reason', '3': 3, '0': 0, 'none': None}[sys.argv[1]])\n",
    "dies": "import os\nos.kill(os.getpid(), 9)\n",
    "waits": "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    "print(os.getpid(), flush=True)\n"
    "while True: time.sleep(60)\n",
}


# A server that is killed as soon as it has forked: before it, or its child, has said so.
KILLED_AFTER_FORK = """
import os, signal
fork = os.fork
def fork_and_die():
    pid = fork()
    if pid:
        os.kill(os.getpid(), signal.SIGKILL)
    while os.getppid() == preloaded.server:
        pass
    return pid
os.fork = fork_and_die
"""


class World:
    """A fork server with the modules above; `also`: what it does before it listens."""

    def __init__(self, place: Path, also: str = "") -> None:
        self.path = place / "socket"
        self.place = place
        for name, text in MODULES.items():
            (place / f"{name}.py").write_text(text)
        self.log = place / "log"
        root = str(Path(fork_client.__file__).parents[3])
        self.variables = {"PYTHONPATH": f"{place}:{root}", "PATH": os.environ["PATH"]}
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-c", SERVER.replace("import preloaded", f"import preloaded{also}"), str(self.path)],
                env={**self.variables, "ASKED": "of the server"},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n"

    def client(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", fork_client.__file__, str(self.path), *arguments],
            env={**self.variables, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, *arguments: str, given: str = "", **variables: str) -> tuple[int, str, str]:
        process = self.client(*arguments, **variables)
        out, err = process.communicate(given, timeout=90)
        return process.returncode, out, err


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.server.kill()
    made.server.wait()


def waiting(process: subprocess.Popen[str]) -> int:
    """The pid of the child that `waits`, once it does."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def waits_for_a_socket(pid: int) -> bool:
    """It has a socket and sleeps, which it does nowhere else."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    with suppress(OSError):
        return state == "S" and any(one.is_socket() for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_forked_process_has_arguments_variables_and_files_of_client(world: World) -> None:
    code, out, err = world.ask("-m", "tell", "a b", "", "é", given="read", ASKED="of the client")
    assert (code, out, err) == (0, "forked ['a b', '', 'é'] of the client read\n", "an error\n")
    assert world.ask("-m", "tell", given="")[1] == "forked [] None \n", "a variable of the server came through"


@pytest.mark.parametrize(
    ("how", "code", "said"), [("0", 0, ""), ("none", 0, ""), ("3", 3, ""), ("text", 1, "a reason\n")]
)
def test_fork_client_exits_with_code_of_child(world: World, how: str, code: int, said: str) -> None:
    assert world.ask("-m", "leaves", how) == (code, "", said)


def test_failing_or_killed_child_leaves_fork_server_running(world: World) -> None:
    for _ in range(2):  # and not the server's end
        code, _, err = world.ask("-m", "fails")
        assert code == 1
        assert "ValueError: of the child" in err
    assert world.ask("-m", "dies")[0] == 128 + signal.SIGKILL
    assert world.ask("-m", "tell")[1].startswith("forked")
    assert not world.log.read_text()


def test_fork_of_missing_module_exits_with_1(world: World) -> None:
    code, _, err = world.ask("-m", "nobody_has_this")
    assert code == 1
    assert "nobody_has_this" in err


def test_sigterm_to_fork_client_reaches_child(world: World) -> None:
    process = world.client("-m", "waits")
    waiting(process)
    process.terminate()
    assert process.wait(90) == 7


def test_killed_fork_client_ends_its_child(world: World) -> None:
    process = world.client("-m", "waits")
    pid = waiting(process)
    assert lives(pid)
    process.kill()
    process.wait()
    wait_until(lambda: not lives(pid), what="the child ended")
    assert world.ask("-m", "tell")[1].startswith("forked")


def test_killed_fork_server_ends_clients_and_children(world: World) -> None:
    process = world.client("-m", "waits")
    pid = waiting(process)
    world.server.kill()
    assert process.wait(90) == fork_client.SERVER_LOST
    wait_until(lambda: not lives(pid), what="the child ended")


def test_fork_server_killed_while_forking_leaves_one_process(tmp_path: Path) -> None:
    """Both would read what Spark sends, and answer it."""
    world = World(tmp_path, KILLED_AFTER_FORK)
    try:
        assert world.ask("-m", "tell", given="y") == (0, "alone [] None y\n", "an error\n")
    finally:
        world.server.kill()
        world.server.wait()


def test_fork_client_ended_before_server_answers_runs_nothing(tmp_path: Path) -> None:
    """The server imports for seconds, or is busy: its queue may be full."""
    world = World.__new__(World)
    world.path, world.variables = tmp_path / "socket", {"PATH": os.environ["PATH"]}
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(world.path))
        listener.listen(0)
        first.connect(str(world.path))
        process = world.client("-m", "this")
        wait_until(lambda: waits_for_a_socket(process.pid), what="the client waits for the server")
        process.terminate()
        try:
            process.wait(90)
        finally:
            process.kill()
        out, _ = process.communicate()
    assert (process.returncode, out) == (-signal.SIGTERM, "")


def test_many_concurrent_fork_requests_get_their_own_output(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number, (code, out, _) in enumerate(pool.map(lambda n: world.ask("-m", "tell", str(n)), range(24))):
            assert (code, out) == (0, f"forked ['{number}'] None \n")


def test_fork_client_without_server_runs_python_itself(world: World) -> None:
    world.server.kill()
    world.server.wait()
    for _ in range(2):  # with a socket that nobody listens at, and without any
        assert world.ask("-m", "tell", "x", given="y", ASKED="z") == (0, "alone ['x'] z y\n", "an error\n")
        world.path.unlink(missing_ok=True)


def test_fork_client_whose_server_ends_early_runs_python_itself(world: World) -> None:
    world.server.kill()
    world.server.wait()
    world.path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.path))
        listener.listen()
        process = world.client("-m", "tell")
        connection, _ = listener.accept()
        connection.close()
        out, _ = process.communicate("", timeout=90)
    assert (process.returncode, out) == (0, "alone [] None \n")


def test_fork_client_without_module_argument_runs_python_itself(world: World) -> None:
    assert world.ask("-c", "import sys; print('preloaded' in sys.modules)") == (0, "False\n", "")


@pytest.mark.parametrize("sent", [b"", b"R", b"R" + marshal.dumps((["-m", "tell"], {}))[:-1]])
def test_fork_request_of_ended_client_is_logged_and_server_continues(world: World, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(world.path))
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(90)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert world.ask("-m", "tell")[1].startswith("forked")
    assert "invalid request: " in world.log.read_text()


def test_files_of_incomplete_fork_request_are_closed() -> None:
    """A server lives as long as a drainer, and would have none left."""
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    with theirs, os.fdopen(reading, "rb") as copies:
        with ours:
            socket.send_fds(ours, [b"R"], [writing, writing, writing])
        os.close(writing)
        with pytest.raises(EOFError):
            receive(theirs)
        # The pipe ends when the last copy of its writing end is closed. A list of this process's open files would also
        # show what other threads and the garbage collector close meanwhile.
        assert select.select([copies], [], [], 0)[0], "a copy is still open"
        assert copies.read() == b""
