"""Which messages a DDL becomes, and where they go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from binlog.tidb.job import ActionType, Job
from binlog.tidb.types import FieldType, Tp

from drainer.dispatch.ddl_messages import ddl_messages, ddl_partitions
from drainer.dispatch.rules import DispatchRule, Router
from drainer.protocol.encoder import DdlScope
from drainer.schema.steps import Ddl, Located, TableChange
from tests.support.row_case import INT, table

ROUTER = Router([DispatchRule(matcher=("shop.*",), topic="{schema}_{table}")], "all")


def located(name: str, *, schema: str = "shop", number: int = 100) -> Located:
    return Located(number, schema, table([("id", INT), ("v", INT)], handle="id", table_id=number, name=name))


def step(
    kind: ActionType,
    *changes: tuple[Located | None, Located | None],
    query: str = "the user's text",
    sql: tuple[str, ...] = ("the statement",),
    rewritten: bool = False,
) -> Ddl:
    job = Job(7, kind, schema_version=30, start_ts=40)
    made = tuple(TableChange(before, after) for before, after in changes)
    return Ddl(job, 50, False, "shop", "shop", sql, query, 50, made, rewritten=rewritten)


def shown(made: Ddl) -> list[tuple[str, str, str, str, int]]:
    return [
        (one.topic, one.ddl.schema, one.ddl.table, one.ddl.query, one.ddl.type_code)
        for one in ddl_messages(made, ROUTER)
    ]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (
            step(ActionType.CREATE_TABLE, (None, located("a"))),
            [("shop_a", "shop", "a", "the user's text", 3)],
        ),
        (
            step(ActionType.ADD_COLUMN, (located("a"), located("a"))),
            [("shop_a", "shop", "a", "the user's text", 5)],
        ),
        (
            step(ActionType.RENAME_TABLE, (located("a"), located("b", schema="other"))),
            [("shop_a", "other", "b", "the statement", 14)],
        ),
        (
            step(
                ActionType.RENAME_TABLES,
                (located("a"), located("tmp")),
                (located("b", number=101), located("a", number=101)),
                (located("tmp"), located("b")),
            ),
            [
                ("shop_a", "shop", "tmp", "RENAME TABLE `shop`.`a` TO `shop`.`tmp`", 14),
                ("shop_b", "shop", "a", "RENAME TABLE `shop`.`b` TO `shop`.`a`", 14),
                ("shop_tmp", "shop", "b", "RENAME TABLE `shop`.`tmp` TO `shop`.`b`", 14),
            ],
        ),
        (
            step(ActionType.DROP_TABLE, (located("a"), None), query="DROP TABLE a, b", sql=("DROP TABLE `shop`.`a`",)),
            [("shop_a", "shop", "a", "DROP TABLE `shop`.`a`", 4)],
        ),
        (
            step(ActionType.DROP_SCHEMA, (located("a"), None), (located("b", number=101), None)),
            [("all", "shop", "", "the user's text", 2)],
        ),
        (step(ActionType.CREATE_SCHEMA), [("all", "shop", "", "the user's text", 1)]),
        (step(ActionType.FLASHBACK_CLUSTER), [("all", "shop", "", "the user's text", 62)]),
        (
            step(
                ActionType.CREATE_TABLES,
                (None, located("a")),
                (None, located("b", number=101)),
                sql=("CREATE TABLE a (…)", "CREATE TABLE b (…)"),
            ),
            [("shop_a", "shop", "a", "CREATE TABLE a (…)", 3), ("shop_b", "shop", "b", "CREATE TABLE b (…)", 3)],
        ),
        (
            step(
                ActionType.EXCHANGE_TABLE_PARTITION,
                (located("parted"), located("parted")),
                (located("normal", number=101), located("normal", number=102)),
            ),
            [("shop_parted", "shop", "parted", "the statement", 42)],
        ),
        (
            step(ActionType.MODIFY_COLUMN, (located("a"), located("a")), sql=("one", "two"), rewritten=True),
            [("shop_a", "shop", "a", "one; two", 12)],
        ),
        (
            step(ActionType.RENAME_TABLES, (located("a"), located("b")), sql=("mine",), rewritten=True),
            [("shop_a", "shop", "b", "mine", 47)],
        ),
        (
            step(ActionType.ADD_COLUMN, (located("a", schema="x"), located("a", schema="x"))),
            [("all", "x", "a", "the user's text", 5)],
        ),
    ],
)  # fmt: skip
def test_ddl_of_each_kind_becomes_its_messages(made: Ddl, wanted: list[tuple[str, str, str, str, int]]) -> None:
    assert shown(made) == wanted


@pytest.mark.parametrize(
    ("rest", "topics"), [({"view": {}}, ["all"]), ({"sequence": {}}, ["all"]), ({"temp_table_type": 1}, [])]
)
def test_view_or_sequence_ddl_goes_to_default_topic(rest: dict[str, Any], topics: list[str]) -> None:
    made = located("v")
    create = step(ActionType.CREATE_TABLE, (None, replace(made, info=replace(made.info, rest=rest))))
    assert [one.topic for one in ddl_messages(create, ROUTER)] == topics


def test_ddl_message_has_table_before_and_after() -> None:
    """`after` is the table that rows have from then on."""
    (found,) = ddl_messages(step(ActionType.ADD_COLUMN, (located("a"), located("a"))), ROUTER)
    ddl = found.ddl
    assert (ddl.commit_ts, ddl.start_ts) == (50, 40)
    assert ddl.before is not None
    assert ddl.after is not None
    assert (ddl.before.key[:4], ddl.after.key[:4]) == ((100, 29, 29, "shop"), (100, 30, 30, "shop"))
    assert [column.name for column in ddl.after.columns] == ["id", "v"]


def test_ddl_of_table_with_unsupported_type_is_sent_without_columns() -> None:
    odd = located("a")
    columns = (*odd.info.columns[:1], replace(odd.info.columns[1], type=FieldType(Tp.NULL)))
    made = step(ActionType.CREATE_TABLE, (None, replace(odd, info=replace(odd.info, columns=columns))))
    (found,) = ddl_messages(made, ROUTER)
    assert (found.ddl.table, found.ddl.after) == ("a", None)


@pytest.mark.parametrize(
    ("scope", "wanted"),
    [(DdlScope.ALL_PARTITIONS, [0, 1, 2]), (DdlScope.FIRST_PARTITION, [0]), (DdlScope.NONE, [])],
)
def test_ddl_partitions_follow_scope(scope: DdlScope, wanted: list[int]) -> None:
    assert list(ddl_partitions(scope, 3)) == wanted
