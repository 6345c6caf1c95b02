"""What a large transaction leaves of memory in the driver."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import drainer.pipeline as pipeline_module
from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.pipeline import Pipeline, return_freed_memory
from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from tests.support.local_batch import LocalBatch
from tests.support.memory_sink import MemorySink, Store
from tests.unit.drainer.test_pipeline import CUT, WHO, StubProvider

MIB = 1 << 20
BLOCK = 100_000  # below the size from which glibc maps each block by itself
BLOCKS = 64 * MIB // BLOCK


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is a function of glibc")
def test_freed_memory_is_returned_to_system_while_some_is_in_use() -> None:
    return_freed_memory()
    before = resident_bytes()
    blocks = [b"x" * BLOCK for _ in range(BLOCKS)]
    assert resident_bytes() - before > 48 * MIB
    kept = blocks[::20]
    del blocks
    return_freed_memory()
    assert resident_bytes() - before < 32 * MIB
    assert len(kept) == len(range(0, BLOCKS, 20))


@pytest.mark.parametrize("fails", [False, True])
def test_driver_returns_memory_after_large_transaction(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """After its binlogs have been closed, whether it was applied or not."""
    events: list[str] = []
    monkeypatch.setattr(pipeline_module, "return_freed_memory", lambda: events.append("returned"))

    @contextlib.contextmanager
    def pull_large(_plan: Any, _progress: Any) -> Iterator[list[Any]]:
        try:
            if fails:
                raise OSError("no room for the file")
            yield []
        finally:
            events.append("closed")

    destination = MemorySink(Store())
    destination.open(WHO, initial_ts=0)
    provider = StubProvider(Schema.open(JobHistory([]), position_ts=0))
    pipeline = Pipeline(destination, provider, CUT, position_ts=0, pull_large=pull_large, piece_bytes_max=MIB)
    with contextlib.suppress(OSError):
        pipeline.run(PlannedBatch(0, 10, Mode.LARGE, (), 1), LocalBatch([], 0, 0))
    assert events == ["closed", "returned"]
    pipeline.run(PlannedBatch(pipeline.position_ts, 20, Mode.DRIVER, (), 1), LocalBatch([], 0, 0))
    assert events == ["closed", "returned"]
