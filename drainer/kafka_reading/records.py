"""Read the records of topics from beginning to end, from brokers or from files.

A file `TOPIC-PARTITION.jsonl` has one record in each line, `{"offset": 7, "key": BASE64 or null, "value": BASE64 or
null}`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final, TypeVar

from binlog.errors import BinlogError, ConfigError
from binlog.runtime.log import get_logger
from binlog.topic.kafka import KafkaPartition as KafkaPartition
from binlog.topic.kafka import PartitionReader
from binlog.topic.kafka import Record as Record
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import TopicMetadata

from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.event import RowEvent, key_of
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions, make_decoder
from drainer.sink.kafka.schema_registry import SchemaRegistry

_FILE: Final = re.compile(r"(.+)-([0-9]+)\.jsonl")
_METADATA_S: Final = 30.0
_ONE_ANSWER_S: Final = 5.0
_ASK_S: Final = 10.0  # between two questions for new topics and partitions
_PAUSE_S: Final = 0.2
_SAID_MAX: Final = 100
_AFTER: Final = re.compile(r" \((after|in state) .*")
_log = get_logger(__name__)

T = TypeVar("T")


class ReadError(BinlogError):
    """Records that cannot be read; the text says from where."""


class ReadStopped(ReadError):
    """The reader was stopped before it could begin."""


def partitions_in(directory: Path) -> dict[KafkaPartition, Path]:
    """Return the file of each partition. Raises ReadError if there are none."""
    found = {}
    for path in sorted(directory.glob("*.jsonl")):
        name = _FILE.fullmatch(path.name)
        if name is not None:
            found[KafkaPartition(name[1], int(name[2]))] = path
    if not found:
        raise ReadError(f"{directory}: no files TOPIC-PARTITION.jsonl")
    return found


def records_in(directory: Path) -> Iterator[Record]:
    """Yield the records of one partition after another. Raises ReadError that names file and line."""
    for topic_partition, path in partitions_in(directory).items():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    found = json.loads(line)
                    key, value = (None if found[of] is None else b64decode(found[of]) for of in ("key", "value"))
                    yield Record(topic_partition, int(found["offset"]), key, value)
                except (ValueError, KeyError, TypeError) as error:
                    raise ReadError(f"{path}: line {number} is not a record: {error}") from None


class _Said(logging.Handler):
    """Logs each message of the client library once: it repeats those about a lost broker twenty times a second."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self._known: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = _AFTER.sub("", record.getMessage().rpartition("]: ")[2])
        if text not in self._known:
            if len(self._known) >= _SAID_MAX:
                self._known.clear()
            self._known.add(text)
            _log.warning("the Kafka client", says=text)
        self.last = text


class TopicReader(PartitionReader):
    """Reads the records of topics. `partitions`: the number of partitions of each topic."""

    def __init__(
        self,
        client: Mapping[str, str],
        topics: Sequence[str],
        *,
        committed: bool = True,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`topics`: names, or regular expressions that begin with ^. `committed`: skip messages of transactions that
        are not committed. `is_stopped`: called while brokers do not answer; if it returns True, ReadStopped is raised.
        Raises ReadError, and ConfigError for settings that are invalid on any broker."""
        for topic in topics:
            try:
                if topic.startswith("^"):
                    re.compile(topic)
            except re.error as error:
                raise ConfigError(f"topic {topic!r} is no regular expression: {error}") from None
        self._said = _Said()
        self._is_stopped = is_stopped
        self._brokers = client.get("bootstrap.servers", "")
        logger = logging.Logger("kafka")
        logger.addHandler(self._said)
        try:
            super().__init__(client, "unused", committed=committed, logger=logger)
        except KafkaException as error:
            raise ConfigError(f"the Kafka client refuses its settings: {error.args[0].str()}") from None
        self.known: set[KafkaPartition] = set()
        self._topics = topics
        self._ask_again_s = time.monotonic() + _ASK_S
        try:
            self.ask()
        except BaseException:
            self.close()
            raise

    def ask(self) -> None:
        """Ask the brokers how many partitions each topic has, and set `partitions`. Raises ReadError."""
        try:
            known = self._answered(lambda wait_s: self.client.list_topics(timeout=wait_s)).topics
        except KafkaException as error:
            reason = (
                self._said.last or f"{error.args[0].str()}; is it a broker's port, and does that want TLS or a user?"
            )
            raise ReadError(f"the brokers at {self._brokers} do not answer: {reason}") from None
        self.partitions = self._matching(known)

    def _matching(self, known: Mapping[str, TopicMetadata]) -> dict[str, int]:
        found = {}
        for want in self._topics:
            names = [name for name in known if re.search(want, name)] if want.startswith("^") else [want]
            for name in names:
                if name not in known or known[name].error is not None or not known[name].partitions:
                    raise ReadError(f"topic {name} does not exist")
                found[name] = len(known[name].partitions)
        if not found:
            raise ReadError(f"no topic is named {', '.join(self._topics)}")
        return found

    def _answered(self, ask: Callable[[float], T]) -> T:
        """Return the result of `ask`, whose argument is the longest time to wait, in seconds. It is called repeatedly:
        the client library keeps a request with the broker that it has chosen, even if that broker is down and others
        are up. Raises KafkaException."""
        end_s = time.monotonic() + _METADATA_S
        while True:
            try:
                return ask(min(_ONE_ANSWER_S, max(end_s - time.monotonic(), 0.1)))
            except KafkaException:
                self.client.poll(0.0)  # the library reports reasons only when it is polled
                if self._is_stopped():
                    raise ReadStopped(f"stopped before the brokers at {self._brokers} had answered") from None
                if time.monotonic() + _PAUSE_S > end_s:
                    raise
                time.sleep(_PAUSE_S)

    def count(self) -> int:
        """Return the approximate number of records. Raises ReadError."""
        return sum(high - low for low, high in map(self.ends, self.topic_partitions()))

    def ends(self, topic_partition: KafkaPartition) -> tuple[int, int]:
        """Return a partition's first offset, and the one after its last. Raises ReadError."""
        of = TopicPartition(*topic_partition)
        try:
            low, end = self._answered(lambda wait_s: self.client.get_watermark_offsets(of, timeout=wait_s))
            return low, end
        except KafkaException as error:
            raise ReadError(f"{topic_partition}: its end offset cannot be queried: {error.args[0]}") from None

    def offset_at(self, topic_partition: KafkaPartition, time_ms: int) -> int | None:
        """Return the offset of the first record not older than `time_ms` (since 1970), or None. Raises ReadError."""

        def offset_of(wait_s: float) -> TopicPartition:
            asked = TopicPartition(*topic_partition, max(time_ms, 0))
            (found,) = self.client.offsets_for_times([asked], timeout=wait_s)
            if found.error is not None:
                raise KafkaException(found.error)
            return found

        try:
            offset = self._answered(offset_of).offset
        except KafkaException as error:
            raise ReadError(f"{topic_partition}: its offset of a time cannot be queried: {error.args[0]}") from None
        return offset if offset >= 0 else None

    def first(self, topic_partition: KafkaPartition, offset: int) -> Record | None:
        """Return the first record at or after an offset, None if there is none before the partition's end. The
        partition must not have been begun. Raises ReadError."""
        end_s = time.monotonic() + _METADATA_S
        super().begin({topic_partition: offset})
        try:
            while time.monotonic() < end_s:
                found = self.poll(_PAUSE_S, 1)
                if found or self.ended.pop(topic_partition, None) is not None:
                    return found[0] if found else None
                if self._is_stopped():
                    raise ReadStopped(f"stopped before {topic_partition} was read")
            raise ReadError(f"{topic_partition} offset {offset}: the brokers do not answer: {self._said.last}")
        finally:
            self.client.incremental_unassign([TopicPartition(*topic_partition)])

    def topic_partitions(self) -> list[KafkaPartition]:
        """Return every partition."""
        return [KafkaPartition(topic, number) for topic, count in self.partitions.items() for number in range(count)]

    def begin(self, offsets: Mapping[KafkaPartition, int | None]) -> None:
        super().begin(offsets)
        self.known |= offsets.keys()

    def at_end(self, held: Set[KafkaPartition] = frozenset()) -> bool:
        """Return whether every partition but those `held` was read to the end that it had when it was read."""
        return self.ended.keys() | held >= self.known

    def hold(self, topic_partitions: Iterable[KafkaPartition]) -> None:
        """Pause these partitions: `poll` returns no records of them until they are released."""
        self.client.pause([TopicPartition(*one) for one in topic_partitions])

    def release(self, topic_partitions: Iterable[KafkaPartition]) -> None:
        self.client.resume([TopicPartition(*one) for one in topic_partitions])

    def added(self) -> list[KafkaPartition]:
        """Return the partitions that are new since brokers were last asked, which is every ten seconds."""
        if time.monotonic() < self._ask_again_s:
            return []
        self._ask_again_s = time.monotonic() + _ASK_S
        before = set(self.topic_partitions())
        with contextlib.suppress(KafkaException, ReadError):  # `poll` reports what is wrong
            self.partitions |= self._matching(self.client.list_topics(timeout=_ONE_ANSWER_S).topics)
        return [one for one in self.topic_partitions() if one not in before]

    def end(self, topic_partition: KafkaPartition) -> int | None:
        """Return the offset after the end of a partition that was read to its end, otherwise None."""
        return self.ended.get(topic_partition)

    def refused(self, topic_partition: KafkaPartition, error: KafkaError) -> Exception:
        return ReadError(f"{topic_partition}: {error.str()}")

    def records(self) -> Iterator[Record]:
        """Yield all records, of each partition up to its end when it is reached. Raises ReadError."""
        self.begin(dict.fromkeys(self.topic_partitions()))
        done: set[KafkaPartition] = set()
        while done < self.known:
            yield from [record for record in self.poll(1.0) if record.topic_partition not in done]
            ended = self.ended.keys() - done
            if ended:
                self.client.pause([TopicPartition(*topic_partition) for topic_partition in ended])
                done |= ended


# Decoders for the partitions that are read. Avro decoders request each schema once from a registry.


class PartitionDecoders:
    """A decoder for each partition that is read, made with its first message."""

    def __init__(self, options: ProtocolOptions) -> None:
        """Raises ConfigError."""
        self._options = options
        self._decoders: dict[KafkaPartition, Decoder] = {}
        is_avro = PROTOCOLS.get(options.protocol.lower()) == "avro" and options.schema_registry
        self._schemas = SchemaRegistry(options.schema_registry).schema if is_avro else None

    def of(self, topic_partition: KafkaPartition) -> Decoder:
        """Return a partition's decoder, which raises MessageError, and the registry's errors if it is silent."""
        found = self._decoders.get(topic_partition)
        if found is None:
            made = make_decoder(self._options) if self._schemas is None else AvroDecoder(self._options, self._schemas)
            found = self._decoders[topic_partition] = made
        return found


_Table = tuple[str, str, int]


class Repeats:
    """Recognises rows of a partition that were received before: producers that deliver at least once send rows again.

    Table, commit_ts, kind of change, key and values identify the event of a row with a key: TiDB changes such a row
    once in a transaction, and a service of the SDK to other values each time. Rows without a key are counted, because a
    transaction may have equal ones. A producer that begins again sends a table's rows in their order from some
    commit_ts on. So the n-th equal row of one stretch of a commit_ts is a repeat if n equal rows of that commit_ts were
    received. What cannot be recognised: rows without a key, if a producer begins again with the very commit_ts with
    which it ended.
    """

    def __init__(self) -> None:
        self._begin_ts = 0
        self._received: dict[int, Counter[Hashable]] = {}  # by commit_ts
        self._stretch: dict[_Table, tuple[int, Counter[Hashable]]] = {}  # the commit_ts that is being received

    def is_repeat(self, event: RowEvent, contents: Contents) -> bool:
        """Return whether this row was received before; if not, it counts as received. `contents`: see contents_of."""
        received = self._received.get(event.commit_ts)
        if received is None:
            received = self._received[event.commit_ts] = Counter()
        table = (event.schema, event.table, event.partition_id)
        key = key_of(event)
        if key is not None:
            values = sorted((name, one.value) for name, one in key.items())
            row: Hashable = (table, event.change, tuple(values), contents)
            is_repeat = row in received
        else:
            row = (table, event.change, event.row_id, contents)
            is_repeat = self._in_stretch(table, event.commit_ts, row) <= received[row]
        if not is_repeat:
            received[row] += 1
        return is_repeat

    def _in_stretch(self, table: _Table, commit_ts: int, row: Hashable) -> int:
        """Count this row among its table's consecutive ones of this commit_ts. Return the number of equal ones."""
        known = self._stretch.get(table)
        if known is None or known[0] != commit_ts:
            known = self._stretch[table] = (commit_ts, Counter())
        known[1][row] += 1
        return known[1][row]

    def forget_below(self, commit_ts: int) -> None:
        """Forget rows that are recognised by their commit_ts alone."""
        if commit_ts > self._begin_ts:
            self._begin_ts = commit_ts
            self._received = {ts: rows for ts, rows in self._received.items() if ts >= commit_ts}
            self._stretch = {table: one for table, one in self._stretch.items() if one[0] >= commit_ts}


# A row before and after a change: its table and values, None where there is no row.
Contents = tuple[Hashable, Hashable]


def contents_of(event: RowEvent) -> Contents:
    table = (event.schema, event.table)
    old, new = (
        None if image is None else (table, tuple([(name, one.value) for name, one in image.items()]))
        for image in (event.old, event.new)
    )
    return old, new
