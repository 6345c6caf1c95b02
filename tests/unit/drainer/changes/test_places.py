"""Places of changes that several pumps have: each once, in upstream's order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.change_blob import places_of

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
    found = list(places_of(stamps))
    placed: dict[int, tuple[int, int, int]] = {}
    for group, places in zip(groups, found, strict=True):
        assert len(group) == len(places)
        for stamp, place in zip(group, places.tolist(), strict=True):
            if place >= 0:
                assert place not in placed
                placed[place] = stamp
    assert [placed[place] for place in sorted(placed)] == sorted({stamp for group in groups for stamp in group})
    assert sorted(placed) == list(range(len(placed)))
