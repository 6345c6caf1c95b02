"""Reads a pump's topic in Kafka in place of the pump (docs/formats.md): a client for the survey, and pulls of ranges.

A reader knows the ts up to which it has everything. Each message continues there, or is skipped: its writer had ended,
or it repeats what is known. A message that begins later is an error, because binlogs are missing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from binlog import envelope
from binlog.errors import BinlogError, PurgedPosition
from binlog.pb import parsed
from binlog.pb import pump_ext_pb2 as ext
from binlog.topic.message import TopicError, decode

from drainer.pumps.client import PART_BYTES_MAX, SILENCE_MAX_S, Missed, check_part, leading_schema_version
from drainer.pumps.go_pump import BACKLOG_MAX, FollowedPump, ReceivedBinlog
from drainer.pumps.watermark import BatchLimits, PumpMark, Topic

if TYPE_CHECKING:
    from binlog.topic.kafka import KafkaReader  # loads the client library

T = TypeVar("T")
POLL_S = 0.05  # between two reads of what the client library has fetched
READ_S = 1.0
SILENCE_IN_PULL_S = 30.0  # a planned range is in the topic
IN_MEMORY_BYTES = 16 << 20  # of a large binlog while its parts are read


class TopicSilent(TopicError):
    """Everything in the topic has been read, and its pump has written nothing for a while."""


class TopicChain:
    """Puts the messages of a topic in order. Pure. `position_ts`: everything in (after_ts, position_ts] has been
    returned; `purged_ts`: binlogs at or below it are not in the topic, if it is read from its beginning."""

    def __init__(self, topic: str, after_ts: int) -> None:
        self._topic = topic
        self._epoch = 0
        self._part_end = 0
        self.position_ts = after_ts
        self.purged_ts = 0

    def add(self, offset: int, value: bytes) -> ext.PullRangeResp | None:
        """Add the message at `offset`; return its new binlogs, or the next part of one, or None. A part that begins a
        binlog, and a message that is no part, end the parts of one that is not complete: drop them.

        Raises PurgedPosition if binlogs are missing before it, DecodeError."""
        where = f"topic {self._topic}, message {offset}"
        message = decode(value, where)
        if message.epoch < self._epoch:
            return None
        if message.epoch > self._epoch:
            self._epoch, self._part_end = message.epoch, 0
        if message.after_ts > self.position_ts:
            self._skip_to(message.after_ts, where)
        found = parsed(ext.PullRangeResp, message.body, where)
        if found.part_offset and not self._part_end and found.last_ts > self.position_ts:
            self._skip_to(found.last_ts, where)  # retention removed its first part
            return None
        before_ts, self.position_ts = self.position_ts, max(self.position_ts, message.until_ts)
        if found.last_ts <= before_ts:
            return None
        if found.whole_bytes:
            check_part(found, self._part_end if found.part_offset else 0)
            self._part_end = found.part_offset + len(found.payloads[0])
        elif message.after_ts < before_ts:
            kept = [payload for payload in found.payloads if envelope.scan(payload).commit_ts > before_ts]
            return ext.PullRangeResp(payloads=kept, last_ts=found.last_ts)
        return found

    def _skip_to(self, after_ts: int, where: str) -> None:
        if self.position_ts != self.purged_ts:
            raise PurgedPosition(
                f"{where}: binlogs in ({self.position_ts}, {after_ts}] are not in the topic: the brokers removed them "
                "(retention.ms), or the pump did before they were published"
            )
        self.position_ts = self.purged_ts = after_ts


def kafka_reader(topic: Topic) -> KafkaReader:
    """Return a reader of real brokers."""
    from binlog.topic.kafka import KafkaReader

    return KafkaReader(dict(topic.client), topic.name)


def pull_topic(reader: KafkaReader, topic: str, after_ts: int, until_ts: int) -> Iterator[bytes]:
    """Yield serialized PullRangeResp with every binlog in (after_ts, until_ts], which must be in the topic, as a pull
    does; then close the reader. Raises TopicError, PurgedPosition, DecodeError."""
    with closing(reader), tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as parts:
        reader.open(after_ts)
        for found in _ordered(reader, TopicChain(topic, after_ts), topic, until_ts):
            if not found.whole_bytes:
                kept = list(found.payloads)
                if found.last_ts > until_ts:
                    kept = [payload for payload in kept if envelope.scan(payload).commit_ts <= until_ts]
                if kept:
                    yield ext.PullRangeResp(payloads=kept, last_ts=min(found.last_ts, until_ts)).SerializeToString()
                continue
            parts.seek(found.part_offset)
            parts.write(found.payloads[0])
            if parts.tell() == found.whole_bytes:
                parts.seek(0)
                for at in range(0, found.whole_bytes, PART_BYTES_MAX):
                    data = parts.read(min(PART_BYTES_MAX, found.whole_bytes - at))
                    yield ext.PullRangeResp(
                        payloads=[data], last_ts=found.last_ts, whole_bytes=found.whole_bytes, part_offset=at
                    ).SerializeToString()


def _ordered(reader: KafkaReader, chain: TopicChain, topic: str, until_ts: int) -> Iterator[ext.PullRangeResp]:
    """Yield what the chain returns until everything up to `until_ts` has come."""

    def silent() -> TopicError:
        return TopicError(
            f"topic {topic}: nothing came for {SILENCE_IN_PULL_S:g} s at ts {chain.position_ts}, before ts "
            f"{until_ts}: {reader.last_error or 'it ends there'}"
        )

    for offset, value in received(reader.read, silent):
        found = chain.add(offset, value)
        if found is not None and found.whole_bytes and found.last_ts > until_ts:
            return
        if found is not None:
            yield found
        if chain.position_ts >= until_ts:
            return


def received(read: Callable[[float], Sequence[T]], silent: Callable[[], BinlogError]) -> Iterator[T]:
    """Yield without end what `read` returns; its argument is how long it may wait, in seconds. Raises the error of
    `silent` if nothing comes for SILENCE_IN_PULL_S."""
    received_s = time.monotonic()
    while True:
        found = read(READ_S)
        if found:
            received_s = time.monotonic()
        elif time.monotonic() - received_s > SILENCE_IN_PULL_S:
            raise silent()
        yield from found


class TopicPump(FollowedPump):
    """A pump's topic, which is followed. Its resolved ts is that of the last message."""

    def __init__(
        self,
        node_id: str,
        host: str,
        topic: Topic,
        *,
        open_reader: Callable[[Topic], KafkaReader] = kafka_reader,
        silence_max_s: float = SILENCE_MAX_S,
    ) -> None:
        name = f"topic {topic.name}"
        super().__init__(node_id, host, name=name, backlog_max=BACKLOG_MAX, silence_max_s=silence_max_s)
        self._topic = topic
        self._open_reader = open_reader
        self._purged_ts = 0
        self._received_s = 0.0
        self._last_error = ""
        self._at_end = False
        self._lead: int | None = 0  # schema_version of the binlog whose parts arrive; None: a DDL

    async def mark(self, *, after_ts: int, limits: BatchLimits) -> PumpMark:
        """As of any followed pump. Raises TopicError if there is nothing after `after_ts`, and nothing arrives;
        TopicSilent if the topic ends there."""
        found = await super().mark(after_ts=after_ts, limits=limits)
        if found.resolved_ts <= after_ts and time.monotonic() - self._received_s > self._silence_max_s:
            raise (TopicSilent if self._at_end else TopicError)(
                f"{self._name} is read up to ts {found.resolved_ts}, and nothing came for {self._silence_max_s:g} s: "
                "the pump is down, or does not reach its brokers, or they do not answer here. "
                f"{self._last_error}".rstrip()
            )
        return replace(found, topic=self._topic, purged_ts=self._purged_ts)

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        def counted() -> Missed:
            missed = Missed()
            for message in pull_topic(self._open_reader(self._topic), self._topic.name, after_ts, until_ts):
                missed.add_message(ext.PullRangeResp.FromString(message))
                if missed.full:
                    break
            return missed

        return await asyncio.to_thread(counted)

    async def _read(self) -> None:
        reader = self._open_reader(self._topic)
        after_ts = self._resolved_ts
        chain = TopicChain(self._topic.name, after_ts)
        opening = asyncio.ensure_future(asyncio.to_thread(reader.open, after_ts))
        try:
            await asyncio.shield(opening)
            self._received_s = time.monotonic()
            while len(self._binlogs) < self._backlog_max or await self._has_room():
                values = reader.read(0)
                for offset, value in values:
                    self._add_message(chain, offset, value)
                    await asyncio.sleep(0)  # a message is some milliseconds of work
                self._last_error, self._at_end = reader.last_error, reader.at_end
                # Before its end is seen, its resolved ts would be an end for until-now.
                if reader.at_end or len(self._binlogs) >= self._backlog_max:
                    self._clear_error()
                if not values:
                    await asyncio.sleep(POLL_S)
        finally:
            await asyncio.wait([opening])
            await asyncio.to_thread(reader.close)

    def _add_message(self, chain: TopicChain, offset: int, value: bytes) -> None:
        self._received_s = time.monotonic()
        found = chain.add(offset, value)
        self._purged_ts = max(self._purged_ts, chain.purged_ts)
        if found is not None and found.whole_bytes:
            if not found.part_offset:
                self._lead = leading_schema_version(found.payloads[0])
            if found.part_offset + len(found.payloads[0]) == found.whole_bytes:
                is_ddl, version = self._lead is None, self._lead or 0
                self._binlogs.append(ReceivedBinlog(found.last_ts, found.whole_bytes, is_ddl, version))
        elif found is not None:
            for payload in found.payloads:
                self._add(payload, envelope.scan(payload))
        self._resolved_ts = chain.position_ts
