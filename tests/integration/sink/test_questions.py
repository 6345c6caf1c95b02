"""Which row holds a value, asked of a real server for every type of column (rule 21): a row's own value is never in its
own way, for else each batch would be planned anew, and the same value of another row is."""

from __future__ import annotations

import itertools

import pytest
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import flatten
from binlog.tidb.row import encode_insert
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.changes.claim_slots import merge_claims
from drainer.ddl.dialect import Dialect
from drainer.ddl.mysql_tables import create_table
from drainer.order.probes import Questions
from drainer.order.probes import merge_claims as merge_noted
from drainer.row.codec import Codec
from drainer.row.format import written
from drainer.sink.mysql.connection import connect
from drainer.sink.mysql.rows.examine import MySQLExaminer
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.integration.sink.case import server_config
from tests.support.row_case import Step, codec_of, not_null, table, transaction, view_of
from tests.support.servers import MariaDB
from tests.unit.drainer.changes.keyed import asked as unordered
from tests.unit.drainer.changes.keyed import by_columns, by_rows

pytestmark = pytest.mark.integration

TEXT = FieldType(Tp.VARCHAR, 0, 100, 0, "utf8mb4", "utf8mb4_bin")
MOMENT = FieldType(Tp.DATETIME, 128, 26, 6)
STAMP = FieldType(Tp.TIMESTAMP, 128, 19, 0)
DAY = FieldType(Tp.DATE, 128, 10, 0)
# A type and three values that differ.
TYPES: dict[str, tuple[FieldType, tuple[Datum, Datum, Datum]]] = {
    "int": (FieldType(Tp.LONG, flen=11, decimal=0), (-7, 0, 8)),
    "unsigned": (FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0), (Uint(2**64 - 1), Uint(2**64 - 2), Uint(0))),
    "decimal": (
        FieldType(Tp.NEWDECIMAL, 0, 40, 10),
        (
            Decimal("-123456789012345678901234567890.0000000010", 40, 10),
            Decimal("-123456789012345678901234567890.0000000020", 40, 10),
            Decimal("1.5000000000", 40, 10),
        ),
    ),
    "float": (FieldType(Tp.FLOAT, 0, 12, -1), (1.5, 0.10000000149011612, -3.4028234663852886e38)),
    "double": (FieldType(Tp.DOUBLE, 0, 22, -1), (0.1, 1e308, 2.2250738585072014e-308)),
    "bin": (TEXT, (b"it's", b"\\\n\0", "你😀".encode())),
    "ci": (FieldType(Tp.VARCHAR, 0, 100, 0, "utf8mb4", "utf8mb4_general_ci"), (b"It's", "réé".encode(), b"\\%_")),
    "char": (FieldType(Tp.STRING, 0, 20, 0, "utf8mb4", "utf8mb4_bin"), (b"a", b"ab", b"")),
    "latin1": (FieldType(Tp.VARCHAR, 0, 20, 0, "latin1", "latin1_bin"), (b"a", b"A", "é".encode())),
    "binary": (FieldType(Tp.STRING, Flag.BINARY, 4, 0, "binary", "binary"), (b"\xff\0\0\0", b"ab\0\0", b"\0\0\0\1")),
    "varbinary": (FieldType(Tp.VARCHAR, Flag.BINARY, 40, 0, "binary", "binary"), (b"\xff\xfe", b"a", b"a ")),
    "date": (DAY, tuple(flatten(text, DAY) for text in ("2020-02-29", "1000-01-01", "9999-12-31"))),  # type: ignore[dict-item]
    "datetime": (
        MOMENT,
        tuple(  # type: ignore[dict-item]
            flatten(text, MOMENT)
            for text in ("2020-02-29 01:02:03.000001", "2020-02-29 01:02:03.000000", "9999-12-31 23:59:59.999999")
        ),
    ),
    "timestamp": (STAMP, tuple(flatten(f"{year}-03-29 02:30:00", STAMP) for year in (1971, 2020, 2037))),  # type: ignore[dict-item]
    "time": (FieldType(Tp.DURATION, 128, 14, 3), (-1_500_000_000, 3_020_399_000_000_000, 1_000_000)),
    "year": (FieldType(Tp.YEAR, Flag.UNSIGNED | Flag.ZEROFILL, 4, 0), (1901, 2000, 2155)),
    "enum": (
        FieldType(Tp.ENUM, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("3", "it's", "1")),
        (Uint(1), Uint(2), Uint(3)),
    ),
    "set": (FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("x", "y'", "z")), (Uint(1), Uint(3), Uint(4))),
    "bit": (FieldType(Tp.BIT, Flag.UNSIGNED, 20, 0), (Uint(1), Uint(2**20 - 1), Uint(49))),
    "bit64": (FieldType(Tp.BIT, Flag.UNSIGNED, 64, 0), (Uint(2**64 - 1), Uint(1), Uint(48))),
}  # fmt: skip
ID = FieldType(Tp.LONGLONG, 0, 20, 0)
# No literal is equal to this FLOAT: the question then finds nothing, and the server itself refuses later.
INEXACT = 0.10000000149011612


def of_unique(name: str) -> TableInfo:
    """(id, u): u is unique and of the type."""
    return table([("id", ID), ("u", TYPES[name][0])], handle="id", unique={"uu": ["u"]}, name=f"u_{name}")


def of_key(name: str) -> TableInfo:
    """(k, u): k is the key and of the type."""
    return table([("k", not_null(TYPES[name][0])), ("u", ID)], unique={"PRIMARY": ["k"], "uu": ["u"]}, name=f"k_{name}")


def create(db: MariaDB, info: TableInfo) -> None:
    db.query("CREATE DATABASE IF NOT EXISTS db DEFAULT CHARSET utf8mb4")
    db.query(f"DROP TABLE IF EXISTS db.{info.name}")
    db.query(create_table("db", info, Dialect().only_rows()))


def insert(db: MariaDB, codec: Codec, rows: list[dict[int, Datum]]) -> None:
    """As a destination writes them."""
    config = server_config(db)
    session = connect(config, idle_s=60, read_timeout_s=60)
    for row in rows:
        raw = encode_insert(codec.layout.at, row, rowid=1)
        (values,) = written(SQL_TEXT, codec, [codec.insert(raw, 0, len(raw), 9)], [9])
        session.execute(b"INSERT INTO db.%s VALUES %b" % (codec.shape.table.encode(), values))
    session.close()


def asked(info: TableInfo, steps: list[Step]) -> Questions:
    """The same whichever way they are noted; as columns give them."""
    payloads = [transaction([(info, step)], commit_ts=100 + n) for n, step in enumerate(steps)]
    view = view_of(info)
    noted, found = (
        builder.parts(1).claims.values() for builder in (by_rows(view, payloads), by_columns(view, payloads))
    )
    questions = merge_claims(found, SQL_TEXT)
    assert unordered([questions]) == unordered([merge_noted(noted)])
    return questions


@pytest.mark.parametrize("name", TYPES)
def test_a_unique_value_of_each_type(db: MariaDB, name: str) -> None:
    info = of_unique(name)
    create(db, info)
    rows: list[dict[int, Datum]] = [{1: n + 1, 2: value} for n, value in enumerate(TYPES[name][1])]
    insert(db, codec_of(info), rows)
    examiner = MySQLExaminer(server_config(db))
    own = asked(info, [("update", row, row) for row in rows])
    assert not own.conflict and len(own.probes) == 3
    assert examiner.conflict(own.probes) == ""
    for row in rows:
        other = asked(info, [("insert", {}, {**row, 1: 99})])
        assert ("holds the value" in examiner.conflict(other.probes)) == (row[2] != INEXACT), row


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("float", "double", "ci")])
def test_a_key_of_each_type(db: MariaDB, name: str) -> None:
    info = of_key(name)
    create(db, info)
    values = TYPES[name][1]
    rows: list[dict[int, Datum]] = [{1: value, 2: n + 1} for n, value in enumerate(values)]
    insert(db, codec_of(info), rows)
    examiner = MySQLExaminer(server_config(db))
    own = asked(info, [("update", row, row) for row in rows])
    assert not own.conflict and len(own.probes) == 3
    assert examiner.conflict(own.probes) == ""
    for row, other in itertools.pairwise(rows):
        taken = asked(info, [("insert", {}, {**other, 2: row[2]})])
        assert "holds the value" in examiner.conflict(taken.probes), row


def test_a_table_without_the_key_is_not_asked(db: MariaDB) -> None:
    """Its server refuses no value, and would have to read all of the table for each question."""
    info = of_unique("int")
    create(db, info)
    insert(db, codec_of(info), [{1: 1, 2: 5}])
    probes = asked(info, [("insert", {}, {1: 2, 2: 5})]).probes
    examiner = MySQLExaminer(server_config(db))
    assert "holds the value (5) of (u)" in examiner.conflict(probes)
    db.query("ALTER TABLE db.u_int DROP KEY uu, ADD KEY plain (u)")
    assert examiner.conflict(probes) == ""
    db.query("DROP TABLE db.u_int")
    assert "db.u_int: " in examiner.conflict(probes)
