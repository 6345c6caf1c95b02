"""How rows without a key are looked for (correctness rule 11)."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import KeyChange, Kind, Match, TableShape
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows.full_row_match import condition, exact_single, one_by_one

SHAPE = TableShape(1, "d", "t", ("a", "c"), (), (), (Match.PLAIN, Match.BINARY_TEXT))


def change(kind: Kind, old: tuple[bytes, ...] | None, new: tuple[bytes, ...] | None, ts: int = 1) -> KeyChange:
    return KeyChange(SHAPE, kind, old, new, ts, 0)


def test_condition_of_each_match_kind_is_exact_sql() -> None:
    assert condition(b"`c`", b"NULL", Match.BINARY_TEXT, "mariadb") == b"`c` IS NULL"
    assert condition(b"`c`", b"5", Match.PLAIN, "mariadb") == b"`c`<=>5"
    assert condition(b"`c`", b"'A'", Match.BINARY_TEXT, "mariadb") == (
        b"`c`<=>'A' AND CAST(CONVERT(`c` USING utf8mb4) AS BINARY)<=>CAST('A' AS BINARY)"
    )
    assert condition(b"`c`", b"X'41'", Match.BINARY_TEXT, "mariadb") == b"`c`<=>X'41'"
    assert condition(b"`c`", b"0.1", Match.EXACT_FLOAT, "mysql") == b"`c`<=>0.10000000149011612e0"
    assert condition(b"`c`", b"'1'", Match.JSON, "mysql") == b"CAST(`c` AS CHAR)=CAST(CAST('1' AS JSON) AS CHAR)"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_exact_single_text_equals_double_of_float(value: float) -> None:
    """Whatever short text stands for it, the literal is exactly that double."""
    short = f"{value:.9g}".encode()
    assert float(exact_single(short)) == value
    assert struct.pack("<f", float(exact_single(short))) == struct.pack("<f", value)
    assert b"e" in exact_single(short)


def test_consecutive_inserts_share_statement_and_order_is_kept() -> None:
    changes = [
        change(Kind.INSERT, None, (b"1", b"'x'")),
        change(Kind.INSERT, None, (b"2", b"'y'")),
        change(Kind.UPDATE, (b"1", b"'x'"), (b"1", b"'z'")),
        change(Kind.DELETE, (b"2", b"'y'"), None),
        change(Kind.INSERT, None, (b"3", b"'w'")),
    ]
    made = list(one_by_one(changes, StatementLimits(), "mariadb"))
    assert [(step.sql.split(b" ", 1)[0], step.rows) for step in made] == [
        (b"INSERT", 2),
        (b"UPDATE", 1),
        (b"DELETE", 1),
        (b"INSERT", 1),
    ]
    assert made[1].sql.startswith(b"UPDATE `d`.`t` SET `a`=1,`c`='z' WHERE `a`<=>1 AND ")
    assert all(step.sql.endswith(b" LIMIT 1") for step in made[1:3])
