"""RENAME TABLE texts (X-09)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.ddl.lexer import Unexpected, quoted, rename_pairs
from drainer.ddl.table_diff import named_tables, undoes_itself


@pytest.mark.parametrize(
    ("sql", "pairs"),
    [
        ("rename table a to b", [("", "a", "", "b")]),
        ("RENAME TABLE `a` TO `b`, `c`.`d` TO `e`.`f`;", [("", "a", "", "b"), ("c", "d", "e", "f")]),
        ("rename /* why */ table a -- so\n to x . b # end", [("", "a", "x", "b")]),
        (
            "RENAME TABLES `we``ird` TO `to`, `,`.`.` TO `table`",
            [("", "we`ird", "", "to"), (",", ".", "", "table")],
        ),
        ("/*!50000 rename */ table /*T![ttl] a */ to b", [("", "a", "", "b")]),
        ("rename table `表 1` to 表2", [("", "表 1", "", "表2")]),
        ("rename table 1a to b$", [("", "1a", "", "b$")]),
    ],
)
def test_rename_table_text_is_parsed_into_pairs(sql: str, pairs: list[tuple[str, str, str, str]]) -> None:
    assert rename_pairs(sql) == tuple((pair[:2], pair[2:]) for pair in pairs)


@pytest.mark.parametrize(
    ("sql", "offset", "wanted"),
    [
        ("", 0, "RENAME"),
        ("alter table a rename b", 0, "RENAME"),
        ("rename table a b", 15, "TO or AS"),
        ("rename table a to", 17, "a name"),
        ("rename table a to b,", 20, "a name"),
        ("rename table a to b; drop table c", 21, "the end"),
        ("rename table 'a' to b", 13, "a name"),
        ("rename table a. to b", 19, "TO or AS"),
    ],
)
def test_invalid_rename_text_is_refused_with_offset_and_expectation(sql: str, offset: int, wanted: str) -> None:
    with pytest.raises(Unexpected, match=f"character {offset}: {wanted} expected") as caught:
        rename_pairs(sql)
    assert caught.value.offset == offset


names = st.text(min_size=1, max_size=12).filter(lambda name: "\0" not in name)
schemas = st.just("") | names


@given(st.lists(st.tuples(schemas, names, schemas, names), min_size=1, max_size=5))
def test_quoted_rename_pairs_are_parsed_back(pairs: list[tuple[str, str, str, str]]) -> None:
    def place(schema: str, name: str) -> str:
        return quoted(schema, name) if schema else quoted(name)

    text = "RENAME TABLE " + ", ".join(f"{place(a, b)} TO {place(c, d)}" for a, b, c, d in pairs)
    assert rename_pairs(text) == tuple((pair[:2], pair[2:]) for pair in pairs)


@given(st.text(max_size=60))
def test_any_rename_text_is_parsed_or_refused_with_offset(text: str) -> None:
    try:
        rename_pairs("rename table " + text)
    except Unexpected as error:
        assert 0 <= error.offset <= len(text) + 13


# DDLs that take themselves back when they run twice, and those that do not.


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
