"""The whole daemon into Kafka, whose executors are killed: a read-committed consumer sees every change once, in its
order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drainer.protocol.event import Change, DdlEvent, RowEvent
from tests.integration.drainer.lives import Lives
from tests.integration.drainer.writer import Writer, two_pumps
from tests.integration.pumpclient.conftest import Cluster
from tests.support.kafka import Broker
from tests.support.kafka_case import Partition, seen
from tests.support.servers import require_java

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


@dataclass
class World(Lives):
    cluster: Cluster
    writer: Writer
    directory: Path
    broker: Broker
    topic: str
    lives: int = 0
    deadline_s: float = 400

    @property
    def syncer(self) -> str:
        uri = f"kafka://{self.broker.address}/{self.topic}?protocol=open-protocol&partition-num=3"
        return (
            f'[syncer]\ndb-type = "kafka"\n[syncer.to]\nsink-uri = "{uri}"\nslots = 4\n'
            f'[[syncer.to.dispatchers]]\nmatcher = ["*.keyed"]\npartition = "index-value"\n'
        )

    def check(self) -> None:
        """The events replayed make what was written, and say every row that was put and taken once."""
        partitions = seen(self.broker, self.topic)
        keyed: dict[object, tuple[object, object]] = {}
        puts: Counter[object] = Counter()
        takes: Counter[object] = Counter()
        for event in merged(partitions):
            old = event.old if event.change is not Change.INSERT else None
            new = event.new
            if event.table == "keyed":
                if old is not None:
                    assert keyed.pop(old["id"].value, None) is not None, event
                if new is not None:
                    keyed[new["id"].value] = (new["u"].value, new["note"].value)
            else:
                for image, into in ((old, takes), (new, puts)):
                    into.update([image["tag"].value] if image is not None else [])
        writer = self.writer
        assert keyed == writer.keyed
        assert puts - takes == Counter(writer.bag)
        assert (puts, takes) == (writer.puts, writer.takes)
        assert [altered(of.ddls) for of in partitions] == [writer.added] * len(partitions)
        assert len({of.resolved for of in partitions}) == 1


def merged(partitions: list[Partition]) -> list[RowEvent]:
    """In commit order; in one partition as they stand there. A row that moves is deleted before it is inserted."""
    rows = [
        (row.commit_ts, row.new is not None, number, row) for number, of in enumerate(partitions) for row in of.rows
    ]
    return [row for *_, row in sorted(rows, key=lambda one: one[:2])]


def altered(ddls: list[DdlEvent]) -> int:
    return sum(ddl.query.startswith("ALTER TABLE") for ddl in ddls)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, kafka_server: Broker) -> Iterator[World]:
    require_java()
    directory = tmp_path_factory.mktemp("kafka")
    with two_pumps(directory) as (cluster, writer):
        made = World(cluster, writer, directory, kafka_server, kafka_server.topic(3))
        made.writer.create()
        yield made


def test_kafka_consumer_sees_every_event_once_after_executor_is_killed(world: World) -> None:
    """Every place where the drainer may die: tests/integration/sink/test_kafka.py."""
    world.die_around_ddl(["kafka.slot_committed"], before=80)
    world.drain_and_check()
