"""Rows written by LOAD DATA LOCAL are those that statements write, or are taken back; on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from drainer.plan import Folded, Kind, Match, NetRow, TableShape
from drainer.row.family import Family
from drainer.row.form import mysql_literal
from drainer.row.scalar import double_text, float_text
from drainer.sink.errors import RowsRefused, UniqueConflict, ValueChanged
from drainer.sink.mysql import loader
from drainer.sink.mysql.config import Limits, ServerConfig
from drainer.sink.mysql.connection import Session, connect
from drainer.sink.mysql.unique import UniqueKeys
from drainer.sink.mysql.writer import Writer
from tests.integration.sink.case import server_config
from tests.support import MariaDB

pytestmark = pytest.mark.integration

Values = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Col:
    """A column: its family upstream, its definition here, and cells of it (row.form.mysql_cell)."""

    family: Family
    definition: str
    cells: Values
    nullable: bool = True


# What fields, quotes, escapes and lines are made of.
_HARD = (
    "'",
    '"',
    "\\",
    ",",
    "(",
    ")",
    "),",
    "),(",
    "',",
    "'),",
    "\\N",
    "NULL",
    "\n",
    "\r",
    "\t",
    "\0",
    "\x1a",
    "x'",
    "X'",
)


def _strings(alphabet: st.SearchStrategy[str]) -> Values:
    hard = st.lists(st.sampled_from(_HARD) | alphabet, max_size=6).map("".join)
    return (st.text(alphabet, max_size=20) | hard | st.sampled_from(["", "NULL", "\\N", "0"])).map(str.encode)


_UTF8 = st.characters(codec="utf-8")


def _integers(low: int, high: int) -> Values:
    return st.integers(low, high) | st.sampled_from([low, high, 0])


def _decimals() -> Values:
    whole = st.integers(-(10**20) + 1, 10**20 - 1)
    return st.tuples(whole, st.integers(0, 10**10 - 1)).map(lambda pair: b"%d.%010d" % pair) | st.just(b"-0.0000000001")


def _floats(width: int) -> Values:
    def shown(value: float) -> bytes:
        return (float_text(value) if width == 32 else double_text(value)).encode()

    return st.floats(width=width, allow_nan=False, allow_infinity=False).map(shown)


_CLOCK = st.sampled_from(["00:00:00.000000", "23:59:59.999999", "12:34:56.100000"])
_DAYS = st.sampled_from(["0000-00-00", "2024-02-29", "9999-12-31", "1000-01-01", "2021-00-00", "2021-02-31"])
_BYTES = st.binary(max_size=20) | st.sampled_from([b"", b"NULL", b"X'00'", b"\\N", b"'", bytes(range(256))])
_BINARY = _BYTES.map(lambda raw: raw.hex().encode())

COLUMNS = {
    "tiny": Col(Family.INT, "TINYINT", _integers(-128, 127)),
    "big": Col(Family.INT, "BIGINT", _integers(-(1 << 63), (1 << 63) - 1)),
    "ubig": Col(Family.INT, "BIGINT UNSIGNED", _integers(0, (1 << 64) - 1)),
    "y": Col(Family.INT, "YEAR", st.just(0) | st.integers(1901, 2155)),
    "dec": Col(Family.DECIMAL, "DECIMAL(30,10)", _decimals()),
    "f": Col(Family.FLOAT, "FLOAT", _floats(32)),
    "d": Col(Family.FLOAT, "DOUBLE", _floats(64)),
    "v": Col(Family.TEXT, "VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL", _strings(_UTF8), nullable=False),
    "ch": Col(Family.TEXT, "CHAR(60) CHARACTER SET utf8mb4", _strings(_UTF8).map(bytes.rstrip)),
    "tx": Col(Family.TEXT, "LONGTEXT CHARACTER SET utf8mb4", _strings(_UTF8)),
    "vb": Col(Family.BYTES, "VARBINARY(300)", _BINARY),
    "bb": Col(Family.BYTES, "LONGBLOB NOT NULL", _BINARY, nullable=False),
    "b4": Col(Family.BYTES, "BINARY(4)", st.binary(min_size=4, max_size=4).map(lambda raw: raw.hex().encode())),
    "da": Col(Family.DATE, "DATE", _DAYS.map(str.encode)),
    "dt": Col(Family.DATETIME, "DATETIME(6)", st.tuples(_DAYS, _CLOCK).map(lambda both: " ".join(both).encode())),
    "ts": Col(
        Family.DATETIME,
        "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
        st.sampled_from([b"0000-00-00 00:00:00.000", b"1970-01-01 00:00:01.000", b"2038-01-19 03:14:07.999"]),
        nullable=False,
    ),
    "tn": Col(Family.DATETIME, "TIMESTAMP NULL", st.sampled_from([b"0000-00-00 00:00:00", b"2020-03-29 02:30:00"])),
    "ti": Col(
        Family.TIME, "TIME(6)", st.sampled_from([b"-838:59:59.000000", b"838:59:59.000000", b"-00:00:00.000001"])
    ),
    "e": Col(Family.ENUM, "ENUM('3','2','1','a,b')", st.integers(0, 4)),
    "s": Col(Family.SET, "SET('1','2','4','x')", st.integers(0, 15)),
    "s64": Col(Family.SET, "SET(" + ",".join(f"'m{n}'" for n in range(64)) + ")", _integers(0, (1 << 64) - 1)),
    "bit64": Col(Family.BIT, "BIT(64)", _integers(0, (1 << 64) - 1)),
    "bit3": Col(Family.BIT, "BIT(3)", st.integers(0, 7)),
    "js": Col(Family.JSON, "JSON", st.sampled_from([b'{"a": "\\\\ \' \\" ),( "}', b"null", b'"NULL"', b"[1.5, -0.0]"])),
}
# Strings of other character sets have a table of their own: with them the file is not taken as bytes.
OTHER_CHARSETS = {
    "l1": Col(
        Family.TEXT,
        "VARCHAR(200) CHARACTER SET latin1",
        _strings(st.characters(codec="latin-1", exclude_categories=["Cc"])),
    ),
    "gb": Col(Family.TEXT, "VARCHAR(200) CHARACTER SET gbk", _strings(st.sampled_from("中文誠縗'a"))),
    "u3": Col(Family.TEXT, "TEXT CHARACTER SET utf8mb3", _strings(st.characters(codec="utf-8", max_codepoint=0xFFFF))),
    "u4": Col(Family.TEXT, "TEXT CHARACTER SET utf8mb4", _strings(_UTF8)),
    "asc": Col(Family.TEXT, "VARCHAR(200) CHARACTER SET ascii", _strings(st.characters(codec="ascii"))),
    "vb": COLUMNS["vb"],
    "e": COLUMNS["e"],
    "tn": COLUMNS["tn"],
}


def shape(columns: dict[str, Col], table: str, *, unique: Sequence[str] = ()) -> TableShape:
    return TableShape(
        table_id=1,
        schema="d",
        table=table,
        columns=("id", *columns),
        key=(0,),
        why_ordered="",
        secondary_unique=tuple(unique),
        match=(Match.PLAIN,) * (len(columns) + 1),
        families=("int", *(column.family.value for column in columns.values())),
    )


def create(db: MariaDB, columns: dict[str, Col], table: str, more: str = "") -> None:
    defined = "".join(f", `{name}` {column.definition}" for name, column in columns.items())
    db.query(f"CREATE TABLE d.{table} (id BIGINT PRIMARY KEY{defined}{more}) DEFAULT CHARSET=utf8mb4")


def rows_of(columns: dict[str, Col], most: int = 4) -> Values:
    """Texts of VALUES tuples without their ids."""

    def literals(column: Col) -> Values:
        cells = column.cells | st.none() if column.nullable else column.cells
        return cells.map(lambda cell: mysql_literal(column.family, cell))

    return st.lists(st.tuples(*map(literals, columns.values())).map(b",".join), min_size=1, max_size=most)


def folded(of: TableShape, texts: Sequence[bytes], first: int = 1) -> Folded:
    rows = (NetRow(b"%020d" % n, Kind.INSERT, b"(%d,%b)" % (n, text), ()) for n, text in enumerate(texts, first))
    return Folded(of, tuple(rows))


class Way:
    """A session that writes by LOAD DATA, or by statements alone."""

    def __init__(self, config: ServerConfig) -> None:
        self.session: Session = connect(config, idle_s=60, read_timeout_s=60)

    def write(self, rows: Folded, *, thorough: bool = False, commit: bool = True) -> None:
        limits = Limits(load_rows_min=1)
        self.session.begin()
        try:
            Writer(self.session, limits, until_ts=7, keys=UniqueKeys()).folded(rows, thorough=thorough)
        except BaseException:
            self.session.rollback()
            raise
        self.session.execute(b"COMMIT" if commit else b"ROLLBACK")

    def count(self, what: str) -> int:
        found = self.session.query(b"SHOW SESSION STATUS LIKE '%b'" % what.encode())
        return int(found[0][1] or 0)

    @property
    def loads(self) -> int:
        return self.count("Com_load")

    @property
    def taken_back(self) -> int:
        return self.count("Com_rollback_to_savepoint")


@contextmanager
def both_ways(db: MariaDB) -> Iterator[tuple[Way, Way]]:
    loader._until.clear()
    by_load, by_statement = Way(server_config(db)), Way(server_config(db, load_data="off"))
    try:
        yield by_load, by_statement
    finally:
        by_load.session.close()
        by_statement.session.close()


def stored(db: MariaDB, table: str) -> list[tuple[bytes | None, ...]]:
    """Every value as the server's bytes."""
    with db.connect(conv={}, use_unicode=False) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM d.{table} ORDER BY id")
        return list(cursor.fetchall())


def differential(db: MariaDB, columns: dict[str, Col], more: str, examples: Sequence[list[bytes]]) -> None:
    create(db, columns, "a", more)
    create(db, columns, "b", more)
    a, b = shape(columns, "a"), shape(columns, "b")
    with both_ways(db) as (by_load, by_statement):

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(rows_of(columns))
        def run(texts: list[bytes]) -> None:
            loads = by_load.loads
            by_load.write(folded(a, texts))
            by_statement.write(folded(b, texts))
            assert stored(db, "a") == stored(db, "b")
            assert (by_load.loads, by_load.taken_back) == (loads + 1, 0)

        for texts in examples:
            run = example(texts)(run)
        run()
        assert by_statement.loads == 0


def test_every_type_is_stored_as_a_statement_stores_it(db: MariaDB) -> None:
    """Rows replace those of the example before, so REPLACE is compared too."""
    extremes = b",".join(
        mysql_literal(
            column.family,
            None if column.nullable else b"" if column.family is not Family.DATETIME else b"0000-00-00 00:00:00.000",
        )
        for column in COLUMNS.values()
    )
    generated = ", g BIGINT AS (tiny + 1) VIRTUAL, h VARCHAR(210) AS (CONCAT(v, '!')) STORED"
    differential(db, COLUMNS, generated, [[extremes]])


def test_strings_of_other_character_sets(db: MariaDB) -> None:
    differential(db, OTHER_CHARSETS, "", [])
