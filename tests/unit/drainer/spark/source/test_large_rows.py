"""Reading tasks and large binlogs: what the drainer reads comes in parts, what the source alone reads has a limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from binlog import envelope
from binlog.runtime.security import Security

from drainer.pumps.client import PART_BYTES_MAX
from drainer.pumps.watermark import PumpRange
from drainer.spark.errors import ErrorInTask
from drainer.spark.source.executor import PAYLOAD_BYTES_MAX, PullTask, read_task
from tests.support.stub_pump import StubPump

BASE = 1 << 60


def binlog(ts: int, size: int) -> bytes:
    return envelope.encode_binlog(tp=1, start_ts=ts, commit_ts=ts + 1, prewrite_key=b"k", prewrite_value=bytes(size))


@pytest.fixture
def pump() -> Iterator[StubPump]:
    made = StubPump()
    made.resolve(1 << 62)
    yield made
    made.stop()


def task(pump: StubPump, *, packed: bool) -> PullTask:
    return PullTask((PumpRange("p", pump.host, True, 0, 1 << 61),), 1, Security(), packed)


def ddl(ts: int, text: bytes) -> bytes:
    return envelope.encode_binlog(tp=1, start_ts=ts, commit_ts=ts + 1, prewrite_key=b"k", ddl_query=text, ddl_job_id=7)


def test_pulling_task_yields_no_row_above_a_few_mib(pump: StubPump) -> None:
    pump.put(ddl(BASE, b"a"), ddl(BASE + 4, b"b" * 3 * PART_BYTES_MAX), ddl(BASE + 8, b"c"))
    rows = [row for batch in read_task(task(pump, packed=True)) for row in batch.column("blob").to_pylist()]
    assert len(rows) > 3
    assert max(map(len, rows)) < PART_BYTES_MAX + 1000


def test_standalone_source_yields_whole_payloads_up_to_limit(pump: StubPump) -> None:
    """A transaction is one row there, and no row can be of any size."""
    large = ddl(BASE + 4, b"b" * 3 * PART_BYTES_MAX)
    pump.put(ddl(BASE, b"a"), large)
    found = [row for batch in read_task(task(pump, packed=False)) for row in batch.column("payload").to_pylist()]
    assert found == [ddl(BASE, b"a"), large]
    pump.put(ddl(BASE + 8, b"c" * PAYLOAD_BYTES_MAX))
    with pytest.raises(ErrorInTask, match=rf"commit_ts {BASE + 9} from pump p has \d+ bytes"):
        list(read_task(task(pump, packed=False)))
