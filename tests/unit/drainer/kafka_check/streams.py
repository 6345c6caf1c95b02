"""Streams of events that follow every rule, as a producer writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from drainer.kafka_check.checker import Checker, Moves, Promises, Report
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent
from drainer.protocol.table import ColumnFlag

KEY = ColumnFlag.HANDLE_KEY | ColumnFlag.PRIMARY_KEY


def image(key: int, value: int) -> Image:
    return {"id": ColumnValue(key, flags=int(KEY)), "v": ColumnValue(value)}


def row_event(key: int, commit_ts: int, change: Change = Change.UPDATE, *, value: int = 0) -> RowEvent:
    return RowEvent(
        change,
        commit_ts,
        "db",
        "t",
        old=None if change is Change.INSERT else image(key, value),
        new=None if change is Change.DELETE else image(key, value),
    )


def ddl_event(commit_ts: int, query: str = "ALTER TABLE t ADD c INT") -> DdlEvent:
    return DdlEvent(commit_ts, "db", "t", query)


@dataclass
class Stream:
    """Messages of one event each, by partition, and what the producer promises."""

    promises: Promises
    partitions: dict[KafkaPartition, list[Event]] = field(default_factory=dict)

    def check(self, *, mixed: list[KafkaPartition] | None = None) -> Report:
        """`mixed`: the partitions in the order in which their messages are read; else one behind another."""
        checker = Checker({"topic": len(self.partitions)}, self.promises)
        at = dict.fromkeys(self.partitions, 0)
        for topic_partition in mixed or [
            topic_partition for topic_partition, events in self.partitions.items() for _ in events
        ]:
            checker.add(topic_partition, at[topic_partition], [self.partitions[topic_partition][at[topic_partition]]])
            at[topic_partition] += 1
        return checker.finish()


@st.composite
def streams(draw: st.DrawFn, *, moves: Moves = Moves.NEVER) -> Stream:
    """Some rows whose events are distributed by key; with `moves` they go elsewhere after a resolved event."""
    count = draw(st.integers(2, 4))
    found: dict[KafkaPartition, list[Event]] = {KafkaPartition("topic", n): [] for n in range(count)}
    shift, resolved = 0, 0
    for number in range(draw(st.integers(5, 25))):
        commit_ts = 10 * (number + 1)
        what = draw(st.sampled_from(["rows", "rows", "rows", "split", "ddl", "resolved"]))
        if what == "ddl":
            for events in found.values():
                events.append(ddl_event(commit_ts, f"DDL {number}"))
        elif what == "resolved":
            resolved = commit_ts
            for events in found.values():
                events.append(ResolvedEvent(commit_ts))
            shift += moves is not Moves.NEVER
        else:
            for key in draw(st.sets(st.integers(0, 5), min_size=1, max_size=3)):
                events = found[KafkaPartition("topic", (key + shift) % count)]
                changes = (Change.DELETE, Change.INSERT) if what == "split" else (draw(st.sampled_from(list(Change))),)
                events += [row_event(key, commit_ts, change) for change in changes]
    last = max(resolved, 1000)
    for commit_ts in (last + 1, last + 2):  # each row has two events at least, and some follow each resolved event
        for key in range(6):
            found[KafkaPartition("topic", (key + shift) % count)].append(row_event(key, commit_ts))
    for events in found.values():
        events.append(ResolvedEvent(last + 3))
    return Stream(Promises(ordered=True, moves=moves), found)
