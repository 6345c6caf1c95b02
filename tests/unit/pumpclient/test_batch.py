"""The stream of batches: each write gets its answer, also where the pump gives none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from binlog.envelope import encode_binlog

from pumpclient.answer import ACKED, Outcome
from pumpclient.connection import BatchWriter, Connection
from tests.unit.pumpclient.stub_pump import CLUSTER_ID, Fault, StubPump

WAIT_S = 60.0


def prewrite(start_ts: int) -> bytes:
    return encode_binlog(tp=0, start_ts=start_ts, prewrite_key=b"k", prewrite_value=b"\x08\x01")


@asynccontextmanager
async def writing(pump: StubPump, timeout_s: float) -> AsyncIterator[BatchWriter]:
    await pump.start()
    channel = grpc.aio.insecure_channel(pump.addr)
    batch = BatchWriter(channel, cluster_id=CLUSTER_ID, timeout_s=timeout_s)
    try:
        yield batch
    finally:
        await batch.close()
        await channel.close()
        await pump.stop()


async def test_batch_write_without_answer_in_time_is_late() -> None:
    """Each after its own time, those that nobody has sent yet too."""
    pump = StubPump("hangs")
    pump.faults += [Fault.HANG] * 100
    async with writing(pump, timeout_s=0.05) as batch:
        for _ in range(2):  # the second time the timer is set again
            writes = [batch.write(prewrite(number)) for number in range(1, 10)]
            answers = await asyncio.wait_for(asyncio.gather(*writes), WAIT_S)
            assert all(answer is batch.late and answer.outcome is Outcome.UNKNOWN for answer in answers)
        assert batch._timer is None and not batch._due


async def test_batch_writer_uses_one_timer_for_all_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later write is late later; what is answered is forgotten at the next write."""
    pump = StubPump("well")
    async with writing(pump, timeout_s=1000.0) as batch:
        loop = asyncio.get_running_loop()
        for number in range(1, 100):
            assert await asyncio.wait_for(batch.write(prewrite(number)), WAIT_S) == ACKED
            assert len(batch._due) == 1
        timer = batch._timer
        pump.faults += [Fault.HANG] * 10
        first, begun_s = batch.write(prewrite(200)), loop.time()
        second = batch.write(prewrite(201))
        assert batch._timer is timer and timer is not None
        monkeypatch.setattr(loop, "time", lambda: begun_s + 1000.0)
        batch._due[1] = (begun_s + 2000.0, second)
        batch._check_due()
        assert first.result() is batch.late and not second.done()
        assert batch._timer is not None and batch._timer.when() == begun_s + 2000.0
        monkeypatch.undo()


async def test_batch_writer_close_answers_open_writes_and_cancels_timer() -> None:
    pump = StubPump("hangs")
    pump.faults.append(Fault.HANG)
    async with writing(pump, timeout_s=1000.0) as batch:
        answer = batch.write(prewrite(1))
        await batch.close()
        assert (await asyncio.wait_for(answer, WAIT_S)).outcome is not Outcome.ACKED
        assert batch._timer is None and not batch._due


async def test_batch_writer_on_closed_channel_answers_not_sent_at_once() -> None:
    """Else every later write would be queued on a stream that never begins, until the first one is late."""
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    await channel.close()
    batch = BatchWriter(channel, cluster_id=CLUSTER_ID, timeout_s=1000.0)
    answer = await asyncio.wait_for(batch.write(prewrite(1)), WAIT_S)
    assert answer.outcome is Outcome.NOT_SENT and "closed" in answer.detail
    assert batch.ended and batch._timer is None
    await batch.close()


async def test_connection_with_closed_channel_answers_not_sent() -> None:
    """As where it is reset between a dial and the write that waited for it: nothing was sent, and nothing is raised."""
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    await channel.close()
    connection = Connection("127.0.0.1:1", cluster_id=CLUSTER_ID, timeout_s=1000.0)
    for use_extension in (True, False):
        connection._channel, connection.has_extension = channel, use_extension
        answer = await asyncio.wait_for(connection.write(prewrite(1)), WAIT_S)
        assert answer.outcome is Outcome.NOT_SENT and "closed" in answer.detail
    await connection.close()
