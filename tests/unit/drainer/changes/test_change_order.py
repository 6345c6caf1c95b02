"""Changes that several pumps have are numbered once, in upstream's order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.change_blob import orders_of

STAMP = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))  # commit_ts, start_ts, sequence


@given(groups=st.lists(st.lists(STAMP, max_size=6, unique=True), min_size=1, max_size=4))
def test_each_change_of_several_pumps_is_ordered_once(groups: list[list[tuple[int, int, int]]]) -> None:
    """Transactions with one commit_ts are told apart by their start_ts: TiDB's may share it, where they commit
    asynchronously."""
    stamps = [
        (
            np.array([one[0] for one in group], np.uint64),
            np.array([one[1] for one in group], np.uint64),
            np.array([one[2] for one in group], np.int64),
        )
        for group in groups
    ]
    found = list(orders_of(stamps))
    by_number: dict[int, tuple[int, int, int]] = {}
    for group, order in zip(groups, found, strict=True):
        assert len(group) == len(order)
        for stamp, number in zip(group, order.tolist(), strict=True):
            if number >= 0:
                assert number not in by_number
                by_number[number] = stamp
    assert [by_number[number] for number in sorted(by_number)] == sorted({stamp for group in groups for stamp in group})
    assert sorted(by_number) == list(range(len(by_number)))
