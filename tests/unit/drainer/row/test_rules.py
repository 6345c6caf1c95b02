"""Conditions that choose rows: their text, and values of every type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from binlog.errors import ConfigError
from binlog.tidb.flatten import flatten
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.row.column_type import ColumnType
from drainer.row.rules import Combined, Comparison, Condition, RowRules
from drainer.schema.rules import AppliedRules
from tests.support.row_case import INT, TEXT, codec_of, table


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "character 1: expected a column, found the end"),
        ("a", "character 2: expected =, !=, <>, <, <=, >, >=, IS or IN, found the end"),
        ("a = null", "character 5: expected a text in single quotes or a number (for NULL: IS NULL), found 'null'"),
        ("a = 1 b", "character 7: expected AND, OR or the end, found 'b'"),
        ("(a = 1", "character 7: expected ), found the end"),
        ("a is 1", "character 6: expected NULL, found '1'"),
        ("a not like 'x'", "character 7: expected IN, found \"like 'x'\""),
        ("a in (1 2)", "character 9: expected ), found '2)'"),
        ("a = 1 and", "character 10: expected a column, found the end"),
        ("a = 'x", 'character 5: expected a column, a value or an operator, found "\'x"'),
        ("a + 1 = 2", "character 3: expected a column, a value or an operator, found '+ 1 = 2'"),
        ("1 = a", "character 1: expected a column, found '1 = a'"),
    ],
)
def test_condition_that_is_invalid_is_refused_with_the_position(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Condition.parse(text, "rule")
    assert str(refused.value) == f"rule: where, {why}"


@given(st.text(alphabet="aN()=<>'`, 1.!-isnullorandt", max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert Condition.parse(text, "rule").columns
    except ConfigError as error:
        assert str(error).startswith("rule: where, character ")


def test_and_binds_closer_than_or_and_not_closest() -> None:
    def equal(name: str) -> Comparison:
        return Comparison(name, "=", (1,))  # type: ignore[arg-type]

    found = Condition.parse("a=1 or not b = 1 AND `C``` = 1", "rule").root
    assert found == Combined("or", (equal("a"), Combined("and", (Combined("not", (equal("b"),)), equal("c`")))))


UNSIGNED = FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20)
DECIMAL = FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)
DATE = FieldType(Tp.DATE, flen=10)
DATETIME = FieldType(Tp.DATETIME, flen=19, decimal=0)
TIME = FieldType(Tp.DURATION, flen=10, decimal=0)
ENUM = FieldType(Tp.ENUM, elems=("eu", "us"))
BYTES = FieldType(Tp.BLOB, charset="binary")
EXACT = FieldType(Tp.VARCHAR, flen=9, charset="utf8mb4", collate="utf8mb4_0900_bin")
GBK = FieldType(Tp.VARCHAR, flen=9, charset="gbk", collate="gbk_bin")
CI = FieldType(Tp.VARCHAR, flen=9, charset="utf8mb4", collate="utf8mb4_general_ci")


def chosen(kind: FieldType, value: object, text: str) -> bool:
    """By row, and the same by columns."""
    info = table([("k", INT), ("c", kind)], handle="k")
    applied = AppliedRules("db", info, (), Condition.parse(text, "rule"), frozenset(), ())
    column_type = ColumnType.of(kind)
    decoded: Any = column_type.decoded_value(flatten(value, kind))
    rules = RowRules(codec_of(info).layout, applied)
    by_row = rules.row(0, None, (1, decoded)) is not None  # type: ignore[arg-type]
    columns = [pa.array([1, 2]), pa.array([decoded, None], column_type.decoded_type)]
    inserts = dict(rules.kinds(None, columns, 2)).get(Kind.INSERT)
    assert (inserts is not None and bool(inserts[0])) is by_row
    return by_row


@pytest.mark.parametrize(
    ("kind", "value", "true", "false"),
    [
        (INT, -3, "c < 0 and c >= -3 and c in (1, -3) and c != 1.5", "c = -3.5 or c > -3"),
        (UNSIGNED, (1 << 64) - 1, "c = 18446744073709551615", "c < 18446744073709551615"),
        (DECIMAL, "1.50", "c = 1.5 and c <= 1.500", "c <> 1.5"),
        (FieldType(Tp.DOUBLE), 0.1, "c = 0.1", "c > 0.1"),
        (TEXT, "eu ", "c = 'eu' and c in ('eu') and c <= 'eu'", "c < 'eu'"),
        (TEXT, "eu\t", "c > 'eu ' and c >= 'eu'", "c <= 'eu'"),
        (GBK, "eu ", "c = 'eu' and c in ('eu')", "c <> 'eu'"),
        (EXACT, "eu ", "c <> 'eu' and c > 'eu'", "c = 'eu'"),
        (BYTES, b"it's", "c = 'it''s'", "c = 'it'"),
        (DATE, "2024-02-03", "c = '2024-02-03' and c < '2024-02-03 01:00:00'", "c > '2024-02-03'"),
        (DATETIME, "2024-02-03 01:00:00", "c > '2024-02-03' and c < '2024-02-03 01:00:00.5'", "c = '2024-02-03'"),
        (TIME, "-01:00:00", "c < '00:00:00'", "c = '01:00:00'"),
        (ENUM, "us", "c = 'us' and c in ('us')", "c = 'eu'"),
        (INT, None, "c is null", "c = 1 or c <> 1 or not c = 1 or c in (1) or c is not null"),
        (INT, None, "k = 1 or c = 1", "k = 1 and c = 1"),
    ],
)
def test_value_is_compared_as_its_type(kind: FieldType, value: object, true: str, false: str) -> None:
    assert chosen(kind, value, true)
    assert not chosen(kind, value, false)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (INT, "c = '1'", "compare it with a number"),
        (TEXT, "c = 1", "compare it with a text"),
        (CI, "c = 'x'", "its collation utf8mb4_general_ci is none that can be compared"),
        (GBK, "c < 'x'", "its collation gbk_bin is none that can be compared"),
        (ENUM, "c < 'x'", "cannot be compared by order"),
        (FieldType(Tp.JSON), "c = 'x'", "cannot be compared"),
        (DATE, "c = 'x'", "'x' is no value of it"),
    ],
)
def test_comparison_that_a_type_does_not_allow_is_refused(kind: FieldType, text: str, why: str) -> None:
    info = table([("c", kind)])
    with pytest.raises(ConfigError, match=why):
        Condition.parse(text, "rule").check({"c": info.columns[0]})
