"""Check the rules event by event. Pure: the caller reads and decodes the messages.

In each partition:

    the events of a row ascend in commit_ts and none is repeated; if it is promised, the events of all rows ascend
    no row at or below a resolved event follows that event, and no row below a DDL follows that DDL
    resolved events and DDLs ascend; a DDL below a resolved event does not follow it

Across all partitions:

    the events of a row are in one partition
    every DDL is in all partitions of its topic, and every resolved event in all partitions of all topics
    every event that announces another number of partitions is in all partitions of its topic, after the rows up to
        its commit_ts and before the rows above it

Partitions may be passed one after another or mixed; the events of one partition must be passed in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.event import AdminEvent, Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent
from drainer.protocol.table import ColumnFlag

# The result of a check.

VIOLATIONS_KEPT: Final = 100


class Broken(StrEnum):
    """The rules that are checked."""

    ROW_ORDER = "row-order"
    PARTITION_ORDER = "partition-order"
    ROW_IN_TWO_PARTITIONS = "row-in-two-partitions"
    ROW_BEHIND_RESOLVED = "row-behind-resolved"
    ROW_BEHIND_DDL = "row-behind-ddl"
    ROW_TWICE = "row-twice"
    DDL_ORDER = "ddl-order"
    DDL_BEHIND_RESOLVED = "ddl-behind-resolved"
    DDL_TWICE = "ddl-twice"
    DDL_MISSING = "ddl-missing"
    RESOLVED_BACK = "resolved-back"
    RESOLVED_MISSING = "resolved-missing"
    PARTITIONS_UNTOLD = "partitions-untold"
    PARTITIONS_LATE = "partitions-late"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation. `offset`: that of the message, -1 if a message is missing."""

    rule: Broken
    topic_partition: KafkaPartition
    offset: int
    text: str

    def __str__(self) -> str:
        where = f"{self.topic_partition} offset {self.offset}" if self.offset >= 0 else str(self.topic_partition)
        return f"{self.rule}: {where}: {self.text}"


@dataclass
class Report:
    """Counts. `violations`: the first VIOLATIONS_KEPT; `broken`: the number of violations of each rule."""

    messages: int = 0
    rows: int = 0
    unidentified_rows: int = 0
    repeats: int = 0
    ddls: int = 0
    resolved: int = 0
    others: int = 0
    violations: list[Violation] = field(default_factory=list)
    broken: Counter[Broken] = field(default_factory=Counter)

    def add(self, violation: Violation) -> None:
        self.broken[violation.rule] += 1
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(violation)


# Identify the row that an event is about.

REMOVES: Final = 1
ADDS: Final = 2

TableKeys = Mapping[tuple[str, str], tuple[str, ...]]  # (database, table) → columns of its key


def touched_rows(event: RowEvent, keys: TableKeys) -> list[tuple[bytes, int]]:
    """Return a digest of each row that the event removes, adds, or both (REMOVES, ADDS or their sum); empty if the key
    columns are not known. `keys`: the key columns of tables whose messages do not name them."""
    names = keys.get((event.schema, event.table))
    if event.change is not Change.UPDATE:
        row = _digest(event, event.key, event.new if event.new is not None else event.old, names)
        what = REMOVES if event.change is Change.DELETE else ADDS
        return [] if row is None else [(row, what)]
    new = _digest(event, event.key, event.new, names)
    if new is None:
        return []
    old = _digest(event, None, {**(event.new or {}), **(event.old or {})}, names) or new
    return [(new, REMOVES | ADDS)] if old == new or event.key is not None else [(old, REMOVES), (new, ADDS)]


def _digest(event: RowEvent, key: Image | None, image: Image | None, names: tuple[str, ...] | None) -> bytes | None:
    columns: dict[str, ColumnValue] = {}
    if key is not None:
        columns = dict(key)
    elif names is not None:
        columns = {name: image[name] for name in names if name in image} if image is not None else {}
    elif image is not None:
        columns = {name: column for name, column in image.items() if column.flags & ColumnFlag.HANDLE_KEY}
    if not columns:
        return None
    values = sorted((name, type(column.value).__name__, column.value) for name, column in columns.items())
    return blake2b(repr((event.schema, event.table, values)).encode(errors="surrogatepass"), digest_size=16).digest()


DdlName = tuple[int, str, str, str]  # commit_ts, database, table, statement


class Moves(StrEnum):
    """When a row may go to another partition."""

    NEVER = "never"
    AT_RESOLVED = "at-resolved"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Promises:
    """What the producer promised. `ordered`: each partition is in commit order over all its rows. `moves`: NEVER,
    except for the dispatchers `conflict` (AT_RESOLVED) and `ts` (ALWAYS), and for raw updates of keys that decide the
    partition (ALWAYS). `repeats`: the producer writes at least once, so a row may be repeated in its partition until a
    resolved event at or above it. `ddl_everywhere`: DDLs go to all partitions of their topic, otherwise to the first.
    `topics_end`: a topic whose tables were dropped gets no more resolved events. `whole`: every partition was read up
    to the same point."""

    ordered: bool = False
    moves: Moves = Moves.NEVER
    repeats: bool = False
    ddl_everywhere: bool = True
    topics_end: bool = False
    whole: bool = True


@dataclass(slots=True)
class _Row:
    """The last event of a row in a partition: its commit_ts and what it did (REMOVES, ADDS)."""

    commit_ts: int
    done: int


@dataclass(slots=True)
class _Partition:
    """`offset`: of the message being checked; `since_resolved`: (row, commit_ts, what) that may be repeated."""

    at: KafkaPartition
    offset: int = -1
    rows: dict[bytes, _Row] = field(default_factory=dict)
    newest: int = 0
    resolved: list[int] = field(default_factory=list)
    ddls: list[DdlName] = field(default_factory=list)
    ddl_ts: int = 0
    admins: list[tuple[int, int]] = field(default_factory=list)
    first_ts: int = -1
    epoch: int = 0
    since_resolved: set[tuple[bytes, int, int]] = field(default_factory=set)

    @property
    def resolved_ts(self) -> int:
        return self.resolved[-1] if self.resolved else 0


@dataclass(slots=True)
class _Stay:
    """A period of a row in one partition. `resolved_ts`: the newest resolved event in front of its first event."""

    topic_partition: KafkaPartition
    first_ts: int
    last_ts: int
    resolved_ts: int
    epoch: int
    offset: int


_WHAT: Final = {REMOVES: "removed", ADDS: "put", REMOVES | ADDS: "updated"}


class Checker:
    """Collect violations. `partitions`: how many each topic has. `keys`: key columns that messages do not name."""

    def __init__(
        self, partitions: Mapping[str, int], promises: Promises | None = None, keys: TableKeys | None = None
    ) -> None:
        self.report = Report()
        self._promises = promises or Promises()
        self._keys = keys or {}
        self._partitions = {
            at: _Partition(at)
            for topic, count in partitions.items()
            for at in (KafkaPartition(topic, number) for number in range(count))
        }
        self._stays: dict[tuple[str, bytes], list[_Stay]] = {}
        self._admins: list[tuple[int, int]] = []

    def add(self, topic_partition: KafkaPartition, offset: int, events: Iterable[Event]) -> None:
        """Check the events of one message."""
        self.report.messages += 1
        partition = self._partitions.setdefault(topic_partition, _Partition(topic_partition))
        partition.offset = offset
        for event in events:
            if partition.first_ts < 0:
                partition.first_ts = event.commit_ts
            if isinstance(event, RowEvent):
                self._row(partition, event)
            elif isinstance(event, DdlEvent):
                self._ddl(partition, event)
            elif isinstance(event, ResolvedEvent):
                self._resolved(partition, event)
            else:
                self.report.others += 1
                if isinstance(event, AdminEvent):
                    self._admin(partition, event)

    def add_unreadable(self, topic_partition: KafkaPartition, offset: int, why: str) -> None:
        """Count a message that its protocol's decoder refuses."""
        self.report.messages += 1
        self.report.add(Violation(Broken.MESSAGE, topic_partition, offset, why))

    def finish(self) -> Report:
        """Run the checks that need all messages; return the report. Call after the last message."""
        for stays in self._stays.values():
            self._check_stays(stays)
        for topic in dict.fromkeys(at.topic for at in self._partitions):
            self._check_ddls(topic)
            self._check_admins(topic)
        self._check_resolved()
        return self.report

    def _row(self, partition: _Partition, event: RowEvent) -> None:
        self.report.rows += 1
        what = f"{event.change} of a row of `{event.schema}`.`{event.table}` at commit_ts {event.commit_ts}"
        if event.commit_ts:  # a tombstone has none
            self._row_time(partition, event.commit_ts, what)
        rows = touched_rows(event, self._keys)
        if not rows:
            self.report.unidentified_rows += 1
        is_repeat = False
        for row, done in rows:
            self._stay(partition, row, event.commit_ts, what)
            if event.commit_ts:
                is_repeat |= self._row_order(partition, row, done, event.commit_ts, what)
        self.report.repeats += is_repeat
        if self._promises.ordered and event.commit_ts < partition.newest and event.commit_ts and not is_repeat:
            text = f"{what} follows one at {partition.newest}"
            self._broken(Broken.PARTITION_ORDER, partition, text)
        partition.newest = max(partition.newest, event.commit_ts)

    def _row_time(self, partition: _Partition, commit_ts: int, what: str) -> None:
        if commit_ts <= partition.resolved_ts:
            text = f"{what} follows the resolved event {partition.resolved_ts}"
            self._broken(Broken.ROW_BEHIND_RESOLVED, partition, text)
        if commit_ts < partition.ddl_ts:
            self._broken(Broken.ROW_BEHIND_DDL, partition, f"{what} follows a DDL at {partition.ddl_ts}")
        if partition.admins and commit_ts <= partition.admins[-1][0]:
            text = f"{what} follows another number of partitions at {partition.admins[-1][0]}"
            self._broken(Broken.PARTITIONS_LATE, partition, text)

    def _row_order(self, partition: _Partition, row: bytes, done: int, commit_ts: int, what: str) -> bool:
        """Check the order of a row's events. Return whether the event is an allowed repetition."""
        key = row, commit_ts, done
        if self._promises.repeats:
            if key in partition.since_resolved:
                return True
            partition.since_resolved.add(key)
        last = partition.rows.get(row)
        if last is None:
            partition.rows[row] = _Row(commit_ts, done)
        elif commit_ts > last.commit_ts:
            last.commit_ts, last.done = commit_ts, done
        elif commit_ts < last.commit_ts:
            self._broken(Broken.ROW_ORDER, partition, f"{what} follows one of the same row at {last.commit_ts}")
        elif (last.done, done) == (REMOVES, ADDS):  # the halves of an update
            last.done = REMOVES | ADDS
        else:
            text = f"{what}: the row was {_WHAT[last.done]} at this commit_ts before"
            self._broken(Broken.ROW_TWICE, partition, text)
        return False

    def _stay(self, partition: _Partition, row: bytes, commit_ts: int, what: str) -> None:
        if self._promises.moves is Moves.ALWAYS:
            return
        at = partition.at
        stays = self._stays.setdefault((at.topic, row), [])
        mine = next((one for one in reversed(stays) if one.topic_partition == at), None)
        is_new = mine is None or mine.epoch != partition.epoch
        if mine is not None and not is_new and self._promises.moves is Moves.AT_RESOLVED and commit_ts:
            is_new = partition.resolved_ts >= mine.last_ts  # it may have been elsewhere in between
        if mine is not None and not is_new:
            mine.last_ts = max(mine.last_ts, commit_ts)
            return
        if self._promises.moves is Moves.NEVER:
            other = next((one for one in stays if one.topic_partition != at and one.epoch == partition.epoch), None)
            if other is not None:
                text = f"{what}: the row is in {other.topic_partition}, too, at offset {other.offset}"
                self._broken(Broken.ROW_IN_TWO_PARTITIONS, partition, text)
                return
        stays.append(_Stay(at, commit_ts, commit_ts, partition.resolved_ts, partition.epoch, partition.offset))

    def _check_stays(self, stays: Sequence[_Stay]) -> None:
        if self._promises.moves is not Moves.AT_RESOLVED:
            return
        ordered = sorted((one for one in stays if one.first_ts), key=lambda one: (one.epoch, one.first_ts))
        for before, after in pairwise(ordered):
            if (
                after.topic_partition != before.topic_partition
                and after.resolved_ts < before.last_ts
                and after.epoch == before.epoch
            ):
                text = (
                    f"a row at commit_ts {after.first_ts} was at {before.last_ts} in {before.topic_partition}, offset "
                    f"{before.offset}, and no resolved event is in between"
                )
                self.report.add(Violation(Broken.ROW_IN_TWO_PARTITIONS, after.topic_partition, after.offset, text))

    def _ddl(self, partition: _Partition, event: DdlEvent) -> None:
        self.report.ddls += 1
        name = event.commit_ts, event.schema, event.table, event.query
        what = f"{event.query!r} at {event.commit_ts}"
        if name in partition.ddls:
            self.report.repeats += 1
            if not self._promises.repeats:
                self._broken(Broken.DDL_TWICE, partition, f"{what} is there twice")
        else:
            partition.ddls.append(name)
            if event.commit_ts < partition.ddl_ts:
                self._broken(Broken.DDL_ORDER, partition, f"{what} follows a DDL at {partition.ddl_ts}")
        if event.commit_ts < partition.resolved_ts:
            text = f"{what} follows the resolved event {partition.resolved_ts}"
            self._broken(Broken.DDL_BEHIND_RESOLVED, partition, text)
        partition.ddl_ts = max(partition.ddl_ts, event.commit_ts)

    def _resolved(self, partition: _Partition, event: ResolvedEvent) -> None:
        self.report.resolved += 1
        if event.commit_ts > partition.resolved_ts:
            partition.resolved.append(event.commit_ts)
            if partition.since_resolved:
                still = {one for one in partition.since_resolved if one[1] > event.commit_ts}
                partition.since_resolved = still
        elif event.commit_ts < partition.resolved_ts and not self._promises.repeats:
            text = f"the resolved event {event.commit_ts} follows {partition.resolved_ts}"
            self._broken(Broken.RESOLVED_BACK, partition, text)

    def _admin(self, partition: _Partition, event: AdminEvent) -> None:
        """Check an announcement. The partition's epoch is the number of this one, counted over all partitions."""
        name = event.commit_ts, event.partitions
        if name not in self._admins:
            self._admins.append(name)
        if partition.newest > event.commit_ts and not self._promises.repeats:
            text = f"{event.partitions} partitions at {event.commit_ts} follow a row at {partition.newest}"
            self._broken(Broken.PARTITIONS_LATE, partition, text)
        if name not in partition.admins:
            partition.admins.append(name)
        partition.epoch = self._admins.index(name) + 1

    def _of_topic(self, topic: str) -> list[_Partition]:
        return [one for at, one in self._partitions.items() if at.topic == topic]

    def _check_ddls(self, topic: str) -> None:
        of_topic = self._of_topic(topic)
        first = min(one.at for one in of_topic)
        wanted = dict.fromkeys(name for one in of_topic for name in one.ddls)
        for partition in of_topic:
            if not self._promises.ddl_everywhere and partition.at != first:
                continue
            there = set(partition.ddls)
            for name in wanted:
                if name not in there and self._must_have(partition, name[0]):
                    self._missing(Broken.DDL_MISSING, partition, f"{name[3]!r} at {name[0]} is missing here")

    def _check_admins(self, topic: str) -> None:
        """Check that every partition which an announcement counts has it; one that was added later need not."""
        of_topic = self._of_topic(topic)
        wanted = dict.fromkeys(name for one in of_topic for name in one.admins)
        for partition in of_topic:
            for name in wanted:
                commit_ts, partitions = name
                is_bound = self._promises.whole or commit_ts <= max(partition.resolved_ts, partition.newest)
                if name not in partition.admins and partition.at.partition < partitions and is_bound:
                    text = f"{partitions} partitions at {commit_ts} are not told here"
                    self._missing(Broken.PARTITIONS_UNTOLD, partition, text)

    def _check_resolved(self) -> None:
        wanted = sorted({ts for one in self._partitions.values() for ts in one.resolved})
        of_topic: dict[str, list[int]] = {}
        for at, one in self._partitions.items():
            of_topic.setdefault(at.topic, []).extend(one.resolved)
        for partition in self._partitions.values():
            there, mine = set(partition.resolved), of_topic[partition.at.topic]
            begin = min(mine, default=0)
            end = max(mine, default=0) if self._promises.topics_end else wanted[-1] if wanted else 0
            expected = [ts for ts in wanted if begin <= ts <= end and self._must_have(partition, ts)]
            missing = [ts for ts in expected if ts not in there]
            if missing:
                text = f"{len(missing)} resolved events that other partitions have are missing here, first {missing[0]}"
                self._missing(Broken.RESOLVED_MISSING, partition, text)

    def _must_have(self, partition: _Partition, commit_ts: int) -> bool:
        """Return whether a partition should have an event that others have at this commit_ts. It need not if it was
        added later, or was not read that far."""
        if self._admins and (partition.first_ts < 0 or commit_ts <= partition.first_ts):
            return False
        return self._promises.whole or commit_ts <= max(partition.resolved_ts, partition.ddl_ts, partition.newest)

    def _broken(self, rule: Broken, partition: _Partition, text: str) -> None:
        self.report.add(Violation(rule, partition.at, partition.offset, text))

    def _missing(self, rule: Broken, partition: _Partition, text: str) -> None:
        self.report.add(Violation(rule, partition.at, -1, text))
