"""Decide which events are due, in which order, and from which offset each partition must be read again. Pure.

Every partition has a watermark, its newest resolved event. Rows are due when the watermarks of all partitions have
reached their commit_ts. So is a DDL, after the rows up to it. Due events are returned in parts: rows, perhaps a DDL
after them, and the `Resume` that is stored in the transaction in which they are applied.

Events that may be repeated, and what is done with them:

    a row at or below what was applied  skipped: the resolved events say that all such rows were received before
    a delete without a commit_ts        skipped if it was read and applied before; it gets the commit_ts of the newest
                                        row before it
    a row that waits to be applied      skipped if it comes again (Repeats)
    a row that is not applied yet       kept, although its partition's watermark may be above it
    a DDL                               run once: commit_ts, start_ts, statement and number identify it; a DDL below
                                        another one of its topic, or below what was applied, is skipped
    a resolved event that goes back     skipped

Rows and DDLs of the schema of positions are skipped, too: upstream's own would change or remove the destination's.

A consumer that continues from a `Resume` reads each partition from its oldest event that was not applied, and skips
later events that it had read and applied already.

Of a partition that it did not read before, nothing is applied: everything waits until that partition's watermark has
reached the others', and its events come then, although newer ones of other partitions came before.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from binlog.errors import BinlogError

from drainer.kafka_reading.records import Contents, KafkaPartition, Repeats, contents_of
from drainer.protocol.event import AdminEvent, Change, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.schema.filter import OWN_SCHEMA

DdlName = tuple[int, int, str, int]  # commit_ts, start_ts, statement, number among those of one job

# The order of rows within a transaction.
_CLASSES: Final = {Change.DELETE: 0, Change.UPDATE: 1, Change.UPSERT: 1, Change.INSERT: 2}


class ConsumeError(BinlogError):
    """Messages that cannot be applied; the text says which."""


@dataclass(frozen=True, slots=True)
class Read:
    """How far one partition was read. `offset`: the offset from which to read again; `seen`: the offset below which
    rows at the applied commit_ts are applied, mostly the one after the last message that was read; `applied_ts`: of a
    partition that has not reached the others yet, the commit_ts up to which its rows are applied."""

    offset: int
    seen: int
    applied_ts: int | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """A consumer's position: every row up to `applied_ts` is applied, except for partitions that are not in `reads`, or
    have an `applied_ts` of their own there. `ddls`: the DDLs with the newest commit_ts that were run."""

    applied_ts: int = 0
    reads: Mapping[KafkaPartition, Read] = field(default_factory=dict)
    ddls: frozenset[DdlName] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """Events to apply in one transaction, together with `resume`: rows in order, then the DDL."""

    rows: tuple[RowEvent, ...]
    ddl: DdlEvent | None
    resume: Resume


@dataclass(slots=True)
class _Row:
    commit_ts: int
    offset: int
    event: RowEvent
    contents: Contents


@dataclass(slots=True)
class _Partition:
    watermark: int = 0
    applied_ts: int = 0
    watermark_offset: int = -1
    seen: int = 0
    seen_before: int = 0  # `seen` and `applied_ts` of the consumer that stored the Resume
    applied_before: int = 0
    newest: int = 0
    rows: list[_Row] = field(default_factory=list)
    oldest: float = math.inf  # commit_ts among `rows`
    repeats: Repeats = field(default_factory=Repeats)

    @property
    def applied_seen(self) -> int:
        """The offset below which every row up to `applied_ts`, and every tombstone behind them, is applied."""
        seen = max(self.seen, self.seen_before) if self.applied_ts == self.applied_before else self.seen
        return min([seen, *(row.offset for row in self.rows if row.commit_ts <= self.applied_ts)])


@dataclass(slots=True)
class _Ddl:
    """A DDL that is not applied yet. `offsets`: its offset in each partition."""

    event: DdlEvent
    offsets: dict[KafkaPartition, int]


Whole = Callable[[KafkaPartition, int, RowEvent], RowEvent | None]


def not_fetched(topic_partition: KafkaPartition, offset: int, event: RowEvent) -> RowEvent | None:
    """Raise ConsumeError: the values of a row are not in its message."""
    image = event.key or event.new or event.old or {}
    key = ", ".join(f"{name} = {column.value!r:.80}" for name, column in image.items()) or "no key"
    if event.claim:
        remedy = f"at {event.claim}; claim-check-storage-uri in the address says where this consumer finds claims"
    else:
        remedy = "in no message; --skip-handle-only leaves such rows out"
    raise ConsumeError(
        f"{topic_partition} offset {offset}: the {event.change} of "
        f"`{event.schema}`.`{event.table}` ({key}) at commit_ts "
        f"{event.commit_ts} was too large for a message, and its values are {remedy}"
    )


class ConsumerCore:
    """Hold events until they are due. `whole`: completes a row that has only its handle key; None: it is left out."""

    def __init__(
        self, partitions: Iterable[KafkaPartition], resume: Resume | None = None, whole: Whole = not_fetched
    ) -> None:
        resume = resume or Resume()
        self._whole = whole
        self.applied_ts = resume.applied_ts
        self.left_out = 0
        self._ran = set(resume.ddls)
        self._ddls: list[_Ddl] = []
        self._newest_ddl: dict[str, int] = {}  # topic → commit_ts
        self._partitions: dict[KafkaPartition, _Partition] = {}
        self._not_read = {  # partitions that are there no more, or not yet
            one: read if read.applied_ts is not None else replace(read, applied_ts=resume.applied_ts)
            for one, read in resume.reads.items()
        }
        for topic_partition in partitions:
            self.add_partition(topic_partition)

    @property
    def topic_partitions(self) -> list[KafkaPartition]:
        return list(self._partitions)

    @property
    def buffered(self) -> list[RowEvent]:
        return [row.event for partition in self._partitions.values() for row in partition.rows]

    def ahead(self) -> set[KafkaPartition]:
        """Return the partitions whose watermark is above another one's: nothing of them is due before that one."""
        least = min(one.watermark for one in self._partitions.values())
        return {topic_partition for topic_partition, one in self._partitions.items() if one.watermark > least}

    def watermark(self, topic_partition: KafkaPartition) -> tuple[int, int]:
        """Return a partition's watermark: (commit_ts, offset of its message)."""
        partition = self._partitions[topic_partition]
        return partition.watermark, partition.watermark_offset

    def add_partition(self, topic_partition: KafkaPartition, watermark: int = 0) -> None:
        """Add a partition. If it was not read before, it has no events at or below `watermark`."""
        if topic_partition in self._partitions:
            return
        read = self._not_read.pop(topic_partition, Read(0, 0, watermark))
        ts = read.applied_ts or 0
        self._partitions[topic_partition] = _Partition(
            ts, ts, seen=read.offset, seen_before=read.seen, applied_before=ts, newest=ts
        )

    def begin(self, topic_partition: KafkaPartition) -> int | None:
        """Return the offset from which to read a partition on, None for its first record."""
        partition = self._partitions[topic_partition]
        return partition.seen if partition.seen or partition.seen_before else None

    def add(self, topic_partition: KafkaPartition, offset: int, events: Iterable[Event]) -> None:
        """Add the events of one message. Raises what `whole` raises."""
        partition = self._partitions[topic_partition]
        for event in events:
            if isinstance(event, RowEvent | DdlEvent) and event.schema.lower() == OWN_SCHEMA:
                self.left_out += 1
            elif isinstance(event, RowEvent):
                self._row(topic_partition, partition, offset, event)
            elif isinstance(event, DdlEvent):
                self._ddl(topic_partition, partition, offset, event)
            elif isinstance(event, ResolvedEvent):
                if event.commit_ts >= partition.watermark:
                    partition.watermark, partition.watermark_offset = event.commit_ts, offset
            elif isinstance(event, AdminEvent):
                least = min(one.watermark for one in self._partitions.values())
                for number in range(event.partitions):
                    self.add_partition(KafkaPartition(topic_partition.topic, number), least)
        partition.seen = max(partition.seen, offset + 1)

    def next(self) -> Part | None:
        """Return the next due part, or None. The part counts as applied from then on."""
        watermark = min(one.watermark for one in self._partitions.values())
        ddl = None
        if self._ddls and self._ddls[0].event.commit_ts <= watermark:
            ddl = self._ddls.pop(0).event
            watermark = ddl.commit_ts
            self._ran = {one for one in self._ran if one[0] >= ddl.commit_ts} | {_name(ddl)}
        rows = self._taken(watermark)
        behind = [one for one in self._partitions.values() if one.applied_ts < watermark]
        if ddl is None and not rows and not behind:
            return None
        for partition in behind:
            partition.applied_ts = watermark
        self.applied_ts = max(self.applied_ts, watermark)
        return Part(rows, ddl, self.resume())

    def resume(self) -> Resume:
        """Return the position after everything that counts as applied."""
        reads = dict(self._not_read)
        for topic_partition, one in self._partitions.items():
            own_ts = one.applied_ts if one.applied_ts < self.applied_ts else None
            reads[topic_partition] = Read(self._offset(topic_partition, one), one.applied_seen, own_ts)
        return Resume(self.applied_ts, reads, frozenset(self._ran))

    def _row(self, topic_partition: KafkaPartition, partition: _Partition, offset: int, event: RowEvent) -> None:
        commit_ts = event.commit_ts or partition.newest  # a tombstone has none, and belongs after the row before it
        partition.newest = max(partition.newest, commit_ts)
        contents = contents_of(event)
        is_repeat = bool(event.commit_ts) and partition.repeats.is_repeat(event, contents)
        if is_repeat or self._is_applied(partition, offset, event.commit_ts):
            self.left_out += 1
            return
        whole = self._whole(topic_partition, offset, event) if event.handle_only else event
        if whole is not None:
            partition.rows.append(_Row(commit_ts, offset, whole, contents))
            partition.oldest = min(partition.oldest, commit_ts)

    def _is_applied(self, partition: _Partition, offset: int, commit_ts: int) -> bool:
        # More rows may arrive at applied_ts itself, as in TiCDC's consumer; those that were seen before are applied.
        if commit_ts and commit_ts != partition.applied_before:
            return commit_ts < partition.applied_ts
        if commit_ts:
            return offset < partition.seen_before or commit_ts < partition.applied_ts
        # If a row before it had not been applied, that row would be read again and be newer than what was applied.
        return offset < partition.seen_before and partition.newest <= partition.applied_before

    def _ddl(self, topic_partition: KafkaPartition, partition: _Partition, offset: int, event: DdlEvent) -> None:
        if not event.query:
            return
        name, topic = _name(event), topic_partition.topic
        applied_ts = max(one.applied_ts for of, one in self._partitions.items() if of.topic == topic)
        known = next((one for one in self._ddls if _name(one.event) == name), None)
        if known is not None:
            known.offsets.setdefault(topic_partition, offset)
        elif name in self._ran or event.commit_ts < max(applied_ts, self._newest_ddl.get(topic, 0)):
            self.left_out += 1
        else:
            self._newest_ddl[topic] = event.commit_ts
            insort(self._ddls, _Ddl(event, {topic_partition: offset}), key=lambda one: one.event.commit_ts)

    def _taken(self, until_ts: int) -> tuple[RowEvent, ...]:
        """Remove and return the rows up to `until_ts`, ordered by commit_ts, and those of one transaction so that they
        can be applied (_ranked), otherwise as they were read. All stay as they were read if there are deletes without a
        commit_ts: they follow the row before them."""
        due: list[tuple[int, int, RowEvent]] = []
        for partition in self._partitions.values():
            if partition.oldest <= until_ts:
                due += _ranked([row for row in partition.rows if row.commit_ts <= until_ts])
                partition.rows = [row for row in partition.rows if row.commit_ts > until_ts]
                partition.oldest = min((row.commit_ts for row in partition.rows), default=math.inf)
            partition.repeats.forget_below(until_ts)
        has_times = all(event.commit_ts for _, _, event in due)
        due.sort(key=itemgetter(0, 1) if has_times else itemgetter(0))
        return tuple(event for _, _, event in due)

    def _offset(self, topic_partition: KafkaPartition, partition: _Partition) -> int:
        """Return the offset of the oldest event that is not applied, or of the watermark if that is above the rows that
        are: what is due by it must not wait for another one."""
        ddls = [ddl.offsets[topic_partition] for ddl in self._ddls if topic_partition in ddl.offsets]
        marks = [partition.watermark_offset] if partition.watermark > partition.applied_ts else []
        return min([partition.seen, *(row.offset for row in partition.rows), *ddls, *marks])


def _ranked(rows: Sequence[_Row]) -> Iterator[tuple[int, int, RowEvent]]:
    """Yield (commit_ts, rank in its transaction, event) of rows of one partition.

    A row's delete in one partition must come before its insert in another, so deletes come first and inserts last. A
    service of the SDK may change a row several times in a transaction; what one change leaves is then what the next
    one finds, and they stay in their order."""
    found, left = ({(row.commit_ts, row.contents[at]) for row in rows if row.contents[at] is not None} for at in (0, 1))
    for row in rows:
        old, new = row.contents
        is_chained = (row.commit_ts, old) in left or (row.commit_ts, new) in found
        yield row.commit_ts, _CLASSES[Change.UPDATE if is_chained else row.event.change], row.event


def _name(event: DdlEvent) -> DdlName:
    return event.commit_ts, event.start_ts, event.query, event.number
