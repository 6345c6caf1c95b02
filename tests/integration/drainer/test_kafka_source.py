"""A recording of a real TiDB, in the topics of pumps that answer nobody, through the drainer into a real MariaDB."""

from __future__ import annotations

import pytest
from binlog.cluster.registry import State
from binlog.envelope import scan
from binlog.errors import BinlogError
from binlog.runtime.fields import TopicSection
from binlog.topic.kafka import KafkaWriter
from binlog.topic.message import Outgoing, TopicMessage, body_of, encode, topic_name

from tests.golden.compare import differences
from tests.integration.drainer.stubs import CLUSTER, Stubs
from tests.integration.drainer.test_recording import configuration
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.kafka import Broker
from tests.support.servers import MariaDB, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

PART_BYTES = 150


def messages(binlogs: list[bytes], end_ts: int) -> list[Outgoing]:
    """A message for each binlog, or for each part of it, and the resolved ts."""
    found: list[Outgoing] = []
    at_ts = 0
    for payload in binlogs:
        commit_ts = scan(payload).commit_ts
        for at in range(0, len(payload), PART_BYTES):
            part = payload[at : at + PART_BYTES]
            until_ts = commit_ts if at + len(part) == len(payload) else at_ts
            body = body_of([part], commit_ts, whole_bytes=len(payload), part_offset=at)
            found.append(Outgoing(commit_ts, encode(TopicMessage(1, at_ts, until_ts, body))))
        at_ts = commit_ts
    return [*found, Outgoing(end_ts, encode(TopicMessage(1, at_ts, end_ts)))]


def write(kafka: Broker, prefix: str, node_id: str, sent: list[Outgoing]) -> None:
    client = TopicSection.model_validate({"addresses": [kafka.address]}).client_settings()
    writer = KafkaWriter(client, topic_name(prefix, CLUSTER, node_id), 1_000_000)

    def done() -> bool:
        try:
            writer.open()
        except BinlogError:  # the topic was just created
            return False
        writer.send(sent)
        return True

    wait_until(done, deadline_s=120, what="the topic is written")
    writer.close()


def test_recording_in_topics_of_unreachable_and_closed_pumps_gives_upstreams_tables(
    stubs: Stubs, mariadb: MariaDB, kafka: Broker
) -> None:
    """Every batch without a DDL is distributed: executors read the topics, too."""
    capture = CaptureSet(GOLDEN / "keys")
    end_ts = capture.meta["scenario_end_ts"]
    prefix = kafka.topic()
    for number, (name, state) in enumerate((("a", State.ONLINE), ("b:1", State.OFFLINE))):
        write(kafka, prefix, name, messages(capture.binlogs[number::2], end_ts))
        stubs.register(name, state, max_commit_ts=end_ts)
    more = "distributed-bytes-min = 1\ngo-pump-silence-max = 3"
    source = f'source = "kafka"\n{more}\n[kafka-source]\naddresses = ["{kafka.address}"]\ntopic-prefix = "{prefix}"'
    drainer = stubs.drainer(configuration(stubs, capture, mariadb, more=source), "--until-now").start()
    assert drainer.wait(deadline_s=400) == 0, drainer.tail()
    assert differences(mariadb, capture) == []
