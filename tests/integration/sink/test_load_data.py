"""Rows written by LOAD DATA LOCAL are those that statements write, or are taken back; on a real server."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import example, given
from hypothesis import strategies as st

from drainer.batch.work import Folded, Kind, Match, NetRow, TableShape
from drainer.changes.net import NetColumns
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.row.column_type import TypeClass, double_text, float_text
from drainer.sink.base import Intent
from drainer.sink.errors import RowsRefused, UniqueConflict, ValueChanged
from drainer.sink.mysql.config import ServerConfig, StatementLimits
from drainer.sink.mysql.connection import ServerSession, connect
from drainer.sink.mysql.rows import writer
from drainer.sink.mysql.rows.format import ESCAPED, SQL_TEXT, placeholder, string_literal
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import UniqueSurprise, Writer
from tests.integration.sink.case import loads, opened, server_config
from tests.support.net_rows import net_columns, tuples_of
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, table, transaction, view_of
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

Values = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Col:
    """A column: its family upstream, its definition here, and cells of it (row.form.mysql_cell)."""

    type_class: TypeClass
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


def _has_digits(value: float) -> bool:
    """Not -0.0, which a statement cannot say."""
    return math.copysign(1, value) > 0 or value != 0


def _floats(width: Literal[32, 64]) -> Values:
    def shown(value: float) -> bytes:
        return (float_text(value) if width == 32 else double_text(value)).encode()

    return st.floats(width=width, allow_nan=False, allow_infinity=False).filter(_has_digits).map(shown)


_CLOCK = st.sampled_from(["00:00:00.000000", "23:59:59.999999", "12:34:56.100000"])
_DAYS = st.sampled_from(["0000-00-00", "2024-02-29", "9999-12-31", "1000-01-01", "2021-00-00", "2021-02-31"])
_BYTES = st.binary(max_size=20) | st.sampled_from([b"", b"NULL", b"X'00'", b"\\N", b"'", bytes(range(256))])
_BINARY = _BYTES.map(lambda raw: raw.hex().encode())

COLUMNS = {
    "tiny": Col(TypeClass.INT, "TINYINT", _integers(-128, 127)),
    "big": Col(TypeClass.INT, "BIGINT", _integers(-(1 << 63), (1 << 63) - 1)),
    "ubig": Col(TypeClass.INT, "BIGINT UNSIGNED", _integers(0, (1 << 64) - 1)),
    "y": Col(TypeClass.INT, "YEAR", st.just(0) | st.integers(1901, 2155)),
    "dec": Col(TypeClass.DECIMAL, "DECIMAL(30,10)", _decimals()),
    "f": Col(TypeClass.FLOAT, "FLOAT", _floats(32)),
    "d": Col(TypeClass.FLOAT, "DOUBLE", _floats(64)),
    "v": Col(TypeClass.TEXT, "VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL", _strings(_UTF8), nullable=False),
    "ch": Col(TypeClass.TEXT, "CHAR(60) CHARACTER SET utf8mb4", _strings(_UTF8).map(bytes.rstrip)),
    "tx": Col(TypeClass.TEXT, "LONGTEXT CHARACTER SET utf8mb4", _strings(_UTF8)),
    "vb": Col(TypeClass.BYTES, "VARBINARY(300)", _BINARY),
    "bb": Col(TypeClass.BYTES, "LONGBLOB NOT NULL", _BINARY, nullable=False),
    "b4": Col(TypeClass.BYTES, "BINARY(4)", st.binary(min_size=4, max_size=4).map(lambda raw: raw.hex().encode())),
    "da": Col(TypeClass.DATE, "DATE", _DAYS.map(str.encode)),
    "dt": Col(TypeClass.DATETIME, "DATETIME(6)", st.tuples(_DAYS, _CLOCK).map(lambda both: " ".join(both).encode())),
    "ts": Col(
        TypeClass.DATETIME,
        "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
        st.sampled_from([b"0000-00-00 00:00:00.000", b"1970-01-01 00:00:01.000", b"2038-01-19 03:14:07.999"]),
        nullable=False,
    ),
    "tn": Col(TypeClass.DATETIME, "TIMESTAMP NULL", st.sampled_from([b"0000-00-00 00:00:00", b"2020-03-29 02:30:00"])),
    "ti": Col(
        TypeClass.TIME, "TIME(6)", st.sampled_from([b"-838:59:59.000000", b"838:59:59.000000", b"-00:00:00.000001"])
    ),
    "e": Col(TypeClass.ENUM, "ENUM('3','2','1','a,b')", st.integers(0, 4)),
    "s": Col(TypeClass.SET, "SET('1','2','4','x')", st.integers(0, 15)),
    "s64": Col(TypeClass.SET, "SET(" + ",".join(f"'m{n}'" for n in range(64)) + ")", _integers(0, (1 << 64) - 1)),
    "bit64": Col(TypeClass.BIT, "BIT(64)", _integers(0, (1 << 64) - 1)),
    "bit3": Col(TypeClass.BIT, "BIT(3)", st.integers(0, 7)),
    "js": Col(
        TypeClass.JSON, "JSON", st.sampled_from([b'{"a": "\\\\ \' \\" ),( "}', b"null", b'"NULL"', b"[1.5, -0.0]"])
    ),
}
# Strings of other character sets have a table of their own: with them the file is not taken as bytes.
OTHER_CHARSETS = {
    "l1": Col(
        TypeClass.TEXT,
        "VARCHAR(200) CHARACTER SET latin1",
        _strings(st.characters(codec="latin-1", exclude_categories=["Cc"])),
    ),
    "gb": Col(TypeClass.TEXT, "VARCHAR(200) CHARACTER SET gbk", _strings(st.sampled_from("中文誠縗'a"))),
    "u3": Col(
        TypeClass.TEXT, "TEXT CHARACTER SET utf8mb3", _strings(st.characters(codec="utf-8", max_codepoint=0xFFFF))
    ),
    "u4": Col(TypeClass.TEXT, "TEXT CHARACTER SET utf8mb4", _strings(_UTF8)),
    "asc": Col(TypeClass.TEXT, "VARCHAR(200) CHARACTER SET ascii", _strings(st.characters(codec="ascii"))),
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
        secondary_unique=tuple(unique),
        match=(Match.PLAIN,) * (len(columns) + 1),
        type_classes=("int", *(column.type_class.value for column in columns.values())),
    )


def create(db: MariaDB, columns: dict[str, Col], table: str, more: str = "") -> None:
    defined = "".join(f", `{name}` {column.definition}" for name, column in columns.items())
    db.query(f"CREATE TABLE d.{table} (id BIGINT PRIMARY KEY{defined}{more}) DEFAULT CHARSET=utf8mb4")


def literal_of_text(type_class: TypeClass, text: object) -> bytes:
    """The literal of a value's text or number (row/column_type.py), None for NULL."""
    if text is None:
        return b"NULL"
    if type_class in ESCAPED:
        assert isinstance(text, bytes)
        return string_literal(text)
    return placeholder(type_class) % (text,)


def rows_of(columns: dict[str, Col], most: int = 4) -> Values:
    """Texts of VALUES tuples without their ids."""

    def literals(column: Col) -> Values:
        cells = column.cells | st.none() if column.nullable else column.cells
        return cells.map(lambda cell: literal_of_text(column.type_class, cell))

    return st.lists(st.tuples(*map(literals, columns.values())).map(b",".join), min_size=1, max_size=most)


def folded(of: TableShape, texts: Sequence[bytes], first: int = 1) -> Folded:
    rows = (NetRow(b"%020d" % n, Kind.INSERT, b"(%d,%b)" % (n, text), ()) for n, text in enumerate(texts, first))
    return Folded(of, net_columns(rows))


class Way:
    """A session that writes by LOAD DATA, or by statements alone."""

    def __init__(self, config: ServerConfig) -> None:
        self.session: ServerSession = connect(config, idle_s=60, read_timeout_s=60)

    def write(self, rows: Folded, *, thorough: bool = False, commit: bool = True) -> None:
        limits = StatementLimits(load_rows_min=1)
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
    writer._until.clear()
    by_load, by_statement = Way(server_config(db)), Way(server_config(db, load_data="off"))
    try:
        yield by_load, by_statement
    finally:
        by_load.session.close()
        by_statement.session.close()


def stored(db: MariaDB, table: str) -> list[tuple[bytes | None, ...]]:
    """Every value as the server's bytes."""
    with (
        db.connect(init_command="SET NAMES binary, time_zone='+00:00'", conv={}, use_unicode=False) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT * FROM d.{table} ORDER BY id")
        return list(cursor.fetchall())


def differential(db: MariaDB, columns: dict[str, Col], more: str, examples: Sequence[list[bytes]]) -> None:
    create(db, columns, "a", more)
    create(db, columns, "b", more)
    a, b = shape(columns, "a"), shape(columns, "b")
    with both_ways(db) as (by_load, by_statement):

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


def test_load_data_stores_every_type_as_statements_do(db: MariaDB) -> None:
    """Rows replace those of the example before, so REPLACE is compared too."""
    extremes = b",".join(
        literal_of_text(
            column.type_class,
            None
            if column.nullable
            else b""
            if column.type_class is not TypeClass.DATETIME
            else b"0000-00-00 00:00:00.000",
        )
        for column in COLUMNS.values()
    )
    generated = ", g BIGINT AS (tiny + 1) VIRTUAL, h VARCHAR(210) AS (CONCAT(v, '!')) STORED"
    differential(db, COLUMNS, generated, [[extremes]])


def test_load_data_stores_strings_of_other_character_sets_as_statements_do(db: MariaDB) -> None:
    differential(db, OTHER_CHARSETS, "", [])


def outcome(way: Way, rows: Folded, *, thorough: bool = False) -> str:
    try:
        way.write(rows, thorough=thorough)
    except (RowsRefused, UniqueConflict, UniqueSurprise, ValueChanged) as error:
        return f"{type(error).__name__}: {error}"
    return "written"


@pytest.mark.parametrize(
    ("type_class", "definition", "bad", "error"),
    [
        (TypeClass.TEXT, "VARCHAR(3) CHARACTER SET utf8mb4", b"'abcd'", "ValueChanged"),
        (TypeClass.TEXT, "VARCHAR(3) CHARACTER SET utf8mb4", b"'abc  '", "ValueChanged"),
        (TypeClass.TEXT, "VARCHAR(30) CHARACTER SET latin1", "'中'".encode(), "ValueChanged"),
        (TypeClass.TEXT, "VARCHAR(30) CHARACTER SET utf8mb3", "'😀'".encode(), "ValueChanged"),
        (TypeClass.BYTES, "VARBINARY(2)", b"X'000102'", "ValueChanged"),
        (TypeClass.INT, "TINYINT", b"128", "ValueChanged"),
        (TypeClass.INT, "INT UNSIGNED", b"-1", "ValueChanged"),
        (TypeClass.INT, "INT NOT NULL", b"NULL", ""),
        (TypeClass.DATETIME, "TIMESTAMP", b"'1969-12-31 00:00:00'", "ValueChanged"),
        (TypeClass.DECIMAL, "DECIMAL(4,2)", b"100.00", "ValueChanged"),
        (TypeClass.FLOAT, "FLOAT", b"1e+39", "ValueChanged"),
        (TypeClass.BIT, "BIT(3)", b"8", "ValueChanged"),
        (TypeClass.ENUM, "ENUM('a','b')", b"3", "ValueChanged"),
        (TypeClass.SET, "SET('a','b')", b"4", "ValueChanged"),
    ],
)
def test_load_data_refuses_values_that_statements_refuse(
    db: MariaDB, type_class: TypeClass, definition: str, bad: bytes, error: str
) -> None:
    """A row among good ones, of which none stays."""
    columns = {"v": Col(type_class, definition, st.nothing())}
    create(db, columns, "t")
    rows = folded(shape(columns, "t"), [b"NULL" if "NOT NULL" not in definition else b"0", bad])
    rows = Folded(rows.shape, rows.rows[1:]) if "NOT NULL" in definition else rows
    with both_ways(db) as (by_load, by_statement):
        expected = outcome(by_statement, rows)
        as_stated = stored(db, "t")
        db.query("TRUNCATE d.t")
        assert outcome(by_load, rows) == expected
        assert stored(db, "t") == as_stated
        assert (by_load.loads, by_load.taken_back) == (1, 1)
    assert expected.startswith(error)
    assert as_stated == [] or not error


def test_load_data_stores_null_in_timestamp_as_statements_do(db: MariaDB) -> None:
    """Neither way warns of it here."""
    columns = {"v": Col(TypeClass.DATETIME, "TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'", st.nothing())}
    create(db, columns, "t")
    found = []
    with both_ways(db) as ways:
        for way in ways:
            way.session.execute(b"SET timestamp=1000000000")
            way.write(folded(shape(columns, "t"), [b"NULL"]))
            found.append(stored(db, "t"))
        assert (ways[0].loads, ways[0].taken_back) == (1, 0)
    assert found[0] == found[1]


def test_load_data_refuses_row_without_partition_as_statements_do(db: MariaDB) -> None:
    db.query("CREATE TABLE d.t (id BIGINT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2))")
    rows = [NetRow(b"%020d" % n, Kind.INSERT, b"(%d)" % n, ()) for n in (1, 2)]
    with both_ways(db) as (by_load, by_statement):
        expected = outcome(by_statement, Folded(shape({}, "t"), net_columns(rows)))
        assert expected.startswith("RowsRefused") and "1526" in expected
        assert outcome(by_load, Folded(shape({}, "t"), net_columns(rows))) == expected
    assert stored(db, "t") == []


def test_load_that_is_rolled_back_keeps_the_rest_of_transaction(db: MariaDB) -> None:
    """Statements write the rows, behind what the transaction wrote before, and go on writing that table."""
    create(db, {"v": COLUMNS["bit3"]}, "t")
    create(db, {}, "before")
    db.query(
        "CREATE TRIGGER d.no BEFORE INSERT ON d.t FOR EACH ROW "
        "IF NEW.id=2 AND @drainer_1 IS NOT NULL THEN SET @drainer_1=NULL; SIGNAL SQLSTATE '45000'; END IF"
    )
    rows = folded(shape({"v": COLUMNS["bit3"]}, "t"), [b"1", b"2"])
    with both_ways(db) as (by_load, _):
        session = by_load.session
        writer = Writer(session, StatementLimits(load_rows_min=1), until_ts=7, keys=UniqueKeys())
        session.begin()
        session.execute(b"INSERT INTO d.`before` VALUES (5)")
        writer.folded(rows, thorough=False)
        writer.folded(rows, thorough=False)
        session.commit()
        assert (by_load.loads, by_load.taken_back) == (1, 1)
    assert stored(db, "t") == [(b"1", b"\1"), (b"2", b"\2")]
    assert stored(db, "before") == [(b"5",)]


@pytest.mark.parametrize("thorough", [False, True])
def test_load_data_never_evicts_row_of_another_unique_key(db: MariaDB, thorough: bool) -> None:
    """LOAD DATA would leave the row out, which the count of skipped rows tells; the statement names the key."""
    columns = {"v": COLUMNS["big"]}
    create(db, columns, "t", ", UNIQUE KEY vv (v)")
    db.query("INSERT INTO d.t VALUES (9, 2)")
    rows = folded(shape(columns, "t", unique=["vv"]), [b"1", b"2", b"3"])
    with both_ways(db) as (by_load, by_statement):
        expected = outcome(by_statement, rows, thorough=thorough)
        assert expected.startswith("UniqueConflict" if thorough else "UniqueSurprise")
        assert outcome(by_load, rows, thorough=thorough) == expected
        assert (by_load.loads, by_load.taken_back) == (1, 1)
        assert stored(db, "t") == [(b"9", b"2")]
        db.query("DELETE FROM d.t")
        assert outcome(by_load, rows, thorough=thorough) == "written"
        assert by_load.taken_back == 1
    assert stored(db, "t") == [(b"1", b"1"), (b"2", b"2"), (b"3", b"3")]


def test_load_with_warnings_not_kept_by_server_is_rolled_back(db: MariaDB) -> None:
    columns = {"v": Col(TypeClass.INT, "TINYINT", st.nothing())}
    create(db, columns, "t")
    with both_ways(db) as (by_load, _):
        by_load.session.execute(b"SET SESSION max_error_count=0")
        rows = folded(shape(columns, "t"), [b"1", b"300"])
        by_load.session.begin()
        assert not writer.Loader(by_load.session, UniqueKeys(), 1).write(
            rows.shape, tuples_of([b"(1,1)", b"(2,300)"]), replaces=True
        )
        by_load.session.commit()
    assert stored(db, "t") == []


def test_enum_error_value_with_warning_is_loaded(db: MariaDB) -> None:
    """0 in an ENUM is what upstream has: warned of, and loaded, in whatever row."""
    columns = {"e": COLUMNS["e"], "f": COLUMNS["f"]}
    create(db, columns, "t")
    with both_ways(db) as (by_load, _):
        texts = [b"0,1.5" if n % 7 == 0 else b"1,3.40282347e+38" for n in range(2000)]
        by_load.write(folded(shape(columns, "t"), texts))
        assert (by_load.loads, by_load.taken_back) == (1, 0)
    assert [row[1] for row in stored(db, "t")] == [b"" if n % 7 == 0 else b"3" for n in range(2000)]


def test_server_without_local_infile_gets_statements(db: MariaDB) -> None:
    """Off when the connection is made: nobody asks. Switched off later: one refusal, and statements from then on."""
    columns = {"v": COLUMNS["big"]}
    create(db, columns, "t")
    with both_ways(db) as (by_load, _):
        try:
            db.query("SET GLOBAL local_infile=0")
            without = Way(server_config(db))
            without.write(folded(shape(columns, "t"), [b"1"]))
            assert (without.session.local_infile, without.loads) == (False, 0)
            without.session.close()
            assert writer.may_load(by_load.session.address)
            by_load.write(folded(shape(columns, "t"), [b"2"]))
            by_load.write(folded(shape(columns, "t"), [b"3"]))
            assert (by_load.loads, by_load.taken_back) == (1, 1)
            assert not writer.may_load(by_load.session.address)
        finally:
            db.query("SET GLOBAL local_infile=1")
            writer._until.clear()
    assert stored(db, "t") == [(b"1", b"3")]


@pytest.mark.parametrize("count", [999, 1000])
def test_load_data_is_used_from_a_thousand_rows_on(db: MariaDB, count: int) -> None:
    """From binlogs over the blobs of a shuffle into a slot's chunk, with the limits that a drainer has."""
    info = table([("id", INT), ("v", TEXT)], handle="id")
    insert: list[tuple[TableInfo, Step]] = [
        (info, ("insert", {}, {1: n, 2: f"v{n}, it's ),".encode()})) for n in range(count)
    ]
    builder = SegmentCutter(SegmentDecoder(view_of(info), SQL_TEXT, columns_rows_min=0))
    builder.add_all([transaction(insert, commit_ts=BEGIN_TS)])
    work = merge_slot(builder.cut(1).values(), SQL_TEXT, 100, 200)
    assert isinstance(work.folded[0].rows, NetColumns)
    where = work.folded[0].shape
    db.query(f"CREATE DATABASE IF NOT EXISTS `{where.schema}`")
    db.query(f"CREATE TABLE `{where.schema}`.`{where.table}` (id INT PRIMARY KEY, v VARCHAR(255)) CHARSET=utf8mb4")
    writer._until.clear()
    before = loads(db)
    destination = opened(db)
    range_ = Intent(100, 200, 1, 10_000, 1, "all", ("a",))
    result = destination.begin(range_).write(0, work)
    assert destination.commit(range_, [result], 1) is None
    destination.close(clean=True)
    assert result.rows == count
    assert loads(db) - before == (count >= 1000)
    expected = [(n, f"v{n}, it's ),") for n in range(count)]
    assert db.query(f"SELECT id, v FROM `{where.schema}`.`{where.table}` ORDER BY id") == expected
