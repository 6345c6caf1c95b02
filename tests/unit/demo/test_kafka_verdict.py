"""The Kafka demo must say so when the order is broken, a table differs, or a topic cannot be read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from demo.kafka.events import EventsSeen
from demo.kafka.feeds import Feed
from demo.kafka.run import Chain, Stream, read_back, shown
from demo.kafka.screen import KafkaScreen
from demo.model import TableModel
from demo.processes import DemoError, DrainerProgram, Program

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
def test_a_broken_rule_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: int, good: bool) -> None:
    ending(monkeypatch, "consumer", 0)
    ending(monkeypatch, "checker", check)
    assert read_back(chain(tmp_path), FEED) is good


@pytest.mark.parametrize(("consume", "check", "who"), [(1, 0, "consumer"), (2, 1, "consumer"), (0, 2, "checker")])
def test_what_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, consume: int, check: int, who: str
) -> None:
    ending(monkeypatch, "consumer", consume, "no such topic")
    ending(monkeypatch, "checker", check)
    with pytest.raises(DemoError, match=f"{who} ended with exit code [12]"):
        read_back(chain(tmp_path), FEED)


class Models:
    """Of a shop, its tables alone."""

    def __init__(self) -> None:
        self.models = {"t": TableModel("t", ["id"], ("id",))}
        self.models["t"].insert({"id": 1})


@pytest.mark.parametrize(("found", "equal"), [([1], True), ([2], False), ([], False), ([1, 1], False)])
def test_a_table_that_differs_is_told(
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
