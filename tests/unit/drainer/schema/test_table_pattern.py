"""Patterns of tables: TiDB's table-filter, as TiCDC's rules, dispatchers and selectors use it."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest
from binlog.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st

from drainer.dispatch.rules import ColumnPatterns
from drainer.schema.filter import Filter, PatternError, TablePatterns


def matches(patterns: list[str], name: str) -> bool:
    schema, table = name.split(".", 1)
    return TablePatterns.parse(patterns).match(schema, table)


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


def test_table_patterns_ignore_case() -> None:
    assert matches(["Db.*"], "db.t")
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
    found = TablePatterns.parse([pattern])
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


# Names that are replicated (D-FI-01, D-FI-02).


def test_default_filter_allows_all_but_system_schemas() -> None:
    names = Filter.create()
    assert names.allows("shop", "orders")
    assert names.allows("shop")
    for schema in ("mysql", "MySQL", "information_schema", "performance_schema", "metrics_schema"):
        assert not names.allows(schema, "t")
        assert not names.allows(schema)


@pytest.mark.parametrize("schema", ["tidb_binlog", "TiDB_Binlog"])
def test_position_schema_is_never_replicated(schema: str) -> None:
    """Upstream may itself be the destination of a drainer. Its DROP DATABASE would remove our position."""
    for names in (
        Filter.create(),
        Filter.create(do_dbs=["tidb_binlog"], ignore_schemas=()),
        Filter.create(rules=["*.*"]),
    ):
        assert not names.allows(schema)
        assert not names.allows(schema, "checkpoint")


@pytest.mark.parametrize(
    ("given", "allowed", "refused"),
    [
        # Case does not count, and names are whole ones.
        ({"do_dbs": ["Shop"]}, [("SHOP", "t")], [("shop2", "t"), ("myshop", "t")]),
        # A name without a tilde is no regular expression. The original lets `a.b` match `axb` (D-FI-01).
        ({"do_dbs": ["a.b"]}, [("a.b", "t")], [("axb", "t")]),
        # One with a tilde is a regular expression that may match anywhere.
        (
            {"do_tables": [("~^shard_[0-9]+$", "~order")]},
            [("SHARD_7", "big_Orders")],
            [("shard_x", "orders"), ("shard_7", "items")],
        ),
        # What is to be replicated is chosen first, and what is ignored is taken off it.
        (
            {"do_dbs": ["a"], "do_tables": [("b", "t")], "ignore_tables": [("a", "log")], "ignore_schemas": ["c"]},
            [("a", "x"), ("b", "t")],
            [("a", "log"), ("b", "x"), ("c", "x")],
        ),
        # Only do-db allows the DDLs of a database itself.
        ({"do_tables": [("b", "t")]}, [], [("b",)]),
        ({"do_dbs": ["b"]}, [("b",)], []),
    ],
)
def test_filter_allows_names_that_its_rules_choose(
    given: dict[str, Any], allowed: list[tuple[str, ...]], refused: list[tuple[str, ...]]
) -> None:
    names = Filter.create(**given)
    assert [one for one in (*allowed, *refused) if names.allows(*one)] == allowed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do_dbs": [""]}, "replicate-do-db: empty name"),
        ({"ignore_schemas": ["~"]}, "ignore-schemas: empty name"),
        ({"do_tables": [("a", "~(")]}, "replicate-do-table: '~(' is not a regular expression"),
        ({"ignore_tables": [("", "t")]}, "ignore-table: empty name"),
    ],
)
def test_invalid_filter_pattern_is_refused_by_name(given: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Filter.create(**given)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_pickled_filter_allows_the_same_names() -> None:
    names = pickle.loads(pickle.dumps(Filter.create(do_dbs=["~^a"])))
    assert names.allows("ab")
    assert not names.allows("b")
