"""Patterns of tables: TiDB's table-filter, as TiCDC's rules, dispatchers and selectors use it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.dispatch.column_selector import ColumnPatterns
from drainer.schema.filter import TablePatterns
from drainer.schema.name_pattern import PatternError


def matches(patterns: list[str], name: str, *, ignores_case: bool = True) -> bool:
    schema, table = name.split(".", 1)
    return TablePatterns.parse(patterns, ignores_case=ignores_case).match(schema, table)


@pytest.mark.parametrize(
    ("patterns", "yes", "no"),
    [
        (["db.tbl"], ["db.tbl", "DB.TBL"], ["db.tbl1", "xdb.tbl", "db.tb"]),
        (["*.*"], ["a.b", "a.b.c", "数.据"], []),
        (["db?.t*"], ["db1.t", "dbx.table"], ["db.t", "db12.t", "db1.x"]),
        (["db.t[0-9]"], ["db.t0", "db.t9"], ["db.tx", "db.t10", "db.t"]),
        (["db.t[!0-9]"], ["db.tx"], ["db.t1", "db.t"]),
        (["db.t[]"], [], []),
        (["*.*", "!*.log"], ["a.b"], ["a.log"]),
        (["*.*", "!*.log", "keep.log"], ["a.b", "keep.log"], ["a.log"]),
        (["!a.b"], [], ["a.b", "c.d"]),
        (["`my-db`.`a.b`"], ["my-db.a.b"], ["my-db.a"]),
        (['"q""x".t'], ['q"x.t'], ["qx.t"]),
        (["/^db[0-9]+$/./^t.*/"], ["db12.t_x", "DB1.T"], ["db.t", "xdb1.t", "db1.xt"]),
        ([r"a\-b.t\*"], ["a-b.t*"], ["a-b.tx"]),
        (["", "# a comment", "db.*"], ["db.x"], ["x.db"]),
    ],
)  # fmt: skip
def test_table_patterns_match_as_tidbs_table_filter(patterns: list[str], yes: list[str], no: list[str]) -> None:
    if patterns == ["db.t[]"]:
        with pytest.raises(PatternError, match="unexpected '\\['"):
            TablePatterns.parse(patterns)
        return
    for name in yes:
        assert matches(patterns, name), name
    for name in no:
        assert not matches(patterns, name), name


def test_table_patterns_respect_case_when_asked() -> None:
    assert not matches(["Db.*"], "db.t", ignores_case=False)
    assert matches(["Db.*"], "Db.t", ignores_case=False)
    assert not matches(["/^d/.t"], "Db.t", ignores_case=False)
    assert matches(["/^d/.t"], "Db.t")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("db", "expected database.table"),
        ("db.", "expected database.table"),
        (".t", "expected database.table"),
        ("a-b.t", "unexpected '-'"),
        ("a.b.c", "unexpected '.'"),
        ("@rules.txt", "another file"),
        ("/(/.t", "matcher '/(/.t': "),
        ("!", "expected database.table"),
    ],
)
def test_invalid_table_pattern_is_refused_with_reason(pattern: str, said: str) -> None:
    with pytest.raises(PatternError) as caught:
        TablePatterns.parse([pattern])
    assert said in str(caught.value)
    assert repr(pattern) in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_is_parsed_as_pattern_or_refused(text: str) -> None:
    with contextlib.suppress(PatternError):
        assert TablePatterns.parse([text]).match("db", "t") in (True, False)
    with contextlib.suppress(PatternError):
        assert ColumnPatterns.parse([text]).match("a") in (True, False)


@given(schema=st.text(min_size=1, max_size=8), table=st.text(min_size=1, max_size=8))
def test_quoted_pattern_matches_only_its_name(schema: str, table: str) -> None:
    pattern = ".".join("`" + name.replace("`", "``") + "`" for name in (schema, table))
    found = TablePatterns.parse([pattern], ignores_case=False)
    assert found.match(schema, table)
    assert not found.match(schema + "x", table)
    assert not found.match(schema, "x" + table)


@pytest.mark.parametrize(
    ("patterns", "yes", "no"),
    [
        (["*.*"], ["a"], []),
        (["db.t"], ["db", "DB"], ["db1"]),
        (["*.*", "!db.*"], ["a"], ["db"]),
        (["*.*", "!db.t*"], ["a", "db"], []),
        (["*.*", "!db.*", "db.t"], ["a", "db"], []),
        (["db.*", "!db.t"], ["db"], ["a"]),
        (["!db.*"], [], ["db", "a"]),
    ],
)
def test_database_matching_equals_tidbs_match_schema(patterns: list[str], yes: list[str], no: list[str]) -> None:
    """A DDL of a database counts where a table of it may: MatchSchema of TiDB's pkg/util/table-filter."""
    found = TablePatterns.parse(patterns)
    assert [name for name in (*yes, *no) if found.match_schema(name)] == yes
    assert not TablePatterns.parse(["Db.*"], ignores_case=False).match_schema("db")
