"""Merged shards: several tables of upstream in one of the destination.

Tables are written as `1 a b=5 i:a u!b`: orders_1 with the id 1, an integer key `id`, the columns `a` and `b` (default
5), an index `i` of `a` and a unique key `u` of `b`. `1@t` has the name t, `a#9` the column id 9, `a*` is a BIGINT, and
`t~` a TIMESTAMP that moves with each update.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from binlog.tidb.flatten import missing_value
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Ordered, SegmentWork
from drainer.changes.stream import StreamDecoder
from drainer.config import Config
from drainer.dispatch.ddl_messages import ddl_messages
from drainer.dispatch.piece_order import OrderedPart
from drainer.dispatch.rules import Router
from drainer.protocol.registry import ProtocolOptions
from drainer.row.codec import Decoder
from drainer.row.layout import Same, choose_key, replicated
from drainer.schema.errors import RuleRefused
from drainer.schema.filter import EventFilter, EventRule, Wildcards
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.rules import Rules
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.schema.view import SchemaView, TableVersions
from drainer.sink.base import Identity
from drainer.sink.kafka.publication import Publication
from drainer.sink.mysql.rows.ordered import where
from drainer.sink.sqlite import ddl as sqlite_ddl
from drainer.sink.sqlite import rows as sqlite_rows
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.row_case import INT, TEXT, Step, changes_of, table, transaction
from tests.support.schema_case import BEGIN_TS, job, ts
from tests.unit.drainer.schema.test_rules import configured, shown

NAMES = {"schema-pattern": "shop", "table-pattern": "orders_*", "target-schema": "all", "target-table": "orders"}
ROUTE = {**NAMES, "source-column": "src"}
RULES = configured(routes=[ROUTE])
KINDS = {"": INT, "*": replace(INT, tp=Tp.LONGLONG), "~": FieldType(Tp.TIMESTAMP, Flag.ON_UPDATE_NOW, 19)}
_COLUMN = re.compile(r"(\w+)([*~]?)(?:#(\d+))?(?:=(\w+))?")


def shard(text: str) -> TableInfo:
    head, *words = text.split()
    number, _, name = head.partition("@")
    parts = [_COLUMN.fullmatch(word) for word in words if not set(word) & {":", "!"}]
    found = [part.groups() for part in parts if part]
    made = table(
        [("id", INT), *((name, KINDS[kind]) for name, kind, _, _ in found)],
        handle="id",
        table_id=int(number),
        name=name or f"orders_{number}",
    )
    more = [
        replace(column, id=int(given or 2 + "abcztSRC".index(column.name)), default=default, origin_default=default)
        for column, (_, _, given, default) in zip(made.columns[1:], found, strict=True)
    ]
    offsets = {column.name: column.offset for column in made.columns}
    indexes = [re.fullmatch(r"(\w+)([:!])(\w+)", word) for word in words]
    return replace(
        made,
        columns=(made.columns[0], *more),
        indexes=tuple(
            IndexInfo(10 + n, one[1], (IndexColumn(one[3], offsets[one[3]]),), unique=one[2] == "!")
            for n, one in enumerate(indexes)
            if one
        ),
    )


def shards(text: str) -> dict[int, TableInfo]:
    return {info.id: info for info in map(shard, filter(None, text.split("; ")))}


def viewed(*infos: TableInfo, rules: Rules = RULES) -> SchemaView:
    made = {info.id: TableVersions("shop", 1, (1,), (info,)) for info in infos}
    return SchemaView(Policy(rules=rules).viewed(made)[0], {}, 0, 1 << 40, None)


def step(
    kind: str, tables: dict[int, TableInfo], changes: str, rules: Rules = RULES, *, events: Sequence[EventRule] = ()
) -> Ddl | None:
    """The step of a DDL. `changes`: `1>1 a` (altered), `0>1` (new), `1>` (dropped)."""

    def located(info: TableInfo | None) -> Located | None:
        return None if info is None else Located(info.id, "shop", info)

    pairs = [one.split(">") for one in changes.split("; ")]
    made = [
        TableChange(located(tables.get(int(old))), located(parted(shard(new)) if new else None)) for old, new in pairs
    ]
    proposed = Ddl(job(9, ActionType[kind], 9), ts(2), False, "shop", "", (), "…", ts(2), tuple(made))
    known = [("x" if (kind, info.id) == ("DROP_SCHEMA", 3) else "shop", info) for info in tables.values()]
    return Policy(rules=rules, events=EventFilter(events)).step(proposed, "…", known)


def parted(info: TableInfo) -> TableInfo:
    """With the partitions and foreign keys that a merged table has not."""
    rest: Any = {"fk_info": [{"id": 1}], "constraint_info": [{"id": 1}], "auto_id_cache": 3}
    return replace(info, rest=rest, partition=PartitionInfo(PartitionType.HASH, expr="`id`", num=2))


def names(info: TableInfo) -> list[str]:
    return [column.name for column in info.columns]


def test_parts_of_a_table_have_its_union_own_columns_first_and_the_source_last() -> None:
    one, two = parted(shard("1 a b u!a only!b i:a")), shard("2 c a u!a j:c")
    first, second = (viewed(one, two).tables[number].current for number in (1, 2))
    assert (names(first), names(second)) == (["id", "a", "b", "c", "src"], ["id", "c", "a", "b", "src"])
    for info in (first, second):
        assert [column.offset for column in info.columns] == list(range(len(info.columns_by_id)))
        found = {index.name: [info.columns[part.offset].name for part in index.columns] for index in info.indexes}
        assert found == {"PRIMARY": ["id", "src"], "u": ["a", "src"], "i": ["a"], "j": ["c"]}
    assert [missing_value(info.columns[-1]) for info in (first, second)] == [b"shop.orders_1", b"shop.orders_2"]
    assert [column.id for column in first.columns[:3]] == [1, 2, 3]
    assert (first.partition, first.rest, first.is_common_handle) == (None, {"auto_id_cache": 3}, True)


def test_source_column_is_of_the_primary_key_by_its_flag() -> None:
    """The secondary binlog's, which tells the key by it."""
    keyless = replace(shard("1"), pk_is_handle=False)
    for info, keys in ((shard("1 a"), [True, False, True]), (keyless, [True, False])):
        assert [column.is_primary for column in viewed(info).tables[1].current.columns] == keys


def test_table_that_keeps_its_name_has_the_source_column_too() -> None:
    rules = configured(routes=[{**ROUTE, "target-schema": "shop", "target-table": "orders_1"}])
    assert names(viewed(shard("1"), rules=rules).tables[1].current) == ["id", "src"]


def test_foreign_key_to_a_merged_parent_is_left_out() -> None:
    keys: Any = [{"id": 1, "ref_schema": {"O": "shop"}, "ref_table": {"O": name}} for name in ("orders_1", "x")]
    rules = configured(routes=[ROUTE, {"schema-pattern": "shop", "target-schema": "y"}])
    made = rules.applied("shop", replace(shard("1@child"), rest={"fk_info": keys}))
    assert made is not None
    assert [key["ref_table"]["O"] for key in made.info.foreign_keys] == ["x"]  # type: ignore[index,call-overload]


OTHER_KEY = table([("id", INT), ("b", INT)], unique={"PRIMARY": ["b"]}, table_id=2, name="orders_2")


@pytest.mark.parametrize(
    ("routes", "other", "why"),
    [
        ([NAMES], shard("2"), "or the same source-column, which keeps them apart"),
        ([{**ROUTE, "table-pattern": "*1"}, {**ROUTE, "source-column": "x"}], shard("2"), "or the same source-column"),
        ([ROUTE], OTHER_KEY, r"orders_1 \(primary key id\) and shop.orders_2 \(primary key b\) both go to all\.orders"),
        ([ROUTE], table([("id", INT)], table_id=2, name="orders_2"), r"shop\.orders_2 \(no primary key\) both go to"),
        ([ROUTE], shard("2 SRC"), "orders_1, or a table that is merged with it, has a column src already"),
        ([ROUTE], shard("2@orders_1"), r"orders_1 .* and shop\.orders_1 .* both go to"),  # as a.b.c and a.b.c may be
    ],
)
def test_tables_that_cannot_be_merged_are_refused(routes: list[Any], other: TableInfo, why: str) -> None:
    with pytest.raises(RuleRefused, match=why):
        viewed(shard("1"), other, rules=configured(routes=routes))


ALTER = "ALTER TABLE `all`.`orders` "
DROP = "DROP TABLE IF EXISTS "
UPDATE, DELETE, OF_1 = "UPDATE `all`.`orders` SET ", "DELETE FROM `all`.`orders`", " WHERE `src` = 'shop.orders_1'"
TO_9 = UPDATE + "`src` = 'shop.orders_9'" + OF_1


@pytest.mark.parametrize(
    ("kind", "tables", "change", "sql"),
    [
        ("ADD_COLUMN", "1; 2", "1>1 a", [ALTER + "ADD COLUMN `a` INT AFTER `id`"]),
        ("ADD_COLUMN", "1; 2 a", "1>1 a", []),
        ("ADD_COLUMN", "1 b; 2 a b", "1>1 a b", []),
        ("ADD_COLUMN", "1 b; 2 b a", "1>1 a b", []),
        ("ADD_COLUMN", "1; 2 a", "1>1 a=5", [UPDATE + "`a` = '5'" + OF_1]),
        ("DROP_COLUMN", "1 a; 2", "1>1", [ALTER + "DROP COLUMN `a`"]),
        ("DROP_COLUMN", "1 a t~; 2 a", "1>1 t~", [UPDATE + "`a` = NULL, `t` = `t`" + OF_1]),
        ("DROP_COLUMN", "1 a b; 2 b", "1>1 b", [ALTER + "DROP COLUMN `a`"]),
        ("DROP_COLUMN", "1 a i!a; 2 a i!a", "1>1", [ALTER + "DROP INDEX `i`", UPDATE + "`a` = NULL" + OF_1]),
        ("ADD_INDEX", "1 a; 2 a", "1>1 a i:a", [ALTER + "ADD KEY `i` (`a`)"]),
        ("ADD_INDEX", "1 a; 2 a i:a", "1>1 a i:a", []),
        ("DROP_INDEX", "1 a i:a; 2 a i:a", "1>1 a", []),
        ("ADD_INDEX", "1 a; 2 a", "1>1 a i!a", []),
        ("ADD_INDEX", "1 a; 2 a i!a", "1>1 a i!a", [ALTER + "ADD UNIQUE KEY `i` (`a`, `src`)"]),
        ("DROP_INDEX", "1 a i!a; 2 a i!a", "1>1 a", [ALTER + "DROP INDEX `i`"]),
        ("MODIFY_COLUMN", "1 a; 2 a", "1>1 a*", [ALTER + "CHANGE COLUMN `a` `a` BIGINT"]),
        ("MODIFY_COLUMN", "1 a b; 2 a*", "1>1 b a*#9", []),
        ("SET_DEFAULT_VALUE", "1 a=5; 2 a=5", "1>1 a=7", [ALTER + "ALTER COLUMN `a` SET DEFAULT '7'"]),
        ("CREATE_TABLE", "1 a", "0>2 a=5", []),
        ("MODIFY_COLUMN", "1 a", "1>1 z#2", [ALTER + "RENAME COLUMN `a` TO `z`"]),
        ("ADD_TABLE_PARTITION", "1; 2", "1>1", []),
        ("CREATE_TABLE", "1 a", "0>2 a", []),
        ("CREATE_TABLE", "1 a", "0>2 b", [ALTER + "ADD COLUMN `b` INT AFTER `id`"]),
        ("TRUNCATE_TABLE", "1; 2", "1>3@orders_1", [DELETE + OF_1]),
        ("TRUNCATE_TABLE", "1", "1>3@orders_1", ["TRUNCATE TABLE `all`.`orders`"]),
        ("DROP_TABLE", "1 a; 2 a", "1>", [DELETE + OF_1]),
        (
            *("DROP_TABLE", "1 b; 2 a i!a", "1>"),
            [DELETE + OF_1, ALTER + "DROP COLUMN `b`, ADD UNIQUE KEY `i` (`a`, `src`)"],
        ),
        ("DROP_TABLE", "1", "1>", [DROP + "`all`.`orders`"]),
        ("RENAME_TABLE", "1", "1>1@orders_9", [TO_9]),
        ("DROP_SCHEMA", "1; 2; 3", "1>; 2>", [DELETE + OF_1, DELETE + OF_1.replace("_1", "_2")]),
        ("DROP_SCHEMA", "1; 2; 4@t", "1>; 2>; 4>", [DELETE + OF_1, DROP + "`all`.`orders`", DROP + "`y`.`t`"]),
        ("RENAME_TABLES", "1; 4@t", "1>1@orders_9; 4>4@u", [TO_9, "RENAME TABLE `y`.`t` TO `y`.`u`"]),
    ],
)  # fmt: skip
def test_ddl_of_a_part_is_the_difference_of_unions(kind: str, tables: str, change: str, sql: list[str]) -> None:
    rules = configured(routes=[{**ROUTE, "schema-pattern": "*"}, {"schema-pattern": "*", "target-schema": "y"}])
    made = step(kind, shards(tables), change, rules)
    assert ([] if made is None else list(made.sql)) == sql
    if made is not None and made.merged:
        assert made.job.type.name not in ("CREATE_TABLE", "DROP_TABLE", "TRUNCATE_TABLE", "RENAME_TABLE", "DROP_SCHEMA")
        assert "; ".join(one.ddl.query for one in ddl_messages(made, Router([], "all"))) == "; ".join(sql)


def test_last_part_is_emptied_without_the_rows_of_one_whose_drop_was_left_out() -> None:
    keeping = EventRule.create(Wildcards("shop"), ["drop table"], [], owner="rule 1")
    made = step("TRUNCATE_TABLE", shards("1"), "1>3@orders_1", events=[keeping])
    assert made is not None
    assert made.sql == (DELETE + OF_1,)


def test_rows_of_a_part_get_bits_as_hexadecimal_and_no_value_in_a_generated_column() -> None:
    one, two = shard("1 a b"), shard("2 a b")
    bits = replace(one.columns[1], type=FieldType(Tp.BIT, flen=9), origin_default_bit=b"\1\2")
    gone = replace(one.columns[2], generated_expr="`id`")
    two = replace(two, columns=(two.columns[0], bits, gone))
    one = replace(one, columns=two.columns)
    made = step("DROP_COLUMN", {1: one, 2: two}, "1>1")
    assert made is not None
    assert made.sql == (UPDATE + "`a` = x'0102'" + OF_1,)


def test_column_that_came_with_the_default_of_a_created_table_is_set_in_the_rows_of_a_part_that_adds_it() -> None:
    two = shard("2 a=5")
    made = step(
        "ADD_COLUMN", {1: shard("1"), 2: replace(two, columns=(two.columns[0], created(two.columns[1])))}, "1>1 a"
    )
    assert made is not None
    assert made.sql == (UPDATE + "`a` = NULL" + OF_1,)


def created(column: ColumnInfo) -> ColumnInfo:
    """As CREATE TABLE makes it: no row lacks it."""
    return replace(column, origin_default=None)


def test_tables_of_one_job_are_created_and_merged_in_their_order() -> None:
    made = step("CREATE_TABLES", {}, "0>1; 0>2 a; 0>4@t")
    assert made is not None
    starts = ["CREATE DATABASE IF NOT EXISTS `all`", "CREATE TABLE `all`.`orders`", ALTER + "ADD COLUMN `a`"]
    starts += ["CREATE DATABASE IF NOT EXISTS `shop`", "CREATE TABLE `shop`.`t`"]
    assert [text[: len(start)] for text, start in zip(made.sql, starts, strict=True)] == starts
    assert made.sql[1].endswith(
        "`src` VARCHAR(129) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, PRIMARY KEY (`id`, `src`)) "
        "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("MODIFY_COLUMN", "1>1 z#2", "column a, which others may have, gets the name z"),
        ("RENAME_TABLE", "1>1@t a", "cannot lose a table to another name"),
        ("RENAME_TABLE", "4>4", "or get one from there"),
        ("TRUNCATE_TABLE_PARTITION", "1>1 a", "has not the partitions or dropped rows of each"),
        ("DROP_TABLE_PARTITION", "1>1 a", "has not the partitions"),
        ("EXCHANGE_TABLE_PARTITION", "1>1 a; 4>4@t", "has not the partitions"),
        ("RECOVER_TABLE", "0>7", "has not the partitions or dropped rows of each"),
        ("RECOVER_SCHEMA", "0>7", "has not the partitions or dropped rows of each"),
        ("ADD_COLUMN", "0>7", "its effect on all.orders, which rules alter, is not known"),
    ],
)
def test_ddl_that_a_merged_table_cannot_follow_is_refused(kind: str, changes: str, why: str) -> None:
    with pytest.raises(RuleRefused, match=rf"DDL job 9 .*{why}.*ddl-rewrite rule what runs, or nothing \(job-id = 9\)"):
        step(kind, shards("1 a; 2 a; 4@t"), changes)


def test_schema_knows_the_other_tables_and_looks_for_dropped_keys_in_all() -> None:
    """A job of another table does not stand in the way of the one that drops the key."""

    def of(number: int, kind: ActionType, text: str, finished_ts: int = 0) -> Any:
        info = shard(text)
        return job(number, kind, number, schema_id=2, table_id=info.id, table_info=info, finished_ts=finished_ts)

    jobs = [job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "shop"), finished_ts=1)]
    jobs += [of(1 + n, ActionType.CREATE_TABLE, f"{n} a u!a", 1) for n in (1, 2)]
    schema = Schema.open(JobHistory(jobs), position_ts=BEGIN_TS, policy=Policy(rules=RULES))
    added, dropped = of(8, ActionType.ADD_COLUMN, "1 a b u!a"), of(9, ActionType.DROP_INDEX, "2 a")
    schema.learn([added, of(10, ActionType.DROP_INDEX, "1 a b")])
    assert schema.job_that_drops(schema="all", table="orders", key="u") is None  # the table's other job comes first
    schema.learn([dropped])
    assert schema.job_that_drops(schema="all", table="orders", key="u") == dropped
    schema.commit(schema.plan(added, query="…", commit_ts=ts(5), own_ts=ts(5), early=False))
    assert names(schema.view().tables[2].current) == ["id", "a", "b", "src"]
    again = schema.plan(
        of(11, ActionType.ADD_COLUMN, "2 a b u!a"), query="…", commit_ts=ts(6), own_ts=ts(6), early=False
    )
    assert again.ddl is None


def test_rows_are_equal_as_columns_and_one_by_one_and_equal_keys_of_two_tables_stay_apart() -> None:
    """Tables with an integer key, a key of text, and none."""
    options: list[Any] = [{"handle": "k"}, {"unique": {"PRIMARY": ["t"]}}, {}]
    for number, more in enumerate(options):
        kinds = [("k", INT), ("t", TEXT), ("v", INT)]
        infos = [table(kinds[: 4 - n], table_id=10 * number + n, name=f"orders_{n}", **more) for n in (1, 2)]
        steps: list[tuple[TableInfo, Step]] = []
        for info in infos:
            one, two = (dict(enumerate(row[: len(info.columns)], 1)) for row in ((1, b"a", 7), (2, b"b", 8)))
            steps += [(info, ("insert", {}, one)), (info, ("insert", {}, two))]
            steps += [(info, ("update", two, {**two, 1: 3})), (info, ("delete", one, {}))]
        binlogs = [transaction([one], commit_ts=BEGIN_TS + n) for n, one in enumerate(steps)]
        view = viewed(*infos)
        found = [shown(view, binlogs, rows_min) for rows_min in (0, 256)]
        assert found[0] == found[1]
        folded, in_order, _ = found[0][0]  # type: ignore[misc]
        rows = {row.row for _, rows in folded for row in rows if row.row is not None}
        rows |= {b"(" + b",".join(one[3]) + b")" for one in in_order if one[3] and one[3][0] == b"3"}
        assert rows == {b"(3,'b',8,'shop.orders_1')", b"(3,'b',NULL,'shop.orders_2')"}
        info = view.tables[infos[0].id].current
        key = choose_key(info)
        assert [replicated(info)[at].name for at in key.columns] == [["k", "src"], ["t", "src"], []][number]
        assert (key.same[-1:], key.imaged) == ((Same.CONSTANT,) if key.columns else (), number == 1)


def digest(*routes: dict[str, str]) -> str:
    return Config.model_validate({"syncer": {"routes": routes}}).syncer.digest()


@pytest.mark.parametrize("name", ["x" * 65, "ends with ", "a\0b"])
def test_name_that_no_column_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="source-column"):
        digest({**NAMES, "source-column": name})


def test_digest_of_routes_without_a_source_column_stays_as_it_was() -> None:
    assert digest(NAMES) == "7512e2227e1d2e36"
    assert (
        len({digest(*routes) for routes in ([NAMES], [ROUTE], [NAMES, ROUTE], [{**ROUTE, "source-column": "b"}])}) == 4
    )


class Upstream:
    """A file that follows the DDLs and rows of three shards."""

    def __init__(self) -> None:
        self.texts: dict[int, dict[str, str]] = {}  # shard → head, and columns and indexes by name
        self.rows: dict[int, list[dict[str, int | None]]] = {}
        self.file = sqlite3.connect(":memory:")
        self.last = 1

    def next(self) -> int:
        self.last += 1
        return self.last

    def tables(self) -> dict[int, TableInfo]:
        return shards("; ".join(" ".join(words.values()) for words in self.texts.values()))

    def do(self, kind: str, number: int, name: str, default: bool, unique: bool) -> None:
        before, words = self.tables(), self.texts.get(number)
        old = int(words["head"].split("@")[0]) if words else 0
        if words is None:
            self.texts[number], self.rows[number] = {"head": f"{self.next()}@orders_{number}"}, []
            kind = "CREATE_TABLE"
        elif kind == "DROP_TABLE":
            del self.texts[number], self.rows[number]
        elif kind == "TRUNCATE_TABLE":
            words["head"], self.rows[number] = f"{self.next()}@{words['head'].split('@')[1]}", []
        elif kind == "RENAME_TABLE":
            words["head"] = f"{old}@orders_{number}_{self.next()}"
        elif kind == "ADD_COLUMN" and name not in words:
            words[name] = f"{name}#{self.next()}" + "=5" * default
            self.rows[number] = [{**row, name: 5 if default else None} for row in self.rows[number]]
        elif kind == "ADD_COLUMN":
            kind = "DROP_COLUMN"
            del words[name]
            words.pop("i" + name, None)
            self.rows[number] = [{of: cell for of, cell in row.items() if of != name} for row in self.rows[number]]
        elif kind == "ADD_INDEX" and "i" + name in words:
            kind = "DROP_INDEX"
            del words["i" + name]
        elif kind == "ADD_INDEX" and name in words:
            values = [row[name] for row in self.rows[number] if row[name] is not None]
            words["i" + name] = f"i{name}{'!' if unique and len(set(values)) == len(values) else ':'}{name}"
        elif kind == "INSERT":
            self.insert(number)
            return
        else:
            return
        after = " ".join(self.texts[number].values()) if number in self.texts else ""
        made = step(kind, before, f"{old}>{after}")
        if made is not None:
            sqlite_ddl.run(self.file, made, sqlite_ddl.RecycleBin(Identity(7, "main", "d"), 0), may_exist=False)

    def insert(self, number: int) -> None:
        words = self.texts[number]
        row = {"id": self.next(), **{name: self.next() for name in words if name in ("a", "b", "c")}}
        self.rows[number].append({**row})
        columns = replicated(viewed(*self.tables().values()).tables[int(words["head"].split("@")[0])].current)
        values = [row.get(c.name, missing_value(c)) for c in columns[:-1]] + [str(columns[-1].origin_default)]
        into = ", ".join(f"`{column.name}`" for column in columns)
        self.file.execute(f"INSERT INTO `all.orders` ({into}) VALUES ({', '.join('?' * len(columns))})", values)

    def check(self) -> None:
        if not self.texts:
            assert self.file.execute("SELECT name FROM sqlite_master").fetchall() == []
            return
        cursor = self.file.execute("SELECT * FROM `all.orders` ORDER BY id")
        there = [name for name, *_ in cursor.description]
        found = [dict(zip(there, row, strict=True)) for row in cursor.fetchall()]
        assert set(there) == {"id", "src"}.union(*({"a", "b", "c"} & words.keys() for words in self.texts.values()))
        assert len(found) == sum(map(len, self.rows.values()))
        for number, words in self.texts.items():
            own = ["id", *({"a", "b", "c"} & words.keys())]
            mine = [row for row in found if row["src"] == "shop." + words["head"].split("@")[1]]
            assert [{name: row[name] for name in own} for row in mine] == self.rows[number]
        indexes = [{word[:2]: word[2] for name, word in one.items() if name[0] == "i"} for one in self.texts.values()]
        wanted = {f"all.orders.{name}": False for one in indexes for name, kind in one.items() if kind == ":"}
        wanted |= {f"all.orders.{name}": True for name in indexes[0] if {one.get(name) for one in indexes} == {"!"}}
        rows = self.file.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        assert {name: "UNIQUE" in sql for name, sql in rows} == wanted


OPERATIONS = st.tuples(
    st.sampled_from(["DROP_TABLE", "TRUNCATE_TABLE", "RENAME_TABLE", *["ADD_COLUMN", "ADD_INDEX", "INSERT"] * 3]),
    st.integers(1, 3),
    st.sampled_from(["a", "b", "c"]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(OPERATIONS, max_size=16))
def test_destination_is_the_union_of_its_parts_after_any_ddls(
    operations: list[tuple[str, int, str, bool, bool]],
) -> None:
    upstream = Upstream()
    for operation in operations:
        upstream.do(*operation)
        upstream.check()


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "debezium", "simple", "secondary-binlog"])
def test_messages_follow_the_columns_of_the_other_tables(protocol: str) -> None:
    """What an encoder has compiled for a table is not used after a DDL of another part."""
    router = Router([], "all", protocol=protocol)
    options = ProtocolOptions(protocol)
    one, payload = shard("1"), transaction([(shard("1"), ("insert", {}, {1: 7}))], commit_ts=BEGIN_TS + 2)

    def sent(publication: Publication, *infos: TableInfo) -> list[Any]:
        decoder = StreamDecoder(viewed(*infos), stored_generated=True)
        (outgoing,) = publication.part_rows(OrderedPart(decoder.segment([payload], BEGIN_TS, BEGIN_TS + 2)))
        return list(outgoing.messages)

    used, fresh = (Publication(options, router, {"all": 1}, {"all": 1 << 20}) for _ in range(2))
    sent(used, one)
    now = re.compile(rb'"(_tidb|buildTs|ts_ms|ts)":\d+')
    found = [[now.sub(b"", message.value or b"") for message in sent(p, one, shard("2 b"))] for p in (used, fresh)]
    assert found[0] == found[1]


def test_row_without_a_key_is_found_by_the_columns_of_its_own_table() -> None:
    """What it has in those of other tables depends on when they came, and with which default."""
    one, two = table([("a", INT)], name="orders_1", table_id=1), table([("b", INT)], name="orders_2", table_id=2)
    view = viewed(one, two)
    steps: list[tuple[TableInfo, Step]] = [(one, ("update", {1: 7}, {1: 8})), (one, ("delete", {1: 9}, {}))]
    payload = transaction(steps, commit_ts=BEGIN_TS + 1)
    changes = tuple(changes_of(Decoder(view), [payload], SQLITE_VALUES))
    file = sqlite3.connect(":memory:")
    file.execute("CREATE TABLE `all.orders` (a INT, b INT, src TEXT)")
    file.execute("INSERT INTO `all.orders` VALUES (7,5,'shop.orders_1'), (9,5,'shop.orders_1'), (9,5,'shop.orders_2')")
    sqlite_rows.write(file, SegmentWork(BEGIN_TS, BEGIN_TS + 1, (), Ordered(changes), 2, 9))
    assert file.execute("SELECT * FROM `all.orders`").fetchall() == [
        (8, None, "shop.orders_1"),
        (9, 5, "shop.orders_2"),
    ]
    old = [b"9", b"NULL", b"'shop.orders_1'"]
    assert where(changes[1].shape, old, "mariadb").startswith(b" WHERE `a`<=>9 AND TRUE AND `src`<=>'shop.orders_1'")
