"""What a task of an executor pulls, from both kinds of pump."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from binlog import envelope
from binlog.errors import DecodeError, PumpUnavailable
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.security import Security
from binlog.tidb.varint import encode_uvarint

import drainer.pumps.pull as pull_module
from drainer.pumps.client import PART_BYTES_MAX, ExtensionPump, Received
from drainer.pumps.go_pump import GoPump
from drainer.pumps.pull import pull, pull_binlogs
from drainer.pumps.watermark import BatchLimits, Counted, PumpRange, RangeDiffers
from tests.support.servers import wait_until
from tests.support.stub_pump import StubPump


def binlog(ts: int) -> bytes:
    return envelope.encode_binlog(tp=1, start_ts=ts - 1, commit_ts=ts, prewrite_value=b"x" * ts)


@pytest.fixture(params=[True, False], ids=["ours", "Go's"])
def pump(request: pytest.FixtureRequest) -> Iterator[StubPump]:
    made = StubPump(extension=request.param)
    made.put(*(binlog(ts) for ts in (10, 20, 30, 40)))
    made.resolve(40)
    yield made
    made.stop()


def ranged(pump: StubPump, extension: bool | None = None, **more: Any) -> list[int]:
    """What a pull of (10, 30] brings, from a pump that has, or is thought to have, the extension."""
    part = PumpRange("p", pump.host, pump.extension if extension is None else extension, 10, 30, **more)
    found = (ext.PullRangeResp.FromString(message) for message in pull(part, cluster_id=1, security=Security()))
    return [envelope.scan(payload).commit_ts for message in found for payload in message.payloads]


def test_pull_returns_the_whole_range_from_either_kind_of_pump(pump: StubPump) -> None:
    """The plan may be older than the program that now runs on the pump's data-dir, either way round."""
    assert ranged(pump, extension=True) == [20, 30]
    assert ranged(pump, extension=False) == [20, 30]


@pytest.mark.parametrize("extension", [True, False], ids=["ours", "Go's"])
def test_pulled_binlogs_are_whole_and_counted_when_sent_in_parts(extension: bool) -> None:
    stub = StubPump(extension=extension)
    value = bytes((15 << 3 | 2,)) + encode_uvarint(2 * PART_BYTES_MAX) + bytes(2 * PART_BYTES_MAX)  # of a later TiDB
    large = envelope.encode_binlog(tp=1, start_ts=14, commit_ts=15, prewrite_value=value)
    wanted = [large, binlog(20), binlog(30)]
    stub.put(*wanted, binlog(40))
    stub.resolve(40)
    try:
        planned = Counted.of(wanted)
        part = PumpRange("p", stub.host, extension, 10, 30, planned)
        found = list(pull_binlogs(part, cluster_id=1, security=Security()))
        assert [one for binlogs, _ in found for one in binlogs] == wanted
        assert sum((counted for _, counted in found), Counted()) == planned
        assert [counted for binlogs, counted in found] == [Counted.of(binlogs) for binlogs, _ in found]
        with pytest.raises(RangeDiffers):
            list(pull_binlogs(replace(part, planned=Counted(2, None)), cluster_id=1, security=Security()))
    finally:
        stub.stop()


def test_incomplete_parts_of_binlog_are_refused(monkeypatch: pytest.MonkeyPatch, pump: StubPump) -> None:
    first = ext.PullRangeResp(payloads=[b"abc"], last_ts=20, whole_bytes=5).SerializeToString()
    other = ext.PullRangeResp(payloads=[b"abc"], last_ts=30).SerializeToString()
    end = ext.PullRangeResp(end=ext.PullEnd(bytes=3)).SerializeToString()
    part = PumpRange("p", pump.host, True, 10, 30)
    for messages, said in (([first, end], "missing"), ([first, other], "missing"), ([first, first], "out of sequence")):
        monkeypatch.setattr(pull_module, "_pull_extension", lambda *_, of=messages: iter(of))
        with pytest.raises(DecodeError, match=said):
            list(pull_binlogs(part, cluster_id=1, security=Security()))


SIZE = len(binlog(20)) + len(binlog(30))


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        (Counted(2, SIZE), ""),
        (Counted(2, None), ""),
        (Counted(3, None), "planned with 3 binlogs, but 2 binlogs of"),
        (Counted(1, SIZE), "planned with 1 binlog of"),
        (Counted(2, SIZE + 1), f"planned with 2 binlogs of {SIZE + 1} bytes, but 2 binlogs of {SIZE} bytes"),
    ],
)
def test_rule_22_pulled_binlogs_that_differ_from_plan_are_refused(pump: StubPump, planned: Counted, said: str) -> None:
    if not said:
        assert ranged(pump, planned=planned) == [20, 30]
        return
    with pytest.raises(RangeDiffers, match=rf"pump p \({pump.host}\): the range \(10, 30\] was {said}"):
        ranged(pump, planned=planned)


def test_rule_22_fake_binlogs_are_not_counted(pump: StubPump) -> None:
    pump.put(envelope.encode_fake(15), envelope.encode_fake(25))
    assert ranged(pump, planned=Counted(2, SIZE)) == [20, 30]


def test_rule_22_pull_without_final_message_is_refused() -> None:
    stub = StubPump()
    stub.omits_end = True
    stub.put(binlog(20))
    stub.resolve(40)
    try:
        with pytest.raises(RangeDiffers, match=r"pump p .*\(10, 30\] ended after 1 binlog of \d+ bytes without"):
            ranged(stub)
    finally:
        stub.stop()


def test_rule_22_final_message_that_counts_more_than_came_is_refused() -> None:
    received = Received()
    assert received.add(ext.PullRangeResp(payloads=[b"abc", b"de"]))
    assert not received.add(ext.PullRangeResp(end=ext.PullEnd(count=3, bytes=9)))
    with pytest.raises(RangeDiffers, match="3 binlogs of 9 bytes, but 2 binlogs of 5 bytes came"):
        received.check("pump p", after_ts=1, until_ts=2)


@pytest.mark.parametrize("last", [10, 28])
def test_go_pump_stream_that_ends_early_is_error(last: int) -> None:
    """With a status that says all is well: what has come then is not the range."""
    stub = StubPump(extension=False)
    stub.put(binlog(last))
    found: list[BaseException] = []

    def reading() -> None:
        try:
            ranged(stub)
        except PumpUnavailable as error:
            found.append(error)

    thread = threading.Thread(target=reading)
    thread.start()
    assert stub.streaming.wait(60)
    stub.end_streams()
    thread.join(60)
    stub.stop()
    assert "pump p" in str(found) and "ended" in str(found) and "before ts 30" in str(found)


async def test_rule_2_missed_count_of_go_pump_that_ends_early_is_refused() -> None:
    """A pump that is back and ends its answer early: nothing moves, where a shorter count would be believed."""
    stub = StubPump(extension=False)
    stub.put(binlog(20))
    go = GoPump("p", stub.host, cluster_id=1, security=Security())
    try:
        asked = asyncio.create_task(go.missed(after_ts=10, until_ts=30))
        assert await asyncio.to_thread(stub.streaming.wait, 60)
        await asyncio.to_thread(stub.end_streams)
        with pytest.raises(PumpUnavailable, match="before ts 30"):
            await asked
    finally:
        await go.close()
        await asyncio.to_thread(stub.stop)


async def test_rule_2_missed_count_without_final_message_is_refused() -> None:
    stub = StubPump()
    stub.put(binlog(20))
    stub.resolve(40)
    ours = ExtensionPump("p", stub.host, cluster_id=1, security=Security())
    try:
        await ours.mark(after_ts=10, limits=BatchLimits(1))
        assert (await ours.missed(after_ts=10, until_ts=30)).count == 1
        stub.omits_end = True
        with pytest.raises(RangeDiffers, match="without its final message"):
            await ours.missed(after_ts=10, until_ts=30)
    finally:
        await ours.close()
        stub.stop()


def test_failed_pull_is_freed_without_garbage_collection() -> None:
    """It holds the messages that were received; and a pump that is down is tried again and again."""
    pump = StubPump()
    pump.put(binlog(20))
    pump.resolve(40)
    pump.failing_pulls = 1
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(PumpUnavailable, match="pump p") as raised:
            ranged(pump, extension=True)
        assert isinstance(raised.value.__cause__, grpc.RpcError)
        call = weakref.ref(raised.value.__cause__)
        del raised
        wait_until(lambda: call() is None, what="gRPC's call is gone")
    finally:
        gc.enable()
        pump.stop()
