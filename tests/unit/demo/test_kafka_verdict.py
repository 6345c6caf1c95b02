"""The Kafka demo must say so when the order is broken, a table differs, or a topic cannot be read."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from demo.command import Options
from demo.kafka import run
from demo.kafka.events import EventsSeen
from demo.kafka.feeds import Feed
from demo.kafka.run import READ_DEADLINE_S, Chain, Stream, read_back, shown
from demo.kafka.screen import KafkaScreen
from demo.model import TableModel
from demo.processes import DemoError, DrainerProgram, Program
from tests.support.servers import ROOT, wait_until

FEED = Feed("open-protocol", "Open Protocol", "kafka://127.0.0.1:9/shop?protocol=open-protocol", "", ["shop"])


def chain(directory: Path) -> Chain:
    return Chain(directory, "", [], [])


def ending(monkeypatch: pytest.MonkeyPatch, name: str, code: int, says: str = "") -> None:
    """That program of a feed ends at once."""

    def program(feed: Feed, directory: Path) -> Program:
        log, output = directory / f"{name}.log", directory / f"{feed.name}-check.txt"
        return Program(name, ["sh", "-c", f"echo '{says}'; exit {code}"], log, output if name == "checker" else None)

    monkeypatch.setattr(Feed, name, program)


@pytest.mark.parametrize(("check", "good"), [(0, True), (1, False)])
def test_read_back_fails_if_checker_finds_broken_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: int, good: bool
) -> None:
    ending(monkeypatch, "consumer", 0)
    ending(monkeypatch, "checker", check)
    assert read_back(chain(tmp_path), FEED, print) is good


@pytest.mark.parametrize(("consume", "check", "who"), [(1, 0, "consumer"), (2, 1, "consumer"), (0, 2, "checker")])
def test_read_back_raises_if_a_reader_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, consume: int, check: int, who: str
) -> None:
    ending(monkeypatch, "consumer", consume, "no such topic")
    ending(monkeypatch, "checker", check)
    with pytest.raises(DemoError, match=f"{who} ended with exit code [12]"):
        read_back(chain(tmp_path), FEED, print)


def sleeping(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def program(feed: Feed, directory: Path) -> Program:
        return Program(name, ["sleep", "600"], directory / f"{name}.log")

    monkeypatch.setattr(Feed, name, program)


def test_readers_end_when_the_demo_is_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are waited for in a thread, for as long as they run: Ctrl-C would wait with it."""
    sleeping(monkeypatch, "consumer")
    sleeping(monkeypatch, "checker")
    monkeypatch.setattr(run, "emptied", lambda directory: directory)
    monkeypatch.setattr(run, "broker", lambda directory: Server(directory))
    monkeypatch.setattr(run, "registry", Server)
    monkeypatch.setattr(run, "feeds", lambda address, url: [])
    monkeypatch.setattr(run, "start_pumps", nothing)
    monkeypatch.setattr(run, "_ready", nothing)
    monkeypatch.setattr(run.log, "setup", lambda *_: None)
    found: list[Program] = []

    async def interrupted() -> None:
        options = Options(tmp_path, 1.0, 1, 1.0, 1, crash=False)
        async with run.started(options, KafkaScreen()) as made:
            reading = asyncio.create_task(asyncio.to_thread(read_back, made, FEED, print))
            async with asyncio.timeout(90):
                while len([one for one in made.readers if one.alive]) < 2:  # noqa: ASYNC110  in a thread
                    await asyncio.sleep(0.01)
            found.extend(made.readers)
            reading.cancel()
            raise KeyboardInterrupt

    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert time.monotonic() - begun_s < READ_DEADLINE_S / 2
    assert [one.alive for one in found] == [False, False]


def test_readers_are_not_started_after_demo_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeping(monkeypatch, "consumer")
    sleeping(monkeypatch, "checker")
    made = chain(tmp_path)
    made.is_over = True
    with pytest.raises(DemoError, match="consumer was started when the demo was over"):
        read_back(made, FEED, print)
    assert [one.alive for one in made.readers] == [False]


class Server:
    """A broker or registry that is not there."""

    def __init__(self, directory: Path) -> None:
        self.program = Program("none", ["true"], directory / "none.log")
        self.address = self.url = "127.0.0.1:9"


async def nothing(*_: object) -> None:
    """Nobody is there to be waited for."""


@pytest.mark.parametrize("is_background", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_that_ends_demo_stops_its_programs(tmp_path: Path, number: signal.Signals, is_background: bool) -> None:
    """A closed terminal, too: the programs have sessions of their own, so no signal of the terminal reaches them. In
    the background of a script the demo is started with SIGINT ignored."""
    text = (
        "import asyncio, pathlib, sys\n"
        "from demo.command import exit_code\n"
        "from demo.kafka.screen import KafkaScreen\n"
        "from demo.processes import Program\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "async def work():\n"
        "    child = Program('c', ['sleep', '600'], place / 'log')\n"
        "    child.start()\n"
        "    try:\n"
        "        (place / 'pid').write_text(str(child.process.pid))\n"
        "        (place / 'pid').rename(place / 'child')\n"
        "        await asyncio.sleep(600)\n"
        "    finally:\n"
        "        child.kill()\n"
        "sys.exit(exit_code(work(), KafkaScreen()))\n"
    )
    trap = "trap '' INT; " if is_background else "trap - INT; "
    started = ["sh", "-c", f'{trap}exec "$@"', "sh", sys.executable, "-c", text, str(tmp_path)]
    demo = subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    wait_until((tmp_path / "child").exists, what="the demo's program runs")
    child = int((tmp_path / "child").read_text())
    demo.send_signal(number)
    said, _ = demo.communicate(timeout=120)
    assert (demo.returncode, "interrupted; its programs are stopped" in said) == (130, True), said
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


class Models:
    """Of a shop, its tables alone."""

    def __init__(self) -> None:
        self.models = {"t": TableModel("t", ["id"], ("id",))}
        self.models["t"].insert({"id": 1})


@pytest.mark.parametrize(("found", "equal"), [([1], True), ([2], False), ([], False), ([1, 1], False)])
def test_result_screen_shows_table_that_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, found: list[int], equal: bool
) -> None:
    with sqlite3.connect(FEED.database(tmp_path)) as connection:
        connection.execute('CREATE TABLE "shop.t" (id)')
        connection.executemany('INSERT INTO "shop.t" VALUES (?)', [(one,) for one in found])
    (tmp_path / "open-protocol-check.txt").write_text("messages 3\nrow-order: shop[0] offset 2: behind\n")
    drainer = DrainerProgram("open-protocol", [], tmp_path / "log")
    stream = Stream(FEED, drainer, FEED.printer(tmp_path), EventsSeen(tmp_path / "events"))
    shop: Any = Models()
    assert shown(chain(tmp_path), stream, shop, KafkaScreen(), ok=False) is equal
    said = capsys.readouterr().out
    assert "row-order: shop[0] offset 2: behind" in said
    assert ("│ differs │" in said) is not equal
