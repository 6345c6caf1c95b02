"""A recording through a pipeline into Kafka, without Spark, and what consumers then see of it.

The checker knows nothing of how a drainer writes: it reads partitions as a consumer does, and holds what it finds
against the rules of order and against what one drainer wrote that nothing disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from drainer.protocol.event import AdminEvent, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_decoder
from drainer.schema.filter import Filter
from drainer.schema.job_policy import Policy
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.sink import KafkaSink
from tests.support.change_replay import replay_changes
from tests.support.kafka import Broker
from tests.support.kept_producers import forget_producers

ROWS = [{"matcher": ["*.*"], "partition": "index-value"}]


def sink(settings: dict[str, Any]) -> KafkaSink:
    section = KafkaSection.model_validate({"slots": 3, **settings}, by_alias=True, by_name=False)
    section.check()
    return KafkaSink(section)


def set_waits(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """`grace_s`: for the end of an open transaction; `behind_s`: for a broker that may lag behind another one."""
    modules = {"grace_s": "transactions.driver._GRACE_S", "behind_s": "topics.counts._BEHIND_S"}
    for name, value in seconds.items():
        monkeypatch.setattr(f"drainer.sink.kafka.{modules[name]}", value)


def run(
    settings: dict[str, Any],
    edges: Sequence[int],
    log: str = "",
    initial_ts: int = 0,
    name: str = "keys",
    in_pieces: bool = True,
    ignored: Sequence[tuple[str, str]] = (),
) -> None:
    """See change_replay.replay_changes. `log`: a file for what the drainer logs; `ignored`: tables left out."""
    if log:
        import structlog

        structlog.configure(logger_factory=structlog.PrintLoggerFactory(Path(log).open("a")))  # noqa: SIM115
    policy = Policy(Filter.create(ignore_tables=ignored))
    replay_changes(sink(settings), edges, initial_ts=initial_ts, name=name, in_pieces=in_pieces, policy=policy)
    forget_producers()


@dataclass
class Partition:
    """What one partition holds, decoded. `resolved`: the last of them; `rows`: in order."""

    rows: list[RowEvent] = field(default_factory=list)
    ddls: list[DdlEvent] = field(default_factory=list)
    admin: list[AdminEvent] = field(default_factory=list)
    resolved: int = 0


def seen(
    broker: Broker, topic: str, *, committed: bool = True, settled: bool = True, repeats: bool = False
) -> list[Partition]:
    """Every partition as Broker.read gives it, checked: rows in commit order, none at or below a resolved event before
    it. `repeats`: rows may come again, but not behind a resolved event above them."""
    found = []
    for number, records in enumerate(broker.read(topic, committed=committed, settled=settled)):
        decoder = make_decoder(ProtocolOptions("open-protocol"))
        events: list[Event] = []
        for record in records:
            events += decoder.decode(record.key, record.value)
        found.append(checked(events, f"{topic}-{number}", repeats=repeats))
    return found


def checked(events: Sequence[Event], where: str, *, repeats: bool = False) -> Partition:
    partition = Partition()
    last = 0
    told: set[str] = set()
    for event in events:
        if isinstance(event, RowEvent):
            assert event.commit_ts > partition.resolved, f"{where}: a row at {event.commit_ts} behind resolved"
            if repeats:
                if repr(event) in told:
                    continue
                told.add(repr(event))
            assert repeats or event.commit_ts >= last, f"{where}: a row at {event.commit_ts} behind one at {last}"
            last = event.commit_ts
            partition.rows.append(event)
        elif isinstance(event, ResolvedEvent):
            assert event.commit_ts >= partition.resolved, f"{where}: resolved goes back to {event.commit_ts}"
            partition.resolved = event.commit_ts
        elif isinstance(event, DdlEvent):
            assert event.commit_ts >= partition.resolved, f"{where}: a DDL at {event.commit_ts} behind resolved"
            partition.ddls.append(event)
        elif isinstance(event, AdminEvent):
            partition.admin.append(event)
    return partition


def shape(event: RowEvent | DdlEvent) -> str:
    found = event._asdict() if isinstance(event, RowEvent) else asdict(event)
    return json.dumps(found, sort_keys=True, default=repr)


def same(one: Sequence[Partition], other: Sequence[Partition]) -> None:
    """The same rows and DDLs in every partition, in the same order."""
    assert len(one) == len(other)
    for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        assert [shape(row) for row in mine.rows] == [shape(row) for row in theirs.rows], number
        assert [shape(ddl) for ddl in mine.ddls] == [shape(ddl) for ddl in theirs.ddls], number
