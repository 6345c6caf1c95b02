"""A pump's topic in the place of its pump: what it holds, and what is refused."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tso import compose
from binlog.envelope import encode_binlog
from binlog.errors import BinlogError, DecodeError, PurgedPosition
from binlog.topic.message import Outgoing, TopicError
from hypothesis import given
from hypothesis import strategies as st

from drainer.pumps.client import Missed, PumpClient, leading_schema_version
from drainer.pumps.survey import HeldBack, PumpSet
from drainer.pumps.topic import TopicPump, TopicSilent
from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, Stop, Topic
from tests.support.memory_etcd import MemoryEtcd
from tests.support.memory_topic import MemoryReader, MemoryTopic
from tests.unit.pump.build import merged

BASE_MS = 1_700_000_000_000
NAME = Topic("t", (("sasl.password", "secret"),))
LIMITS = BatchLimits(1 << 20, stop_at_schema=True, schema_version=5, large_bytes_min=50)


def ts(number: int) -> int:
    return compose(BASE_MS + number)


def binlog(number: int, row: bytes = b"row") -> bytes:
    return merged(ts(number) - 1, ts(number), row=row)


def ddl(number: int) -> bytes:
    return encode_binlog(tp=1, start_ts=ts(number) - 1, commit_ts=ts(number), ddl_query=b"DROP " * 20, ddl_job_id=3)


def put_parts(topic: MemoryTopic, after: int, number: int, payload: bytes, *, epoch: int = 1, count: int = 3) -> None:
    """The first `count` of three parts."""
    size = len(payload) // 3 + 1
    for part in range(count):
        at = part * size
        until = number if part == 2 else after
        more = {"whole_bytes": len(payload), "part_offset": at, "last_ts": ts(number)}
        topic.put(ts(after), ts(until), payload[at : at + size], epoch=epoch, **more)


def filled() -> tuple[MemoryTopic, list[bytes]]:
    """A topic with a large transaction that was begun twice, and its binlogs."""
    topic, large = MemoryTopic(), binlog(40, b"r" * 100)
    topic.put(ts(0), ts(0))
    topic.put(ts(0), ts(20), binlog(10), binlog(20))
    put_parts(topic, 20, 40, large, count=2)
    topic.put(ts(20), ts(20), epoch=2)
    put_parts(topic, 20, 40, large, epoch=2)
    topic.put(ts(40), ts(60), binlog(50), binlog(60), epoch=2)
    topic.put(ts(60), ts(70), epoch=2)
    return topic, [binlog(10), binlog(20), large, binlog(50), binlog(60)]


def pump_of(topic: MemoryTopic, silence_max_s: float = 60.0) -> TopicPump:
    return TopicPump("p", "h:1", NAME, open_reader=lambda _: MemoryReader(topic), silence_max_s=silence_max_s)


async def marked(pump: TopicPump, after_ts: int, limits: BatchLimits = LIMITS, *, until_ts: int = 0) -> PumpMark:
    """Ask until the topic has been read up to `until_ts`."""
    async with asyncio.timeout(60):
        while True:
            try:
                found = await pump.mark(after_ts=after_ts, limits=limits)
                if found.resolved_ts >= until_ts:
                    return found
            except TopicError:
                raise
            except BinlogError as error:
                if "nothing received yet" not in str(error):
                    raise
            await asyncio.sleep(0.01)


@given(st.integers(0, 69), st.integers(1, 70))
def test_pull_of_any_range_has_its_binlogs_alone(after: int, size: int) -> None:
    topic, served = filled()
    until = min(70, after + size)
    numbers = (10, 20, 40, 50, 60)
    wanted = [payload for number, payload in zip(numbers, served, strict=True) if after < number <= until]
    assert topic.pull(ts(after), ts(until)) == wanted


async def test_topic_is_planned_as_its_pump_would_plan_it() -> None:
    topic, served = filled()
    pump = pump_of(topic)
    found = await marked(pump, ts(0))
    assert found.resolved_ts == ts(70), "nothing is said before all of it is known"
    assert (found.end_ts, found.batch_count, found.topic) == (ts(40) - 1, 2, NAME)
    assert (found.stop, found.stop_ts, found.stop_bytes) == (Stop.LARGE, ts(40), len(served[2]))
    assert await pump.count(after_ts=ts(0), until_ts=ts(60)) == Counted(5, sum(map(len, served)))
    topic.put(ts(70), ts(80), ddl(80), epoch=2)
    found = await marked(pump, ts(40), until_ts=ts(80))
    assert (found.stop, found.stop_ts, found.batch_count) == (Stop.DDL, ts(80), 2)
    found = await marked(pump, ts(20), BatchLimits(0), until_ts=ts(70))
    assert (found.batch_count, found.resolved_ts) == (4, ts(80)), "an earlier position is read again"
    assert await pump.missed(after_ts=ts(10), until_ts=ts(50)) == Missed(
        3, tuple((ts(number) - 1, ts(number)) for number in (20, 40, 50))
    )
    await pump.close()


async def test_large_binlog_in_parts_is_planned_by_its_schema_version_and_kind() -> None:
    topic = MemoryTopic()
    put_parts(topic, 0, 40, binlog(40, b"r" * 100))
    put_parts(topic, 40, 50, ddl(50))
    pump = pump_of(topic)
    before = BatchLimits(0, stop_at_schema=True, schema_version=4)
    found = await marked(pump, ts(0), before, until_ts=ts(50))
    assert (found.stop, found.stop_ts) == (Stop.SCHEMA, ts(40))
    found = await marked(pump, ts(40), LIMITS)
    assert (found.stop, found.stop_ts) == (Stop.DDL, ts(50))
    await pump.close()


@given(st.binary(max_size=40))
def test_leading_schema_version_of_any_bytes_is_a_number_none_or_a_decode_error(data: bytes) -> None:
    try:
        assert leading_schema_version(data) is None or leading_schema_version(data) >= 0  # type: ignore[operator]
    except DecodeError:
        return
    assert leading_schema_version(binlog(10)) == 5


async def test_topic_whose_beginning_was_removed_is_refused_unless_read_from_the_oldest() -> None:
    topic, _ = filled()
    topic.begin = len(topic.messages) - 2
    refused, pump = pump_of(topic), pump_of(topic)
    with pytest.raises(PurgedPosition, match=r"message 8: .* are not in the topic"):
        await marked(refused, ts(20))
    assert (await marked(pump, ts(50))).batch_count == 1
    assert (await marked(pump, 0)).purged_ts == ts(40)
    await refused.close()
    await pump.close()
    with pytest.raises(PurgedPosition):
        topic.pull(ts(20), ts(60))


@pytest.mark.parametrize("begin", [6, 7])
async def test_large_binlog_whose_first_part_was_removed_is_refused_unless_read_from_the_oldest(begin: int) -> None:
    topic, _ = filled()
    topic.begin = begin
    refused, pump = pump_of(topic), pump_of(topic)
    with pytest.raises(PurgedPosition, match=rf"message {begin}: .* are not in the topic"):
        await marked(refused, ts(20))
    found = await marked(pump, 0)
    assert (found.purged_ts, found.batch_count) == (ts(40), 2)
    await refused.close()
    await pump.close()


async def test_corrupt_message_is_refused_by_its_offset() -> None:
    topic, _ = filled()
    bad = topic.messages[1]
    topic.messages[1] = Outgoing(bad.ts, bad.value[:-1])
    with pytest.raises(DecodeError, match="topic t, message 1: checksum mismatch"):
        await marked(pump_of(topic), ts(0))
    with pytest.raises(DecodeError, match="topic t, message 1: checksum mismatch"):
        topic.pull(ts(0), ts(70))


def test_part_that_is_missing_is_refused() -> None:
    topic = MemoryTopic()
    put_parts(topic, 0, 40, binlog(40, b"r" * 100))
    del topic.messages[1]
    with pytest.raises(DecodeError, match="out of sequence"):
        topic.pull(ts(0), ts(40))


async def test_silent_topic_serves_what_it_has_and_then_says_that_nothing_comes() -> None:
    topic, _ = filled()
    pump = pump_of(topic, silence_max_s=0.0)
    assert (await marked(pump, ts(40), until_ts=ts(70))).batch_count == 2
    with pytest.raises(TopicSilent, match="is read up to ts"):
        await marked(pump, ts(70))
    topic.away = True
    with pytest.raises(TopicError, match="no broker answers"):
        await marked(pump_of(topic), ts(0))
    await pump.close()


def test_password_of_the_brokers_is_not_shown_but_reaches_executors() -> None:
    assert "secret" not in repr(NAME)
    assert pickle.loads(pickle.dumps(NAME)) == NAME


async def test_topic_of_offline_pump_is_read_to_its_end_and_then_does_not_count() -> None:
    """A closed pump answers nobody; its topic has what a drainer that begins earlier needs."""
    registry, topic = Registry(MemoryEtcd()), filled()[0]
    live = MemoryTopic()
    live.put(ts(0), ts(90))

    def dial(node_id: str, host: str, _extension: bool) -> PumpClient:
        of = topic if node_id == "closed" else live
        silence_max_s = 0.0 if node_id == "closed" else 60.0
        return TopicPump(node_id, host, NAME, open_reader=lambda _: MemoryReader(of), silence_max_s=silence_max_s)

    await registry.create("pumps", NodeStatus("live", "h:1", State.ONLINE))
    await registry.create("pumps", NodeStatus("closed", "h:2", State.OFFLINE, max_commit_ts=ts(75)))
    pumps = PumpSet(registry, dial, archived=True)
    for after, wanted in ((20, (ts(70), 2)), (70, (ts(90), 1)), (80, (ts(90), 1))):
        assert await surveyed(pumps, ts(after)) == wanted
    await pumps.close()


async def test_topic_of_offline_pump_that_retention_emptied_holds_the_drainer_back() -> None:
    """It is not one that was read to its end: the record says that the pump had binlogs above the position."""
    registry, topic = Registry(MemoryEtcd()), filled()[0]
    topic.begin = len(topic.messages)
    await registry.create("pumps", NodeStatus("closed", "h:2", State.OFFLINE, max_commit_ts=ts(75)))
    pumps = PumpSet(registry, lambda *_: pump_of(topic, silence_max_s=0.0), archived=True)
    async with asyncio.timeout(60):
        while True:
            with pytest.raises(HeldBack) as held:
                await pumps.survey(after_ts=ts(20), limits=BatchLimits(0))
            if "is empty" in held.value.why:
                break
            await asyncio.sleep(0.01)
    await pumps.close()


async def surveyed(pumps: PumpSet, after_ts: int) -> tuple[int, int]:
    """The watermark above `after_ts`, and how many pumps count, as soon as the topics have been read."""
    async with asyncio.timeout(60):
        while True:
            try:
                found = await pumps.survey(after_ts=after_ts, limits=BatchLimits(0))
                if found.ts > after_ts:
                    return found.ts, len(found.marks)
            except HeldBack:
                await asyncio.sleep(0.01)
