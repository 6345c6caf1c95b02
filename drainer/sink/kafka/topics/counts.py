"""The topics of a changefeed: how many of each topic's partitions are used, which is recorded and kept, and the largest
batches that the topics accept.

The partition of a row depends on these numbers. So they change only while no range is open, together with the position,
and readers are told of the change (rule 31). Used by two threads: one plans, and one writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from binlog.runtime.log import get_logger

from drainer.dispatch.dispatcher import SLOTTING_VERSION, PartitionSlotting
from drainer.protocol.encoder import RequiredSchema
from drainer.sink.errors import DestinationError, DestinationRefused, Fenced
from drainer.sink.kafka.publication import Publication, TopicTable
from drainer.sink.kafka.schema_registry import SchemaRegistry
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.topics.admin import PARTITIONS_DEFAULT, Topics, check_existing, check_new
from drainer.sink.kafka.transactions.control_records import COUNTS_NOTE
from drainer.sink.kafka.transactions.driver import Driver, Transaction

_log = get_logger(__name__)

# The max.message.bytes assumed for a topic that was deleted; `poll` reports the deletion.
LIMIT_DEFAULT: Final = 1 << 20
_ASK_AGAIN_S: Final = 0.2
_BEHIND_S: Final = 3.0  # that a broker may lag behind another one
_GENERATION: Final = "partition_changes"
_IDS: Final = "topic_ids"
_SENT: Final = "sent_ts"  # without transactions: the commit_ts up to which rows may have been sent
_RULES: Final = "rules"  # and a hash of the rules by which they were dispatched


@dataclass(frozen=True, slots=True)
class PartitionCountChange:
    """A topic that has another number of partitions than is recorded (`found` 0: it was deleted), or that was deleted
    and created again, and then has another id, `id_`."""

    topic: str
    recorded: int
    found: int
    id_: str = ""


class TopicCounts:
    """Keep the numbers of partitions, ids and schema ids of the topics in use. Empty until `begin`."""

    def __init__(self, config: KafkaSection, publication: Publication, stop: threading.Event) -> None:
        retry_for_s = config.retry_for.total_seconds()
        self.admin = Topics(config.client_settings(), config.brokers, retry_for_s, stop)
        self.stops_at_changes = config.partition_change == "stop"
        self._config = config
        self._stop = stop
        self._lock = threading.RLock()
        self.publication = publication  # for the topics that are known now
        self._generation = 0
        self._ids: dict[str, str] = {}
        self.sent_ts = 0  # without transactions: rows up to here may have been sent
        self._polled_s = float("-inf")
        self._slotting: PartitionSlotting | None = None
        url = publication.options.schema_registry
        self._registry = SchemaRegistry(url, config.registry, wait_s=retry_for_s, stop=stop) if url else None
        self._prepared: set[tuple[str, tuple[object, ...]]] = set()  # topic and key of a table

    def begin(self, notes: Mapping[str, Any], commit_ts: int) -> None:
        """Start with the notes that are recorded with the position `commit_ts`, and add the default topic. The schema
        registry must answer. Raises DestinationRefused or DestinationDown."""
        self.sent_ts = int(notes.get(_SENT, 0))
        if self.may_repeat(commit_ts) and notes.get(_RULES) != self._rules():
            raise DestinationRefused(
                f"rows after the position {commit_ts} and up to commit_ts {self.sent_ts} may have been sent without "
                f"transactions, and are sent again; with changed dispatchers, column selectors, topic or time-zone "
                f"they would go to other partitions. Start with the former settings until the position has passed "
                f"{self.sent_ts}"
            )
        if self._registry is not None:
            self._registry.check()
        with self._lock:
            self._generation = int(notes.get(_GENERATION, 0))
            recorded = {str(topic): int(count) for topic, count in notes.get(COUNTS_NOTE, {}).items()}
            there = self.admin.counts()
            existing = [topic for topic in recorded if there.get(topic)]
            check_existing(self.admin, existing, self._config)
            self._set(recorded, {**dict.fromkeys(recorded, LIMIT_DEFAULT), **self._sizes(existing)})
            # A topic that was recorded without an id, because its broker had none, gets its present one.
            self._ids = {
                **self.admin.ids(recorded),
                **{str(topic): str(id_) for topic, id_ in notes.get(_IDS, {}).items()},
            }
            self.know([self.publication.router.default_topic])

    def notes(self) -> dict[str, Any]:
        """Return the notes to record with the position."""
        notes = {COUNTS_NOTE: dict(self.publication.counts), _GENERATION: self._generation, _IDS: dict(self._ids)}
        return notes if not self.sent_ts else {**notes, _SENT: self.sent_ts, _RULES: self._rules()}

    def announcement(self, until_ts: int, names: Iterable[str] = ()) -> dict[str, Any] | None:
        """Return the notes to record before rows up to `until_ts` are sent to these topics; None if none are needed.
        Without transactions rows may exist that the position does not cover. Raises the same errors as `know`."""
        if self._config.exactly_once or until_ts <= self.sent_ts:
            return None
        self.know(names)
        return {**self.notes(), _SENT: until_ts, _RULES: self._rules()}

    def may_repeat(self, commit_ts: int) -> bool:
        """Return whether rows after the position may have been sent already, so that they are repeated. Partitions must
        not change until they are."""
        return self.sent_ts > commit_ts

    def know(self, names: Iterable[str]) -> Publication:
        """Add these topics; create missing ones. Return the publication. Raises DestinationRefused, DestinationDown."""
        unknown = [name for name in names if name not in self.publication.counts]
        if not unknown:
            return self.publication
        with self._lock:
            there = self.admin.counts()
            counts = dict(self.publication.counts)
            found_of = {name: there.get(name, 0) or self._create(name) for name in unknown}
            check_existing(self.admin, unknown, self._config)
            for name, found in found_of.items():
                counts[name] = self._used(name, found)
                if counts[name] < found:
                    _log.warning(
                        "a topic has more partitions than partition-num; only the first ones are used",
                        topic=name,
                        used=counts[name],
                        partitions=found,
                    )
            self._ids.update(self.admin.ids(unknown))
            self._set(counts, {**self.publication.topic_bytes, **self._sizes(unknown)})
            return self.publication

    def _sizes(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the largest batch that each topic accepts, in bytes."""
        return {topic: int(size) for topic, size in self.admin.settings(topics, "max.message.bytes").items()}

    def prepare(self, tables: Iterable[TopicTable]) -> Publication:
        """Return the publication with the ids of the schemas that rows of these tables need; register missing ones.
        Raises SchemaRefused, DestinationDown."""
        with self._lock:
            new = [(topic, table) for topic, table in tables if (topic, table.key) not in self._prepared]
            required = self.publication.required_schemas(new)
            if required:
                self.register(required)
            self._prepared |= {(topic, table.key) for topic, table in new}
            return self.publication

    def register(self, required: Iterable[RequiredSchema]) -> None:
        """Register these schemas. Raises SchemaRefused, DestinationDown."""
        with self._lock:
            assert self._registry is not None, "the configuration is refused without a registry"
            self.publication = replace(self.publication, ids=self._registry.register_all(required))

    def _set(self, counts: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.publication = replace(self.publication, counts=counts, topic_bytes=sizes)
        self._slotting = None

    def _create(self, name: str) -> int:
        """Create a topic and return its number of partitions."""
        if not self._config.auto_create_topic:
            raise DestinationRefused(f"topic {name} does not exist: create it, or set auto-create-topic = true")
        check_new(self.admin, name, self._config)
        partitions = self._config.partition_num or PARTITIONS_DEFAULT
        return self.admin.create(name, partitions, self._config.replication_factor)

    def _used(self, name: str, found: int) -> int:
        """Return how many of a topic's `found` partitions are used: of the default topic only partition-num."""
        wanted = self._config.partition_num
        if not wanted or name != self.publication.router.default_topic:
            return found
        if wanted > found:
            raise DestinationRefused(
                f"topic {name} has {found} partitions, and partition-num is {wanted}: add partitions to the topic, or "
                f"set partition-num to {found} or less"
            )
        return wanted

    def slotting(self, slots: int) -> PartitionSlotting:
        """Return the slotting, with copies of all that may change: the same object until something changes."""
        with self._lock:
            if self._slotting is None or self._slotting.count != slots:
                # A hash of the rules by which rows are cut (rule 16). Added topics do not change it, because they
                # change nothing for the others. It is recorded with each range, as is the number of slots.
                version = crc32(repr((SLOTTING_VERSION, self._generation, self._rules())).encode())
                self._slotting = PartitionSlotting(self.publication.dispatcher, slots, version)
            return self._slotting

    def _rules(self) -> int:
        """Return a hash of the settings that decide, together with the numbers of partitions, where a row is sent and
        which of its columns."""
        router, options = self.publication.router, self.publication.options
        parts = (
            options.output_raw_change_event,
            options.time_zone,
            router.default_topic,
            router.rules,
            router.selectors,
        )
        return crc32(repr(parts).encode())

    def poll(self, *, now: bool = False) -> list[PartitionCountChange]:
        """Return the topics that have another number of partitions than is recorded, or that were deleted and created
        again. Brokers are queried at most every `partition-check-interval`, unless `now`. Raises DestinationRefused for
        a deleted topic, and for any change if the configuration says to stop."""
        if not now and time.monotonic() - self._polled_s < self._config.partition_check_interval.total_seconds():
            return []
        self._polled_s = time.monotonic()
        there = self._there()
        ids = self.admin.ids(self.publication.counts)
        changes = []
        for topic, recorded in self.publication.counts.items():
            found = there.get(topic, 0)
            used = self._used(topic, found) if found else 0
            is_another = topic in self._ids and ids.get(topic, self._ids[topic]) != self._ids[topic]
            if used != recorded or is_another:
                changes.append(PartitionCountChange(topic, recorded, used, ids[topic] if is_another else ""))
        gone = [change.topic for change in changes if not change.found]
        if gone:
            raise DestinationRefused(
                f"topic {gone[0]} was deleted, and its messages are lost: create it with "
                f'{self.publication.counts[gone[0]]} partitions and set partition-change = "take-up"; events from '
                f"here on are then sent to it"
            )
        if changes and self.stops_at_changes:
            raise DestinationRefused(_refusal(changes[0]))
        return changes

    def _there(self) -> dict[str, int]:
        """Return the number of partitions of every topic. A broker that lags does not show topics and partitions that
        another one created a moment ago, so missing ones are queried again, for _BEHIND_S seconds, before they count
        as deleted."""
        end_s = time.monotonic() + _BEHIND_S
        while True:
            there = self.admin.counts()
            missing = any(there.get(topic, 0) < count for topic, count in self.publication.counts.items())
            if not missing or time.monotonic() > end_s or self._stop.wait(_ASK_AGAIN_S):
                return there

    def take_up(self, changes: Sequence[PartitionCountChange]) -> dict[str, Any]:
        """Return the notes that record these changes. Call `taken_up` when they are recorded."""
        counts = {**self.publication.counts, **{change.topic: change.found for change in changes}}
        ids = {**self._ids, **{change.topic: change.id_ for change in changes if change.id_}}
        return {**self.notes(), COUNTS_NOTE: counts, _GENERATION: self._generation + 1, _IDS: ids}

    def taken_up(self, notes: Mapping[str, Any]) -> None:
        with self._lock:
            self._generation = int(notes[_GENERATION])
            # The thread that plans may have added topics since the notes were made.
            self._ids = {**self._ids, **notes[_IDS]}
            self._set({**self.publication.counts, **notes[COUNTS_NOTE]}, self.publication.topic_bytes)


def _refusal(change: PartitionCountChange) -> str:
    if change.id_:
        return (
            f"topic {change.topic} was deleted and created again: messages that were not read are lost, and new events "
            f'do not continue them. Set partition-change = "take-up" to continue nevertheless'
        )
    return (
        f"topic {change.topic} has {change.found} partitions, and {change.recorded} when rows were last written: rows "
        f"of one key would go to another partition, and overtake those that were not read yet. Restore the former "
        f'number, or set partition-change = "take-up" to continue with {change.found}: the change is then announced in '
        f"every partition, with its commit_ts"
    )


# Handle topics whose number of partitions changes, or that are deleted and created again, while rows are sent to them
# (rule 31). Record what is needed so that a repeated row goes to the same partition as before.


def announce(driver: Driver, topics: TopicCounts, until_ts: int, names: Iterable[str]) -> None:
    """Without transactions: record up to which commit_ts rows are about to be sent to these topics: a drainer that
    starts after a crash repeats them in the same partitions. With transactions: leave `names` unread."""
    notes = topics.announcement(until_ts, names)
    if notes is None:
        return

    def body(transaction: Transaction) -> None:
        transaction.store.document.notes = notes

    driver.transact(f"what is sent up to {until_ts}", body, lambda _: False)
    topics.sent_ts = until_ts


def take_up(
    driver: Driver, topics: TopicCounts, commit_ts: int, catch_up: Callable[[Transaction], None], *, now: bool = False
) -> None:
    """Send a resolved event and an Admin event to all partitions of topics that have changed, and use these partitions
    from then on. `commit_ts`: the position; `catch_up` moves the written position up to it. `now`: query the brokers
    although the next check is not due. Call only while no range is open. While rows that were sent before may be
    repeated, or rows of a first load, which have one commit_ts, are missing, do nothing. Raises DestinationRefused if
    the configuration does not allow the change."""
    if topics.may_repeat(commit_ts) or driver.document.is_loading:
        return
    changes = topics.poll(now=now)
    if not changes:
        return
    notes, encoder = topics.take_up(changes), topics.publication.encoder

    def body(transaction: Transaction) -> None:
        catch_up(transaction)
        transaction.store.document.notes = notes
        for change in changes:
            told = encoder.partitions_changed(change.found, commit_ts)
            for partition in range(change.found):
                # Before the position, also without transactions: after a crash in between it is sent twice, not never.
                transaction.send(change.topic, partition, [*encoder.resolved(commit_ts), *told])

    driver.transact("other partitions", body, lambda _: notes.items() <= driver.document.notes.items())
    topics.taken_up(notes)
    for change in changes:
        what = "was deleted and created again" if change.id_ else "has another number of partitions"
        _log.warning(
            f"a topic {what}; rows after commit_ts go to all its present partitions, which may not be the same as "
            f"before",
            topic=change.topic,
            before=change.recorded,
            partitions=change.found,
            commit_ts=commit_ts,
        )


def take_up_after_range(
    driver: Driver, topics: TopicCounts, commit_ts: int, catch_up: Callable[[Transaction], None]
) -> None:
    """Do `take_up` after a range, unless changed partitions stop the drainer: then the next range finds them. The range
    is committed already, so an error here must not make it look failed; the next try follows. Raises Fenced."""
    if topics.stops_at_changes:
        return
    try:
        take_up(driver, topics, commit_ts, catch_up)
    except Fenced:
        raise
    except DestinationError as error:
        what = "changed partitions cannot be queried; rows go to the known ones, and the query is repeated later"
        _log.warning(what, why=str(error))
