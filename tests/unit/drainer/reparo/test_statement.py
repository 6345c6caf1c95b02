"""What a DDL's text is about, by which it is filtered, and the database it runs in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.pb_file.encoder import ddl_text
from drainer.reparo.replaying import parse
from drainer.reparo.stream import ReparoError


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("use `d`; create table t (id int);", ("d", "d", "t")),
        ("use `d`; create table if not exists `a;b`.`t``x` (id int);", ("a;b", "d", "t`x")),
        ("use `d;``e`; alter table t add c int comment ';';", ("d;`e", "d;`e", "t")),
        ("create database if not exists `d`;", ("d", "", "")),
        ("use `d`; drop database `d`;", ("d", "d", "")),
        ("use `d`; drop table if exists a, b;", ("d", "d", "a")),
        ("use `d`; drop view v;", ("d", "d", "v")),
        ("use `d`; create or replace view v as select 1;", ("d", "d", "v")),
        ("use `d`; rename table a to b;", ("d", "d", "a")),
        ("use `d`; truncate t;", ("d", "d", "t")),
        ("use `d`; truncate table x.t", ("x", "d", "t")),
        ("use `d`; create unique index i on t (c);", ("d", "d", "t")),
        ("use `d`; drop index i on x.t;", ("x", "d", "t")),
        ("use `d`; /* a */ ALTER /*T![clustered_index] x */ TABLE t ADD INDEX (a);", ("d", "d", "t")),
        ("use `d`; create sequence s;", ("d", "d", "s")),
        ("flush tables", ("", "", "")),
    ],
)
def test_ddl_text_gives_schema_current_database_and_table(query: str, wanted: tuple[str, str, str]) -> None:
    found = parse(query)
    assert (found.schema, found.use, found.table) == wanted
    assert not found.text.startswith("use ")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10))
def test_database_name_of_any_text_is_parsed_back(name: str) -> None:
    found = parse(ddl_text(name, "drop table t", 4))
    assert (found.schema, found.use, found.text) == (name, name, "drop table t")


@pytest.mark.parametrize("query", ["", ";", "use `d`; drop table a; drop table b", "drop table a; drop table b"])
def test_ddl_text_without_exactly_one_statement_is_refused(query: str) -> None:
    with pytest.raises(ReparoError, match="statements where one is expected"):
        parse(query)
