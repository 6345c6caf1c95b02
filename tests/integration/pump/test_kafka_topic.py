"""A pump and its topic on a real broker: killed pumps, a killed broker, a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from binlog.cluster.registry import State
from binlog.cluster.timestamp import TimestampSource
from binlog.cluster.tso import compose
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.fields import TopicSection
from binlog.topic.kafka import KafkaReader, KafkaWriter
from binlog.topic.message import Outgoing, TopicError, TopicMessage, encode, topic_name
from confluent_kafka import TopicPartition

from drainer.pumps.topic import pull_topic
from tests.integration.pump.rpc import Client, connected, running, until
from tests.integration.pump.test_process import cluster_of, pump, timestamps
from tests.support.kafka import Broker
from tests.support.memory_etcd import MemoryEtcd
from tests.support.servers import Etcd, Server, free_port, wait_until
from tests.support.stub_pd import StubPD
from tests.unit.pump.build import commit, prewrite

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

BASE_MS = 1_700_000_000_000


@pytest.fixture
async def pd() -> AsyncIterator[StubPD]:
    stub = await StubPD.start(cluster_id=5)
    yield stub
    await stub.close()


def settings(kafka: Broker) -> dict[str, str]:
    return TopicSection.model_validate({"addresses": [kafka.address]}).client_settings()


def published(kafka: Broker, topic: str, after_ts: int, until_ts: int) -> list[bytes]:
    """The binlogs of a range of the topic, as a drainer's task gets them, which tries again while a broker starts."""
    found: list[bytes] = []

    def read_it() -> bool:
        found.clear()
        with contextlib.suppress(TopicError):
            for message in pull_topic(KafkaReader(settings(kafka), topic), topic, after_ts, until_ts):
                one = ext.PullRangeResp.FromString(message)
                if one.part_offset:
                    found[-1] += one.payloads[0]
                else:
                    found.extend(one.payloads)
            return True
        return False

    wait_until(read_it, deadline_s=120, what="the range can be read")
    return found


def opened(writer: KafkaWriter) -> bytes | None:
    """The last message; a topic that was just created, and a broker that was just started, are not ready at once."""
    found: list[bytes | None] = []

    def open_it() -> bool:
        with contextlib.suppress(TopicError):
            found.append(writer.open())
        return bool(found)

    wait_until(open_it, deadline_s=120, what="the topic is open")
    return found[0]


async def served(client: Client, until_ts: int) -> list[bytes]:
    async def resolved() -> bool:
        return bool((await client.watermark()).resolved_ts >= until_ts)

    await until(resolved)
    return [payload for message in await client.pull_range(0, until_ts) for payload in message.payloads]


@pytest.mark.slow
def test_reader_begins_at_the_time_of_a_position_and_reads_on_after_the_broker_restarts(kafka: Broker) -> None:
    topic = topic_name("t", 1, f"n{free_port()}")
    writer = KafkaWriter(settings(kafka), topic, 1_000_000)
    with pytest.raises(TopicError, match=f"{topic}: does not exist, its pump has not published"):
        KafkaReader(settings(kafka), topic).open(0)
    assert opened(writer) is None
    marks = [compose(BASE_MS + 10 * number) for number in range(20)]
    values = [encode(TopicMessage(1, max(0, ts - 1), ts)) for ts in marks]
    writer.send([Outgoing(ts, value) for ts, value in zip(marks, values, strict=True)])
    reader = KafkaReader(settings(kafka), topic)
    for after_ts, begin in ((0, 0), (compose(BASE_MS + 95), 10), (marks[10], 10), (compose(BASE_MS + 999), 20)):
        reader.open(after_ts)
        found: list[tuple[int, bytes]] = []
        while not reader.at_end:
            found += reader.read(1.0)
        assert found == list(enumerate(values))[begin:]
    kafka.kill()
    kafka.start()
    assert opened(writer) == values[-1]
    writer.send([Outgoing(marks[-1], b"new")])
    while not (found := reader.read(1.0)):
        pass
    assert found == [(20, b"new")]
    (removed,) = kafka.admin.delete_records([TopicPartition(topic, 0, 21)]).values()
    removed.result(60)
    assert opened(writer) is None
    with pytest.raises(TopicError, match="is empty"):
        reader.open(marks[10])
    reader.close()
    writer.close()


def test_message_that_the_broker_refuses_is_not_passed_over_by_those_behind_it(kafka: Broker) -> None:
    """What lies behind it says that everything before is published."""
    topic = kafka.topic(name="refusing", max_message_bytes="20000")
    writer = KafkaWriter(settings(kafka), topic, 1_000_000)
    assert opened(writer) is None
    writer.send([Outgoing(1, b"mark")])
    with pytest.raises(TopicError, match="Message size too large"):
        writer.send([Outgoing(1, value) for value in (b"1" * 990_000, b"2" * 15_000)])
    assert opened(writer) == b"mark"
    writer.close()


async def write_some(client: Client, source: TimestampSource, count: int) -> int:
    """Transactions, one of them large; the commit_ts of the last."""
    commit_ts = 0
    for number in range(count):
        start_ts = await source.get()
        row = b"r" * (2_500_000 if number == count // 2 else 100)
        await client.write(prewrite(start_ts, row=row))
        commit_ts = await source.get()
        await client.write(commit(start_ts, commit_ts))
    return commit_ts


@pytest.mark.slow
async def test_topic_has_every_transaction_once_in_order_through_killed_pumps_and_a_killed_broker(
    tmp_path: Path, etcd: Etcd, kafka: Broker
) -> None:
    port, config = free_port(), tmp_path / "pump.toml"
    config.write_text(f'[kafka]\naddresses = ["{kafka.address}"]\n')

    def started(name: str, **env: str) -> Server:
        server = pump(tmp_path, etcd, "p1", port, "-config", str(config), **env)
        server.output = tmp_path / f"{name}.log"
        server.start()
        server.wait_for_output("pump is serving", deadline_s=180)
        return server

    server = started("first")
    cluster_id, source = await cluster_of(etcd), await timestamps(etcd)
    topic = topic_name("tidb-binlog", cluster_id, "p1")
    for number, point in enumerate(("before_send:3", "after_send:4")):
        async with connected(f"127.0.0.1:{port}", cluster_id) as client:
            await write_some(client, source, 5)
        server.kill()
        server = started(f"life-{number}", BINLOG_CRASH_POINT=f"pump.kafka.{point}")
        assert await asyncio.to_thread(server.wait, deadline_s=120) == -signal.SIGKILL
        server = started(f"after-{number}")
    kafka.kill()
    async with connected(f"127.0.0.1:{port}", cluster_id) as client:
        last_ts = await write_some(client, source, 5)
        kafka.start()
        wanted = await served(client, last_ts)
        assert await asyncio.to_thread(published, kafka, topic, 0, last_ts) == wanted
        assert len(wanted) == 15
    assert await asyncio.to_thread(server.stop, deadline_s=60) == 0, server.tail()
    await source.close()


async def test_pump_that_stops_has_published_everything(tmp_path: Path, kafka: Broker, pd: StubPD) -> None:
    section = {"addresses": [kafka.address], "message-bytes-max": 100_000}
    async with running(tmp_path, MemoryEtcd(), pd, kafka=section) as one:
        publisher = one.publisher
        assert publisher is not None

        async def known() -> bool:
            return bool(publisher.published_ts)

        topic = publisher.topic
        await until(known)
        async with connected(one.addr, one.cluster_id) as client:
            start_ts = await one.timestamps.get()
            await client.write(prewrite(start_ts, row=b"r" * 250_000))
            commit_ts = await one.timestamps.get()
            await client.write(commit(start_ts, commit_ts))
    assert one.node.state is State.PAUSED
    (found,) = await asyncio.to_thread(published, kafka, topic, 0, commit_ts)
    assert len(found) > 250_000
