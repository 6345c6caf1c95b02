"""Client of a Go pump: derives watermarks from a PullBinlogs stream, because a Go pump has no watermark call.

Its resolved ts is the last commit_ts received, fakes included: a pump streams in ascending order and never serves below
what it has sent. Only commit_ts and size of each binlog are kept, not the payload: executors pull the range themselves.
At `backlog_max` entries the stream is not read until the position has advanced.

An idle pump writes a fake binlog every few seconds. A stream without any binlog for much longer means that the pump is
down or hangs, which TCP alone detects after 15 minutes or never. After `silence_max_s` the pump counts as unavailable
until it sends something, and the stream is opened again over a new connection: if the host is down, every call on the
old one would fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import numpy as np
from binlog import envelope
from binlog.errors import BinlogError, PumpUnavailable
from binlog.pb import pump_ext_pb2 as ext
from binlog.pb import pump_pb2
from binlog.runtime.channel import keepalive, stub_of
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.security import Security
from binlog.runtime.waiting import is_set_within

from drainer.pumps.client import MISSED_TIMEOUT_S, SILENCE_MAX_S, Missed, aio_channel, ended_early, translate
from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, Stop

# Computes for a Go pump what a pump of this project answers to Watermark: where a batch ends. Pure.
PIECES = 4


class ReceivedBinlog(NamedTuple):
    """One binlog of the stream; `size` in bytes, `schema_version` 0 for a DDL. Of a row or DDL of a topic, `offset` is
    that of its message, and `resolved_ts` the ts up to which its partition was resolved before the message."""

    commit_ts: int
    size: int
    ddl: bool
    schema_version: int
    offset: int = 0
    resolved_ts: int = 0


# A ReceivedBinlog as a row of an array.
RECEIVED: Final = np.dtype(
    [
        ("commit_ts", np.uint64),
        ("size", np.int64),
        ("ddl", np.bool_),
        ("schema_version", np.int64),
        ("offset", np.int64),
        ("resolved_ts", np.uint64),
    ]
)
Received = np.ndarray[tuple[int], np.dtype[np.void]]


def received(binlogs: Iterable[ReceivedBinlog]) -> Received:
    """Convert binlogs to an array that has one row for each of them."""
    return np.array(list(binlogs), RECEIVED)


class Backlog:
    """Metadata of binlogs that were received and not yet removed by `keep`, in the order in which they were added. An
    array for most of them, because a backlog may have 500,000."""

    def __init__(self) -> None:
        self._arrays: list[Received] = []
        self._last: list[ReceivedBinlog] = []  # those behind the arrays
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, binlog: ReceivedBinlog) -> None:
        self._last.append(binlog)
        self._count += 1

    def extend(self, binlogs: Received) -> None:
        if len(binlogs):
            self._whole().append(binlogs)
            self._count += len(binlogs)

    def all(self) -> Received:
        """Return all of them."""
        arrays = self._whole()
        if len(arrays) != 1:
            arrays = [np.concatenate(arrays) if arrays else received(())]
        self._arrays = arrays
        return arrays[0]

    def keep(self, chosen: Received) -> None:
        """Keep only these."""
        self._arrays, self._last, self._count = [chosen], [], len(chosen)

    def _whole(self) -> list[Received]:
        if self._last:
            self._arrays.append(received(self._last))
            self._last = []
        return self._arrays


def cut(binlogs: Received, limits: BatchLimits, *, node_id: str, host: str, resolved_ts: int) -> PumpMark:
    """Return where the next batch of a pump ends, and why, as a PumpMark. `binlogs`: those above the position that the
    pump has resolved, ascending by commit_ts; `limits`: of the batch."""
    is_ddl, sizes = binlogs["ddl"], np.cumsum(binlogs["size"])
    at = len(binlogs)
    stop, stop_ts, end_ts, stop_bytes = Stop.RESOLVED, 0, resolved_ts, 0
    if limits.batch_bytes_max:
        at = min(at, max(1, int(np.searchsorted(sizes, limits.batch_bytes_max, side="right"))))
    at = min(at, limits.batch_count_max or at)
    if at < len(binlogs):
        stop, end_ts = Stop.LIMIT, int(binlogs["commit_ts"][at - 1])
    large = (binlogs["size"] > limits.large_bytes_min) & ~is_ddl & bool(limits.large_bytes_min)
    newer = (is_ddl | (binlogs["schema_version"] > limits.schema_version)) & limits.stop_at_schema
    found = np.flatnonzero((large | newer)[: at + 1])
    if len(found):
        at = int(found[0])
        stop_ts = int(binlogs["commit_ts"][at])
        end_ts = stop_ts - 1
        stop = Stop.LARGE if not newer[at] else Stop.DDL if is_ddl[at] else Stop.SCHEMA
        stop_bytes = int(binlogs["size"][at]) if stop is Stop.LARGE else 0
    sizes, ends = sizes[:at], binlogs["commit_ts"][:at]
    total = int(sizes[-1]) if at else 0
    splits = [int(sizes.searchsorted(total * i // PIECES, side="right")) for i in range(1, PIECES) if at >= PIECES]
    # No split before a first binlog that is larger than a piece.
    splits = [n for n in dict.fromkeys(splits) if n]
    return PumpMark(
        node_id=node_id,
        host=host,
        extension=False,
        resolved_ts=resolved_ts,
        end_ts=end_ts,
        batch_bytes=total,
        batch_count=at,
        stop=stop,
        stop_ts=stop_ts,
        split_ts=tuple(int(ends[n - 1]) for n in splits),
        last_ts=int(ends[-1]) if at else 0,
        splits=tuple(Counted(n, int(sizes[n - 1])) for n in splits),
        bytes_exact=True,
        stop_bytes=stop_bytes,
    )


BACKLOG_MAX = 500_000
RECONNECT_S = 1.0

_log = get_logger(__name__)


class FollowedPump(ABC):
    """Reads all of a pump's binlogs from the first `mark` until `close`, from the pump or from its topic; begins again
    after an error."""

    extension = False

    def __init__(
        self, node_id: str, host: str, *, name: str, backlog_max: int, silence_max_s: float, answer_s: float = 0.0
    ) -> None:
        """`name`: the pump or its topic, as error messages name it; `answer_s`: how many seconds the first `mark` waits
        until binlogs were received or receiving has failed. 0, for streams: their first binlog comes alone, and a
        batch of one binlog is not worth its cost."""
        self._node_id, self._host, self._name = node_id, host, name
        self._silence_max_s = silence_max_s
        self._answer_s = answer_s
        self._backlog_max = backlog_max
        self._binlogs = Backlog()
        self._resolved_ts = 0
        self._known_after_ts = 0
        self._room = asyncio.Event()
        self._has_result = asyncio.Event()  # binlogs were received, or receiving has failed
        self._task: asyncio.Task[None] | None = None
        self.interrupted = False
        self._error: BinlogError | None = PumpUnavailable(f"{name}: nothing received yet")
        self._outage = Outage(_log, "following a pump failed", "following a pump resumed")

    @abstractmethod
    async def _read(self) -> None:
        """Read from `_resolved_ts` on, and add what arrives. Returns when the backlog was full for too long; else
        raises.
        """

    async def mark(self, *, after_ts: int, limits: BatchLimits) -> PumpMark:
        """Return the mark computed from the received binlogs. Raises the last error while the stream is down."""
        if after_ts < self._known_after_ts:
            # An earlier batch failed and is planned again: its binlogs were already discarded here, and the range would
            # look empty.
            await self._stop_following()
            self._binlogs = Backlog()
            self._known_after_ts = after_ts
            self._error = PumpUnavailable(f"{self._name}: read again from ts {after_ts}, nothing received yet")
        self._known_after_ts = max(self._known_after_ts, after_ts)
        if self._task is None:
            self._resolved_ts = after_ts
            self._has_result.clear()
            self._task = asyncio.create_task(self._follow(), name=f"pull {self._node_id}")
            await is_set_within(self._answer_s, self._has_result)
        binlogs = self._binlogs.all()
        if len(binlogs) and binlogs["commit_ts"][0] <= after_ts:
            self._binlogs.keep(binlogs[np.searchsorted(binlogs["commit_ts"], np.uint64(after_ts), side="right") :])
        self._room.set()
        if self._error is not None:
            raise self._error
        return cut(
            self._binlogs.all(),
            limits,
            node_id=self._node_id,
            host=self._host,
            resolved_ts=max(self._resolved_ts, after_ts),
        )

    async def inspect(self) -> ext.InspectResp | None:
        return None

    async def count(self, *, after_ts: int, until_ts: int) -> Counted | None:
        """Return the counts of the received binlogs; None if these do not cover the range."""
        if after_ts < self._known_after_ts or until_ts > self._resolved_ts:
            return None
        binlogs = self._binlogs.all()
        wanted = (binlogs["commit_ts"] > after_ts) & (binlogs["commit_ts"] <= until_ts)
        return Counted(int(wanted.sum()), int(binlogs["size"][wanted].sum()))

    async def close(self) -> None:
        await self._stop_following()

    async def _stop_following(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        while True:
            try:
                await self._read()
                await self._room.wait()
                continue
            except grpc.aio.AioRpcError as error:
                self._error = translate(error, self._name)
            except BinlogError as error:
                self._error = error
            self._outage.failed(pump=self._node_id, error=str(self._error))
            self._has_result.set()
            await asyncio.sleep(RECONNECT_S)

    def _clear_error(self) -> None:
        """Let `mark` return what was received, instead of raising the last error."""
        self._error = None
        self._outage.over(pump=self._node_id)
        self._has_result.set()

    async def _has_room(self) -> bool:
        """Wait until the backlog has room; False after `silence_max_s`, because an unread stream does not show that the
        pump is alive."""
        self._room.clear()
        return await is_set_within(self._silence_max_s, self._room)

    def _add(self, payload: bytes, found: envelope.Envelope) -> None:
        """Add a binlog that is no fake."""
        self._binlogs.append(
            ReceivedBinlog(found.commit_ts, len(payload), bool(found.ddl_job_id), found.schema_version)
        )


class GoPump(FollowedPump):
    """A Go pump: reads its stream of binlogs without end (PullBinlogs)."""

    def __init__(
        self,
        node_id: str,
        host: str,
        *,
        cluster_id: int,
        security: Security,
        backlog_max: int = BACKLOG_MAX,
        silence_max_s: float = SILENCE_MAX_S,
    ) -> None:
        name = f"pump {node_id} ({host})"
        super().__init__(node_id, host, name=name, backlog_max=backlog_max, silence_max_s=silence_max_s)
        self._cluster_id = cluster_id
        self._security = security
        self._channel = aio_channel(host, security)

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        """Pull until a binlog or fake at or above `until_ts`, which exists because `mark` has resolved it."""
        stub = stub_of(self._channel, pump_pb2.DESCRIPTOR, "Pump")
        request = pump_pb2.PullBinlogReq(clusterID=self._cluster_id, startFrom=pump_pb2.Pos(offset=after_ts))
        missed, at_ts = Missed(), after_ts
        stream = stub.PullBinlogs(request, timeout=MISSED_TIMEOUT_S)
        try:
            async for answer in stream:
                found = envelope.scan(answer.entity.payload)
                at_ts = found.commit_ts
                if found.commit_ts > until_ts:
                    break
                missed.add(found)
                if missed.full or found.commit_ts == until_ts:
                    break
            else:
                raise ended_early(self._name, at_ts, until_ts)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._name) from error
        finally:
            stream.cancel()
        return missed

    async def close(self) -> None:
        await super().close()
        await self._channel.close()

    async def _read(self) -> None:
        """Read one stream over one connection. Returns when the backlog was full for too long; else raises
        PumpUnavailable.
        """
        # A connection of its own, so that closing it ends no other calls. Two keepalive pings per silence_max_s.
        channel = aio_channel(
            self._host,
            self._security,
            ("grpc.use_local_subchannel_pool", 1),
            *keepalive(self._silence_max_s / 2),
        )
        stub = stub_of(channel, pump_pb2.DESCRIPTOR, "Pump")
        request = pump_pb2.PullBinlogReq(clusterID=self._cluster_id, startFrom=pump_pb2.Pos(offset=self._resolved_ts))
        stream = stub.PullBinlogs(request)
        try:
            while len(self._binlogs) < self._backlog_max or await self._has_room():
                self._take(await self._next(stream))
                self._clear_error()
        except (grpc.aio.AioRpcError, BinlogError):
            self.interrupted = True
            raise
        finally:
            stream.cancel()
            await channel.close()

    async def _next(self, stream: Any) -> bytes:
        """Return the next binlog. Raises PumpUnavailable when the stream ended or none arrived in time."""
        try:
            async with asyncio.timeout(self._silence_max_s):
                answer = await stream.read()
        except TimeoutError:
            raise PumpUnavailable(
                f"{self._name}: nothing came for {self._silence_max_s:g} s, not even a fake binlog "
                "(go-pump-silence-max): the pump's host or the network is down, the pump hangs, or one of its "
                "transactions is not committed"
            ) from None
        if answer is grpc.aio.EOF:
            raise PumpUnavailable(f"{self._name}: the stream ended")
        payload: bytes = answer.entity.payload
        return payload

    def _take(self, payload: bytes) -> None:
        found = envelope.scan(payload)
        if found.commit_ts <= self._resolved_ts:
            _log.error(
                "a Go pump served a commit_ts below one that it had served before",
                pump=self._node_id,
                commit_ts=found.commit_ts,
                at=self._resolved_ts,
            )
            return
        if found.start_ts != found.commit_ts:
            self._add(payload, found)
        self._resolved_ts = found.commit_ts
