"""DDLs that take themselves back when they run twice, and those that do not."""

from __future__ import annotations

import pytest

from drainer.ddl.repetition import named_tables, undoes_itself


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u",
        "alter table `t` /* x */ exchange partition `p` with table `u` without validation",
        "RENAME TABLE a TO tmp, b TO a, tmp TO b",
        "RENAME TABLE d.a TO e.a1, e.B TO d.a, e.a1 TO e.b",
        "RENAME TABLE d.a TO e.a, f.a TO a, e.a TO f.a",
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO A",
        "ALTER TABLE t CHANGE a b INT, CHANGE COLUMN b a INT",
        "ALTER TABLE t CHANGE a b INT, RENAME COLUMN b TO a",
    ],
)
def test_exchange_or_swap_statement_undoes_itself(query: str) -> None:
    assert undoes_itself(query, "d")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "CREATE TABLE t (id INT PRIMARY KEY, exchange INT, `partition` INT)",
        "RENAME TABLE t TO t_old, t_new TO t",
        "RENAME TABLE a TO b",
        "RENAME TABLE a TO e.b, e.a TO b",
        "RENAME TABLE a",
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO c",
        "ALTER TABLE t RENAME COLUMN",
        "ALTER TABLE t CHANGE a a BIGINT",
        "ALTER TABLE t RENAME INDEX a TO b",
        "ALTER TABLE t COMMENT 'EXCHANGE PARTITION'",
    ],
)
def test_other_statement_does_not_undo_itself(query: str) -> None:
    assert not undoes_itself(query, "d")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("ALTER TABLE t ADD INDEX (v)", [("d", "t")]),
        ("RENAME TABLE t TO `x.y`, e.b TO t", [("d", "t"), ("d", "x.y"), ("e", "b")]),
        ("RENAME TABLE t", [("d", "t")]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE `u`", [("d", "t"), ("d", "u")]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE e.u WITHOUT VALIDATION", [("d", "t"), ("e", "u")]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE", [("d", "t")]),
        ("", [("d", "t")]),
    ],
)
def test_named_tables_lists_tables_of_statement(query: str, found: list[tuple[str, str]]) -> None:
    assert named_tables(query, "d", "t") == found
    assert named_tables("CREATE DATABASE e", "e", "") == []
