"""Pulls one range from one pump in an executor, or ranges that contain a transaction too large for memory into a
temporary file of the driver (Spool). Synchronous; a worker process caches its channels."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import grpc
from binlog import envelope
from binlog.errors import BinlogError, PumpUnavailable, without_frames
from binlog.pb import parsed, pump_pb2
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.channel import open_blocking_channel, stub_of
from binlog.runtime.security import Security

from drainer.batch.served import ServedBinlog
from drainer.pumps.client import (
    CHANNEL_OPTIONS,
    MESSAGE_BYTES_MAX,
    PART_BYTES_MAX,
    NoExtension,
    PartJoiner,
    Received,
    check_continues,
    cut_into_parts,
    ended_early,
    messages_of,
    translate,
)
from drainer.pumps.topic import kafka_reader, pull_topic
from drainer.pumps.watermark import AddBinlogs, Counted, PumpRange, Topic, check

PULL_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 30.0  # long enough for a pump to restart
_PULL_RANGE = "/binlog.ext.PumpExt/PullRange"


@lru_cache(maxsize=64)
def _channel(host: str, security: Security) -> grpc.Channel:
    return open_blocking_channel(host, security, CHANNEL_OPTIONS)


def pull(part: PumpRange, *, cluster_id: int, security: Security) -> Iterator[bytes]:
    """Yield serialized PullRangeResp messages with every binlog of the range, ascending, without fakes, large ones in
    parts (see drainer.pumps.client).

    Raises PumpUnavailable, PurgedPosition, ClusterMismatch, and RangeDiffers at the end where the received binlogs
    differ from the plan (correctness rule 22: planned binlogs are pulled); then the yielded messages must not be
    applied.
    """
    for one in _received(part, cluster_id, security):
        yield from _small(one.message, one.found)


def pull_binlogs(part: PumpRange, *, cluster_id: int, security: Security) -> Iterator[tuple[list[bytes], Counted]]:
    """Yield the binlogs of each message, large ones complete, and their number. As `pull`, whose messages are for
    another process; also raises DecodeError for parts that do not form a binlog."""
    joiner, counted = PartJoiner(), Counted()
    for one in _received(part, cluster_id, security):
        counted += one.counted
        binlogs = joiner.join(one.found, one.payloads)
        if binlogs:
            yield binlogs, counted
            counted = Counted()
    joiner.end()


def folded(
    part: PumpRange, builder: object, add: AddBinlogs, *, cluster_id: int, security: Security
) -> Iterator[Counted]:
    """Read the rows and DDLs of a range into `builder`, which collects what one task has read (ReadOrder.builder). From
    pumps, binlogs are passed to `add`; TiCDC's topics may add decoded columns instead. Yield how many rows and DDLs,
    and how many bytes, each step has added. Raises as `pull_binlogs`."""
    if part.topic is not None and not isinstance(part.topic, Topic):
        yield from part.topic.fold(builder, add, part.after_ts, part.until_ts)
        return
    for binlogs, counted in pull_binlogs(part, cluster_id=cluster_id, security=security):
        add(binlogs, counted.size or 0)
        yield counted


class _Received(NamedTuple):
    """A message: its bytes, the parsed message, its payloads (protobuf copies them at every access), and the number of
    its binlogs."""

    message: bytes
    found: ext.PullRangeResp
    payloads: list[bytes]
    counted: Counted


def _received(part: PumpRange, cluster_id: int, security: Security) -> Iterator[_Received]:
    """Yield each message that has payloads. Raises as `pull`."""
    pump_name = f"pump {part.node_id} ({part.host})"
    received = Received()
    try:
        for message in _translated(part, cluster_id, security):
            found, before = ext.PullRangeResp.FromString(message), received.found
            payloads = received.add(found)
            if payloads:
                yield _Received(message, found, payloads, received.found - before)
    except NoExtension:
        # Planned with a pump of this project; a Go pump has since been started on its data-dir.
        yield from _received(replace(part, extension=False), cluster_id, security)
        return
    if part.extension:
        received.check(pump_name, after_ts=part.after_ts, until_ts=part.until_ts)
    came, until_ts = received.found, part.until_ts
    check(part.planned, came, pump_name=pump_name, after_ts=part.after_ts, until_ts=until_ts, where="from it")


def _translated(part: PumpRange, cluster_id: int, security: Security) -> Iterator[bytes]:
    """Yield the messages of a range. Raises NoExtension, and as `pull`."""
    if isinstance(part.topic, Topic):
        yield from pull_topic(kafka_reader(part.topic), part.topic.name, part.after_ts, part.until_ts)
        return
    if part.topic is not None:
        yield from part.topic.pull(part.after_ts, part.until_ts)
        return
    channel = _connected(part, security)
    try:
        if part.extension:
            yield from _pull_extension(part, cluster_id, channel)
        else:
            yield from messages_of(_go_binlogs(part, cluster_id, channel))
    except grpc.RpcError as error:
        # The error is also gRPC's call, and its traceback refers to a frame of that call. In this reference cycle, the
        # call and the messages in other frames would stay in memory until the garbage collector runs.
        without_frames(error)
        raise translate(error, f"pump {part.node_id} ({part.host})", after_ts=part.after_ts) from error


def _small(message: bytes, found: ext.PullRangeResp) -> Iterator[bytes]:
    """Yield the message, or several parts of it if it holds a large DDL, which a pump serves complete."""
    if found.whole_bytes or len(message) <= PART_BYTES_MAX:
        yield message
        return
    for payload in found.payloads:
        for cut in cut_into_parts(payload, found.last_ts):
            yield cut.SerializeToString()


def _connected(part: PumpRange, security: Security) -> grpc.Channel:
    """Return the connected channel. Raises PumpUnavailable if it does not connect within CONNECT_TIMEOUT_S."""
    channel = _channel(part.host, security)
    ready = grpc.channel_ready_future(channel)
    try:
        ready.result(timeout=CONNECT_TIMEOUT_S)
    except grpc.FutureTimeoutError as error:
        pump_name = f"pump {part.node_id} ({part.host})"
        raise PumpUnavailable(f"{pump_name}: no connection within {CONNECT_TIMEOUT_S:g} s") from error
    finally:
        ready.cancel()
    return channel


def _pull_extension(part: PumpRange, cluster_id: int, channel: grpc.Channel) -> Iterator[bytes]:
    request = ext.PullRangeReq(
        cluster_id=cluster_id,
        after_ts=part.after_ts,
        until_ts=part.until_ts,
        message_bytes_max=MESSAGE_BYTES_MAX,
        part_bytes_max=PART_BYTES_MAX,
    )
    # No deserializer: the message is passed to Spark unchanged.
    call: grpc.UnaryStreamMultiCallable[ext.PullRangeReq, bytes] = channel.unary_stream(
        _PULL_RANGE, request_serializer=ext.PullRangeReq.SerializeToString
    )
    yield from call(request, timeout=PULL_TIMEOUT_S)


def _go_binlogs(part: PumpRange, cluster_id: int, channel: grpc.Channel) -> Iterator[tuple[int, bytes]]:
    """Yield the range's binlogs, each with its commit_ts before it. A Go pump streams without end: stop at the first
    binlog at or above until_ts, which exists because the driver received it before it planned this range
    (drainer.pumps.go_pump)."""
    stub = stub_of(channel, pump_pb2.DESCRIPTOR, "Pump")
    request = pump_pb2.PullBinlogReq(clusterID=cluster_id, startFrom=pump_pb2.Pos(offset=part.after_ts))
    stream = stub.PullBinlogs(request, timeout=PULL_TIMEOUT_S)
    commit_ts = part.after_ts
    try:
        for answer in stream:
            payload = answer.entity.payload
            found = envelope.scan(payload)
            commit_ts = found.commit_ts
            if commit_ts <= part.until_ts and found.start_ts != commit_ts:
                yield commit_ts, payload
            if commit_ts >= part.until_ts:
                return
        raise ended_early(f"pump {part.node_id} ({part.host})", commit_ts, part.until_ts)
    finally:
        stream.cancel()


class SpoolFailed(BinlogError):
    """A large transaction cannot be written to the directory of temporary files, which the text names."""


class NotServed(BinlogError):
    """A pump announced a large transaction and served its range without it. Nothing has been applied."""

    def __init__(self, node_id: str, commit_ts: int) -> None:
        super().__init__(
            f"pump {node_id} announced a large transaction of commit_ts {commit_ts} and did not serve it: see its log"
        )


class Spool:
    """A temporary file with what ranges contain. Call `pull`, then `binlogs`, then `close`.

    The file is unlinked, so it disappears with the process. It is memory-mapped: a binlog in it is a memoryview, and
    its pages are released after use."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="drainer-large-", buffering=0)  # noqa: SIM115  closed by `close`
        self._size = 0
        self._binlogs: list[tuple[str, int, int]] = []  # the pump of each, and where it begins and ends in the file

    def pull(
        self,
        ranges: Sequence[PumpRange],
        *,
        cluster_id: int,
        security: Security,
        on_bytes: Callable[[int], None] = lambda _size: None,
    ) -> None:
        """Write everything in the ranges to the file; `on_bytes` is called with the size of each message.

        Raises what pulling raises, DecodeError where parts are out of sequence, and SpoolFailed."""
        for part in ranges:
            begin = self._size
            for message in pull(part, cluster_id=cluster_id, security=security):
                begin = self.take(part.node_id, message, begin)
                on_bytes(len(message))
            if begin != self._size:
                raise BinlogError(f"pump {part.node_id} ({part.host}) ended a pull within a binlog")

    def take(self, pump: str, message: bytes, begin: int) -> int:
        """Write a message; returns the offset of the incomplete binlog, or of the next one."""
        found = parsed(ext.PullRangeResp, message)
        check_continues(found, self._size - begin)
        if found.whole_bytes:
            self._write(found.payloads[0])
            if self._size - begin < found.whole_bytes:
                return begin
            self._binlogs.append((pump, begin, self._size))
            return self._size
        for payload in found.payloads:
            at = self._size
            self._write(payload)
            self._binlogs.append((pump, at, self._size))
        return self._size

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise SpoolFailed(
                f"{tempfile.gettempdir()}: cannot store a large transaction, {self._size} bytes were written: {error}; "
                "free disk space, or set TMPDIR to another directory"
            ) from error
        self._size += len(data)

    def binlogs(self, large_bytes_min: int) -> Iterator[ServedBinlog]:
        """The binlogs in the order received; those above `large_bytes_min` bytes as views of the file."""
        if not self._size:
            return
        whole = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        for pump, begin, end in self._binlogs:
            view = whole[begin:end]
            payload = view if len(view) > large_bytes_min else bytes(view)
            found = envelope.scan(payload)  # type: ignore[arg-type]  # it only reads single bytes and slices
            yield ServedBinlog(found.commit_ts, found.start_ts, pump, payload)

    def close(self) -> None:
        """Close the file; views still in use stay valid."""
        self._file.close()


def give_back(view: memoryview) -> None:
    """Release the resident pages of a view's file; a later access reads them again."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap):
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_DONTNEED)
