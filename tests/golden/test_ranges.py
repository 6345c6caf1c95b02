"""Rows of a real TiDB, read as texts, are byte for byte what its binlogs gave."""

from __future__ import annotations

from collections import Counter

import pytest
from binlog.tidb.flatten import flatten
from binlog.tidb.types import FieldType, Tp

from drainer.changes.texts import decoded, is_read_as_names
from drainer.row.column_type import ColumnType
from drainer.row.layout import replicated
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.row_bags import replay
from tests.support.row_packets import packet

Literals = tuple[object, ...]


def text_of(kind: FieldType, cell: object) -> bytes | None:
    """The text of a recorded cell as TiDB would send it. ENUM and SET were recorded with their names."""
    if cell is None:
        return None
    if kind.tp in (Tp.ENUM, Tp.SET) and not is_read_as_names(ColumnType.of(kind)):
        return str(flatten(cell, kind)).encode()
    if isinstance(cell, dict):
        octets = bytes.fromhex(cell["hex"])
        return str(int.from_bytes(octets, "big")).encode() if kind.tp is Tp.BIT else octets
    return str(cell).encode()


def comparable(kinds: list[FieldType], rows: Counter[Literals]) -> Counter[Literals]:
    """FLOATs were recorded with fewer digits than they have; they are read as DOUBLE."""
    places = {at for at, kind in enumerate(kinds) if kind.tp is Tp.FLOAT}
    found: Counter[Literals] = Counter()
    for row, count in rows.items():
        cells = [
            format(float(cell), ".5e") if at in places and isinstance(cell, bytes) and cell != b"NULL" else cell
            for at, cell in enumerate(row)
        ]
        found[tuple(cells)] += count
    return +found


@pytest.mark.parametrize("name", ["types", "keys"])
def test_recorded_texts_give_the_rows_of_recorded_binlogs(name: str) -> None:
    capture = CaptureSet(GOLDEN / name)
    model, schema = replay(capture)
    compared = 0
    for table_id, bag in model.bags.items():
        found = schema.catalog.tables.get(table_id)
        table = capture.tables().get(f"{found.schema}.{found.name}") if found is not None else None
        if found is None or table is None or table_id in model.altered:
            continue
        columns = replicated(found.current)
        kinds = [column.type for column in columns]
        places = [table["columns"].index(column.name) for column in columns]
        packets = [
            packet([text_of(kind, row[at]) for kind, at in zip(kinds, places, strict=True)]) for row in table["rows"]
        ]
        types = [ColumnType.of(kind) for kind in kinds]
        read = decoded(types, packets)
        literals = [SQL_TEXT.literals(of, column.to_pylist()) for of, column in zip(types, read, strict=True)]
        rows: Counter[Literals] = Counter(zip(*literals, strict=True))
        assert comparable(kinds, rows) == comparable(kinds, bag), f"{found.schema}.{found.name}"
        compared += bool(table["rows"])
    assert compared >= {"types": 34, "keys": 25}[name]
