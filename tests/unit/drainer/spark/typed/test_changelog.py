"""The shape "changelog": what applies its rows in order has the table, and no transaction changes a key twice."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import zip_longest
from typing import Any
from unittest import mock

import pytest
from binlog.runtime.security import Security
from binlog.tidb.datum import Uint
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.pumps.watermark import PumpRange
from drainer.row.transaction import scan
from drainer.schema.filter import EventFilter, EventRule, Wildcards
from drainer.schema.rules import ColumnRule, Mask, MaskKind, Rules
from drainer.spark.typed import reader
from drainer.spark.typed import rows as rows_module
from drainer.spark.typed.fields import (
    KeyUnfit,
    Reading,
    SchemaChanged,
    StreamRules,
    TablesUnfit,
    changelog_schema,
    fields_of,
)
from drainer.spark.typed.rows import Changes
from tests.support.row_case import BEGIN_TS, INT, TEXT, table, transaction
from tests.unit.drainer.spark.typed.test_rows import NAME, watched_of

NOT_NULL = [("a", replace(INT, flag=int(Flag.NOT_NULL))), ("b", replace(TEXT, flag=int(Flag.NOT_NULL))), ("v", INT)]
BOTH = table(NOT_NULL, unique={"PRIMARY": ["a", "b"]}, name="orders")
SINGLE = table([("a", INT), ("b", TEXT), ("v", INT)], handle="a", name="orders")
KEYLESS = replace(SINGLE, pk_is_handle=False)
Row = tuple[int, str, int | None]


def changelog_of(info: TableInfo, *transactions: list[tuple[Row | None, Row | None]]) -> list[dict[str, Any]]:
    changes = Changes(Reading(watched_of(info), fields_of({NAME: info}), 1, changelog=True))
    for number, rows in enumerate(transactions):
        found: list[Any] = []
        for old, new in rows:
            kind = "insert" if old is None else "delete" if new is None else "update"
            images = [{} if row is None else {1: row[0], 2: row[1].encode(), 3: row[2]} for row in (old, new)]
            found.append((info, (kind, *images)))
        changes.add(transaction(found, commit_ts=BEGIN_TS + number))
    batch = changes.batch()
    assert batch.schema.names == changelog_schema(fields_of({NAME: info})).names
    rows_found: list[dict[str, Any]] = batch.to_pylist()
    return rows_found


def told(rows: list[dict[str, Any]]) -> list[tuple[str, Row]]:
    return [(row["_change_type"], (row["a"], row["b"], row["v"])) for row in rows]


def test_each_image_is_a_row_in_upstreams_order() -> None:
    one, other = (1, "x", 1), (1, "x", None)
    rows = changelog_of(SINGLE, [(None, one)], [(one, other), (None, (2, "y", 2))], [(other, None)])
    assert told(rows) == [
        ("insert", one),
        ("update_preimage", one),
        ("update_postimage", other),
        ("insert", (2, "y", 2)),
        ("delete", other),
    ]
    assert [row["_commit_version"] - BEGIN_TS for row in rows] == [0, 1, 1, 1, 2]
    assert {row["_commit_timestamp"] for row in changelog_of(SINGLE, [(None, one)])} == {rows[0]["_commit_timestamp"]}


def test_update_of_a_key_is_a_delete_and_an_insert_unless_the_key_is_written_again() -> None:
    assert told(changelog_of(SINGLE, [((1, "x", 1), (2, "x", 1))])) == [
        ("delete", (1, "x", 1)),
        ("insert", (2, "x", 1)),
    ]
    exchanged = changelog_of(SINGLE, [((1, "x", 1), (2, "x", 1)), ((2, "y", 2), (1, "y", 2))])
    assert told(exchanged) == [
        ("update_preimage", (2, "y", 2)),
        ("update_postimage", (2, "x", 1)),
        ("update_preimage", (1, "x", 1)),
        ("update_postimage", (1, "y", 2)),
    ]


def test_table_without_a_key_or_with_a_part_of_it_keeps_updates() -> None:
    update = ((1, "x", 1), (2, "x", 1))
    assert [kind for kind, _ in told(changelog_of(KEYLESS, [update]))] == ["update_preimage", "update_postimage"]
    assert [kind for kind, _ in told(changelog_of(BOTH, [update]))] == ["delete", "insert"]
    assert fields_of({NAME: BOTH}).key == ("a", "b")
    replaced = changelog_of(KEYLESS, [((1, "x", 1), None), (None, (1, "x", 2))])
    assert [kind for kind, _ in told(replaced)] == ["delete", "insert"]
    generated = replace(BOTH.columns[0], generated_expr="`v`", generated_stored=True)  # not in binlogs
    assert fields_of({NAME: replace(BOTH, columns=(generated, *BOTH.columns[1:]))}).key == ()
    assert fields_of({NAME: KEYLESS}).key == fields_of({NAME: SINGLE, ("shop", "x"): SINGLE}).key == ()


def test_table_with_a_column_of_the_shapes_name_is_refused() -> None:
    info = table([("a", INT), ("_Commit_Version", INT)], handle="a", name="orders")
    with pytest.raises(TablesUnfit, match="column _Commit_Version has the name of a column of shape = changelog"):
        changelog_schema(fields_of({NAME: info}))


def check(transactions: list[list[tuple[Row | None, Row | None]]], tables: list[list[Row]]) -> None:
    """`tables`: upstream's rows after each transaction."""
    applied: dict[int, Row] = {}
    found: dict[int, list[tuple[str, Row]]] = {}
    for row in changelog_of(BOTH, *transactions):
        found.setdefault(row["_commit_version"] - BEGIN_TS, []).append(
            (row["_change_type"], (row["a"], row["b"], row["v"]))
        )
    for version, table_after in enumerate(tables):
        changes = found.get(version, [])
        assert len({new[0] for kind, new in changes if kind != "update_preimage"}) == sum(
            kind != "update_preimage" for kind, _ in changes
        )
        for (kind, new), after in zip_longest(changes, changes[1:]):
            assert (new[0] in applied) == (kind != "insert")
            if kind in ("delete", "update_preimage"):
                assert applied[new[0]] == new
            if kind == "update_preimage":
                assert after is not None
                assert (after[0], after[1][0]) == ("update_postimage", new[0])
            elif kind == "delete":
                del applied[new[0]]
            else:
                applied[new[0]] = new
        assert sorted(applied.values()) == sorted(table_after)


@given(st.lists(st.integers(0, 1 << 30), max_size=8))
def test_rows_that_exchange_their_keys_applied_by_key_are_the_table(seeds: list[int]) -> None:
    """Rows of a transaction exchange their keys, come and go."""
    rows: list[Row] = []
    transactions, tables = [], []
    for seed in seeds:
        chance = random.Random(seed)
        kept, gone = rows[: chance.randint(0, len(rows))], rows[:]
        del gone[: len(kept)]
        keys = chance.sample(range(6), min(6, len(kept) + chance.randint(0, 2)))
        after = [(key, "x", chance.randrange(2)) for key in keys]
        made = [(one, None) for one in gone] + [pair for pair in zip_longest(kept, after) if pair[0] != pair[1]]
        transactions.append(chance.sample(made, len(made)))
        rows = chance.sample(after, len(after))
        tables.append(rows)
    check(transactions, tables)


STEPS = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.tuples(st.integers(0, 2), st.integers(0, 1))))


@given(st.lists(st.lists(STEPS, max_size=8), max_size=4))
def test_keys_changed_several_times_in_a_transaction_change_once(steps: list[list[Any]]) -> None:
    """TiDB writes every statement's changes (X-12): a step deletes a row, or inserts or updates one if its key is
    free."""
    rows: dict[int, Row] = {}
    transactions, tables = [], []
    for some in steps:
        made: list[tuple[Row | None, Row | None]] = []
        for key, new in some:
            after = None if new is None else (new[0], "x", new[1])
            before = rows.get(key)
            if before == after or (after is not None and after[0] in rows and after[0] != key):
                continue
            rows.pop(key, None)
            if after is not None:
                rows[after[0]] = after
            made.append((before, after))
        transactions.append(made)
        tables.append([*rows.values()])
    check(transactions, tables)


def test_of_several_changes_of_a_key_only_upstreams_rows_before_and_after_are_told() -> None:
    one, two, three = (1, "x", 1), (1, "x", 2), (1, "x", 3)
    assert changelog_of(SINGLE, [(None, one), (one, two), (two, None)]) == []
    assert told(changelog_of(SINGLE, [(None, one), (one, two)])) == [("insert", two)]
    assert told(changelog_of(SINGLE, [(one, two), (two, None)])) == [("delete", one)]
    both = [("update_preimage", one), ("update_postimage", three)]
    assert told(changelog_of(SINGLE, [(one, two), (two, three)])) == both
    assert told(changelog_of(SINGLE, [(one, None), (None, two), (two, None)])) == [("delete", one)]
    assert told(changelog_of(SINGLE, [(None, one), (None, (2, "y", 1)), (one, None)])) == [("insert", (2, "y", 1))]
    assert told(changelog_of(SINGLE, [(None, one)], [(one, None)])) == [("insert", one), ("delete", one)]


def test_changes_of_a_commit_in_several_binlogs_are_put_together() -> None:
    """As of a source whose rows have a binlog each (drainer/ticdc/binlogs.py)."""
    gone: Any = [(SINGLE, ("delete", {1: 1, 2: b"x", 3: 1}, {}))]
    come: Any = [(SINGLE, ("insert", {}, {1: 1, 2: b"x", 3: 2}))]
    served = [scan(transaction(rows, commit_ts=BEGIN_TS, start_ts=n)) for n, rows in enumerate((gone, come), 1)]
    reading = Reading(watched_of(SINGLE), fields_of({NAME: SINGLE}), 1, changelog=True)
    part = PumpRange("a", "a:1", True, 0, BEGIN_TS)
    with (
        mock.patch.object(reader, "_served", lambda *_: iter(served)),
        mock.patch.object(rows_module, "BATCH_TRANSACTIONS", 1),
    ):
        (batch,) = reader.read_changes(reader.ChangesTask((part,), 1, Security(), reading))
    assert [kind for kind, _ in told(batch.to_pylist())] == ["update_preimage", "update_postimage"]


def test_key_that_is_null_is_refused_because_keys_could_not_be_told_apart() -> None:
    """The dates 0000-00-00 and 2024-00-00 are NULL in Spark."""
    info = table(
        [("day", replace(FieldType(Tp.DATE), flag=int(Flag.NOT_NULL))), ("v", INT)],
        unique={"PRIMARY": ["day"]},
        name="orders",
    )
    changes = Changes(Reading(watched_of(info), fields_of({NAME: info}), 1, changelog=True))
    for number, value in enumerate(
        (Uint(2024 * 13 + 1 << 46 | 1 << 41), Uint(0)), BEGIN_TS - 1
    ):  # 2024-01-01 is a date
        changes.add(transaction([(info, ("insert", {}, {1: value, 2: 1}))], commit_ts=number))
    with pytest.raises(
        KeyUnfit, match=rf"table shop.orders, row of commit_ts {BEGIN_TS}: column day of the key is NULL"
    ):
        changes.batch()


@pytest.mark.parametrize(
    ("columns", "unique", "fails"),
    [
        (NOT_NULL, {"u": ["b"]}, True),
        (NOT_NULL, {"u": ["a", "b"]}, True),
        (NOT_NULL, {}, True),
        ([("a", INT), *NOT_NULL[1:]], {"u": ["a"]}, True),
        ([("a", INT), *NOT_NULL[1:]], {"PRIMARY": ["a"]}, False),  # an old TableInfo
        (NOT_NULL, {"u": ["a"]}, False),
    ],
)
def test_other_key_since_the_start_of_the_query_ends_it(
    columns: Any, unique: dict[str, list[str]], fails: bool
) -> None:
    before = table([("A", NOT_NULL[0][1]), *NOT_NULL[1:]], unique={"PRIMARY": ["A"]}, name="orders")
    later = table(columns, unique=unique, name="orders")
    payload = transaction([(later, ("insert", {}, {1: 1, 2: b"x", 3: 1}))], commit_ts=BEGIN_TS, version=2)
    fields = fields_of({NAME: before})
    assert fields.key == ("A",)
    for shape in (False, True):
        changes = Changes(Reading(watched_of(before, later), fields, 1, changelog=shape))
        changes.add(payload)
        if fails and shape:
            with pytest.raises(SchemaChanged, match=r"table shop.orders: its key was changed since"):
                changes.batch()
        else:
            assert len(changes.batch()) == 1


@pytest.mark.parametrize("mask", [Mask(MaskKind.HASH, "k"), Mask(MaskKind.CONSTANT, "-"), None])
def test_key_that_a_rule_changes_under_its_former_name_is_refused(mask: Mask | None) -> None:
    wide = replace(TEXT, flag=int(Flag.NOT_NULL))
    older = table([("a", INT), ("was", wide)], name="orders")
    later = table([("a", INT), ("now", wide)], unique={"u": ["now"]}, name="orders")
    rule = (
        ColumnRule("columns", Wildcards("shop"), masks=(("was", mask),))
        if mask
        else ColumnRule("columns", Wildcards("shop"), ("was",))
    )
    rules = StreamRules(Rules((), [rule]))
    changes = Changes(Reading(watched_of(older, later), fields_of({NAME: later}), 2, rules=rules, changelog=True))
    changes.add(transaction([(older, ("insert", {}, {1: 1, 2: b"x"}))], commit_ts=BEGIN_TS))
    with pytest.raises(KeyUnfit, match=rf"table shop.orders, row of commit_ts {BEGIN_TS}: column now of the key"):
        changes.batch()
    keyed = table([("a", INT), ("now", wide)], handle="a", name="orders")
    for info, shape in ((later, False), (keyed, True)):  # where it is no key
        changes = Changes(Reading(watched_of(older, info), fields_of({NAME: info}), 2, rules=rules, changelog=shape))
        changes.add(transaction([(older, ("insert", {}, {1: 1, 2: b"x"}))], commit_ts=BEGIN_TS))
        assert len(changes.batch()) == 1


def test_of_a_key_whose_updates_are_left_out_the_last_row_is_told() -> None:
    rules = StreamRules(events=EventFilter((EventRule.create(Wildcards("shop"), ["update"], [], owner=""),)))
    one, two = {1: 1, 2: b"x", 3: 1}, {1: 1, 2: b"x", 3: 2}
    steps: Any = [("insert", {}, one), ("update", one, two), ("delete", two, {}), ("insert", {}, one)]
    changes = Changes(Reading(watched_of(SINGLE), fields_of({NAME: SINGLE}), 1, rules=rules, changelog=True))
    changes.add(transaction([(SINGLE, step) for step in steps], commit_ts=BEGIN_TS))
    assert told(changes.batch().to_pylist()) == [("insert", (1, "x", 1))]
