"""What encoders keep of tables."""

from __future__ import annotations

import pickle

import pytest
from binlog.tidb.time import parse_datetime
from binlog.tidb.types import FieldType, Tp

from drainer.batch.work import Kind
from drainer.protocol import encoder
from drainer.protocol.encoder import CompiledTables
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_encoder
from tests.support.row_changes import make_changes, make_table

TABLE = make_table("test", "t", [("id", FieldType(Tp.LONG)), ("at", FieldType(Tp.TIMESTAMP))], primary=["id"])


def test_compiled_tables_are_made_once_and_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "TABLES_MAX", 2)
    made: list[int] = []
    tables = CompiledTables[int]()
    for key in (1, 1, 2, 1, 3, 3, 1):
        assert tables.get(key, lambda key=key: made.append(key) or key) == key  # type: ignore[misc]
    assert made == [1, 2, 3, 1]


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "debezium", "simple", "secondary-binlog"])
def test_compiled_table_is_reused_and_not_pickled(protocol: str) -> None:
    encoder = make_encoder(ProtocolOptions(protocol, time_zone="Asia/Tokyo"))
    assert encoder.table(TABLE) is encoder.table(TABLE)
    compiled = type(encoder.table(TABLE)).__name__.encode()
    assert compiled not in pickle.dumps(encoder)
    again = pickle.loads(pickle.dumps(encoder))
    changes = make_changes(TABLE, Kind.INSERT, new=[(1, parse_datetime("2024-07-01 12:00:00"))])
    assert again.table(TABLE) is not encoder.table(TABLE)
    assert again.table(TABLE).encode(changes) == encoder.table(TABLE).encode(changes)
