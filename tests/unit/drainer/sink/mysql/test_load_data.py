"""Which tables are loaded, and by what statement; that a server reads it so is tested on a real one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from drainer.batch.work import Kind, Match, TableShape
from drainer.changes.net import NetColumns
from drainer.row.column_type import TypeClass
from drainer.sink.mysql.rows.format import SQL_TEXT, string_literal
from drainer.sink.mysql.rows.unique_keys import BODY_BYTES_MAX, Column, body_of, clause_of, load_statement
from tests.support.net_rows import tuples_of


def shape(*type_classes: TypeClass, names: str = "") -> TableShape:
    columns = tuple(names.split()) or tuple(f"c{n}" for n in range(len(type_classes)))
    match = (Match.PLAIN,) * len(columns)
    return TableShape(1, "d`b", "t", columns, (0,), (), match, type_classes=tuple(f.value for f in type_classes))


def column(kind: str, charset: str = "", *, nullable: bool = True) -> Column:
    return Column("", None, kind, charset, nullable)


def test_load_data_statement_text_is_exact() -> None:
    of = shape(TypeClass.INT, TypeClass.BYTES, TypeClass.TEXT, names="id b` v")
    clause = clause_of(of, {"id": column("bigint"), "b`": column("blob"), "v": column("text", "utf8mb4")})
    options = (
        b" FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\\'' ESCAPED BY '\\\\'"
        rb" LINES STARTING BY '(' TERMINATED BY '),' (`id`,@drainer_1,`v`)"
        b" SET `b```=UNHEX(SUBSTR(@drainer_1,3,LENGTH(@drainer_1)-3))"
    )
    assert clause == b" CHARACTER SET binary" + options
    into = b"INTO TABLE `d``b`.`t` CHARACTER SET binary" + options
    assert load_statement(of, clause, replaces=True) == b"LOAD DATA LOCAL INFILE 'rows' REPLACE " + into
    assert load_statement(of, clause, replaces=False) == b"LOAD DATA LOCAL INFILE 'rows' " + into


@pytest.mark.parametrize(
    ("type_class", "charset", "taken_as"),
    [
        (TypeClass.TEXT, "utf8mb4", b"binary"),
        (TypeClass.TEXT, "utf8mb3", b"utf8mb4"),
        (TypeClass.TEXT, "latin1", b"utf8mb4"),
        (TypeClass.JSON, "utf8mb4", b"binary"),
        (TypeClass.JSON, "", b"utf8mb4"),  # MySQL's own type, which takes no bytes
    ],
)
def test_load_data_character_set_follows_columns(type_class: TypeClass, charset: str, taken_as: bytes) -> None:
    clause = clause_of(shape(TypeClass.INT, type_class), {"c0": column("int"), "c1": column("longtext", charset)})
    assert clause.startswith(b" CHARACTER SET " + taken_as + b" ")


@pytest.mark.parametrize(
    ("type_class", "kind", "value"),
    [
        (TypeClass.ENUM, "enum", b"CAST(@drainer_0 AS UNSIGNED)"),
        (TypeClass.SET, "set", b"CAST(@drainer_0 AS UNSIGNED)"),
        (TypeClass.BIT, "bit", b"CAST(@drainer_0 AS UNSIGNED)"),
        (TypeClass.INT, "year", b"CAST(@drainer_0 AS UNSIGNED)"),
        (TypeClass.BYTES, "binary", b"UNHEX(SUBSTR(@drainer_0,3,LENGTH(@drainer_0)-3))"),
    ],
)
def test_load_data_converts_columns_that_strings_do_not_fit(type_class: TypeClass, kind: str, value: bytes) -> None:
    assert clause_of(shape(type_class), {"c0": column(kind)}).endswith(b" (@drainer_0) SET `c0`=" + value)


def test_load_data_assigns_not_null_timestamp_through_variable() -> None:
    """Of a file's NULL a server would make the moment of loading, whatever its settings."""
    at = shape(TypeClass.DATETIME)
    assert clause_of(at, {"c0": column("timestamp", nullable=False)}).endswith(b" (@drainer_0) SET `c0`=@drainer_0")
    assert clause_of(at, {"c0": column("timestamp")}).endswith(b" (`c0`)")
    assert clause_of(at, {"c0": column("datetime", nullable=False)}).endswith(b" (`c0`)")


@pytest.mark.parametrize(
    ("type_class", "kind"),
    [
        (TypeClass.INT, "enum"),
        (TypeClass.INT, "bit"),
        (TypeClass.INT, "varchar"),
        (TypeClass.INT, "decimal"),
        (TypeClass.DECIMAL, "int"),
        (TypeClass.FLOAT, "varchar"),
        (TypeClass.TEXT, "enum"),
        (TypeClass.TEXT, "blob"),
        (TypeClass.TEXT, "json"),
        (TypeClass.BYTES, "varchar"),
        (TypeClass.ENUM, "set"),
        (TypeClass.SET, "varchar"),
        (TypeClass.BIT, "binary"),
        (TypeClass.DATETIME, "date"),
        (TypeClass.JSON, "varchar"),
        (TypeClass.BYTES, "uuid"),
    ],
)
def test_table_with_column_of_another_type_is_not_loaded(type_class: TypeClass, kind: str) -> None:
    assert clause_of(shape(TypeClass.INT, type_class), {"c0": column("int"), "c1": column(kind)}) == b""


def test_table_with_unknown_columns_is_not_loaded() -> None:
    assert clause_of(shape(TypeClass.INT, TypeClass.INT), {"c0": column("int")}) == b""
    untold = replace(shape(TypeClass.INT), type_classes=())
    assert clause_of(untold, {"c0": column("int")}) == b""
    assert clause_of(shape(TypeClass.INT, names="ID"), {"id": column("int")}) != b""


def test_load_data_body_is_that_of_living_rows() -> None:
    texts = pa.array([b"(1,'a'),", None, b"(3,NULL),"], pa.binary())
    identity = pa.array([b"1", b"2", b"3"], pa.binary())
    rows = NetColumns(SQL_TEXT, identity, np.full(3, int(Kind.INSERT)), texts).live()
    assert body_of(rows) == b"(1,'a'),(3,NULL),"


def test_load_data_body_above_its_maximum_is_not_made() -> None:
    def body(size: int) -> bytes | None:
        return body_of(tuples_of([b"('%b')" % (b"a" * 995), b"('%b')" % (b"a" * (size - 1005))]))

    assert len(body(BODY_BYTES_MAX) or b"") == BODY_BYTES_MAX
    assert body(BODY_BYTES_MAX + 1) is None


@pytest.mark.parametrize("text", [string_literal(b"\xff"), b"-0.0"])
def test_load_data_body_is_not_made_with_hex_literal_or_negative_zero(text: bytes) -> None:
    for row in (b"(%b)", b"(%b,1)", b"(1,%b)", b"(1,%b,'x')"):
        assert body_of(tuples_of([b"(1,2)", row % text])) is None


@pytest.mark.parametrize("text", [b"X'00'", b"'x'", b"'fox'", b"-0.01", b"1-0.0", b"'-0.0'", b"-0.0e1"])
def test_load_data_body_is_made_with_text_that_resembles_hex_or_negative_zero(text: bytes) -> None:
    assert body_of(tuples_of([b"(1,%b,2)" % text])) == b"(1,%b,2)," % text
