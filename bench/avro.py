"""Measure the encoding of rows as Avro messages, compared with fastavro for the same rows, in CPU time of one run: µs a
row, and the ratio.

    python -m bench.avro [--rows 20000]

Both write a key and a value with their headers, and the bytes are compared before anything is measured. fastavro gets
prepared dictionaries, with dates and JSON already as text; this project's encoder begins with the columns that a
drainer has. `wide` has ten columns of ten types, and this project's encoder spends most of the time on the text of its
JSON. `no JSON` is the same without that column, `sbtest` has four columns. Then batches of few rows show the cost of a
call. Each figure is the least of several runs.
"""

from __future__ import annotations

import argparse
import json
import random
from io import BytesIO
from typing import Any

import fastavro
from binlog.tidb.json import encode_json
from binlog.tidb.time import Civil, pack
from binlog.tidb.types import FieldType, Flag, Tp

from bench.report import Report
from bench.rowcodec import least_us
from drainer.batch.work import Kind
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.encoder import merged
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import DecodedValue
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table

TOPIC = "bench"
_TEXT = FieldType(Tp.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")
_CHAR = FieldType(Tp.STRING, Flag.NOT_NULL, 120, 0, "utf8mb4", "utf8mb4_bin")
_KINDS = ("new", "paid")
_COLUMNS = [
    ("id", FieldType(Tp.LONGLONG)),
    ("price", FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)),
    ("ratio", FieldType(Tp.DOUBLE)),
    ("name", _TEXT),
    ("day", FieldType(Tp.DATE)),
    ("at", FieldType(Tp.TIMESTAMP, decimal=6)),
    ("kind", FieldType(Tp.ENUM, elems=_KINDS)),
    ("raw", FieldType(Tp.BLOB)),
    ("doc", FieldType(Tp.JSON)),
    ("note", _TEXT),
]
_JSON = 8
WIDE = make_table("bench", "wide", _COLUMNS, primary=["id"])
NO_JSON = make_table("bench", "wide", [*_COLUMNS[:_JSON], *_COLUMNS[_JSON + 1 :]], primary=["id"])
SBTEST = make_table(
    "bench",
    "sbtest1",
    [("id", FieldType(Tp.LONG)), ("k", FieldType(Tp.LONG, Flag.NOT_NULL)), ("c", _CHAR), ("pad", _CHAR)],
    primary=["id"],
)
OPTIONS = ProtocolOptions("avro", enable_tidb_extension=True)


def wide_row(number: int, dice: random.Random) -> list[DecodedValue]:
    return [
        number,
        f"{dice.randrange(100_000)}.{dice.randrange(100):02d}",
        dice.random(),
        f"customer {number} Ünal".encode(),
        pack(Civil(2026, dice.randrange(1, 13), dice.randrange(1, 29))),
        pack(Civil(2026, 11, 21, 7, dice.randrange(60), 0, dice.randrange(1_000_000))),
        dice.randrange(1, 3),
        dice.randbytes(16),
        bytes(encode_json({"tags": ["a", "b"], "n": number})),
        None,
    ]


def sbtest_row(number: int, dice: random.Random) -> list[DecodedValue]:
    return [number, dice.randrange(1_000_000), b"%0120d" % dice.getrandbits(63), b"%060d" % dice.getrandbits(63)]


def ready(table: Table) -> tuple[AvroEncoder, list[Any]]:
    """Return an encoder with schema ids, and fastavro's schemas of key and value."""
    encoder = AvroEncoder(OPTIONS)
    required = encoder.required_schemas(TOPIC, table)
    ids = merged({}, [(one, number) for number, one in enumerate(required, 1)])
    return encoder.with_ids(ids), [fastavro.parse_schema(json.loads(one.schema)) for one in required]


def with_fastavro(schemas: list[Any], rows: list[dict[str, Any]]) -> list[tuple[bytes, bytes]]:
    key_schema, value_schema = schemas
    found = []
    for row in rows:
        key, value = BytesIO(), BytesIO()
        key.write(b"\0\0\0\0\1")
        fastavro.schemaless_writer(key, key_schema, row)
        value.write(b"\0\0\0\0\2")
        fastavro.schemaless_writer(value, value_schema, row)
        found.append((key.getvalue(), value.getvalue()))
    return found


def dictionaries(schemas: list[Any], messages: list[bytes | None]) -> list[dict[str, Any]]:
    """Return what fastavro reads in this project's messages."""
    found = []
    for message in messages:
        assert message is not None
        row = fastavro.schemaless_reader(BytesIO(message[5:]), schemas[1], None)
        assert isinstance(row, dict)
        found.append(row)
    return found


def measure(name: str, table: Table, rows: list[list[DecodedValue]], report: Report) -> None:
    encoder, schemas = ready(table)
    changes: RowChanges = make_changes(table, Kind.INSERT, new=rows)
    ours = encoder.table(table, TOPIC)
    made = encoded_rows(ours, changes)
    given = dictionaries(schemas, [row.value for row in made])
    assert with_fastavro(schemas, given) == [row[:2] for row in made], "the bytes differ"
    report.add(f"{name}: fastavro", least_us(lambda: with_fastavro(schemas, given), len(rows)), "us a row")
    report.add(f"{name}: ours", least_us(lambda: ours.encode_columns(changes), len(rows)), "us a row")
    report.ratio(f"{name}: fastavro", f"{name}: ours")
    for count in (1, 16, 256):
        few = make_changes(table, Kind.INSERT, new=rows[:count])
        calls = max(1, 512 // count)
        cost = least_us(lambda few=few, calls=calls: [ours.encode_columns(few) for _ in range(calls)], calls)  # type: ignore[misc]
        report.add(f"{name}: a call of {count} rows", cost, "us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    count: int = parser.parse_args().rows
    dice = random.Random(1)
    report = Report(f"Avro, {count:,} rows")
    wide = [wide_row(number, dice) for number in range(count)]
    measure("wide", WIDE, wide, report)
    measure("no JSON", NO_JSON, [row[:_JSON] + row[_JSON + 1 :] for row in wide], report)
    measure("sbtest", SBTEST, [sbtest_row(number, dice) for number in range(count)], report)


if __name__ == "__main__":
    main()
