"""Read topics in one process, and give what they have in commit_ts order: `for event in Consumer(uri, position)`.

Needs Kafka's client, and neither Spark nor a consumer group. The caller stores the position together with what it makes
of the events, so nothing is missed and nothing counts twice, whenever it is killed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from threading import Event as Stop
from typing import Final

from binlog.cluster import tso
from binlog.errors import BinlogError, ConfigError
from binlog.runtime.log import get_logger

from drainer.kafka_consumer.core import ConsumeError, ConsumerCore, Part, Read, Resume, not_fetched
from drainer.kafka_reading.address import KafkaAddress, kafka_address
from drainer.kafka_reading.records import KafkaPartition, PartitionDecoders, ReadStopped, Record, TopicReader
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Event, ResolvedEvent, RowEvent
from drainer.protocol.large import ClaimStoreError, claimed_row, open_store
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.protocol.simple.decoder import SchemaUnknown

POLL_S: Final = 0.5
_PROGRESS_S: Final = 10.0
_log = get_logger(__name__)


def resume_text(resume: Resume) -> str:
    reads = [
        [*topic_partition, read.offset, read.seen, *([] if read.applied_ts is None else [read.applied_ts])]
        for topic_partition, read in sorted(resume.reads.items())
    ]
    return json.dumps({"applied_ts": resume.applied_ts, "reads": reads, "ddls": sorted(resume.ddls)})


def resume_of(text: str) -> Resume:
    """Raises ConsumeError for what `resume_text` did not write."""
    try:
        found = json.loads(text)
        reads = {KafkaPartition(str(topic), int(n)): Read(*map(int, read)) for topic, n, *read in found["reads"]}
        ddls = frozenset((int(ts), int(start), str(query), int(n)) for ts, start, query, n in found["ddls"])
        return Resume(int(found["applied_ts"]), reads, ddls)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConsumeError(f"the stored position is damaged: {error}") from None


class Consumer:
    """The events of topics, in commit_ts order over all partitions, each once: RowEvent, DdlEvent, and after those that
    belong together ResolvedEvent.

    With a ResolvedEvent `position` is after everything up to its commit_ts, except for topics that appeared later and
    are still behind. Store it then, if possible in one transaction with what was made of the events; a Consumer that
    gets it goes on there. Ends when `stop` is set, or with `once` at the end that the topics have. Iterating raises
    ReadError, ConsumeError, DestinationError of a schema registry; an iteration after that, or after `break`, goes on
    at `position`."""

    def __init__(
        self,
        uri: str | KafkaAddress,
        position: str = "",
        *,
        topics: Sequence[str] = (),
        client: Mapping[str, str] | None = None,
        stop: Stop | None = None,
        once: bool = False,
        from_end: bool = False,
        skips_handle_only: bool = False,
        rows_waiting_max: int = 50_000,
    ) -> None:
        """`uri`: TiCDC's address of a topic, `kafka://host:9092/topic?protocol=open-protocol`; `topics`: names, or
        regular expressions that begin with ^, in place of that topic; topics and partitions that appear later are read,
        too. `client`: further settings of the client library. `from_end`: without a position, only what arrives from
        now on. `skips_handle_only`: rows whose messages have the handle key alone are left out. `rows_waiting_max`: if
        more rows wait for partitions that are behind, only those partitions are read; one transaction may be more.

        Raises ConfigError, also for messages without resolved events, and ConsumeError for a damaged position."""
        self._address = uri if isinstance(uri, KafkaAddress) else kafka_address(uri, "consumer", client or {})
        options = self._address.options
        if not make_encoder(options).resolved(1):
            raise ConfigError(
                f"messages of {options.protocol} as it is set have no resolved events, without which nothing "
                "is known to be complete: add enable-tidb-extension=true, or avro-enable-watermark=true"
            )
        self.resume = resume_of(position) if position else Resume()
        self._topics = topics or [self._address.topic]
        self._stop = stop or Stop()
        self._once = once
        self._from_end = from_end
        self._rows_waiting_max = rows_waiting_max
        self._skips_handle_only = skips_handle_only
        self._store = open_store(options.claim_check_storage_uri) if options.claim_check_storage_uri else None

    @property
    def position(self) -> str:
        """Return the position after the newest ResolvedEvent, for the caller to store; "" before the first one."""
        return resume_text(self.resume) if self.resume != Resume() else ""

    def __iter__(self) -> Iterator[Event]:
        for part in self.parts():
            yield from self._events(part)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Topics are read in a thread, so that the event loop does not wait for them."""
        canceled = Stop()
        polls = self._polls(lambda: self._stop.is_set() or canceled.is_set())
        reading: asyncio.Future[list[Part] | None] | None = None
        try:
            while True:
                reading = asyncio.ensure_future(asyncio.to_thread(next, polls, None))
                due = await asyncio.shield(reading)
                if due is None:
                    return
                for part in due:
                    for event in self._events(part):
                        yield event
        finally:
            canceled.set()
            if reading is not None:
                await asyncio.gather(reading, return_exceptions=True)  # a canceled caller may leave it running
            await asyncio.to_thread(polls.close)

    def parts(self) -> Iterator[Part]:
        """Yield what may be applied in one transaction. `resume` counts a part when the next one is asked for."""
        for due in self._polls(self._stop.is_set):
            for part in due:
                yield part
                self.resume = part.resume

    def _events(self, part: Part) -> Iterator[Event]:
        yield from part.rows
        if part.ddl is not None:
            yield part.ddl
        self.resume = part.resume
        yield ResolvedEvent(part.resume.applied_ts)

    def _polls(self, is_stopped: Callable[[], bool]) -> Generator[list[Part], None, None]:
        """Yield, after each read, the parts that it has made due."""
        try:
            with closing(self._open_reader(is_stopped)) as reader:
                yield from self._read(reader, is_stopped)
        except ReadStopped as error:
            _log.info("consumer stopped", why=str(error))

    def _open_reader(self, is_stopped: Callable[[], bool]) -> TopicReader:
        return TopicReader(self._address.client, self._topics, is_stopped=is_stopped)

    def _read(self, reader: TopicReader, is_stopped: Callable[[], bool]) -> Iterator[list[Part]]:
        decoding = _InOrder(self._address.options)
        core = self._begin(reader, decoding)
        progress = Progress(time.monotonic)
        held: set[KafkaPartition] = set()
        while not is_stopped():
            if self._once and reader.at_end(held):
                decoding.check_complete()
                break
            due: list[Part] = []
            records = reader.poll(POLL_S)
            try:
                for record in records:
                    for (topic_partition, offset, *_), events in decoding.ready(record):
                        core.add(topic_partition, offset, events)
                    while (part := core.next()) is not None:
                        due.append(part)
            except BinlogError:
                yield due
                raise
            yield due
            progress.add(len(records), core)
            _add_new(reader, core)
            held = self._hold(reader, core, held)
        _log.info("consumer stopped", applied_ts=core.applied_ts, waiting=len(core.buffered), left_out=core.left_out)

    def _begin(self, reader: TopicReader, decoding: EventDecoding) -> ConsumerCore:
        partitions = reader.topic_partitions()
        if self._from_end and not self.resume.reads:
            ends = {topic_partition: reader.ends(topic_partition)[1] for topic_partition in partitions}
            self.resume = Resume(0, {topic_partition: Read(end, end) for topic_partition, end in ends.items()})
        core = ConsumerCore(partitions, self.resume, partial(self._whole, decoding))
        _log.info("reading topics", partitions=reader.partitions, applied_ts=self.resume.applied_ts)
        reader.begin({one: core.begin(one) for one in partitions})
        return core

    def _whole(
        self, decoding: EventDecoding, topic_partition: KafkaPartition, offset: int, event: RowEvent
    ) -> RowEvent | None:
        """Fetch a row that was too large for a message. See core.Whole. Raises ConsumeError."""
        if not event.claim and self._skips_handle_only:
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
            raw = self._address.options.claim_check_raw_value
            return claimed_row(event, decoding.of(topic_partition), self._store, raw_value=raw)
        except (MessageError, ClaimStoreError) as error:
            raise ConsumeError(f"{topic_partition} offset {offset}: {error}") from None

    def _hold(self, reader: TopicReader, core: ConsumerCore, held: set[KafkaPartition]) -> set[KafkaPartition]:
        """While too many rows wait, read only the partitions that others wait for. Return the others."""
        waiting = len(core.buffered)
        if waiting > self._rows_waiting_max:
            wanted = core.ahead()
        elif waiting < self._rows_waiting_max // 2:
            wanted = set()
        else:
            wanted = held & core.ahead()
        reader.hold(wanted - held)
        reader.release(held - wanted)
        return wanted


def _add_new(reader: TopicReader, core: ConsumerCore) -> None:
    """Also read new partitions: those that Admin events have announced, and those that brokers list now."""
    for topic_partition in reader.added():
        core.add_partition(topic_partition)
    added = [topic_partition for topic_partition in core.topic_partitions if topic_partition not in reader.known]
    if added:
        _log.info("new partitions are read, too", topic_partitions=[str(topic_partition) for topic_partition in added])
        reader.begin({one: core.begin(one) for one in added})


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


class EventDecoding(PartitionDecoders):
    """Names the message that is refused."""

    def events(self, record: Record) -> Sequence[Event]:
        try:
            return self.of(record.topic_partition).decode(record.key, record.value)
        except MessageError as error:
            raise ConsumeError(f"{record.topic_partition} offset {record.offset}: {error}") from error


class _InOrder(EventDecoding):
    """Lets a row of Simple wait, and what follows it in its partition, if its table's schema comes later: at a start in
    the middle of a topic, the schemas come with the next bootstrap messages."""

    def __init__(self, options: ProtocolOptions) -> None:
        super().__init__(options)
        self._waiting: dict[KafkaPartition, deque[tuple[Record, Sequence[Event] | SchemaUnknown]]] = {}

    def ready(self, record: Record) -> Iterator[tuple[Record, Sequence[Event]]]:
        """Yield the records that can be decoded now, in their partition's order. Raises ConsumeError."""
        waiting = self._waiting.setdefault(record.topic_partition, deque())
        waiting.append((record, self._tried(record)))
        if len(waiting) == 1 and isinstance(waiting[0][1], SchemaUnknown):
            _log.info("rows wait for the schema of a table", reason=str(waiting[0][1]))
        while waiting:
            first, events = waiting[0]
            if isinstance(events, SchemaUnknown) and isinstance(events := self._tried(first), SchemaUnknown):
                return
            waiting.popleft()
            yield first, events

    def _tried(self, record: Record) -> Sequence[Event] | SchemaUnknown:
        try:
            return self.events(record)
        except ConsumeError as error:
            if isinstance(error.__cause__, SchemaUnknown):
                return error.__cause__
            raise

    def check_complete(self) -> None:
        """Raises ConsumeError if a record waits."""
        for (record, error), *_ in filter(None, self._waiting.values()):
            raise ConsumeError(f"{record.topic_partition} offset {record.offset}: {error}")
