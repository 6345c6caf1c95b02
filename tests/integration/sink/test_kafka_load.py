"""A first load into a real broker: every row once, behind the statements that create its table, and no watermark at or
above a row that is still to come."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from drainer.apply.progress import LoadProgress
from drainer.protocol.event import Change, DdlEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.ranges.load import FirstLoad
from drainer.ranges.upstream import Upstream
from drainer.sink.base import FirstStart, Identity
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.producer import ProducerLost
from tests.integration.sink.forks import children
from tests.integration.sink.test_first_load import BAG, KEYED, ROWS, two_columns
from tests.support import kafka_case
from tests.support.kafka import Broker
from tests.support.kafka_case import Partition, seen
from tests.support.kept_producers import forget_producers
from tests.support.row_case import view_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TS = 447984084414103554
WHO = Identity(7, "main", "one")
VIEW = view_of(KEYED, BAG)
FIRST = FirstStart((("db", "keyed"), ("db", "bag")), loads=True)
EVERY = Counter((table, key) for table in ("keyed", "bag") for key, _ in ROWS)
# One life after another; each gets a step further, or none.
POINTS = [
    "kafka.ddl_sent",
    "sink.before_commit:3",
    "sink.after_commit:3",
    "load.divided",
    "load.range",
    "kafka.rows_sent",
    "sink.before_commit:2",
    "sink.after_commit:2",
    "kafka.rows_sent",
]


def settings(broker: Broker, topic: str, **more: Any) -> dict[str, Any]:
    return {"addresses": [broker.address], "topic": topic, "control-topic": f"{topic}-control", **more}


def load(settings_: dict[str, Any], reads_max: int = 4) -> None:
    """`reads_max`: of the four ranges."""
    sink = kafka_case.sink(settings_)
    try:
        sink.open(WHO, TS, FIRST)
        schemas, upstream = dict.fromkeys(VIEW.tables, "up"), two_columns()
        loading = FirstLoad(
            sink, VIEW, schemas, Upstream(upstream.connect), LoadProgress(), schema_version=9,
            stop=threading.Event(), pause_s=0,
        )  # fmt: skip
        assert loading.run()
        assert upstream.read <= reads_max
    finally:
        sink.close(clean=True)
        forget_producers()


def keys_of(partitions: list[Partition]) -> Counter[tuple[str, int]]:
    return Counter((row.table, int(str((row.new or {})["id"].value))) for of in partitions for row in of.rows)


def test_load_killed_repeatedly_sends_every_row_once_and_no_watermark_before_it_is_complete(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    given = settings(kafka, topic, **{"resolved-interval": "100ms"})
    for point in POINTS:
        assert children().start(load, (given,), tmp_path, point).wait() == -signal.SIGKILL, point
        assert all(partition.resolved <= TS for partition in seen(kafka, topic, settled=False)), point
    assert children().start(load, (given,), tmp_path, "").wait() == 0
    found = seen(kafka, topic)
    assert keys_of(found) == EVERY
    stamps = {row.commit_ts for of in found for row in of.rows}
    assert stamps <= {TS + 1, TS + 2}
    assert {partition.resolved for partition in found} == stamps, "it is complete"
    for partition in found:
        assert [(ddl.commit_ts, ddl.table) for ddl in partition.ddls] == [(TS, ""), (TS, "keyed"), (TS, "bag")]


@pytest.mark.parametrize("protocol", ["canal-json", "debezium", "simple"])
def test_load_in_each_protocol_has_every_row_once(kafka: Broker, protocol: str) -> None:
    topic = kafka.topic(2, name=protocol)
    load(settings(kafka, topic, protocol=protocol, **{"enable-tidb-extension": True}))
    rows, ddls = Counter[tuple[str, str]](), set()
    for records in kafka.read(topic):
        decoder = make_decoder(ProtocolOptions(protocol, enable_tidb_extension=True))
        for event in (event for record in records for event in decoder.decode(record.key, record.value)):
            if isinstance(event, RowEvent):
                assert (event.change, event.commit_ts) == (Change.INSERT, TS + 1)
                rows[event.table, str(event.new)] += 1
            elif isinstance(event, DdlEvent):
                ddls.add((event.table, " ".join(event.query.split()[:2])))
    assert sorted(table for table, _ in rows) == ["bag"] * 3 + ["keyed"] * 3
    assert set(rows.values()) == {1}
    assert ddls == {("", "CREATE DATABASE"), ("keyed", "CREATE TABLE"), ("bag", "CREATE TABLE")}


def test_load_whose_commit_is_not_answered_sends_every_row_once(kafka: Broker) -> None:
    """Whether the commit had arrived or not, for each transaction."""
    topic = kafka.topic(2)
    lost = Counter[str]()

    def point(name: str) -> None:
        lost[name] += 1
        if name in ("sink.before_commit", "sink.after_commit") and lost[name] % 2:
            raise ProducerLost("no answer")

    with mock.patch("drainer.sink.kafka.transactions.driver.crash_point", point):
        load(settings(kafka, topic), reads_max=8)
    assert min(lost["sink.before_commit"], lost["sink.after_commit"]) > 10
    assert keys_of(seen(kafka, topic, settled=False)) == EVERY


def test_load_without_transactions_is_refused(kafka: Broker) -> None:
    topic = kafka.topic(1)
    with pytest.raises(DestinationRefused, match="exactly-once = false"):
        load(settings(kafka, topic, **{"exactly-once": False}))


def test_load_into_a_protocol_whose_readers_join_rows_of_one_timestamp_is_refused(kafka: Broker) -> None:
    topic = kafka.topic(1)
    with pytest.raises(DestinationRefused, match="secondary-binlog"):
        load(settings(kafka, topic, protocol="secondary-binlog"))
    assert not any(kafka.read(topic))
