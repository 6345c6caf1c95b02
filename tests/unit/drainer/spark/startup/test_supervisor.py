"""The process between the drainer and its JVM: whoever is killed, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from drainer.spark.startup import supervisor
from tests.support.servers import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parents and children are read from /proc")

MARK = "SUPERVISOR_TEST"
# Stands for the drainer: starts the supervisor as drainer.spark.startup.jvm_launch does, and lives until it is killed.
DRAINER = """
import os, signal, subprocess, sys
process = subprocess.Popen(
    [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), "0", *sys.argv[2:]],
    stdin=subprocess.PIPE, start_new_session=True)
print(process.pid, flush=True)
signal.pause()
"""
# Stands for the JVM: does not care for its standard input, and has a child in a session of its own with a child of its
# own that ignores what can be ignored.
STUBBORN = """
import os, signal, time
os.setsid() if os.fork() == 0 else None
os.fork()
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
open(f"{os.environ['PLACE']}/{os.getpid()}", "w").close()
while True:
    time.sleep(60)
"""
PROCESSES = 4


@dataclass
class World:
    """A drainer, a supervisor and what it runs, known by a variable."""

    mark: str
    place: Path
    drainer: subprocess.Popen[str]
    supervisor: int

    def processes(self) -> set[int]:
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (process / "environ").read_bytes().split(b"\0")
                if f"{MARK}={self.mark}".encode() in variables and (process / "cmdline").read_bytes():
                    found.add(int(process.name))
        return found

    def check_gone(self) -> None:
        def gone() -> bool:
            left = self.processes()
            assert not left, left
            return True

        wait_until(gone, what="everything ended")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    mark = uuid.uuid4().hex
    drainer = subprocess.Popen(
        [sys.executable, "-c", DRAINER, supervisor.__file__, sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        text=True,
        env={MARK: mark, "PLACE": str(tmp_path)},
    )
    assert drainer.stdout is not None
    made = World(mark, tmp_path, drainer, int(drainer.stdout.readline()))
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == PROCESSES, what="all processes run")
        yield made
    finally:
        drainer.kill()
        drainer.wait()
        for pid in made.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_killed_drainer_ends_supervisor_and_program(world: World) -> None:
    assert len(world.processes()) == PROCESSES + 2
    world.drainer.kill()
    world.drainer.wait()
    world.check_gone()


def test_supervisor_ignores_signals_to_its_group(world: World) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.killpg(world.supervisor, number)
    wait_until(lambda: not pending(world.supervisor), what="the signals were delivered")
    assert len(world.processes()) == PROCESSES + 2
    world.drainer.kill()
    world.drainer.wait()
    world.check_gone()


def test_killed_supervisor_ends_program(world: World) -> None:
    (program,) = [int(p.name) for p in world.place.iterdir() if parent(int(p.name)) == world.supervisor]
    os.kill(world.supervisor, signal.SIGKILL)
    wait_until(lambda: program not in world.processes(), what="the program ended")


def test_killed_program_ends_its_children(world: World) -> None:
    (program,) = [int(p.name) for p in world.place.iterdir() if parent(int(p.name)) == world.supervisor]
    os.kill(program, signal.SIGKILL)
    wait_until(lambda: world.processes() == {world.drainer.pid}, what="only the drainer is left")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pending(pid: int) -> int:
    """Signals that were sent and not delivered; of a process that ended none."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("ShdPnd:"):
                return int(line.split()[1], 16)
    return 0


def run(*command: str, drainer: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, str(drainer or os.getpid()), "0", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_supervisor_exits_with_code_of_program(script: str, code: int) -> None:
    assert run("sh", "-c", script).wait(90) == code


def test_supervisor_names_missing_program() -> None:
    process = run("/nowhere/spark-submit")
    assert process.wait(90) == 127
    assert process.stdout is not None
    assert "/nowhere/spark-submit: No such file" in process.stdout.read()


def test_supervisor_lets_program_end_after_end_of_input() -> None:
    """The JVM has its shutdown to do, for as long as the drainer waits."""
    process = run("sh", "-c", "read line; echo the end is seen; exit 5")
    assert process.communicate(timeout=90)[0] == "the end is seen\n"
    assert process.returncode == 5


def test_supervisor_of_ended_drainer_exits_at_once() -> None:
    """Its end of the pipe may be held by somebody else, or not; another parent tells."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    process = run("sleep", "600", drainer=ended.pid)
    assert process.wait(90) == 0


def test_helper_is_killed_when_program_ends(tmp_path: Path) -> None:
    """It may end before, without an end of the program; it reads nothing of what the drainer writes."""
    said = tmp_path / "said"
    helper = ["sh", "-c", f"cat > {said}.read; echo $$ > {said}; exec sleep 600"]
    command = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(len(helper)), *helper]
    program = ["sh", "-c", f"while ! test -s {said}; do sleep 0.05; done; read line; exit 4"]
    with subprocess.Popen([*command, *program], stdin=subprocess.PIPE, start_new_session=True) as process:
        wait_until(lambda: said.exists() and said.read_text().strip(), what="the helper runs")
        pid = int(said.read_text())
        assert Path(f"/proc/{pid}").exists()
        process.communicate(b"for the program\n", timeout=90)
        assert process.returncode == 4
    assert Path(f"{said}.read").read_bytes() == b""
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the helper ended")


def test_helper_that_ends_early_does_not_end_program() -> None:
    helper = ["sh", "-c", "exit 9"]
    command = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(len(helper)), *helper]
    with subprocess.Popen([*command, "sh", "-c", "sleep 1; exit 5"], stdin=subprocess.PIPE) as process:
        assert process.wait(90) == 5
