"""Read records from Kafka and apply them to a destination in parts, or print them as lines of text; and the
destination, with the stored form of a `Resume`."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from threading import Event as Stop
from typing import Any, Final, TypeVar

from binlog.cluster import tso
from binlog.runtime.log import get_logger

from drainer.kafka_consumer.core import ConsumeError, ConsumerCore, Part, Read, Resume, not_fetched
from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import KafkaPartition, PartitionDecoders, ReadStopped, Record, TopicReader
from drainer.protocol.claim_store import ClaimStoreError, open_store
from drainer.protocol.errors import MessageError
from drainer.protocol.event import AdminEvent, BootstrapEvent, DdlEvent, Event, Image, ResolvedEvent, RowEvent
from drainer.protocol.large import claimed_row
from drainer.protocol.options import ProtocolOptions
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.replay import Replayed, Replayer, ReplayFailed, replayed

_T = TypeVar("_T")


def resume_text(resume: Resume) -> str:
    reads = [[*topic_partition, read.offset, read.seen] for topic_partition, read in sorted(resume.reads.items())]
    return json.dumps({"applied_ts": resume.applied_ts, "reads": reads, "ddls": sorted(resume.ddls)})


def resume_of(text: str) -> Resume:
    """Raises ConsumeError for what `resume_text` did not write."""
    try:
        found = json.loads(text)
        reads = {KafkaPartition(topic, number): Read(offset, seen) for topic, number, offset, seen in found["reads"]}
        ddls = frozenset((ts, start, query, number) for ts, start, query, number in found["ddls"])
        return Resume(int(found["applied_ts"]), reads, ddls)
    except (ValueError, KeyError, TypeError) as error:
        raise ConsumeError(f"the stored position is damaged: {error}") from None


class Destination:
    """Writes rows and the `Resume` in one transaction, so that nothing is applied twice."""

    def __init__(self, to: Replayer) -> None:
        self._to = to

    def open(self) -> Resume:
        """Return the stored position; that of a new destination is the beginning."""
        text = _tried(self._to.open)
        return resume_of(text) if text else Resume()

    def apply(self, part: Part) -> None:
        """Apply a part. Raises ConsumeError: then nothing of the part is written, or the next `open` continues its
        DDL."""
        rows = [Replayed(part.resume.applied_ts, part.rows)] if part.rows else []
        ddl = None if part.ddl is None else replayed(part.ddl)
        _tried(lambda: self._to.apply(rows, resume_text(part.resume), ddl))

    def close(self) -> None:
        self._to.close()


def _tried(work: Callable[[], _T]) -> _T:
    """Raises ConsumeError, and DestinationDown if the destination stays unreachable."""
    try:
        return work()
    except DestinationDown:
        raise
    except ReplayFailed as error:
        topic_partition = f"rows up to commit_ts {error.commit_ts}: " if error.table else ""
        raise ConsumeError(f"{topic_partition}{error}") from error
    except DestinationError as error:
        raise ConsumeError(str(error)) from error


# Events as lines of JSON, for people and for `jq`. Pure.
#
# {"topic": "shop", "partition": 0, "offset": 7, "event": "update", "commit_ts": 4479…, "table": "shop.staff",
#  "old": {"id": 7, "level": 3}, "new": {"id": 7, "level": 200}}
# {"topic": "shop", "partition": 0, "offset": 8, "event": "ddl", "commit_ts": 4479…, "table": "shop.staff",
#      "query": "ALTER …"}
# {"topic": "shop", "partition": 0, "offset": 9, "event": "resolved", "commit_ts": 4479…}
def line_of(record: Record, event: Event) -> str:
    """Return the line of an event, without a line feed. Binary strings are base64; fields that a protocol does not have
    are left out."""
    found: dict[str, Any] = {
        "topic": record.topic_partition.topic,
        "partition": record.topic_partition.partition,
        "offset": record.offset,
    }
    found |= _shown(event)
    return json.dumps(found, ensure_ascii=False, default=_base64)


def _shown(event: Event) -> dict[str, Any]:
    if isinstance(event, RowEvent):
        found: dict[str, Any] = {"event": str(event.change)}
        if event.commit_ts:
            found["commit_ts"] = event.commit_ts
        found["table"] = f"{event.schema}.{event.table}"
        if event.handle_only:
            found["handle_only"], found["claim"] = True, event.claim
        images = {"old": event.old, "new": event.new}
        return found | {name: _values(image) for name, image in images.items() if image is not None}
    if isinstance(event, DdlEvent):
        table = f"{event.schema}.{event.table}" if event.table else event.schema
        return {"event": "ddl", "commit_ts": event.commit_ts, "table": table, "query": event.query}
    if isinstance(event, ResolvedEvent):
        return {"event": "resolved", "commit_ts": event.commit_ts}
    if isinstance(event, AdminEvent):
        return {"event": "partitions", "commit_ts": event.commit_ts, "partitions": event.partitions}
    assert isinstance(event, BootstrapEvent)
    return {"event": "bootstrap", "commit_ts": event.commit_ts, "table": f"{event.schema}.{event.table}"}


def _values(image: Image) -> dict[str, Any]:
    return {name: column.value for name, column in image.items()}


def _base64(value: Any) -> str:
    assert isinstance(value, bytes)
    return b64encode(value).decode()


_log = get_logger(__name__)
_POLL_S: Final = 0.5
_PROGRESS_S: Final = 10.0


def consume(
    address: KafkaAddress,
    topics: Sequence[str],
    destination: Destination,
    stop: Stop,
    *,
    once: bool = False,
    skips_handle_only: bool = False,
) -> None:
    """Apply what the topics have until `stop` is set, or with `once` up to their end. `skips_handle_only`: rows whose
    messages have the handle key alone are left out. Raises ReadError and ConsumeError."""
    decoding = _Decoding(address.options)
    claims = _Claims(address.options, decoding, skips_handle_only=skips_handle_only)
    try:
        reader = TopicReader(address.client, topics, is_stopped=stop.is_set)
    except ReadStopped as error:
        _log.info("stopped", why=str(error))
        return
    try:
        resume = destination.open()
        core = ConsumerCore(reader.topic_partitions(), resume, claims.whole)
        _log.info("consuming", partitions=reader.partitions, applied_ts=resume.applied_ts)
        begins = {topic_partition: read.offset for topic_partition, read in resume.reads.items()}
        reader.begin({topic_partition: begins.get(topic_partition, 0) for topic_partition in reader.topic_partitions()})
        progress = Progress(time.monotonic)
        while not stop.is_set() and not (once and reader.at_end):
            records = reader.poll(_POLL_S)
            for record in records:
                core.add(record.topic_partition, record.offset, decoding.events(record))
                _apply_due(core, destination)
            progress.add(len(records), core)
            added = [
                topic_partition for topic_partition in core.topic_partitions if topic_partition not in reader.known
            ]
            if added:
                _log.info("partitions were added", topic_partitions=[str(topic_partition) for topic_partition in added])
                reader.begin(dict.fromkeys(added, 0))
        _log.info("stopped", applied_ts=core.applied_ts, waiting=len(core.buffered), left_out=core.left_out)
    finally:
        destination.close()
        reader.close()


def print_events(
    address: KafkaAddress, topics: Sequence[str], write: Callable[[str], object], stop: Stop, *, once: bool = False
) -> None:
    """Print every event as a line, each partition from its beginning and in its order; otherwise like `consume`.
    `write` is called with all lines of a poll. Raises ReadError, ConsumeError, and what `write` raises."""
    try:
        reader = TopicReader(address.client, topics, is_stopped=stop.is_set)
    except ReadStopped:
        return
    try:
        decoding = _Decoding(address.options)
        reader.begin(dict.fromkeys(reader.topic_partitions(), 0))
        while not stop.is_set() and not (once and reader.at_end):
            lines = [line_of(record, event) for record in reader.poll(_POLL_S) for event in decoding.events(record)]
            if lines:
                write("".join(f"{line}\n" for line in lines))
    finally:
        reader.close()


class Progress:
    """Log the progress from time to time, as long as messages arrive."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told_s = clock()
        self._messages = self._told = 0

    def add(self, messages: int, core: ConsumerCore) -> None:
        """`messages`: read since the last call."""
        self._messages += messages
        if self._messages == self._told or self._clock() - self._told_s < _PROGRESS_S:
            return
        self._told_s, self._told = self._clock(), self._messages
        at = tso.format_local(core.applied_ts) if core.applied_ts else ""
        _log.info(
            "applied so far", messages=self._messages, applied_ts=core.applied_ts, at=at, waiting=len(core.buffered)
        )


class _Decoding(PartitionDecoders):
    """Names the message that is refused."""

    def events(self, record: Record) -> Sequence[Event]:
        try:
            return self.of(record.topic_partition).decode(record.key, record.value)
        except MessageError as error:
            raise ConsumeError(f"{record.topic_partition} offset {record.offset}: {error}") from None


class _Claims:
    """Fetch rows that were too large for a message."""

    def __init__(self, options: ProtocolOptions, decoding: _Decoding, *, skips_handle_only: bool) -> None:
        """Raises ConfigError for an invalid claim-check store."""
        self._options = options
        self._decoding = decoding
        self._skips = skips_handle_only
        self._store = open_store(options.claim_check_storage_uri) if options.claim_check_storage_uri else None

    def whole(self, topic_partition: KafkaPartition, offset: int, event: RowEvent) -> RowEvent | None:
        """See core.Whole. Raises ConsumeError."""
        if not event.claim and self._skips:
            columns = event.key or event.new or event.old or {}
            _log.warning(
                "a row is left out: its message has the handle key alone",
                topic_partition=str(topic_partition),
                offset=offset,
                table=f"{event.schema}.{event.table}",
                key={name: column.value for name, column in columns.items()},
                commit_ts=event.commit_ts,
            )
            return None
        if not event.claim or self._store is None:
            return not_fetched(topic_partition, offset, event)
        try:
            raw = self._options.claim_check_raw_value
            return claimed_row(event, self._decoding.of(topic_partition), self._store, raw_value=raw)
        except (MessageError, ClaimStoreError) as error:
            raise ConsumeError(f"{topic_partition} offset {offset}: {error}") from None


def _apply_due(core: ConsumerCore, destination: Destination) -> None:
    while (part := core.next()) is not None:
        destination.apply(part)
        if part.ddl is not None:
            _log.info("DDL applied", commit_ts=part.ddl.commit_ts, query=part.ddl.query)
