"""Which key folds (rules 9, 10 and 13)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.table import IndexColumn, TableInfo
from binlog.tidb.types import FieldType, Tp

from drainer.row.column_type import ColumnType
from drainer.row.key import Same, choose_key, key_function
from tests.support.row_case import INT, TEXT, not_null, table

NN_INT, NN_TEXT = not_null(INT), not_null(TEXT)
CI = not_null(FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_general_ci"))
NO_PAD = not_null(FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_0900_bin"))
DOUBLE = not_null(FieldType(Tp.DOUBLE, flen=22, decimal=-1))
PRICE = not_null(FieldType(Tp.NEWDECIMAL, flen=10, decimal=2))


def prefixed(info: TableInfo) -> TableInfo:
    index = info.indexes[0]
    part = index.columns[0]
    return replace(info, indexes=(replace(index, columns=(IndexColumn(part.name, part.offset, 3),)),))


def generated(info: TableInfo) -> TableInfo:
    return replace(info, columns=(info.columns[0], replace(info.columns[1], generated_expr="`a` + 1")))


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (table([("a", INT)]), "no primary or unique key"),
        (table([("a", INT)], unique={"u": ["a"]}), "u: column a may be NULL"),
        (table([("a", CI)], unique={"PRIMARY": ["a"]}), "PRIMARY: column a is varchar utf8mb4_general_ci"),
        (table([("a", DOUBLE)], unique={"PRIMARY": ["a"]}), "PRIMARY: column a is double"),
        (prefixed(table([("a", NN_TEXT)], unique={"PRIMARY": ["a"]})), "PRIMARY: holds a prefix of a"),
        (
            generated(table([("a", INT), ("g", NN_INT)], unique={"u": ["g"]})),
            "u: column g is generated or not public",
        ),
    ],
)
def test_table_without_usable_key_is_applied_in_order(info: TableInfo, why: str) -> None:
    key = choose_key(info)
    assert key.columns == ()
    assert key.why == why


def test_first_usable_key_is_chosen() -> None:
    info = table(
        [("a", CI), ("b", INT), ("c", NN_TEXT), ("d", NN_INT)],
        unique={"PRIMARY": ["a"], "u1": ["b"], "u2": ["d", "c"], "u3": ["d"]},
    )
    key = choose_key(info)
    assert (key.name, key.columns, key.others) == ("u2", (3, 2), ("PRIMARY", "u1", "u3"))
    assert key.imaged


@pytest.mark.parametrize(
    ("kind", "a", "b", "same"),
    [
        (NN_TEXT, b"a", b"a  ", True),
        (NN_TEXT, b"a", b"A", False),
        (NN_TEXT, b"a", b"a\t", False),
        (NO_PAD, b"a", b"a ", False),
        (PRICE, b"1.5", b"1.50", True),
        (PRICE, b"10", b"1", False),
        (PRICE, b"-0.5", b"0.5", False),
    ],
)
def test_key_identity_compares_as_collation_does(kind: FieldType, a: bytes, b: bytes, same: bool) -> None:
    key = choose_key(table([("k", kind)], unique={"PRIMARY": ["k"]}))
    compared = key_function(key, [ColumnType.of(kind)])
    decoded_values = [text.decode() if kind.tp is Tp.NEWDECIMAL else text for text in (a, b)]
    assert (compared(decoded_values[:1]) == compared(decoded_values[1:])) is same


def test_integer_key_is_compared_exactly() -> None:
    assert choose_key(table([("id", INT)], handle="id")).same == (Same.EXACT,)
