"""What each dispatcher guarantees, cell by cell of the table in docs/kafka.md: where a cell promises something it holds
for random transactions, and where it does not, there are transactions that show it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Final

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.dispatch.dispatcher import Dispatcher
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import DispatchRule, Router
from tests.support.examples import FEW
from tests.support.row_case import INT, not_null, table
from tests.unit.drainer.dispatch.histories import (
    SHAPES,
    Image,
    Row,
    payloads_of,
    rows_of_transactions,
    segment_of,
    table_of_shape,
)
from tests.unit.drainer.dispatch.test_dispatcher import Written, written

PAGE = Path(__file__).parents[4] / "docs" / "kafka.md"
PARTITIONS: Final = 3
# What a cell says: always; never; of tables that have one unique key and no other; of rows with the same values in the
# columns that the rule names; from one resolved event to the next.
YES, NO, ONE_KEY, SAME_VALUES, IN_A_RANGE = "yes", "no", "one key", "same values", "between resolved events"
EVEN, BY_TABLE, BY_VALUES, BY_TRANSACTION = "even", "by table", "as the values", "by transaction"

HEADERS: Final = ("`partition`", "row", "unique value", "table", "transaction", "balance")
TABLE: Final = {
    "default, table": (YES, YES, YES, YES, BY_TABLE),
    "index-value, rowid": (YES, ONE_KEY, NO, NO, EVEN),
    "index-value with index": (SAME_VALUES, SAME_VALUES, NO, NO, BY_VALUES),
    "columns": (SAME_VALUES, NO, NO, NO, BY_VALUES),
    "ts": (NO, NO, NO, YES, BY_TRANSACTION),
    "conflict": (IN_A_RANGE, IN_A_RANGE, NO, IN_A_RANGE, EVEN),
}
RULES: Final = {
    "default": DispatchRule(matcher=("*.*",)),
    "table": DispatchRule(matcher=("*.*",), partition="table"),
    "index-value": DispatchRule(matcher=("*.*",), partition="index-value"),
    "rowid": DispatchRule(matcher=("*.*",), partition="rowid"),
    "index-value with index": DispatchRule(matcher=("*.*",), partition="index-value", index="u"),
    "columns": DispatchRule(matcher=("*.*",), partition="columns", columns=("v",)),
    "ts": DispatchRule(matcher=("*.*",), partition="ts"),
    "conflict": DispatchRule(matcher=("*.*",), partition="conflict"),
}
NAMED: Final = {"index-value with index": 2, "columns": 3}  # the index of the column that the rule names
CELLS: Final = [
    (name, guarantee, cell)
    for names, cells in TABLE.items()
    for name in names.split(", ")
    for guarantee, cell in zip(HEADERS[1:], cells, strict=True)
]

Transactions = Sequence[Sequence[tuple[Row | None, Row | None]]]
Groups = Callable[[int, Image], Iterable[object]]  # (commit_ts, image) → whatever must be in one partition


def only_key() -> TableInfo:
    """As histories.table_of_shape, and `a` is its one unique key."""
    return table([("a", not_null(INT)), ("b", not_null(INT)), ("u", INT), ("v", INT)], handle="a")


def routed(rule: str, info: TableInfo, transactions: Transactions) -> Written:
    """One segment of them, in one topic."""
    to = Dispatcher(Router([RULES[rule]], "all"), {"all": PARTITIONS}, UTC)
    return written(to.routes(RowEvents().of(segment_of([info], payloads_of(info, transactions)))))


def scattered(groups: Groups, *segments: Written) -> set[object]:
    """What is in several partitions. That a partition is in commit order in each segment holds for all of them."""
    partitions: dict[object, set[object]] = defaultdict(set)
    for found in segments:
        for partition, events in found.items():
            stamps = [commit_ts for _, commit_ts, _ in events]
            assert stamps == sorted(stamps), partition
            for _, commit_ts, (_, *images) in events:
                for image in images:
                    for group in () if image is None else groups(commit_ts, image):
                        partitions[group].add(partition)
    return {group for group, of in partitions.items() if len(of) > 1}


def groups_of(guarantee: str, shape: str, named: int | None) -> Groups:
    """`named`: by the values of this column, in place of rows and unique values."""
    size = {"two columns": 2, "none": 4}.get(shape, 1)
    match guarantee:
        case "row" | "unique value" if named is not None:
            return lambda _, image: [image[named]]
        case "row":
            return lambda _, image: [image[:size]]
        case "unique value":
            others = [] if shape == "one key" else [2]
            return lambda _, image: [image[:size], *((at, image[at]) for at in others if image[at] is not None)]
        case "table":
            return lambda commit_ts, image: ["table"]
        case "transaction":
            return lambda commit_ts, image: [commit_ts]
    raise AssertionError(guarantee)


PROMISED = [one for one in CELLS if one[2] in (YES, ONE_KEY, SAME_VALUES, IN_A_RANGE)]


@pytest.mark.parametrize(("rule", "guarantee", "cell"), PROMISED)
@FEW
@given(data=st.data())
def test_promised_dispatch_guarantee_holds_for_random_transactions(
    rule: str, guarantee: str, cell: str, data: st.DataObject
) -> None:
    shape = "one key" if cell == ONE_KEY else data.draw(st.sampled_from([*SHAPES, "one key"]))
    if shape == "one key" and rule == "index-value with index":
        shape = "handle"  # it must have the index
    info = only_key() if shape == "one key" else table_of_shape(shape)
    # A table without a key has a unique value all the same, which only `table` and `conflict` look after.
    transactions = data.draw(rows_of_transactions("handle" if shape == "one key" else shape))
    named = NAMED[rule] if cell == SAME_VALUES else None
    assert not scattered(groups_of(guarantee, shape, named), routed(rule, info, transactions))


ROWS = range(12)
HISTORIES: Final[dict[str, Transactions]] = {
    # Every row comes, and then has other values under its key.
    "row": [[(None, (n, 0, n, n)) for n in ROWS], *([((n, 0, n, n), (n, 0, n + 50, n + 50))] for n in ROWS)],
    # Every unique value leaves its row, and comes to another one.
    "unique value": [
        [(None, (n, 0, n, n)) for n in ROWS],
        *([((n, 0, n, n), (n, 0, n + 50, n)), (None, (n + 50, 0, n, n + 50))] for n in ROWS),
    ],
    "table": [[(None, (n, 0, n, n))] for n in ROWS],
    "transaction": [[(None, (n, 0, n, n)) for n in ROWS]],
}
REFUSED = [one for one in CELLS if one[1] != "balance" and one[2] in (NO, ONE_KEY, SAME_VALUES)]


@pytest.mark.parametrize(("rule", "guarantee", "cell"), REFUSED)
def test_unpromised_dispatch_guarantee_is_broken_by_known_history(rule: str, guarantee: str, cell: str) -> None:
    """Neither in a table with a second unique key, where one is asked for, nor by the row's own key, where others
    are."""
    found = routed(rule, table_of_shape("handle"), HISTORIES[guarantee])
    assert scattered(groups_of(guarantee, "handle", None), found)


@pytest.mark.parametrize("guarantee", [name for _, name, cell in CELLS if cell == IN_A_RANGE])
def test_conflict_guarantee_ends_at_next_segment(guarantee: str) -> None:
    """Rows that one transaction ties together go apart in the next segment; so do the parts of a transaction that is
    too large for one."""
    info, groups = table_of_shape("handle"), groups_of(guarantee, "handle", None)
    rows: list[Row] = [(n, 0, n, n) for n in ROWS]
    first: Transactions = [[(None, row) for row in rows]]
    then: Transactions = [[(row, None)] for row in rows]
    if guarantee == "transaction":
        parts = [routed("conflict", info, [[(None, row)]]) for row in rows]  # each has the same commit_ts
        assert not scattered(groups, routed("conflict", info, [[(None, row) for row in rows]]))
    else:
        parts = [routed("conflict", info, first), routed("conflict", info, then)]
        assert not scattered(groups, routed("conflict", info, [*first, *then]))
    assert scattered(groups, *parts)


@pytest.mark.parametrize(("rule", "cell"), [(rule, cell) for rule, name, cell in CELLS if name == "balance"])
def test_rows_are_balanced_over_partitions_as_table_says(rule: str, cell: str) -> None:
    """600 rows in 600 transactions; the same in one; and 600 rows with one value."""
    info = table_of_shape("handle")
    apart = shares(routed(rule, info, [[(None, (n, 0, n, n))] for n in range(600)]))
    together = shares(routed(rule, info, [[(None, (n, 0, n, n)) for n in range(600)]]))
    alike = shares(routed(rule, info, [[(None, (n, 0, None, 0))] for n in range(600)]))
    even, uneven = [True] * PARTITIONS, [False] * PARTITIONS
    expected = {
        EVEN: (even, uneven if rule == "conflict" else even, even),
        BY_TABLE: (uneven, uneven, uneven),
        BY_VALUES: (even, even, uneven),
        BY_TRANSACTION: (even, uneven, even),
    }[cell]
    assert [[0.2 < share < 0.5 for share in of] for of in (apart, together, alike)] == list(expected)


def shares(found: Written) -> list[float]:
    """Of all events, the part that each partition has."""
    counts = Counter({partition: len(events) for (_, partition), events in found.items()})
    return [counts[n] / counts.total() for n in range(PARTITIONS)]


def test_kafka_page_has_guarantee_table_of_test() -> None:
    lines = PAGE.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("| `partition` |"))
    header, _, *rows = (
        [re.sub(r"\[\^?\d+\]", "", cell).strip() for cell in line.strip("|").split("|")]
        for line in lines[begin : begin + 2 + len(TABLE)]
    )
    assert header == list(HEADERS)
    assert {row[0].replace("`", ""): tuple(row[1:]) for row in rows} == TABLE
    assert not lines[begin + 2 + len(TABLE)].startswith("|"), "a row that no test knows"


def test_guarantee_table_has_every_dispatch_method() -> None:
    from drainer.dispatch.rules import _METHODS

    assert {name for name in _METHODS if name} == RULES.keys() - {"index-value with index"}
