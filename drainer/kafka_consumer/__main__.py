"""`kafka-consumer URI --to sqlite:FILE`: applies topics from where the destination stands, until it is stopped.

With --print, it prints their events as lines of JSON.

Exit code 0 after a signal, or at the end of the topics with --once; 1 for bad settings, 2 for a failure
or a bad command line.
"""

from __future__ import annotations

import json
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from threading import Event as Stop
from typing import Any, Final, Self, TypeVar

from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.command_line import Program, discard_stdout, flags_of
from binlog.runtime.config import load_or_exit
from pydantic import Field, model_validator

from drainer.kafka_consumer.consumer import POLL_S, Consumer, EventDecoding, resume_of, resume_text
from drainer.kafka_consumer.core import ConsumeError, Part, Resume
from drainer.kafka_reading.address import KafkaAddress, TopicsSection, kafka_address
from drainer.kafka_reading.records import ReadStopped, Record, TopicReader
from drainer.protocol.event import AdminEvent, BootstrapEvent, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.registry import consumer_replayer
from drainer.sink.replay import Replayed, Replayer, ReplayFailed, replayed

_log = log.get_logger("kafka-consumer")
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
        """Raises ConsumeError: then nothing of the part is written, or the next `open` continues its DDL."""
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
    """Return the line, without a line feed. Binary strings are base64; what a protocol lacks is left out."""
    topic, partition = record.topic_partition
    found = {"topic": topic, "partition": partition, "offset": record.offset} | _shown(event)
    return json.dumps(found, ensure_ascii=False, default=lambda value: b64encode(value).decode())


def _shown(event: Event) -> dict[str, Any]:
    if isinstance(event, RowEvent):
        found: dict[str, Any] = {"event": str(event.change)}
        if event.commit_ts:
            found["commit_ts"] = event.commit_ts
        found["table"] = f"{event.schema}.{event.table}"
        if event.handle_only:
            found["handle_only"], found["claim"] = True, event.claim
        for name, image in (("old", event.old), ("new", event.new)):
            if image is not None:
                found[name] = {column: one.value for column, one in image.items()}
        return found
    if isinstance(event, DdlEvent):
        table = f"{event.schema}.{event.table}" if event.table else event.schema
        return {"event": "ddl", "commit_ts": event.commit_ts, "table": table, "query": event.query}
    if isinstance(event, ResolvedEvent):
        return {"event": "resolved", "commit_ts": event.commit_ts}
    if isinstance(event, AdminEvent):
        return {"event": "partitions", "commit_ts": event.commit_ts, "partitions": event.partitions}
    assert isinstance(event, BootstrapEvent)
    return {"event": "bootstrap", "commit_ts": event.commit_ts, "table": f"{event.schema}.{event.table}"}


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


# In these protocols dates and times are text, and every column has its own name.
_FOR_SERVERS: Final = ("open", "canal", "simple")


class Arguments(TopicsSection):
    """The command line."""

    to: str = Field(
        "",
        description="sqlite:FILE, or mysql://USER:PASSWORD@HOST:PORT (mariadb://, tidb://), without the password that "
        "in MYSQL_PWD; the destination holds the position, too, a server under ?name=",
    )
    print: bool = Field(False, description="every event as a line of JSON, and apply nothing")
    skip_handle_only: bool = Field(
        False,
        description="leave out rows whose messages have the handle key alone, with a warning for each, in place of "
        "stopping",
    )
    once: bool = Field(False, description="stop at the end that the topics have")

    @model_validator(mode="after")
    def _check_destination(self) -> Self:
        if bool(self.to) == self.print:
            raise ValueError("exactly one of -to and -print must be given")
        return self


PROGRAM: Final = Program(
    "kafka-consumer",
    Arguments,
    flags_of(Arguments),
    words=("uri",),
    about="Applies row changes and DDLs from Kafka to a database, exactly once, or prints them. It may be killed at "
    "any time: the next run goes on where the destination stands.",
    exit_codes={
        0: "after a signal, or at the end of the topics with --once",
        1: "bad settings",
        2: "a failure or a bad command line",
    },
    examples=(
        "kafka-consumer 'kafka://127.0.0.1:9092/shop?protocol=open-protocol' --to sqlite:shop.db",
        "kafka-consumer 'kafka://127.0.0.1:9092/shop?protocol=simple' --topic '^shop_' --to sqlite:shop.db --once",
        "kafka-consumer 'kafka://127.0.0.1:9092/shop?protocol=simple' --print",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = load_or_exit(PROGRAM, argv)
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        log.setup("info", "")
        address = kafka_address(arguments.uri, "kafka-consumer", {})
        topics = arguments.topic or [address.topic]
        if arguments.print:
            print_events(address, topics, _write, stop, once=arguments.once)
            return 0
        skips = arguments.skip_handle_only
        consumer = Consumer(address, topics=topics, stop=stop, once=arguments.once, skips_handle_only=skips)
        consume(consumer, _destination(arguments.to, address.options))
    except BinlogError as error:
        _log.error("kafka-consumer failed", kind=type(error).__name__, error=str(error))
        return 1 if isinstance(error, ConfigError) else 2
    except BrokenPipeError:  # `kafka-consumer … --print | head`
        discard_stdout()
    return 0


def _write(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


def _destination(text: str, options: ProtocolOptions) -> Destination:
    to = consumer_replayer(text, zone=options.time_zone)
    if not text.startswith("sqlite:") and PROTOCOLS[options.protocol] not in _FOR_SERVERS:
        raise ConfigError(
            f"--to: messages of {options.protocol} do not hold values as a server takes them; those of open-protocol, "
            "canal-json and simple do"
        )
    return Destination(to)


if __name__ == "__main__":
    sys.exit(main())
