"""The gRPC channel to one pump: connected at the first write, discarded when the connection is lost (C-07, C-10).

A Connection either has a channel or is closed. `reset` closes the channel; the next write connects again. Each new
channel finds out once whether the pump has the batch extension. A Go pump answers UNIMPLEMENTED; binlogs are then
written with one call each.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc
import grpc.aio
from binlog.pb import pump_pb2
from binlog.pump_error import name_in
from binlog.runtime.channel import keepalive, open_channel, stub_of
from binlog.runtime.security import Security

from pumpclient.answer import ACKED, Answer, Outcome, classify, lost, not_sent
from pumpclient.batch import MESSAGE_BYTES_MAX, BatchWriter

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
    """Writes to one pump. `write` and `probe` return failures of the pump and the network as an Answer; they do not
    raise.
    """

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
        """Write over the batch stream. Return None if this pump lacks the extension; the payload was then not
        stored.
        """
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
