"""Events as lines of JSON: every kind has one, and it can be read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drainer.kafka_consumer.__main__ import line_of
from drainer.kafka_reading.records import KafkaPartition, Record
from drainer.protocol.event import (
    AdminEvent,
    BootstrapEvent,
    Change,
    ColumnValue,
    DdlEvent,
    Event,
    Image,
    ResolvedEvent,
    RowEvent,
)

RECORD = Record(KafkaPartition("shop", 2), 7, b"", b"")


def image(**values: Any) -> Image:
    return {name: ColumnValue(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (
            RowEvent(Change.UPDATE, 5, "db", "t", old=image(id=1, n=None), new=image(id=1, n="ä\n")),
            {
                "event": "update",
                "commit_ts": 5,
                "table": "db.t",
                "old": {"id": 1, "n": None},
                "new": {"id": 1, "n": "ä\n"},
            },
        ),
        (
            RowEvent(Change.INSERT, 2**63 + 1, "db", "t", new=image(f=1.5, b=b"\xff\x00")),
            {"event": "insert", "commit_ts": 2**63 + 1, "table": "db.t", "new": {"f": 1.5, "b": "/wA="}},
        ),
        (
            RowEvent(Change.DELETE, 0, "db", "t", old=image(id=1), key=image(id=1)),
            {"event": "delete", "table": "db.t", "old": {"id": 1}},
        ),
        (
            RowEvent(Change.UPSERT, 5, "db", "t", new=image(id=1), handle_only=True, claim="/claims/1.json"),
            {
                "event": "upsert",
                "commit_ts": 5,
                "table": "db.t",
                "handle_only": True,
                "claim": "/claims/1.json",
                "new": {"id": 1},
            },
        ),
        (
            DdlEvent(5, "db", "t", "DROP TABLE t"),
            {"event": "ddl", "commit_ts": 5, "table": "db.t", "query": "DROP TABLE t"},
        ),
        (DdlEvent(5, "db", "", "x"), {"event": "ddl", "commit_ts": 5, "table": "db", "query": "x"}),
        (ResolvedEvent(5), {"event": "resolved", "commit_ts": 5}),
        (AdminEvent(4, 5), {"event": "partitions", "commit_ts": 5, "partitions": 4}),
        (BootstrapEvent("db", "t", 5), {"event": "bootstrap", "commit_ts": 5, "table": "db.t"}),
    ],
)
def test_event_of_each_kind_is_one_json_line(event: Event, shown: dict[str, Any]) -> None:
    line = line_of(RECORD, event)
    assert "\n" not in line
    assert json.loads(line) == {"topic": "shop", "partition": 2, "offset": 7, **shown}
