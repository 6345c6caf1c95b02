"""The rows of a position in a server's tables, without a server."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drainer.sink.base import Identity, Intent
from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.position import Changefeed, store
from drainer.sink.mysql.rows.chunks import Phase
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.position import ChunkMark, Stored
from drainer.sink.sql_position import SqlPositionStore
from drainer.sink.sqlite import sink

WHO = Identity(7, "main", "n")
WHOLE = Intent(100, 200, 2, 3, 1, "all", ("a", "b"), (7, -1))
TEXT = (
    '{"after_ts": 100, "until_ts": 200, "slots": 2, "chunk_rows": 3, "hash_version": 1, "digest": "all", '
    '"pumps": ["a", "b"], "counts": [7, -1]'
)


def left_behind(intent: str, phase: str) -> SqlPositionStore:
    """Slot 0 is done, slot 1 has one chunk of two."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    sink.create_tables(connection)
    connection.execute(f"INSERT INTO {sink.POSITION} VALUES (7,'main',100,5,3,'n',?)", (intent,))
    for slot, done in ((0, 2), (1, 1)):
        connection.execute(f"INSERT INTO {sink.MARKS} VALUES (7,'main',200,?,?,100,3,?,2)", (phase, slot, done))
    return sink.position_store(connection, WHO)


@pytest.mark.parametrize("phase", ["direct", "delete", "insert"])
def test_an_open_range_goes_on_in_its_phase(phase: str) -> None:
    """Chunks that are done stay done, those that are not are written, and then the range closes."""
    kept, intent = left_behind(f'{TEXT}, "phase": "{phase}"}}', phase), WHOLE
    assert kept.read() == Stored(100, 5, 3, "n", intent, phase)
    assert Phase(phase) == phase
    epoch = kept.take_epoch(3, "n")
    kept.write_intent(epoch=epoch, intent=intent, stage=Phase(phase))
    kept.open_chunks(epoch=epoch, intent=intent, stage=Phase(phase))
    assert kept.chunk(intent=intent, stage=phase, slot=0) == ChunkMark(epoch, 2, 2)
    assert kept.unfinished(intent=intent, stage=phase) == [1]
    assert not kept.step_chunk(epoch=3, intent=intent, stage=phase, slot=1, chunk=1, total=2), "the old driver's"
    assert not kept.step_chunk(epoch=epoch, intent=intent, stage=phase, slot=1, chunk=0, total=2), "done already"
    assert kept.step_chunk(epoch=epoch, intent=intent, stage=phase, slot=1, chunk=1, total=2)
    assert kept.unfinished(intent=intent, stage=phase) == []
    kept.clear_intent(epoch=epoch, intent=intent, schema_version=6)
    kept.purge_chunks(intent)
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
    changefeed = Changefeed(b"`a?{b}`", b"`c`", 7, b"'ma?in'", "ma?in", "x")
    assert store(cast(Any, session), changefeed).read() is None
    assert texts[0].endswith(b" FROM `a?{b}`.`drainer_position` WHERE cluster_id=7 AND changefeed='ma?in'")
