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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from binlog.errors import BinlogError, ConfigError
from binlog.runtime.log import get_logger
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import TopicMetadata

from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import PROTOCOLS, make_decoder
from drainer.sink.kafka.schema_registry import SchemaRegistry
from drainer.sink.kafka.settings.registry_http import access_of

_FILE: Final = re.compile(r"(.+)-([0-9]+)\.jsonl")
_AT_A_TIME: Final = 1000
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


class KafkaPartition(NamedTuple):
    """One partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Record(NamedTuple):
    topic_partition: KafkaPartition
    offset: int
    key: bytes | None
    value: bytes | None


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
    """Log each message of the client library once: while brokers are unreachable it repeats a message twenty times a
    second."""

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


def _consumer(settings: Mapping[str, object], said: _Said) -> Consumer:
    """Raises ConfigError for settings that the client library refuses."""
    try:
        logger = logging.Logger("kafka")
        logger.addHandler(said)
        return Consumer(dict(settings), logger=logger)
    except KafkaException as error:
        raise ConfigError(f"the Kafka client refuses its settings: {error.args[0].str()}") from None


class TopicReader:
    """Read records from brokers. `partitions`: the number of partitions of each topic. Belongs to no consumer group,
    and commits no offsets."""

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
        self._consumer = _consumer(
            {
                **client,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",  # deleted records are an error, and not skipped
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            },
            self._said,
        )
        self.known: set[KafkaPartition] = set()
        self._ended: dict[KafkaPartition, int] = {}  # the offset after the end that was reached
        self._topics = topics
        self._ask_again_s = time.monotonic() + _ASK_S
        try:
            self.partitions = self._found()
        except BaseException:
            self.close()
            raise

    def _found(self) -> dict[str, int]:
        try:
            known = self._answered(lambda wait_s: self._consumer.list_topics(timeout=wait_s)).topics
        except KafkaException as error:
            reason = (
                self._said.last or f"{error.args[0].str()}; is it a broker's port, and does that want TLS or a user?"
            )
            raise ReadError(f"the brokers at {self._brokers} do not answer: {reason}") from None
        return self._matching(known)

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
                self._consumer.poll(0.0)  # the library reports reasons only when it is polled
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

        def ends_of(of: TopicPartition, wait_s: float) -> tuple[int, int]:
            ends: tuple[int, int] = self._consumer.get_watermark_offsets(of, timeout=wait_s)
            return ends

        try:
            return self._answered(partial(ends_of, TopicPartition(*topic_partition)))
        except KafkaException as error:
            raise ReadError(f"{topic_partition}: its end offset cannot be queried: {error.args[0]}") from None

    def offset_at(self, topic_partition: KafkaPartition, time_ms: int) -> int | None:
        """Return the offset of the first record that is not older than `time_ms`, in milliseconds since 1970; None:
        there is none. Raises ReadError."""

        def offset_of(wait_s: float) -> TopicPartition:
            asked = TopicPartition(*topic_partition, max(time_ms, 0))
            (found,) = self._consumer.offsets_for_times([asked], timeout=wait_s)
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
        place = TopicPartition(*topic_partition, offset)
        self._consumer.incremental_assign([place])
        try:
            while time.monotonic() < end_s:
                message = self._consumer.poll(_PAUSE_S)
                if message is None:
                    if self._is_stopped():
                        raise ReadStopped(f"stopped before {topic_partition} was read")
                    continue
                error, found = message.error(), message.offset()
                if error is None:
                    return Record(topic_partition, found, message.key(), message.value())
                if error.code() == KafkaError._PARTITION_EOF:
                    return None
                if not error.retriable():
                    raise ReadError(f"{topic_partition} offset {offset}: {error.str()}")
            raise ReadError(f"{topic_partition} offset {offset}: the brokers do not answer: {self._said.last}")
        finally:
            self._consumer.incremental_unassign([place])

    def topic_partitions(self) -> list[KafkaPartition]:
        """Return every partition."""
        return [KafkaPartition(topic, number) for topic, count in self.partitions.items() for number in range(count)]

    def begin(self, offsets: Mapping[KafkaPartition, int | None]) -> None:
        """Also read these partitions, from these offsets; None: from the first record that is there. An offset whose
        record was deleted is an error of `poll`."""
        wanted = [
            TopicPartition(*topic_partition, OFFSET_BEGINNING if offset is None else offset)
            for topic_partition, offset in sorted(offsets.items())
        ]
        self._consumer.incremental_assign(wanted)
        self.known |= offsets.keys()

    def at_end(self, held: Set[KafkaPartition] = frozenset()) -> bool:
        """Return whether every partition but those `held` was read to the end that it had when it was read."""
        return self._ended.keys() | held >= self.known

    def hold(self, topic_partitions: Iterable[KafkaPartition]) -> None:
        """Pause these partitions: `poll` returns no records of them until they are released."""
        self._consumer.pause([TopicPartition(*one) for one in topic_partitions])

    def release(self, topic_partitions: Iterable[KafkaPartition]) -> None:
        self._consumer.resume([TopicPartition(*one) for one in topic_partitions])

    def added(self) -> list[KafkaPartition]:
        """Return the partitions, also of new topics, that brokers have got since they were last asked. They are asked
        every ten seconds."""
        if time.monotonic() < self._ask_again_s:
            return []
        self._ask_again_s = time.monotonic() + _ASK_S
        before = set(self.topic_partitions())
        with contextlib.suppress(KafkaException, ReadError):  # `poll` reports what is wrong
            self.partitions |= self._matching(self._consumer.list_topics(timeout=_ONE_ANSWER_S).topics)
        return [one for one in self.topic_partitions() if one not in before]

    def end(self, topic_partition: KafkaPartition) -> int | None:
        """Return the offset after the end of a partition that was read to its end, otherwise None."""
        return self._ended.get(topic_partition)

    def poll(self, timeout_s: float, records_max: int = _AT_A_TIME) -> list[Record]:
        """Return the next records, of several partitions mixed: those that have come when the first one has, or none
        after the timeout. Raises ReadError."""
        found, first = [], self._consumer.poll(timeout_s)  # `consume` alone waits until all `records_max` have come
        more = [] if first is None else self._consumer.consume(records_max - 1, timeout=0)
        for message in more if first is None else [first, *more]:
            error, number = message.error(), message.partition()
            topic_partition = KafkaPartition(message.topic() or "", -1 if number is None else number)
            if error is None:
                self._ended.pop(topic_partition, None)
                found.append(Record(topic_partition, message.offset(), message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended[topic_partition] = message.offset() or 0
            elif not error.retriable():
                raise ReadError(f"{topic_partition}: {error.str()}")
        return found

    def records(self) -> Iterator[Record]:
        """Yield all records, of each partition up to the end that it has when the reader reaches it. Raises
        ReadError."""
        self.begin(dict.fromkeys(self.topic_partitions()))
        done: set[KafkaPartition] = set()
        while done < self.known:
            yield from [record for record in self.poll(1.0) if record.topic_partition not in done]
            ended = self._ended.keys() - done
            if ended:
                self._consumer.pause([TopicPartition(*topic_partition) for topic_partition in ended])
                done |= ended

    def close(self) -> None:
        self._consumer.close()


# Decoders for the partitions that are read. Avro decoders request each schema once from a registry.


class PartitionDecoders:
    """A decoder for each partition that is read, made with its first message."""

    def __init__(self, options: ProtocolOptions) -> None:
        """Raises ConfigError."""
        self._options = options
        self._decoders: dict[KafkaPartition, Decoder] = {}
        is_avro = PROTOCOLS.get(options.protocol.lower()) == "avro" and options.schema_registry
        self._schemas = SchemaRegistry(access_of(options.schema_registry)).schema if is_avro else None

    def of(self, topic_partition: KafkaPartition) -> Decoder:
        """Return the decoder of a partition. Decoding raises MessageError, and the registry's errors if it does not
        answer."""
        found = self._decoders.get(topic_partition)
        if found is None:
            made = make_decoder(self._options) if self._schemas is None else AvroDecoder(self._options, self._schemas)
            found = self._decoders[topic_partition] = made
        return found
