"""The difference of two TableInfos, done to the first, gives the second."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, IndexInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.ddl.mysql_objects import partition_clauses, partitioning_sql
from drainer.ddl.table_diff import (
    TableDiff,
    all_indexes,
    shown_columns,
    table_diff,
)
from tests.support.ddl_case import INT, TEXT, column, key, table

NAMES = tuple("abcdef")
KINDS = (INT, TEXT, FieldType(Tp.LONGLONG))

Columns = list[tuple[str, object, object]]
Index = tuple[str, tuple[str, ...], bool]


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableInfo, TableInfo]:
    """A table before and after a job: columns keep their ids under perhaps another name, in perhaps another place, or
    come and go; one with another type has a new id and its old name."""
    before = draw(_columns(draw(st.permutations(NAMES)), first=1))
    kept = draw(st.permutations(before))[: draw(st.integers(0, len(before)))]
    free = [name for name in "uvwxyz" if name not in {c.name for c in before}]
    after: list[ColumnInfo] = []
    for at, one in enumerate(kept):
        how = draw(st.sampled_from(["same", "renamed", "retyped", "default"]))
        if how == "renamed":
            one = replace(one, name=free.pop())
        elif how == "retyped":
            one = replace(one, id=50 + at, type=draw(st.sampled_from(KINDS)))
        elif how == "default":
            one = replace(one, default=draw(st.sampled_from([None, "1", "2"])))
        after.append(one)
    spare = [name for name in ("g", "h", "i") if draw(st.booleans())]
    for at, name in enumerate(spare):
        after.insert(draw(st.integers(0, len(after))), column(80 + at, name, draw(st.sampled_from(KINDS))))
    if not after:
        after = [column(90, "z")]
    return table(*before, keys=draw(_keys(before))), table(*after, keys=draw(_keys(after)))


def _columns(names: list[str], *, first: int) -> st.SearchStrategy[list[ColumnInfo]]:
    one = st.tuples(st.sampled_from(KINDS), st.sampled_from([None, "1", "2"]))
    return st.lists(one, min_size=1, max_size=len(names)).map(
        lambda kinds: [
            replace(column(first + n, names[n], kind), default=default) for n, (kind, default) in enumerate(kinds)
        ]
    )


def _keys(columns: list[ColumnInfo]) -> st.SearchStrategy[tuple[IndexInfo, ...]]:
    parts = st.lists(st.integers(0, len(columns) - 1), min_size=1, max_size=3, unique=True)
    one = st.tuples(parts, st.booleans(), st.integers(1, 3))
    return st.dictionaries(st.sampled_from(["k", "l", "m"]), one, max_size=3).map(
        lambda drawn: tuple(
            key(name, *places, unique=unique, number=number) for name, (places, unique, number) in drawn.items()
        )
    )


def columns_of(info: TableInfo) -> Columns:
    return [described(c) for c in shown_columns(info)]


def described(one: ColumnInfo) -> tuple[str, object, object]:
    return one.name, one.type, one.default


def indexes_of(info: TableInfo) -> set[Index]:
    return {(i.name, tuple(info.columns[part.offset].name for part in i.columns), i.unique) for i in all_indexes(info)}


def with_columns(info: TableInfo, diff: TableDiff) -> Columns:
    """As a server does one ALTER TABLE: first the columns that stay where they are, then, in the order of the
    statement, those that are told their position and those that are new."""
    gone = {c.name for c in diff.dropped_columns}
    told = {change.was.name for change in diff.columns if change.was is not None and change.position is not None}
    found: Columns = [one for one in columns_of(info) if one[0] not in gone | told]
    for change in diff.columns:
        if change.was is not None and change.position is None:
            found[[one[0] for one in found].index(change.was.name)] = described(change.now)
    for change in diff.columns:
        if change.position is not None:
            behind = [one[0] for one in found].index(change.position) + 1 if change.position else 0
            found.insert(behind, described(change.now))
        elif change.was is None:
            found.append(described(change.now))
    return found


def with_indexes(before: TableInfo, after: TableInfo, diff: TableDiff) -> set[Index]:
    """Servers rename the columns of an index with the columns, and drop an index with the last of its columns."""
    names = {change.was.name: change.now.name for change in diff.columns if change.was is not None}
    gone = {c.name for c in diff.dropped_columns}
    dropped = {i.name for i in diff.dropped_indexes}
    renamed = {was.name: now.name for was, now in diff.renamed_indexes}
    left = set()
    for name, parts, unique in indexes_of(before):
        kept = tuple(names.get(part, part) for part in parts if part not in gone)
        if name not in dropped and kept:
            left.add((renamed.get(name, name), kept, unique))
    added = {i.name for i in diff.added_indexes}
    assert not added & {name for name, *_ in left}
    return left | {one for one in indexes_of(after) if one[0] in added}


@given(tables())
def test_table_diff_applied_to_first_gives_second(both: tuple[TableInfo, TableInfo]) -> None:
    before, after = both
    diff = table_diff(before, after, kind=ActionType.MULTI_SCHEMA_CHANGE)
    assert with_columns(before, diff) == columns_of(after)
    assert with_indexes(before, after, diff) == indexes_of(after)


@given(tables())
def test_table_diff_of_equal_tables_is_empty(both: tuple[TableInfo, TableInfo]) -> None:
    for info in both:
        assert table_diff(info, info, kind=ActionType.MULTI_SCHEMA_CHANGE) == TableDiff()


@given(st.permutations(NAMES))
def test_table_diff_moves_fewest_columns(order: list[str]) -> None:
    ids = {name: n for n, name in enumerate(NAMES, start=1)}
    before, after = (table(*(column(ids[name], name) for name in names)) for names in (NAMES, order))
    diff = table_diff(before, after, kind=ActionType.MODIFY_COLUMN)
    assert len(diff.columns) == len(NAMES) - longest([ids[name] for name in order])


@pytest.mark.parametrize("changed", NAMES)
@pytest.mark.parametrize("at", range(len(NAMES)))
def test_table_diff_moves_column_that_is_redefined(changed: str, at: int) -> None:
    """A destination keeps what it has of the others."""
    ids = {name: n for n, name in enumerate(NAMES, start=1)}
    order = [name for name in NAMES if name != changed]
    order.insert(at, changed)
    before = table(*(column(ids[name], name) for name in NAMES))
    after = table(*(column(ids[n], n, FieldType(Tp.LONGLONG) if n == changed else INT) for n in order))
    diff = table_diff(before, after, kind=ActionType.MODIFY_COLUMN)
    assert [change.now.name for change in diff.columns] == [changed]


def longest(numbers: list[int]) -> int:
    """The length of the longest subsequence that grows, by looking at all of them."""
    grows = (
        part
        for size in range(len(numbers), 0, -1)
        for part in itertools.combinations(numbers, size)
        if list(part) == sorted(part)
    )
    return len(next(grows))


def test_column_with_new_type_and_name_is_matched_by_query_text() -> None:
    """In a job of several changes: both columns have new ids."""
    before, after = table(column(1, "a"), column(2, "b")), table(column(3, "x", TEXT), column(4, "y", TEXT))
    query = "ALTER TABLE t CHANGE b x VARCHAR(9), CHANGE COLUMN a y VARCHAR(9)"
    diff = table_diff(before, after, kind=ActionType.MULTI_SCHEMA_CHANGE, query=query)
    assert [(c.was.name, c.now.name) for c in diff.columns if c.was] == [("b", "x"), ("a", "y")]
    assert with_columns(before, diff) == columns_of(after)


IDS = st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True).map(sorted)


def ranges(ids: list[int]) -> PartitionInfo:
    """The id is the bound's and the name's number; ids above 10 are the same partitions with other ids."""
    return PartitionInfo(
        PartitionType.RANGE, "`a`",
        definitions=tuple(PartitionDefinition(i, f"p{i % 10}", less_than=(str(i % 10),)) for i in ids),
    )  # fmt: skip


def names_in(clause: str) -> list[str]:
    return re.findall(r"`(p\d)`", clause)


@given(IDS, IDS)
def test_partition_clauses_drop_and_add_partitions(old: list[int], new: list[int]) -> None:
    left = [f"p{i}" for i in old]
    for clause in partition_clauses(ranges(old), ranges(new), ActionType.DROP_TABLE_PARTITION):
        if clause.startswith("DROP PARTITION "):
            left = [name for name in left if name not in names_in(clause)]
        else:
            assert clause.startswith("ADD PARTITION (")
            left += names_in(clause)
    assert sorted(left) == [f"p{i}" for i in new]


@given(IDS, st.data())
def test_partition_clauses_of_new_ids_truncate_partitions(old: list[int], data: st.DataObject) -> None:
    emptied = data.draw(st.lists(st.sampled_from(old), min_size=1, unique=True))
    new = [i + 10 if i in emptied else i for i in old]
    (clause,) = partition_clauses(ranges(old), ranges(new), ActionType.TRUNCATE_TABLE_PARTITION)
    assert clause.startswith("TRUNCATE PARTITION ")
    assert sorted(names_in(clause)) == sorted(f"p{i}" for i in emptied)


@given(IDS, st.data())
def test_partition_clauses_reorganize_adjacent_partitions(old: list[int], data: st.DataObject) -> None:
    """Those that went lie side by side, and the last bound of those that came is theirs."""
    first = data.draw(st.integers(0, len(old) - 1))
    last = data.draw(st.integers(first, len(old) - 1))
    inside = sorted({*data.draw(st.lists(st.sampled_from(old[first : last + 1]))), old[last]})
    new = [*old[:first], *(i + 10 for i in inside), *old[last + 1 :]]
    gone = ", ".join(f"`p{i}`" for i in old[first : last + 1])
    come = ", ".join(f"PARTITION `p{i}` VALUES LESS THAN ({i})" for i in inside)
    clauses = partition_clauses(ranges(old), ranges(new), ActionType.REORGANIZE_PARTITION)
    assert clauses == (f"REORGANIZE PARTITION {gone} INTO ({come})",)


def test_partition_clause_of_non_adjacent_changes_repartitions_table() -> None:
    for new in ([11, 2, 13], [1, 2, 3], [2, 11, 12, 13], [2, 3, 14]):
        clauses = partition_clauses(ranges([1, 2, 3]), ranges(new), ActionType.REORGANIZE_PARTITION)
        assert clauses == (partitioning_sql(ranges(new)),)
