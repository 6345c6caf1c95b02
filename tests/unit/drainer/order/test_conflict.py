"""Groups of transactions: any interleaving of groups, each in commit order, gives what commit order gives."""

from __future__ import annotations

import random

from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.batch.work import Change
from drainer.order.conflict import conflict_groups, unique_keys
from drainer.row.decode import Decoder
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.row_case import BEGIN_TS, INT, TEXT, changes_of, decoder_of, not_null, table, transaction
from tests.unit.drainer.order.test_fold import SHOP, Upstream

CI = FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4", collate="utf8mb4_general_ci")
KEYS = {SHOP.id: unique_keys(SHOP)}


def transactions_of(decoder: Decoder, payloads: list[bytes]) -> list[list[Change]]:
    return [list(changes_of(decoder, [payload], SQLITE_VALUES)) for payload in payloads]


class Table:
    """Applies changes as a database with unique keys does: a clash or a row that is not there fails."""

    def __init__(self) -> None:
        self.rows: dict[object, tuple[object, ...]] = {}

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            if change.old is not None:
                assert self.rows.pop(change.old[0]) == change.old
            if change.new is not None:
                key, unique = change.new[0], change.new[1]
                assert key not in self.rows
                assert unique is None or all(row[1] != unique for row in self.rows.values())
                self.rows[key] = change.new


@settings(deadline=None, max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_any_interleaving_of_groups_is_sequential(seed: int) -> None:
    """NULLs, moved keys and rings of unique values."""
    dice = random.Random(seed)
    upstream = Upstream(dice)
    for _ in range(25):
        upstream.step()
    given_order = transactions_of(decoder_of(SHOP), upstream.payloads)
    sequential, mixed = Table(), Table()
    for changes in given_order:
        sequential.apply(changes)
    queues = [list(group) for group in conflict_groups(given_order, KEYS)]
    assert sum(len(q) for q in queues) == len(given_order)
    while queues:
        queue = dice.choice(queues)
        mixed.apply(list(queue.pop(0)))
        queues = [q for q in queues if q]
    assert mixed.rows == sequential.rows


def groups(info: TableInfo, *rows: dict[int, object]) -> list[int]:
    """Sizes of the groups of single-row inserts."""
    payloads = [
        transaction([(info, ("insert", {}, row))], commit_ts=BEGIN_TS + n)  # type: ignore[list-item]
        for n, row in enumerate(rows)
    ]
    found = conflict_groups(transactions_of(decoder_of(info), payloads), {info.id: unique_keys(info)})
    return [len(group) for group in found]


def test_what_joins_transactions() -> None:
    padded = table([("k", not_null(TEXT))], unique={"PRIMARY": ["k"]}, clustered=True)
    assert groups(padded, {1: b"a"}, {1: b"b"}, {1: b"a "}) == [2, 1]
    assert groups(SHOP, {1: 1, 2: None, 3: b""}, {1: 2, 2: None, 3: b""}, {1: 3, 2: 7, 3: b""}) == [1, 1, 1]
    # A number and a text that look alike are columns of different types, never one value.
    two = table([("id", INT), ("u", INT), ("w", INT)], handle="id", unique={"u": ["u"], "w": ["w"]})
    assert groups(two, {1: 1, 2: 5, 3: 8}, {1: 2, 2: 8, 3: 5}) == [1, 1]
    assert groups(two, {1: 1, 2: 5, 3: 8}, {1: 2, 2: 6, 3: 9}, {1: 3, 2: 5, 3: 9}) == [3]


def test_tables_whose_keys_cannot_be_compared_are_one_group() -> None:
    bare = table([("a", INT)])
    assert groups(bare, {1: 1}, {1: 2}) == [2]
    folded = table([("id", INT), ("c", CI)], handle="id", unique={"c": ["c"]})
    assert groups(folded, {1: 1, 2: b"a"}, {1: 2, 2: b"b"}) == [2]
