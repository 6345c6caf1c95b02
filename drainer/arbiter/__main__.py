"""`arbiter -config arbiter.toml`: applies a topic until it is stopped.

Exit code 0 after a signal; 1 for bad settings, 2 for a failure or a bad command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from threading import Event as Stop
from typing import Final

from binlog.cluster import tso
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log, metrics
from binlog.runtime.config import load_or_exit
from binlog.runtime.http import Response, StatusServer, json_response

from drainer.arbiter.config import PROGRAM, ArbiterConfig
from drainer.arbiter.core import RUNNING, ArbiterError, Batches, Position, start_offset
from drainer.kafka_reading.records import KafkaPartition, ReadStopped, TopicReader
from drainer.protocol.errors import MessageError
from drainer.protocol.secondary import SecondaryDecoder, commit_ts_of
from drainer.sink.replay import Replayed, ReplayedDdl, Replayer

_log = log.get_logger("arbiter")
_POLL_S: Final = 0.2
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

# The original's metrics, under its names.
_CHECKPOINT = metrics.gauge("arbiter_checkpoint_tso", "the checkpoint, in Unix milliseconds")
_SECONDS = metrics.histogram(
    "arbiter_query_duration_time",
    "seconds to apply a batch with its commit (exec), or a DDL (ddl)",
    ["type"],
    buckets=metrics.exponential(0.00005, 2, 18),
)
_EVENTS = metrics.ShownCounter("arbiter_event", "transactions, DDLs and rows that were applied", ["type"])
_QUEUE = metrics.gauge("arbiter_queue_size", "messages that were read, and transactions that are held", ["name"])
_LATENCY = metrics.histogram(
    "arbiter_txn_latency_seconds",
    "seconds from a transaction's commit upstream until it is applied",
    buckets=metrics.exponential(0.00005, 2, 20),
)


def main(argv: Sequence[str] | None = None) -> int:
    config = load_or_exit(PROGRAM, argv)
    try:
        log.setup(config.log_level, config.log_file)
        asyncio.run(_run(config))
    except BinlogError as error:
        _log.error("arbiter failed", kind=type(error).__name__, error=str(error))
        if config.log_file:  # otherwise the log is on standard error
            sys.stderr.write(f"arbiter: {error}\n")
        return 1 if isinstance(error, ConfigError) else 2
    return 0


async def _run(config: ArbiterConfig) -> None:
    """Serve pages beside the thread that applies. Raises BinlogError."""
    stop = Stop()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    arbiter = Arbiter(config, stop)
    server = StatusServer(config.addr, {"/status": arbiter.status})
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.close)
        if config.metrics.addr and config.metrics.interval:
            instance = f"{socket.gethostname()}_{server.port}"
            pushing = metrics.push(config.metrics.addr, instance, interval_s=config.metrics.interval)
            stack.callback(asyncio.create_task(pushing).cancel)
        await asyncio.to_thread(arbiter.run)


class Arbiter:
    """Reads a topic and applies it until `stop` is set."""

    def __init__(self, config: ArbiterConfig, stop: Stop) -> None:
        """Raises ConfigError."""
        self._address = config.address()
        self._place = KafkaPartition(config.up.topic, 0)
        self._config = config
        self._stop = stop
        self._to: Replayer = config.replayer()
        self._position = Position(0, RUNNING)

    async def status(self) -> Response:
        at = self._position
        return json_response({"topic": self._place.topic, "ts": at.ts, "offset": at.offset, "status": at.status})

    def run(self) -> None:
        """Raises ReadError, ArbiterError, DestinationError."""
        topics, is_stopped = [self._place.topic], self._stop.is_set
        try:
            reader = TopicReader(self._address.client, topics, is_stopped=is_stopped)
            with contextlib.closing(reader), contextlib.closing(self._to):
                self._apply_all(reader)
        except ReadStopped as error:
            _log.info("stopped", why=str(error))

    def _apply_all(self, reader: TopicReader) -> None:
        for other in reader.topic_partitions():
            low, high = reader.ends(other) if other != self._place else (0, 0)
            if low != high:
                raise ArbiterError(f"{other} has messages: the drainer must send everything to partition 0")
        self._start(reader)
        down = self._config.down
        batches = Batches(self._apply, SecondaryDecoder(), self._position, down.batch_size, may_exist=down.safe_mode)
        reader.begin({self._place: self._position.offset or None})
        while not self._stop.is_set():
            records = reader.poll(_POLL_S, down.batch_size)
            for number, record in enumerate(records, 1):
                batches.add(record)
                _QUEUE.labels("kafka_reader").set(len(records) - number)
                self._show(batches)
            end = reader.end(self._place)
            if end is not None:
                batches.at_end(end)
                self._show(batches)
        batches.end()
        _log.info("stopped", ts=batches.position.ts, **batches.counts)

    def _start(self, reader: TopicReader) -> None:
        """Find the position, and store that the arbiter runs. Raises ArbiterError."""
        text = self._to.open()
        initial_ts = self._config.up.initial_commit_ts
        at = Position.parse(text) if text else Position(initial_ts, RUNNING, newest=initial_ts)
        ends = reader.ends(self._place)
        offset = start_offset(at, ends, partial(_probed, reader, self._place))
        # What the original was doing when it was killed is not known: it may have run any DDL of the topic.
        again = ends[1] if text and at.offset < 0 and at.status == RUNNING else at.again_below
        self._position = Position(at.ts, RUNNING, offset, at.newest, at.pieces, at.at, again)
        self._to.apply((), self._position.text())
        _log.info("applying messages", topic=self._place.topic, to=self._to.name, ts=at.ts, offset=offset)

    def _apply(self, transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None) -> None:
        began_s = time.monotonic()
        self._to.apply(transactions, position, ddl)
        _SECONDS.labels("exec" if ddl is None else "ddl").observe(time.monotonic() - began_s)
        now_ms = time.time() * 1000
        for commit_ts in {one.commit_ts for one in transactions}:
            _LATENCY.observe(max(0.0, now_ms - tso.physical_ms(commit_ts)) / 1000)

    def _show(self, batches: Batches) -> None:
        _QUEUE.labels("loader_input").set(batches.held)
        if batches.position is self._position:
            return
        self._position = batches.position
        _CHECKPOINT.set(tso.physical_ms(self._position.ts))
        for name, count in batches.counts.items():
            _EVENTS.show(count, name)


def _probed(reader: TopicReader, place: KafkaPartition, offset: int) -> tuple[int, int] | None:
    """See core.first_after. Raises ArbiterError."""
    record = reader.first(place, offset)
    if record is None:
        return None
    try:
        return record.offset, commit_ts_of(record.value or b"")
    except MessageError as error:
        raise ArbiterError(f"{place} offset {record.offset}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
