"""The rows of a position in a server's tables, without a server."""

from __future__ import annotations

import sqlite3
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drainer.sink.base import Identity, Intent
from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.position import Changefeed, consumer_store, store
from drainer.sink.mysql.rows.slot_writer import Phase
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.position import Stored
from drainer.sink.sqlite import sink

WHO = Identity(7, "main", "n")
WHOLE = Intent(100, 200, 2, 3, 1, "all", ("a", "b"), (7, -1))
TEXT = (
    '{"after_ts": 100, "until_ts": 200, "slots": 2, "chunk_rows": 3, "hash_version": 1, "digest": "all", '
    '"pumps": ["a", "b"], "counts": [7, -1]'
)


@pytest.mark.parametrize("phase", ["direct", "delete", "insert"])
def test_an_open_range_goes_on_in_its_phase(phase: str) -> None:
    """It is read as it was stored, and then the range closes."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    sink.create_tables(connection)
    intent = f'{TEXT}, "phase": "{phase}"}}'
    connection.execute(f"INSERT INTO {sink._NAMES['drainer_position']} VALUES (7,'main',100,5,3,'n',?)", (intent,))
    kept = sink.position_store(connection, WHO)
    assert kept.read() == Stored(100, 5, 3, "n", WHOLE, phase)
    assert Phase(phase) == phase
    epoch = kept.take_epoch(3, "n")
    kept.write_intent(epoch=epoch, intent=WHOLE, stage=Phase(phase))
    kept.clear_intent(epoch=epoch, intent=WHOLE, schema_version=6)
    assert kept.read() == Stored(200, 6, epoch, "n")


@pytest.mark.parametrize("at", ["begin", "commit"])
def test_a_phase_of_another_version_is_told(at: str) -> None:
    stored = Stored(100, 5, 3, "n", WHOLE, "shadow")
    destination = MySQLSink(ServerConfig())
    destination._driver = cast(
        Any, SimpleNamespace(patiently=lambda what, body: stored, changefeed=SimpleNamespace(label="changefeed 'main'"))
    )
    with pytest.raises(DestinationRefused, match=r"changefeed 'main': .*'shadow'.*start the one that wrote it"):
        destination.begin(WHOLE) if at == "begin" else destination.commit(WHOLE, [], 1)


def test_a_schema_may_have_any_name() -> None:
    """Values are put where the statement has a mark, not where a name has one."""
    texts: list[bytes] = []
    session = SimpleNamespace(
        literal=lambda text: b"'" + text.encode() + b"'", query=lambda text: texts.append(text) or []
    )
    session.bound = partial(ServerSession.bound, cast(Any, session))
    changefeed = Changefeed(b"`a?{b}`", 7, b"'ma?in'", "ma?in", "x")
    assert consumer_store(cast(Any, session), changefeed).label == "kafka-consumer 'ma?in'"
    assert store(cast(Any, session), changefeed).read() is None
    assert texts[0].endswith(b" FROM `a?{b}`.`drainer_position` WHERE cluster_id=7 AND changefeed='ma?in'")
