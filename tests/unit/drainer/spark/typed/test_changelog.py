"""The shape "changelog": what applies its rows in order has the table, and no transaction changes a key twice."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pytest
from binlog.tidb.table import TableInfo
from binlog.tidb.types import Flag
from hypothesis import given
from hypothesis import strategies as st

from drainer.spark.typed.fields import Reading, TablesUnfit, changelog_schema, fields_of
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


@given(st.lists(st.integers(0, 1 << 30), max_size=8))
def test_rows_applied_by_key_are_the_table(seeds: list[int]) -> None:
    """Rows of a transaction exchange their keys, come and go."""
    rows: list[Row] = []
    transactions = []
    for seed in seeds:
        chance = random.Random(seed)
        kept, gone = rows[: chance.randint(0, len(rows))], rows[:]
        del gone[: len(kept)]
        keys = chance.sample(range(6), min(6, len(kept) + chance.randint(0, 2)))
        after = [(key, "x", chance.randrange(2)) for key in keys]
        made = [(one, None) for one in gone] + [pair for pair in zip_longest(kept, after) if pair[0] != pair[1]]
        transactions.append(chance.sample(made, len(made)))
        rows = chance.sample(after, len(after))
    applied: dict[int, Row] = {}
    seen: set[tuple[int, int]] = set()
    for row in changelog_of(BOTH, *transactions):
        kind, new = row["_change_type"], (row["a"], row["b"], row["v"])
        if kind == "update_preimage":
            assert applied[row["a"]] == new
            continue
        assert (row["_commit_version"], row["a"]) not in seen
        seen.add((row["_commit_version"], row["a"]))
        assert (row["a"] in applied) == (kind != "insert")
        if kind == "delete":
            assert applied.pop(row["a"]) == new
        else:
            applied[row["a"]] = new
    assert sorted(applied.values()) == sorted(rows)
