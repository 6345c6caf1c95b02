"""A drainer that is killed while it starts leaves no process behind, whichever of its programs has started last. One
that runs: test_signals.py."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drainer.temporary_files import sweep
from tests.integration.drainer.stubs import Stubs
from tests.integration.drainer.test_daemon import configuration
from tests.support.servers import Server, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

MARK = "DRAINER_TEST_LIFE"


@dataclass
class Life:
    """One drainer and everything it started, known by a variable that all of them inherit."""

    drainer: Server
    mark: str
    place: Path
    foreign: set[str] = field(default_factory=set)  # ids of processes that are not its own, looked at once

    def processes(self) -> dict[int, str]:
        """Command lines of what lives; a zombie has none."""
        found = {}
        wanted = f"{MARK}={self.mark}".encode()
        living = {name for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  a hundred times a second
        self.foreign &= living
        for pid in living - self.foreign:
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                if wanted in environ.split(b"\0"):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if command:
                        found[int(pid)] = command
                elif environ:  # none in the midst of an exec
                    self.foreign.add(pid)
            except OSError:
                continue
        return found

    def runs(self, *words: str, count: int = 1) -> bool:
        return sum(all(word in command for word in words) for command in self.processes().values()) >= count

    def has(self, pattern: str) -> bool:
        return any(self.place.glob(f"drainer-run-*/{pattern}"))

    def reach(self, name: str) -> None:
        """Not wait_until, whose pauses grow: some moments are short."""
        assert self.reached(name), f"the moment did not come: {self.processes()}\n{self.drainer.tail()}"

    def reached(self, name: str) -> bool:
        """False: the start went through, and nobody saw a moment that passes."""
        moment = MOMENTS[name]
        end = time.monotonic() + 240
        while not moment(self):
            assert self.drainer.alive, self.drainer.tail()
            assert time.monotonic() < end, f"neither {name!r} nor the end of the start: {self.drainer.tail()}"
            if name in PASSING and "drainer is running" in self.drainer.text():
                return moment(self)
            time.sleep(0.005)
        return True

    def check_gone(self) -> None:
        """With the temporary files removed, as the next start of a drainer does it."""
        sweep(self.place)
        self.check_ended()

    def check_ended(self) -> None:
        def ended() -> bool:
            left = self.processes()
            assert not left, left
            return True

        wait_until(ended, what="everything ended")


# In the command lines of the supervisor, of the server, and of what is forked from it: Spark's daemons and workers.
FORK_SERVER = "-m drainer.spark.startup.fork_server"
MOMENTS: dict[str, Callable[[Life], bool]] = {
    "an interpreter runs": lambda life: life.runs("-m drainer"),
    "the temporary folder is there": lambda life: life.has("lock"),
    "the JVM's supervisor runs": lambda life: life.runs("supervisor.py"),
    "the fork server runs": lambda life: life.runs(FORK_SERVER, count=2),
    "spark-submit runs": lambda life: life.runs("bash", "spark-submit"),
    "the launcher's JVM runs": lambda life: life.runs("org.apache.spark.launcher.Main"),
    "the JVM runs": lambda life: life.runs("org.apache.spark.deploy.SparkSubmit", "-Dlog4j2.configurationFile"),
    "the gateway runs": lambda life: life.has("gateway-*/connection*"),
}
# The others last, and may come a little behind the line that says that the drainer runs.
PASSING = {"the launcher's JVM runs", "the gateway runs"}
# Lasts a few milliseconds by itself: a poll may miss it in every start. So bash waits before it reads the script.
HELD = "spark-submit runs"


def born(stubs: Stubs, moment: str = "") -> Life:
    if not stubs.pumps:
        stubs.add("a")
    place = stubs.directory / "tmp"
    place.mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    environ = {MARK: mark, "TMPDIR": str(place)}
    if moment == HELD:
        environ["BASH_ENV"] = str(stubs.directory / "hold.sh")
        held = stubs.directory / "held"
        held.touch()
        (stubs.directory / "hold.sh").write_text(f'while [ -e "{held}" ]; do sleep 0.05; done\n')
    drainer = stubs.drainer(configuration(stubs, free_port()), **environ).start()
    return Life(drainer, mark, place)


@pytest.mark.parametrize("moment", MOMENTS)
def test_drainer_killed_during_its_start_leaves_no_process(stubs: Stubs, moment: str) -> None:
    """On a busy machine a short moment may pass between two looks: then another start is watched."""
    for _ in range(5):
        life = born(stubs, moment)
        reached = life.reached(moment)
        life.drainer.kill()
        life.check_gone()
        if reached:
            return
    pytest.fail(f"in five starts nobody saw the moment: {moment}")


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("the temporary folder is there", signal.SIGINT),
        ("the JVM runs", signal.SIGTERM),
        ("the JVM runs", signal.SIGINT),
    ],
)
def test_signal_during_start_stops_drainer_cleanly(stubs: Stubs, moment: str, number: signal.Signals) -> None:
    """Ctrl-C in a terminal, a service manager: the whole group gets it."""
    life = born(stubs)
    life.reach(moment)
    assert life.drainer.process is not None
    os.killpg(life.drainer.process.pid, number)
    assert life.drainer.wait(deadline_s=240) == 0, life.drainer.tail()
    assert "Traceback" not in life.drainer.text()
    if moment == "the temporary folder is there":
        assert "drainer is running" not in life.drainer.text(), "the start went on"
    life.check_ended()
    assert list(life.place.iterdir()) == []
