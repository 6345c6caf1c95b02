"""The topics of a changefeed: how many partitions each has, which is frozen and recorded, and what it takes.

Who belongs where depends on these numbers, so they change only where no range is open, with the position, and readers
are told of it (rule 31). Used by two threads: one that plans, and one that writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from binlog.runtime.log import get_logger

from drainer.dispatch.dispatcher import Dispatcher
from drainer.dispatch.slotting import SLOTTING_VERSION, PartitionSlotting
from drainer.protocol.schema_ids import RequiredSchema
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.control_records import COUNTS_NOTE
from drainer.sink.kafka.publication import Publication, TopicTable
from drainer.sink.kafka.replicas import check_existing, check_new
from drainer.sink.kafka.schema_registry import SchemaRegistry
from drainer.sink.kafka.topics import PARTITIONS_DEFAULT, Topics

_log = get_logger(__name__)

# Of a topic that is gone, which is told when it is looked for.
LIMIT_DEFAULT: Final = 1 << 20
_BEHIND_S: Final = 3.0
_ASK_AGAIN_S: Final = 0.2
_GENERATION: Final = "partition_changes"
_IDS: Final = "topic_ids"
_SENT: Final = "sent_ts"  # without transactions: up to which commit_ts rows may be there
_RULES: Final = "rules"  # and the rules by which they were dispatched


@dataclass(frozen=True, slots=True)
class Change:
    """A topic that has another number of partitions than is recorded, 0: it is gone; or that was deleted and made
    again, and then has another `id_`."""

    topic: str
    recorded: int
    found: int
    id_: str = ""


class TopicCounts:
    """Empty until `begin`."""

    def __init__(self, config: KafkaConfig, publication: Publication, stop: threading.Event) -> None:
        self.admin = Topics(config.client, config.address, config.retry_for_s, stop)
        self._config = config
        self._stop = stop
        self._lock = threading.RLock()
        self._publication = publication
        self._generation = 0
        self._ids: dict[str, str] = {}
        self._sent_ts = 0
        self._looked_s = float("-inf")
        self._slotting: PartitionSlotting | None = None
        self._registry = (
            SchemaRegistry(config.registry, wait_s=config.retry_for_s, stop=stop)
            if config.registry is not None
            else None
        )
        self._prepared: set[tuple[str, tuple[int, int, int, str]]] = set()  # topic and key of a table

    @property
    def publication(self) -> Publication:
        """Of the topics that are known now."""
        return self._publication

    @property
    def stops_at_changes(self) -> bool:
        return self._config.partition_change == "stop"

    def begin(self, notes: Mapping[str, Any], commit_ts: int) -> None:
        """With what is recorded, with the position `commit_ts`, and the default topic; the registry must answer. Raises
        DestinationRefused or DestinationDown."""
        self._sent_ts = int(notes.get(_SENT, 0))
        if self.may_repeat(commit_ts) and notes.get(_RULES) != self._rules():
            raise DestinationRefused(
                f"rows up to commit_ts {self._sent_ts} may have been sent without transactions, and come again behind "
                f"the position {commit_ts}; by other dispatchers or column selectors than theirs, or another topic or "
                f"time-zone, they would come to other partitions. Start with the former settings until the position "
                f"has passed {self._sent_ts}"
            )
        if self._registry is not None:
            self._registry.check()
        with self._lock:
            self._generation = int(notes.get(_GENERATION, 0))
            recorded = {str(topic): int(count) for topic, count in notes.get(COUNTS_NOTE, {}).items()}
            there = self.admin.counts()
            sizes = {topic: self.admin.max_message_bytes(topic) for topic in recorded if there.get(topic)}
            self._set(recorded, {topic: sizes.get(topic, LIMIT_DEFAULT) for topic in recorded})
            # What was recorded before topics had ids counts as what is there.
            self._ids = {
                **self.admin.ids(recorded),
                **{str(topic): str(id_) for topic, id_ in notes.get(_IDS, {}).items()},
            }
            self.know([self._publication.router.default_topic])

    def notes(self) -> dict[str, Any]:
        """What is recorded with the position."""
        notes = {COUNTS_NOTE: dict(self._publication.counts), _GENERATION: self._generation, _IDS: dict(self._ids)}
        return notes if not self._sent_ts else {**notes, _SENT: self._sent_ts, _RULES: self._rules()}

    def announcement(self, until_ts: int, names: Iterable[str] = ()) -> dict[str, Any] | None:
        """Before rows up to there are sent to these topics: the notes that say so, None where none are needed. Without
        transactions rows are there when the position is not. `announced` when they are recorded. Raises as `know`."""
        if self._config.exactly_once or until_ts <= self._sent_ts:
            return None
        self.know(names)
        return {**self.notes(), _SENT: until_ts, _RULES: self._rules()}

    def announced(self, until_ts: int) -> None:
        self._sent_ts = until_ts

    def may_repeat(self, commit_ts: int) -> bool:
        """Whether rows behind the position may be there already, and come again: partitions stay as they are then."""
        return self._sent_ts > commit_ts

    def know(self, names: Iterable[str]) -> Publication:
        """These topics, too: they are made where they are not there. Raises DestinationRefused, DestinationDown."""
        unknown = [name for name in names if name not in self._publication.counts]
        if not unknown:
            return self._publication
        with self._lock:
            there = self.admin.counts()
            counts, sizes = dict(self._publication.counts), dict(self._publication.topic_bytes)
            for name in unknown:
                found = there.get(name, 0) or self._create(name)
                check_existing(self.admin, name, self._config)
                counts[name] = self._used(name, found)
                if counts[name] < found:
                    _log.warning(
                        "a topic has more partitions than partition-num says; rows go to the first of them alone",
                        topic=name,
                        used=counts[name],
                        partitions=found,
                    )
                sizes[name] = self.admin.max_message_bytes(name)
            self._ids.update(self.admin.ids(unknown))
            self._set(counts, sizes)
            return self._publication

    def prepare(self, tables: Iterable[TopicTable]) -> Publication:
        """With the ids of the schemas that rows of these tables need. Raises SchemaRefused, DestinationDown."""
        with self._lock:
            new = [(topic, table) for topic, table in tables if (topic, table.key) not in self._prepared]
            required = self._publication.required_schemas(new)
            if required:
                self.register(required)
            self._prepared |= {(topic, table.key) for topic, table in new}
            return self._publication

    def register(self, required: Iterable[RequiredSchema]) -> Publication:
        """With the ids of these schemas. Raises SchemaRefused, DestinationDown."""
        with self._lock:
            assert self._registry is not None, "the configuration is refused without a registry"
            self._publication = self._publication.with_ids(self._registry.register_all(required))
            return self._publication

    def _set(self, counts: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self._publication = self._publication.with_topics(counts, sizes)
        self._slotting = None

    def _create(self, name: str) -> int:
        """How many partitions it has then."""
        if not self._config.auto_create_topic:
            raise DestinationRefused(f"topic {name} is not there: create it, or set auto-create-topic = true")
        check_new(self.admin, name, self._config)
        partitions = self._config.partition_num or PARTITIONS_DEFAULT
        return self.admin.create(name, partitions, self._config.replication_factor)

    def _used(self, name: str, found: int) -> int:
        """Of the default topic not more than partition-num says."""
        wanted = self._config.partition_num
        if not wanted or name != self._publication.router.default_topic:
            return found
        if wanted > found:
            raise DestinationRefused(
                f"topic {name} has {found} partitions, and partition-num is {wanted}: add partitions to the topic, or "
                f"set partition-num to {found} or less"
            )
        return wanted

    def slotting(self, slots: int) -> PartitionSlotting:
        """With copies of what may change; the same value while nothing does."""
        with self._lock:
            if self._slotting is None or self._slotting.count != slots:
                publication = self._publication
                options = publication.options
                dispatcher = Dispatcher(
                    publication.router, publication.counts, options.zone, raw=options.output_raw_change_event
                )
                self._slotting = PartitionSlotting(dispatcher, slots, self._cut_version())
            return self._slotting

    def _cut_version(self) -> int:
        """Of the rules by which rows are cut (rule 16). Topics that are added change nothing for the others, and what a
        range was cut by is recorded with it, how many slots it has, too."""
        return crc32(repr((SLOTTING_VERSION, self._generation, self._rules())).encode())

    def _rules(self) -> int:
        """Of all that says, with the numbers of partitions, where a row goes, and which of its columns. As it was
        before there were column selectors, where there are none: a range may be open."""
        router, options = self._publication.router, self._publication.options
        parts = (options.output_raw_change_event, options.time_zone, router.default_topic, router.rules)
        return crc32(repr((*parts, router.selectors) if router.selectors else parts).encode())

    def look(self, *, now: bool = False) -> list[Change]:
        """Topics with another number of partitions than is recorded, or that are others; asked for now and then."""
        if not now and time.monotonic() - self._looked_s < self._config.look_s:
            return []
        self._looked_s = time.monotonic()
        there = self._there()
        ids = self.admin.ids(self._publication.counts)
        changes = []
        for topic, recorded in self._publication.counts.items():
            found = there.get(topic, 0)
            used = self._used(topic, found) if found else 0
            is_another = topic in self._ids and ids.get(topic, self._ids[topic]) != self._ids[topic]
            if used != recorded or is_another:
                changes.append(Change(topic, recorded, used, ids[topic] if is_another else ""))
        gone = [change.topic for change in changes if not change.found]
        if gone:
            raise DestinationRefused(
                f"topic {gone[0]} is gone, with the messages that were in it: create it with "
                f'{self._publication.counts[gone[0]]} partitions and set partition-change = "take-up", and what comes '
                f"from here on will be in it"
            )
        if changes and self.stops_at_changes:
            raise DestinationRefused(_refusal(changes[0]))
        return changes

    def _there(self) -> dict[str, int]:
        """A broker that is behind does not show topics and partitions that another one has made a moment ago: what is
        missing is asked for again before it counts as gone."""
        end_s = time.monotonic() + _BEHIND_S
        while True:
            there = self.admin.counts()
            missing = any(there.get(topic, 0) < count for topic, count in self._publication.counts.items())
            if not missing or time.monotonic() > end_s or self._stop.wait(_ASK_AGAIN_S):
                return there

    def take_up(self, changes: Sequence[Change]) -> dict[str, Any]:
        """The notes that say so; `taken_up` when they are recorded."""
        counts = {**self._publication.counts, **{change.topic: change.found for change in changes}}
        ids = {**self._ids, **{change.topic: change.id_ for change in changes if change.id_}}
        return {**self.notes(), COUNTS_NOTE: counts, _GENERATION: self._generation + 1, _IDS: ids}

    def taken_up(self, notes: Mapping[str, Any]) -> None:
        with self._lock:
            self._generation = int(notes[_GENERATION])
            # Whoever plans may have met topics since the notes were made.
            self._ids = {**self._ids, **notes[_IDS]}
            self._set({**self._publication.counts, **notes[COUNTS_NOTE]}, self._publication.topic_bytes)


def _refusal(change: Change) -> str:
    if change.id_:
        return (
            f"topic {change.topic} was deleted and made again: what nobody had read is gone, and what is written from "
            f'here on follows nothing. Set partition-change = "take-up" to go on all the same'
        )
    return (
        f"topic {change.topic} has {change.found} partitions, and {change.recorded} when rows were last written: rows "
        f"of one key would go to another partition, past what waits in theirs. Set the former number, or set "
        f'partition-change = "take-up" to go on with {change.found}: every partition is then told at which commit_ts'
    )
