"""The gRPC channel to one pump: connected at the first write, discarded when the connection is lost (C-07, C-10).

A Connection either has a channel or is closed. `reset` closes the channel; the next write connects again. Each new
channel finds out once whether the pump has the batch extension (PumpExt.WriteBatch). A Go pump answers UNIMPLEMENTED;
binlogs are then written with one call each.

A batch contains what has queued up; no binlog is delayed. While messages are in flight, other binlogs queue up, and the
next message contains all of them, up to a limit in bytes and in count. So an idle client sends a single binlog
immediately, and a busy client sends hundreds per message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
from binlog.errors import name_in
from binlog.extension import PAYLOADS_MAX
from binlog.pb import pump_ext_pb2, pump_pb2
from binlog.runtime.channel import keepalive, open_channel, stub_of
from binlog.runtime.security import Security

from pumpclient.answer import ACKED, Answer, Outcome, classify, lost, not_sent

MESSAGE_BYTES_MAX = 1 << 20  # a larger binlog is written with a call of its own instead
TIMEOUT_S = 15.0
IN_FLIGHT_MAX = 2  # the pump syncs one message while the next is being sent


@dataclass(slots=True)
class Waiting:
    """One queued binlog and the future of its answer."""

    payload: bytes
    answer: asyncio.Future[Answer]


class BatchWriter:
    """One WriteBatch stream: connecting, then open, then ended; its owner then creates a new one. A binlog that is not
    answered within `timeout_s` gets the answer `late`.

    `unsupported` becomes true if the pump does not have the extension, `oversized` if it refuses messages of this size.
    The caller then writes binlogs with single calls. `unclear`: the stream has ended without the pump's status, because
    grpc puts INTERNAL in its place if a message is being written when it arrives; another stream may tell.
    """

    def __init__(self, channel: grpc.aio.Channel, *, cluster_id: int, timeout_s: float = TIMEOUT_S) -> None:
        self._cluster_id = cluster_id
        self._timeout_s = timeout_s
        self.late = lost(f"DEADLINE_EXCEEDED: no answer within {timeout_s} s")
        self._stub = stub_of(channel, pump_ext_pb2.DESCRIPTOR, "PumpExt")
        self._queue: deque[Waiting] = deque()
        self._in_flight: dict[int, Sequence[Waiting]] = {}
        self._heard_s = 0.0  # time of the last answer, or of the first message sent when nothing was in flight
        self._next_id = 1
        self._due: deque[tuple[float, asyncio.Future[Answer]]] = deque()  # one timer serves all of these
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.ended = False
        self.unsupported = False
        self.oversized = False
        self.unclear = False

    def write(self, payload: bytes) -> asyncio.Future[Answer]:
        """Queue one binlog. The future always gets an answer, even if the stream ends."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if self.ended:
            answer.set_result(not_sent("the stream has ended"))
            return answer
        due = self._due
        while due and due[0][1].done():
            due.popleft()
        due.append((loop.time() + self._timeout_s, answer))
        if self._timer is None:
            self._timer = loop.call_at(due[0][0], self._check_due)
        self._queue.append(Waiting(payload, answer))
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pumpclient-batch")
        return answer

    def _check_due(self) -> None:
        """Give late binlogs their answer, and set the timer for the next one."""
        loop, due = asyncio.get_running_loop(), self._due
        now_s = loop.time()
        while due and (due[0][1].done() or due[0][0] <= now_s):
            _, answer = due.popleft()
            if not answer.done():
                answer.set_result(self.late)
        self._timer = loop.call_at(due[0][0], self._check_due) if due else None

    @property
    def silent_s(self) -> float:
        """The seconds since the pump last answered while messages are in flight; 0 if none is in flight."""
        return time.monotonic() - self._heard_s if self._in_flight else 0.0

    async def close(self) -> None:
        """Close the stream. Binlogs that were sent but not answered end with UNKNOWN, unsent ones with NOT_SENT."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._end(lost("the connection was closed"))

    async def _run(self) -> None:
        try:
            call = self._stub.WriteBatch()
        except grpc.aio.UsageError as error:  # the channel was closed before this task began
            self._end(not_sent(f"CANCELLED: {error}"))
            return
        sender = asyncio.create_task(self._send(call))
        why = lost("the stream ended")
        try:
            async for response in call:
                self._answered(response)
            code, detail = await call.code(), await call.details()
            why = self._ending(code, detail)
        except grpc.aio.AioRpcError as error:
            why = self._ending(error.code(), error.details())
        finally:
            sender.cancel()
            call.cancel()
            self._end(why)

    def _ending(self, code: grpc.StatusCode, detail: str | None) -> Answer:
        """Return the answer for sent binlogs when the stream ends: unknown, unless the pump lacks the extension."""
        self.unsupported = code is grpc.StatusCode.UNIMPLEMENTED
        self.oversized = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        self.unclear = code is grpc.StatusCode.INTERNAL
        answer = classify(int(code.value[0]), detail or "")
        return answer if self.unsupported else lost(f"the stream ended: {answer.detail or 'OK'}")

    async def _send(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]  # runtime class is bare
        while True:
            await self._wake.wait()
            self._wake.clear()
            while len(self._in_flight) < IN_FLIGHT_MAX:
                batch = self._take()
                if not batch:
                    break
                batch_id, self._next_id = self._next_id, self._next_id + 1
                if not self._in_flight:
                    self._heard_s = time.monotonic()
                self._in_flight[batch_id] = batch
                request = pump_ext_pb2.WriteBatchReq(
                    cluster_id=self._cluster_id, batch_id=batch_id, payloads=[w.payload for w in batch]
                )
                try:
                    await call.write(request)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the stream has ended; _run reads the reason and answers all binlogs

    def _take(self) -> list[Waiting]:
        """Return the binlogs for the next message. Binlogs that already have an answer are left out."""
        batch: list[Waiting] = []
        size = 0
        while self._queue and len(batch) < PAYLOADS_MAX:
            waiting = self._queue[0]
            if not waiting.answer.done():
                size += len(waiting.payload)
                if batch and size > MESSAGE_BYTES_MAX:
                    break
                batch.append(waiting)
            self._queue.popleft()
        return batch

    def _answered(self, response: pump_ext_pb2.WriteBatchResp) -> None:
        self._heard_s = time.monotonic()
        batch = self._in_flight.pop(response.batch_id, ())
        errors = {error.index: classify(error.code, error.message, error.kind) for error in response.errors}
        for index, waiting in enumerate(batch):
            _give(waiting, errors.get(index, ACKED))
        self._wake.set()

    def _end(self, sent: Answer) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        for batch in self._in_flight.values():
            for waiting in batch:
                _give(waiting, sent)
        self._in_flight.clear()
        unsent = not_sent(sent.detail)
        for waiting in self._queue:
            _give(waiting, unsent)
        self._queue.clear()


def _give(waiting: Waiting, answer: Answer) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(answer)


CONNECT_TIMEOUT_S = 3.0

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Otherwise channels of one process share a broken subchannel and its back-off; a new channel would not help.
    ("grpc.use_local_subchannel_pool", 1),
    *keepalive(),  # the batch stream stays open as long as the pump is used
)


@dataclass(eq=False)
class Connection:
    """Writes to one pump. Failures of the pump and the network are returned as an Answer, not raised."""

    host: str
    cluster_id: int
    timeout_s: float
    security: Security | None = None
    has_extension: bool = True
    open_bytes: int = 0  # of writes that are not answered yet
    open_count: int = 0
    _channel: grpc.aio.Channel | None = None
    _batch: BatchWriter | None = None
    _dialling: asyncio.Task[grpc.aio.Channel | Answer] | None = None
    _dialled_s: float = 0.0
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _use_extension: bool = True  # False once the pump has refused a message of the extension for its size

    async def write(self, payload: bytes) -> Answer:
        """Write one binlog and wait until it is durable or has failed."""
        self.open_bytes += len(payload)
        self.open_count += 1
        try:
            return await self._write(payload)
        finally:
            self.open_bytes -= len(payload)
            self.open_count -= 1

    async def _write(self, payload: bytes) -> Answer:
        if self._batch is not None and self._batch.silent_s > self.timeout_s:
            self.reset()  # earlier writes moved on to other pumps, so nothing else would notice that the stream is dead
        channel = await self._connected()
        if isinstance(channel, Answer):
            return channel
        if self.has_extension and len(payload) <= MESSAGE_BYTES_MAX:
            answer = await self._write_batched(channel, payload)
            if answer is not None:
                return answer
        return await self._write_plain(channel, payload, self.timeout_s)

    async def probe(self, *, timeout_s: float) -> Answer:
        """Send an empty binlog. A pump that accepts prewrites accepts it, and no pump stores it (P-RPC-05)."""
        channel = await self._connected()
        if isinstance(channel, Answer):
            return channel
        return await self._write_plain(channel, b"", timeout_s)

    def reset(self) -> None:
        """Discard the channel. Open writes get UNKNOWN; the next write connects again."""
        channel, batch = self._channel, self._batch
        self._channel = self._batch = None
        self.has_extension = self._use_extension
        if channel is not None:
            task = asyncio.create_task(_shut(channel, batch), name="pumpclient-reset")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def renew(self, before_s: float) -> None:
        """Reset the channel if it was connected before `before_s` (monotonic clock)."""
        if self._dialled_s < before_s:
            self.reset()

    async def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        self.reset()
        if self._closing:
            await asyncio.wait(set(self._closing))

    async def _connected(self) -> grpc.aio.Channel | Answer:
        """Return the channel, or an Answer if there is none. Concurrent callers share one connection attempt."""
        if self._channel is not None:
            return self._channel
        if self._dialling is None:
            self._dialling = asyncio.create_task(self._dial(), name="pumpclient-dial")
        dialling = self._dialling
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if dialling.cancelled():  # by `close`; the caller itself was not cancelled
                return not_sent(f"CANCELLED: the connection to {self.host} was closed")
            raise

    async def _dial(self) -> grpc.aio.Channel | Answer:
        """Connect and wait until the channel is ready, so that a failure to connect means that nothing was sent."""
        try:
            channel = open_channel(self.host, self.security, OPTIONS)
            try:
                async with asyncio.timeout(min(CONNECT_TIMEOUT_S, self.timeout_s)):
                    stands = await _stands(channel)
            except TimeoutError:
                stands = False
            except BaseException:
                await channel.close()
                raise
            if not stands:
                await channel.close()
                return not_sent(f"UNAVAILABLE: no connection to {self.host}")
            self._channel = channel
            self._dialled_s = time.monotonic()
            return channel
        finally:
            self._dialling = None

    async def _write_batched(self, channel: grpc.aio.Channel, payload: bytes) -> Answer | None:
        """Write over the batch stream. Return None, with nothing stored, if this pump lacks the extension."""
        batch, answer = await self._batched(channel, payload)
        if batch.unclear and not answer.final:
            batch, answer = await self._batched(channel, payload)
        if answer is batch.late:
            self._drop(channel)
            return lost(f"DEADLINE_EXCEEDED: no answer from {self.host} within {self.timeout_s} s")
        if batch.unsupported:
            self.has_extension = False
            return None
        if batch.oversized:  # also for later channels: the pump's settings limit the message size
            self._use_extension = False
        if answer.outcome is Outcome.UNKNOWN and batch.ended:
            # Also after a refused message: its bytes may occupy the flow-control window that single calls need.
            self._drop(channel)
        return answer

    async def _batched(self, channel: grpc.aio.Channel, payload: bytes) -> tuple[BatchWriter, Answer]:
        if self._batch is None or self._batch.ended:
            self._batch = BatchWriter(channel, cluster_id=self.cluster_id, timeout_s=self.timeout_s)
        batch = self._batch
        return batch, await batch.write(payload)

    async def _write_plain(self, channel: grpc.aio.Channel, payload: bytes, timeout_s: float) -> Answer:
        stub = stub_of(channel, pump_pb2.DESCRIPTOR, "Pump")
        request = pump_pb2.WriteBinlogReq(clusterID=self.cluster_id, payload=payload)
        try:
            response = await stub.WriteBinlog(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._drop(channel)
            kind = name_in(error.trailing_metadata())
            return classify(int(error.code().value[0]), error.details() or "", kind)
        except grpc.aio.UsageError as error:  # the channel was closed before this call began
            self._drop(channel)
            return not_sent(f"CANCELLED: {error}")
        except asyncio.CancelledError:
            if self._channel is channel:
                raise  # the caller was cancelled, not the channel
            return lost(f"CANCELLED: the connection to {self.host} was reset")
        if response.errmsg:  # the original's client checks it too, though pumps never set it over gRPC (P-RPC-04)
            return classify(2, response.errmsg)
        return ACKED

    def _drop(self, channel: grpc.aio.Channel) -> None:
        if self._channel is channel:
            self.reset()


async def _stands(channel: grpc.aio.Channel) -> bool:
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            return False
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
    return True


async def _shut(channel: grpc.aio.Channel, batch: BatchWriter | None) -> None:
    if batch is not None:
        await batch.close()
    await channel.close()
