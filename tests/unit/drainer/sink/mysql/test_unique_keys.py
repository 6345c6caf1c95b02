"""What the destination's unique keys tell apart, compared with upstream's."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from structlog.testing import capture_logs

from drainer.batch.work import Match, TableShape
from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.rows.unique_keys import (
    Column,
    Handling,
    KeyColumn,
    UniqueKey,
    UniqueKeys,
    handling_of,
    is_coarser,
    narrower,
    with_collation,
)

BIN, CI, EXACT = "utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_0900_bin"


@pytest.mark.parametrize(
    ("here", "upstream", "wanted"),
    [
        (BIN, BIN, False),
        ("utf8mb3_bin", "utf8_bin", False),
        ("utf8mb3_general_ci", "utf8_general_ci", False),
        (CI, BIN, True),
        (CI, CI.upper(), False),
        ("utf8mb4_unicode_ci", CI, True),  # neither is finer than the other
        (BIN, EXACT, True),
        ("utf8mb4_nopad_bin", EXACT, False),
        (EXACT, BIN, False),
        (BIN, "binary", True),
        ("", "binary", False),  # bytes here, too
        (BIN, CI, False),
        (CI, "", False),  # no string upstream
    ],
)
def test_collation_is_coarser_when_it_equates_more_values(here: str, upstream: str, wanted: bool) -> None:
    assert is_coarser(here, upstream) is wanted


def shape(*collations: str, key: tuple[int, ...] = (0,), unique: tuple[str, ...] = ()) -> TableShape:
    names = ("a", "b", "c")[: len(collations)]
    match = tuple(Match.BINARY_TEXT if collation else Match.PLAIN for collation in collations)
    return TableShape(1, "d", "t", names, key, unique, match, collations)


def key(*parts: tuple[str, str], name: str = "PRIMARY", whole: bool = True) -> UniqueKey:
    return UniqueKey(name, tuple(KeyColumn(column, collation, whole) for column, collation in parts))


@pytest.mark.parametrize(
    ("keys", "coarse", "additional"),
    [
        ([key(("a", ""))], (), ()),
        ([key(("a", "")), key(("b", ""), name="UU")], (), ()),
        ([key(("a", "")), key(("b", ""), name="mine")], (), ("mine",)),
        ([key(("a", CI))], ("a",), ()),
    ],
)
def test_unique_key_warning_is_logged_once_for_coarser_or_additional_keys(
    keys: list[UniqueKey], coarse: tuple[str, ...], additional: tuple[str, ...]
) -> None:
    """An ordinary second unique key of upstream is none of it, and a DDL makes no warning appear again."""
    session, known = cast(ServerSession, NoTables()), UniqueKeys(tell=True)
    with capture_logs() as lines:
        for _ in range(2):
            known._warn(session, shape(BIN, "", unique=("uu",)), Handling(False, coarse, keys=tuple(keys)))
            known.forget()
    assert [(line["coarser_columns"], line["keys_not_upstream"]) for line in lines] == (
        [(coarse, additional)] if coarse or additional else []
    )


class NoTables:
    def show_create(self, what: bytes) -> str:
        return ""

    def query(self, sql: bytes) -> list[tuple[object, ...]]:
        return []

    def literal(self, value: str) -> bytes:
        return value.encode()


@pytest.mark.parametrize(
    ("shape", "keys", "replaces", "coarse", "exact"),
    [
        (shape(BIN, ""), [key(("A", BIN))], True, (), False),
        (shape("", BIN), [key(("a", ""))], True, (), False),
        (shape(BIN, ""), [key(("a", CI))], False, ("a",), True),
        (shape(EXACT, ""), [key(("a", BIN))], False, ("a",), True),
        (shape("", BIN), [key(("a", "")), key(("b", CI), name="u")], False, ("b",), False),  # upstream has no such key
        (shape("", BIN), [key(("a", "")), key(("b", BIN), ("a", ""), name="u")], True, (), False),  # holds the key
        (shape(BIN, ""), [key(("a", BIN)), key(("a", CI), name="u")], False, ("a",), True),
        (shape(BIN, ""), [key(("a", BIN), whole=False)], False, (), False),
        (shape("", "", key=(0, 1)), [key(("a", ""))], False, (), False),
        (shape("", ""), [key(("a", ""), ("b", ""))], False, (), False),  # an old row would stay
        (shape("", ""), [], False, (), False),
        (shape("", ""), [key(("a", "")), key(("", ""), name="u")], False, (), False),  # on an expression
    ],
)
def test_replace_is_used_only_where_keys_identify_right_row(
    shape: TableShape, keys: list[UniqueKey], replaces: bool, coarse: tuple[str, ...], exact: bool
) -> None:
    found = handling_of(shape, tuple(keys), {part.column.lower(): part.collation for key in keys for part in key.parts})
    assert (found.replaces, found.coarse, found.exact) == (replaces, coarse, exact)


def test_delete_by_key_missing_downstream_compares_bytes_where_coarser() -> None:
    """DELETE compares the column, which needs no key for it."""
    found = handling_of(shape(BIN, ""), (key(("b", "")),), {"a": CI, "b": ""})
    assert (found.replaces, found.coarse, found.exact) == (False, ("a",), True)
    found = handling_of(shape(BIN, ""), (), {"a": BIN, "b": CI})
    assert (found.replaces, found.coarse, found.exact) == (False, (), False)


@pytest.mark.parametrize(
    ("definition", "wanted"),
    [
        ("`a` varchar(20) NOT NULL", "`a` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"),
        (
            "`a b` varchar(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci NOT NULL DEFAULT 'COLLATE x' COMMENT 'c'",
            "`a b` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'COLLATE x' COMMENT 'c'",
        ),
        ("`a` text COLLATE x_ci", "`a` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        ("`a` enum('x)','y') COLLATE x_ci", "`a` enum('x)','y') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ],
)
def test_with_collation_replaces_collation_in_column_definition(definition: str, wanted: str) -> None:
    assert with_collation(definition, BIN) == wanted


def test_narrower_lists_columns_with_fewer_fraction_digits() -> None:
    """Nothing is said of a column that is not here or has no bound of its own, and of one that keeps more."""
    of = replace(shape("", "", ""), fractions=(2, 6, 0))
    assert narrower(of, {"a": Column("", 0), "b": Column("", 3), "c": Column("", 0)}) == ((0, 0), (1, 3))
    assert narrower(of, {"a": Column("", None), "b": Column("", 6)}) == ()
    assert narrower(shape("", ""), {"a": Column("", 0)}) == ()
