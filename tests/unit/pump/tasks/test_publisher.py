"""What a pump publishes to its topic: everything, in order, once, from wherever it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from binlog.cluster.registry import SOURCE_LABEL, NodeStatus, Registry, State
from binlog.cluster.tso import compose
from binlog.envelope import encode_binlog, scan
from binlog.topic.message import TopicError

from drainer.pumps.topic import TopicChain
from pump.errors import DamagedRecord
from pump.store.store import Store
from pump.tasks.gc import GarbageCollector
from pump.tasks.publisher import Publisher
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.memory_etcd import MemoryEtcd
from tests.support.memory_topic import Killed, MemoryTopic, MemoryWriter
from tests.unit.pump.build import SetClock, binlogs_of, commit, opened, prewrite, write
from tests.unit.pump.store.test_damage import damage

LIMIT = 700
SIZES = (10, 100, 1500, 10, 444, 3, 900, 20)  # bytes of a row; LIMIT less its overhead is 444


async def filled(store: Store, sizes: tuple[int, ...] = SIZES) -> list[bytes]:
    """Some binlogs and a large DDL; what a pull serves of them."""
    for number, size in enumerate(sizes, start=1):
        await write(store, prewrite(10 * number, row=b"r" * size), commit(10 * number, 10 * number + 5))
    ddl = encode_binlog(tp=0, start_ts=200, prewrite_key=b"k", ddl_query=b"CREATE TABLE " + b"c" * 900, ddl_job_id=7)
    await write(store, ddl, commit(200, 205))
    store.resolver.advance(208)
    return await binlogs_of(store)


def publisher(store: Store, topic: MemoryTopic) -> Publisher:
    return Publisher(store, MemoryWriter(topic), "t", message_bytes_max=LIMIT)


async def published(store: Store, topic: MemoryTopic) -> Publisher:
    """A life that publishes everything, or ends in the middle of it."""
    made = publisher(store, topic)
    await made._begin()
    await made.publish(store.resolved_ts)
    return made


async def until(running: Publisher, ts: int) -> None:
    async with asyncio.timeout(60):
        while running.published_ts < ts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_topic_has_what_a_pull_serves_in_messages_below_the_limit(tmp_path: Path) -> None:
    topic = MemoryTopic()
    async with opened(tmp_path, SetClock(1)) as store:
        served = await filled(store)
        await published(store, topic)
        assert topic.pull(0, store.resolved_ts) == served
        assert max(len(message.value) for message in topic.messages) <= LIMIT
        assert len(topic.messages) > len(SIZES), "large ones are in parts"
        for after_ts in (0, 15, 20, 35):
            assert topic.pull(after_ts, 60) == await binlogs_of(store, after_ts, 60)


@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
async def test_topic_has_what_a_pull_serves_of_a_recording(tmp_path: Path, capture: CaptureSet) -> None:
    topic, end_ts = MemoryTopic(), capture.meta["scenario_end_ts"]
    async with opened(tmp_path, SetClock(end_ts)) as store:
        await write(store, *capture.writes)
        store.resolver.advance(end_ts)
        served = await binlogs_of(store, 0, end_ts)
        await published(store, topic)
        assert len(served) >= len(capture.binlogs)
        assert topic.pull(0, end_ts) == served
        middle_ts = scan(served[len(served) // 2]).commit_ts
        assert topic.pull(middle_ts, end_ts) == await binlogs_of(store, middle_ts, end_ts)


async def test_publisher_killed_at_any_message_goes_on_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(1)) as store:
        served = await filled(store)
        whole = MemoryTopic()
        await published(store, whole)
        for killed_at in range(len(whole.messages)):
            topic = MemoryTopic(room=killed_at)
            for _ in range(2):  # the second life is killed, too
                with contextlib.suppress(Killed):
                    await published(store, topic)
                topic.room = 2
            topic.room = None
            await published(store, topic)
            assert topic.pull(0, store.resolved_ts) == served, f"killed after {killed_at} messages"


async def test_messages_that_a_killed_publisher_had_sent_are_passed_over_when_they_arrive_late(tmp_path: Path) -> None:
    """They lie between those of the next life, also between the parts of one binlog."""
    async with opened(tmp_path, SetClock(1)) as store:
        served = await filled(store)
        topic = MemoryTopic()
        await published(store, topic)
        late = topic.messages[1:]
        for arrived in range(1, len(late)):
            again = MemoryTopic(topic.messages[:1])
            await published(store, again)
            for number, message in enumerate(late):
                again.messages.insert(1 + arrived + 2 * number, message)
            assert again.pull(0, store.resolved_ts) == served


async def test_broker_away_keeps_binlogs_until_they_are_published(tmp_path: Path) -> None:
    topic = MemoryTopic(away=True)
    async with opened(tmp_path, SetClock(1)) as store:
        await filled(store)
        made = publisher(store, topic)
        running = asyncio.create_task(made.run())
        async with asyncio.timeout(60):
            while not made.error:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        registry = Registry(MemoryEtcd())
        collector = GarbageCollector(store, registry, timedelta(0), clock_ms=lambda: 1 << 44, topic=made.as_drainer)
        assert await collector.collect() == 0
        topic.away = False
        await until(made, store.resolved_ts)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        reader = NodeStatus("d", "h:1", State.ONLINE, label={SOURCE_LABEL: "kafka"}, max_commit_ts=1)
        await registry.create("drainers", reader)
        assert await collector.collect() == made.published_ts, "a drainer that reads the topic needs nothing here"


async def test_disk_that_fails_while_binlogs_are_read_does_not_end_publishing(tmp_path: Path) -> None:
    topic = MemoryTopic()
    async with opened(tmp_path, SetClock(1)) as store:
        await filled(store)
        made = publisher(store, topic)
        with mock.patch.object(os, "pread", side_effect=OSError(errno.EIO, "Input/output error")):
            running = asyncio.create_task(made.run())
            async with asyncio.timeout(60):
                while not made.error and not running.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await until(made, store.resolved_ts)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_failed_send_begins_again_behind_what_was_stored(tmp_path: Path) -> None:
    topic = MemoryTopic(room=3, failure=TopicError("not stored"))
    async with opened(tmp_path, SetClock(1)) as store:
        served = await filled(store)
        with pytest.raises(TopicError):
            await published(store, topic)
        topic.room = None
        made = await published(store, topic)
        assert topic.pull(0, made.published_ts) == served


async def test_damaged_large_binlog_is_not_sent_again_with_every_attempt(tmp_path: Path) -> None:
    topic = MemoryTopic()
    async with opened(tmp_path, SetClock(1)) as store:
        served = await filled(store)
        damage(tmp_path, prewrite(30, row=b"r" * SIZES[2]))
        made = publisher(store, topic)
        await made._begin()
        with pytest.raises(DamagedRecord):
            await made.publish(store.resolved_ts)
        assert made.published_ts == 25, "those before it are there"
        sent = len(topic.messages)
        for _ in range(2):
            with pytest.raises(DamagedRecord):
                await made._session()
        assert len(topic.messages) == sent + 2, "a mark of each attempt"
        await store.reads.skip_binlog(35, dry_run=False)
        await made._check_readable()
        await made.publish(store.resolved_ts)
        found = topic.pull(0, store.resolved_ts)
        assert (len(found), found[:2], found[3:]) == (len(served), served[:2], served[3:])


async def test_publisher_whose_binlogs_were_purged_says_so_and_goes_on_behind_them(tmp_path: Path) -> None:
    topic = MemoryTopic()
    async with opened(tmp_path, SetClock(1)) as store:
        topic.put(0, 10)
        await filled(store)
        await GarbageCollector(store, Registry(MemoryEtcd()), timedelta(0), clock_ms=lambda: 1 << 44).collect()
        made = publisher(store, topic)
        await made._begin()
        assert made.published_ts == store.reads.purged_ts > 10


async def test_publisher_of_topic_that_retention_emptied_is_not_passed_over_by_its_readers(tmp_path: Path) -> None:
    """A reader that follows the topic has read a higher epoch than that of the last message, which is gone."""
    topic, chain, clock = MemoryTopic(), TopicChain("t", 0), SetClock(1)
    async with opened(tmp_path, clock) as store:
        for second in (5, 5, 8):
            clock.ts = max(clock.ts, compose(1000 * second))
            await store.resolver.refresh()
            topic.begin = len(topic.messages) if second == 8 else 0
            made = await published(store, topic)
        for offset, message in enumerate(topic.messages):
            chain.add(offset, message.value)
        assert chain.position_ts == made.published_ts
