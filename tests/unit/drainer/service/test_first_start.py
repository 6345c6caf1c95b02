"""Where a drainer begins whose destination has no position, and what it says of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from binlog.cluster import tso
from structlog.testing import capture_logs

from drainer.config import Config
from drainer.pumps.survey import HeldBack
from drainer.pumps.watermark import BatchLimits, PumpMark, Stop, Watermark
from drainer.schema.provider import Known
from drainer.service.daemon import first_start, log_start_position
from drainer.sink.base import FirstStart, Identity
from drainer.sink.document_position import Document
from drainer.sink.position import Stored
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.memory_sink import MemorySink, Store

IDENTITY = Identity(1, "default", "d")
TABLES = (("shop", "orders"), ("shop", "Lines"))
FIRST_TS, NOW_TS = tso.compose(1_000_000), tso.compose(2_000_000)
KNOWN = Known(TABLES, FIRST_TS)


class Pumps:
    """One pump that has purged up to a ts, or does not answer."""

    def __init__(self, purged_ts: int | None = 0) -> None:
        self.purged_ts = purged_ts

    async def survey(self, *, after_ts: int, limits: BatchLimits) -> Watermark:
        if self.purged_ts is None:
            raise HeldBack("p", "it does not answer")
        mark = PumpMark("p", "h", True, NOW_TS, NOW_TS, 0, 0, Stop.RESOLVED, purged_ts=self.purged_ts)
        return Watermark(NOW_TS, (mark,))


def config(**given: object) -> Config:
    return Config.model_validate({"pd-urls": "http://127.0.0.1:1", **given})


def said(config: Config, first: FirstStart, store: Store) -> tuple[int, list[Any]]:
    """(position, log lines) of a start."""
    initial_ts = NOW_TS if config.initial_commit_ts < 0 else config.initial_commit_ts
    position = MemorySink(store).open(IDENTITY, initial_ts, first)
    with capture_logs() as lines:
        log_start_position(config, initial_ts, first, position)
    return position.commit_ts, lines


async def test_first_start_with_empty_destination_begins_at_oldest_binlog() -> None:
    first = await first_start(config(), KNOWN, Pumps())
    position_ts, (line,) = said(config(), first, Store())
    assert position_ts == 0
    assert line["log_level"] == "info"
    assert "starting from the oldest binlog" in line["event"]


@pytest.mark.parametrize(
    ("given", "pumps", "known"),
    [
        ({"initial-commit-ts": -1}, Pumps(), KNOWN),
        ({"schema": {"history-url": "http://tidb:10080"}}, Pumps(), KNOWN),
        ({"schema": {"history-file": "x"}}, Pumps(), KNOWN),
        ({}, Pumps(FIRST_TS), KNOWN),
    ],
)
async def test_first_start_otherwise_begins_now_and_names_missing_tables(
    given: dict[str, object], pumps: Pumps, known: Known
) -> None:
    settings = config(**given)
    position_ts, (line,) = said(settings, await first_start(settings, known, pumps), Store())
    assert position_ts == NOW_TS
    assert line["log_level"] == "warning"
    assert line["skipped_until_ts"] == NOW_TS
    assert line["missing"] == ["shop.orders", "shop.Lines"]
    assert "initial-commit-ts = 0" in line["remedy"]


async def test_first_start_ignores_binlogs_purged_before_first_table() -> None:
    for pumps in (Pumps(FIRST_TS - 1), Pumps(None)):
        assert (await first_start(config(), KNOWN, pumps)).empty_ts == 0
    assert (await first_start(config(), Known((), 0), Pumps())).empty_ts is None


async def test_first_start_with_partly_filled_destination_begins_now() -> None:
    first = await first_start(config(), KNOWN, Pumps())
    position_ts, (line,) = said(config(), first, Store(rows={("SHOP", "lines"): {}}))
    assert (position_ts, line["missing"]) == (NOW_TS, ["shop.orders"])
    everything = Store(rows={("shop", "lines"): {}, ("shop", "orders"): {}})
    position_ts, (line,) = said(config(), first, everything)
    assert (position_ts, line["log_level"], line["skipped_until_ts"]) == (NOW_TS, "info", NOW_TS)


async def test_initial_commit_ts_that_differs_from_position_is_warned_of() -> None:
    for given in ({"initial-commit-ts": 17}, {"initial-commit-ts": -1}):
        _, (line,) = said(config(**given), FirstStart(), Store(Document(Stored(900, 0, 0))))
        assert line["log_level"] == "warning"
        assert (line["initial_commit_ts"], line["position"]) == (given["initial-commit-ts"], 900)
    assert said(config(), FirstStart(), Store(Document(Stored(900, 0, 0)))) == (900, [])
    assert said(config(**{"initial-commit-ts": 0}), FirstStart(TABLES), Store()) == (0, [])


def test_first_start_with_sqlite_finds_its_missing_tables(tmp_path: Path) -> None:
    file = tmp_path / "down.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute('CREATE TABLE "Shop.orders" (id INTEGER)')
    connection.close()
    destination = SQLiteSink(file)
    found = destination.open(IDENTITY, 100, FirstStart(TABLES, 0))
    assert (found.commit_ts, found.missing, found.fresh) == (100, (("shop", "Lines"),), True)
    destination.close(clean=True)
    again = SQLiteSink(file)
    assert again.open(IDENTITY, 7, FirstStart(TABLES, 0)).missing == ()
    again.close(clean=True)
    empty = SQLiteSink(tmp_path / "empty.sqlite")
    assert empty.open(IDENTITY, 100, FirstStart(TABLES, 0)).commit_ts == 0
    empty.close(clean=True)
