"""Apply the events of topics to a destination that stores the position, or print them as lines of JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from threading import Event as Stop
from typing import Any, TypeVar

from binlog.runtime.log import get_logger

from drainer.kafka_consumer.consumer import POLL_S, Consumer, EventDecoding, resume_of, resume_text
from drainer.kafka_consumer.core import ConsumeError, Part, Resume
from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import ReadStopped, Record, TopicReader
from drainer.protocol.event import AdminEvent, BootstrapEvent, DdlEvent, Event, Image, ResolvedEvent, RowEvent
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.replay import Replayed, Replayer, ReplayFailed, replayed

_T = TypeVar("_T")


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


def consume(consumer: Consumer, destination: Destination) -> None:
    """Apply everything that the consumer has, from the destination's position. Raises ReadError and ConsumeError."""
    with closing(destination):
        consumer.resume = destination.open()
        for part in consumer.parts():
            destination.apply(part)
            if part.ddl is not None:
                _log.info("DDL applied", commit_ts=part.ddl.commit_ts, query=part.ddl.query)


def print_events(
    address: KafkaAddress, topics: Sequence[str], write: Callable[[str], object], stop: Stop, *, once: bool = False
) -> None:
    """Print every event as a line, each partition from its beginning and in its order, until `stop` is set, or with
    `once` up to the end that the topics have. `write` is called with all lines of a read. Raises ReadError,
    ConsumeError, and what `write` raises."""
    with suppress(ReadStopped), closing(TopicReader(address.client, topics, is_stopped=stop.is_set)) as reader:
        decoding = EventDecoding(address.options)
        reader.begin(dict.fromkeys(reader.topic_partitions()))
        while not stop.is_set() and not (once and reader.at_end()):
            lines = [line_of(record, event) for record in reader.poll(POLL_S) for event in decoding.events(record)]
            if lines:
                write("".join(f"{line}\n" for line in lines))
