"""Publishes a pump's complete binlogs to its topic in Kafka, in the order of a pull (docs/formats.md).

A session begins with the last message of the topic; any error ends it, and nothing is remembered. Nothing is lost while
the brokers are away: the log keeps what is not published (pump.tasks.gc).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from binlog.cluster import tso
from binlog.cluster.registry import NodeStatus, State
from binlog.errors import BinlogError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.metrics import counter, gauge
from binlog.topic.message import OVERHEAD_BYTES, Outgoing, TopicMessage, body_of, decode, encode

from pump.errors import DamagedRecord
from pump.pull import BinlogPart, Chunk
from pump.store.store import Store

if TYPE_CHECKING:
    from binlog.topic.kafka import KafkaWriter  # loads the client library

INTERVAL_S = 0.5
PAUSE_S = 1.0
QUIET_S = 3.0  # a topic that was just created is not known to every broker yet
WINDOW_BYTES = 8 << 20  # sent before the brokers' answers are awaited
READ_BYTES = 128 << 10
FIELD_BYTES = 6  # around each payload of a message

PUBLISHED_TS = gauge("pump_kafka_published_ts", "Everything up to here is in the pump's topic, as a TSO")
LAG = gauge("pump_kafka_lag_seconds", "Seconds by which the published ts is behind the resolved ts")
ERRORS = counter("pump_kafka_error_count", "Times that publishing failed and began again")

_log = get_logger("pump.tasks.publisher")


class Publisher:
    """Call `run`. `topic`: its name. `published_ts`: everything up to it is in the topic; 0: not known yet."""

    def __init__(self, store: Store, writer: KafkaWriter, topic: str, *, message_bytes_max: int) -> None:
        self._store = store
        self._writer = writer
        self._bytes_max = message_bytes_max - OVERHEAD_BYTES
        self._epoch = 0
        self._damaged = False
        text, over = "nothing is published to Kafka", "binlogs are published to Kafka again"
        self._outage = Outage(_log, text, over, quiet_s=QUIET_S)
        self.topic = topic
        self.published_ts = 0
        self.error = ""
        LAG.set_function(lambda: self.lag_s)

    @property
    def lag_s(self) -> float:
        """Seconds by which the published ts is behind the resolved ts; 0 if it is not known."""
        behind_ms = tso.physical_ms(self._store.resolved_ts) - tso.physical_ms(self.published_ts)
        return max(0.0, behind_ms / 1000) if self.published_ts else 0.0

    def as_drainer(self) -> NodeStatus:
        """Return the topic in the form of a drainer's record: the pump waits for both in the same way."""
        now_ts = tso.compose(int(time.time() * 1000))
        return NodeStatus(
            f"Kafka topic {self.topic}", "", State.ONLINE, max_commit_ts=self.published_ts, update_ts=now_ts
        )

    async def run(self) -> None:
        """Publish until cancelled."""
        try:
            while True:
                try:
                    await self._session()
                except (BinlogError, OSError) as error:
                    ERRORS.inc()
                    self.error = str(error)
                    self._outage.failed(topic=self.topic, error=error)
                    await asyncio.sleep(PAUSE_S)
        finally:
            await asyncio.to_thread(self._writer.close)

    async def _session(self) -> None:
        await self._begin()
        while True:
            if self._damaged:
                await self._check_readable()
            resolved_ts = await self._store.resolver.refresh()
            if resolved_ts > self.published_ts:
                await self.publish(resolved_ts)
            self.error = ""
            self._outage.over(topic=self.topic)
            await asyncio.sleep(INTERVAL_S)

    async def _begin(self) -> None:
        """Find out what is published, and make later what a former session sent and the brokers have not stored yet
        stale."""
        last = await asyncio.to_thread(self._writer.open)
        found = decode(last, f"the last message of topic {self.topic}") if last is not None else TopicMessage(0, 0, 0)
        purged_ts = self._store.reads.purged_ts
        if last is not None and found.until_ts < purged_ts:
            _log.error(
                "binlogs were removed before they were published: drainers that read the topic stop there",
                topic=self.topic,
                after_ts=found.until_ts,
                until_ts=purged_ts,
            )
        # Of a topic that was emptied by retention, or made again, the last epoch is not known; time is above it.
        self._epoch = max(found.epoch + 1, tso.physical_ms(self._store.resolver.horizon.source_ts) // 1000)
        begin_ts = max(found.until_ts, purged_ts)
        await self._send([self._marker(begin_ts, begin_ts)], begin_ts)
        _log.info("publishing to Kafka", topic=self.topic, after_ts=begin_ts, epoch=self._epoch)

    def _marker(self, after_ts: int, until_ts: int) -> Outgoing:
        return Outgoing(until_ts, encode(TopicMessage(self._epoch, after_ts, until_ts)))

    async def publish(self, until_ts: int) -> None:
        """Publish everything up to `until_ts`, which must be resolved. Raises TopicError, DamagedRecord."""
        shape = partial(topic_messages, after_ts=self.published_ts, epoch=self._epoch, bytes_max=self._bytes_max)
        window: list[Outgoing] = []
        size, at_ts = 0, self.published_ts
        pieces = self._store.reads.pull_as(
            shape, self.published_ts, until_ts, bytes_max=READ_BYTES, fakes=False, part_bytes_max=self._bytes_max
        )
        try:
            async with aclosing(pieces):  # type: ignore[type-var]
                async for message_until_ts, message in pieces:
                    window.append(message)
                    size, at_ts = size + len(message.value), message_until_ts
                    if size >= WINDOW_BYTES:
                        await self._send(window, at_ts)
                        window, size = [], 0
        except (DamagedRecord, OSError):
            self._damaged = True
            await self._send(window, at_ts)
            raise
        await self._send([*window, self._marker(at_ts, until_ts)], until_ts)

    async def _send(self, messages: list[Outgoing], until_ts: int) -> None:
        crash_point("pump.kafka.before_send")
        await asyncio.to_thread(self._writer.send, messages)
        crash_point("pump.kafka.after_send")
        self.published_ts = until_ts
        PUBLISHED_TS.set(until_ts)

    async def _check_readable(self) -> None:
        """Read the binlog that was damaged, without sending it. A large one would be in the topic again with every
        attempt, up to its last part. Raises DamagedRecord until an operator has it passed over."""
        pieces = self._store.reads.pull(
            self.published_ts, self._store.resolved_ts, bytes_max=1, part_bytes_max=self._bytes_max
        )
        async with aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, Chunk) or piece.offset + len(piece.data) >= piece.whole_bytes:
                    break
        self._damaged = False


def topic_messages(
    pieces: Iterable[Chunk | BinlogPart], *, after_ts: int, epoch: int, bytes_max: int
) -> Iterator[tuple[int, Outgoing]]:
    """Yield messages with at most `bytes_max` bytes of binlogs, each with the ts up to which everything is complete
    with it. If `pieces` raises, what came before is yielded first."""
    at_ts = after_ts
    for commit_ts, body, completes in _bodies(pieces, bytes_max):
        until_ts = commit_ts if completes else at_ts
        yield until_ts, Outgoing(commit_ts, encode(TopicMessage(epoch, at_ts, until_ts, body)))
        at_ts = until_ts


def _bodies(pieces: Iterable[Chunk | BinlogPart], bytes_max: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (last commit_ts, body, whether it completes its binlogs)."""
    gathered: list[bytes] = []
    size = last_ts = 0
    failure: BinlogError | None = None
    try:
        for commit_ts, payload, offset, whole_bytes in _binlogs(pieces, bytes_max):
            if gathered and (whole_bytes or size + len(payload) + FIELD_BYTES > bytes_max):
                yield last_ts, body_of(gathered, last_ts), True
                gathered, size = [], 0
            if whole_bytes:
                body = body_of([payload], commit_ts, whole_bytes=whole_bytes, part_offset=offset)
                yield commit_ts, body, offset + len(payload) == whole_bytes
            else:
                gathered.append(payload)
                size, last_ts = size + len(payload) + FIELD_BYTES, commit_ts
    except BinlogError as error:
        failure = error
    if gathered:
        yield last_ts, body_of(gathered, last_ts), True
    if failure is not None:
        raise failure


def _binlogs(pieces: Iterable[Chunk | BinlogPart], bytes_max: int) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield (commit_ts, payload, offset, whole bytes) of each binlog or part; the last two are 0 for a whole one. A
    large DDL, which a pull serves whole, is cut."""
    for piece in pieces:
        if isinstance(piece, BinlogPart):
            yield piece.commit_ts, piece.data, piece.offset, piece.whole_bytes
            continue
        for commit_ts, _, payload in piece:
            if len(payload) + FIELD_BYTES <= bytes_max:
                yield commit_ts, payload, 0, 0
                continue
            for at in range(0, len(payload), bytes_max):
                yield commit_ts, payload[at : at + bytes_max], at, len(payload)
