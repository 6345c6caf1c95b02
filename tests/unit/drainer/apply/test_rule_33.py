"""Rule 33 through the pipeline: each slot is one transaction, and the mode is a part of the cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import BatchRefused
from drainer.changes.slot_blob import GROUPS_VERSION, HASH_VERSION
from drainer.sink.base import Intent
from tests.support.local_batch import LocalBatch
from tests.support.memory_sink import MemorySink, Store
from tests.support.schema_case import ts
from tests.unit.drainer.cut_case import (
    BEGUN,
    INT_KEY,
    SECONDARY,
    Cuts,
    SQLiteDistributed,
    drain,
    opened,
    put,
    stream_of,
)

STREAM = stream_of([INT_KEY, SECONDARY], [put(INT_KEY, n, n) + put(SECONDARY, n, n) for n in (1, 2, 3)], upserts=False)
UNTIL = ts(12)


@pytest.mark.parametrize("whole", [False, True])
def test_each_slot_is_one_transaction(tmp_path: Path, whole: bool) -> None:
    destination = SQLiteDistributed(tmp_path / "down.sqlite")
    assert drain(destination, STREAM, Cuts(distributed=(True,), whole=whole)) is None
    (intent,) = destination.begun
    assert (intent.chunk_rows == 0, intent.hash_version == GROUPS_VERSION) == (whole, whole)


@pytest.mark.parametrize("whole", [False, True])
def test_open_batch_of_the_other_consistency_is_refused(whole: bool) -> None:
    """Rule 16: its rows would be in other slots. With the former setting it is finished."""
    store = Store()
    assert opened(MemorySink(store), STREAM).position_ts == BEGUN
    begun = Intent(BEGUN, UNTIL, 3, *((2, HASH_VERSION) if whole else (0, GROUPS_VERSION)), "d")
    for mode in (whole, not whole):
        former = MemorySink(store)
        pipeline = opened(former, STREAM, whole=mode)
        if store.intent is None:
            former.begin(begun)
        plan = PlannedBatch(BEGUN, UNTIL, Mode.DISTRIBUTED, (), 1, begun)
        feed = LocalBatch([STREAM.binlogs], BEGUN, UNTIL)
        if mode == whole:
            with pytest.raises(BatchRefused, match="another consistency"):
                pipeline.run(plan, feed)
        else:
            pipeline.run(plan, feed)
    assert (store.commit_ts, store.intent, len(store.rows["d", "int_key"])) == (UNTIL, None, 3)
