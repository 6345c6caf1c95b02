"""A DDL that did not run downstream may leave a table that column selectors or dispatch rules do not fit.

Rows of it are refused before anything of their range is recorded: a range that was begun could be finished only with
the same settings, and these can never publish its rows.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from binlog.tidb.table import TableInfo
from structlog.testing import capture_logs

from drainer.dispatch import DispatchError
from drainer.sink.base import Intent
from drainer.sink.kafka import sink as module
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.sink import KafkaSink, make
from drainer.sink.position import Stored
from drainer.sink.settings import SyncerSettings
from tests.support.row_case import INT, Step, not_null, table, transaction, view_of
from tests.unit.drainer.dispatch.histories import segment_of

FITS = table([("id", INT), ("v", INT)], handle="id")
UNFIT = table([("k", not_null(INT)), ("v", INT)], unique={"PRIMARY": ["k"]})
NEXT = Intent(5, 9, 3, 100, 1, "digest")
SELECTORS = {"column-selectors": [{"matcher": ["*.*"], "columns": ["id", "v"]}]}
RULES = {"dispatchers": [{"matcher": ["*.*"], "partition": "columns", "columns": ["id"]}]}


class Recorded(Exception):
    """The driver was asked to write to the control topic."""


def opened(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, intent: Intent | None = None) -> KafkaSink:
    """Return a sink at position 5 whose driver raises Recorded instead of writing."""
    place = {"addresses": ["k:9092"], "topic": "t"}
    made = make(KafkaSection.model_validate({**place, **settings}, by_name=False), SyncerSettings())

    def transact(*_: object, **__: object) -> None:
        raise Recorded

    driver: Any = SimpleNamespace(
        transact=transact, label="x", document=SimpleNamespace(stored=Stored(5, 1, 1, "", intent))
    )
    topics: Any = SimpleNamespace(know=lambda names: None, prepare=lambda tables: None, stops_at_changes=False)
    topics.announcement = lambda until_ts, names: None if made._config.exactly_once else {"names": list(names)}
    topics.may_repeat = lambda commit_ts: True
    made._driver, made._topics, made.commit_ts = driver, topics, 5
    monkeypatch.setattr(module.KafkaSink, "_writer", lambda *_: "a writer")
    return made


@pytest.mark.parametrize(
    ("protocol", "wanted"), [("avro&schema-registry=http://r:1", [["db.keyless"]]), ("open-protocol", [])]
)
def test_tables_without_key_are_warned_of_once_for_avro(protocol: str, wanted: list[list[str]]) -> None:
    """At the start, and when a DDL makes one, before any row of it is deleted."""
    uri = f"kafka://k:9092/t?protocol={protocol}"
    sink = make(KafkaSection.model_validate({"sink-uri": uri}, by_name=False), SyncerSettings())
    keyless = table([("v", INT)], name="keyless", table_id=2)
    view = replace(keyless, id=3, name="a_view", rest={"view": {}})
    with capture_logs() as lines:
        for _ in range(2):
            sink.check_tables(view_of(FITS, keyless, view))
    assert [line["tables"] for line in lines] == wanted


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "simple"])
@pytest.mark.parametrize("settings", [SELECTORS, RULES])
def test_range_with_table_that_settings_do_not_fit_is_not_begun(
    settings: dict[str, Any], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened({**settings, "protocol": protocol}, monkeypatch)
    sink.prepare(view_of(FITS))
    with pytest.raises(Recorded):
        sink.begin(NEXT)
    sink.prepare(view_of(UNFIT))  # the range before may still be written: it is not disturbed
    with pytest.raises(DispatchError) as refused:
        sink.begin(NEXT)
    assert str(refused.value).startswith("rows after commit_ts 5 are not published: table `db`.`t`: ")
    assert str(refused.value).endswith("To continue, use settings that fit the table both before and after its change")
    sink.prepare(view_of(FITS))
    with pytest.raises(Recorded):
        sink.begin(NEXT)


def test_open_range_is_finished_after_its_table_became_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun when its tables fitted; a later table does not keep it open."""
    sink = opened(SELECTORS, monkeypatch, NEXT)
    sink.prepare(view_of(UNFIT))
    assert sink.begin(NEXT) == "a writer"  # type: ignore[comparison-overlap]


def rows_of(info: TableInfo) -> bytes:
    """Return a transaction that inserts a row."""
    step: Step = ("insert", {}, {column.id: 1 for column in info.columns})
    return transaction([(info, step)], commit_ts=1, start_ts=1)


@pytest.mark.parametrize("settings", [SELECTORS, RULES])
def test_rows_written_by_driver_are_checked_before_announcement(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without transactions, what is about to be sent is recorded first, and keeps the settings as an intent does."""
    sink = opened({**settings, "exactly-once": False}, monkeypatch)
    sink.commit_ts = 0
    with pytest.raises(Recorded):
        sink.apply(segment_of([FITS], [rows_of(FITS)]), 1)
    with pytest.raises(DispatchError, match=r"table `db`\.`t`: "):
        sink.apply(segment_of([UNFIT], [rows_of(UNFIT)]), 1)
