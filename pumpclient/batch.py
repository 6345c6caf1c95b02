"""Writes binlogs in batches over PumpExt.WriteBatch. Each batch contains what has queued up; no binlog is delayed.

While messages are in flight, other binlogs queue up. The next message contains all of them, up to a limit in bytes and
in count. So an idle client sends a single binlog immediately, and a busy client sends hundreds per message.

A BatchWriter is connecting, then open, then ended. Its owner then creates a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
from binlog.extension import PAYLOADS_MAX
from binlog.pb import pump_ext_pb2
from binlog.runtime.channel import stub_of

from pumpclient.answer import ACKED, Answer, classify, lost, not_sent

MESSAGE_BYTES_MAX = 1 << 20  # a larger binlog is written with a call of its own instead
TIMEOUT_S = 15.0
IN_FLIGHT_MAX = 2  # the pump syncs one message while the next is being sent


@dataclass(slots=True)
class Waiting:
    """One queued binlog and the future of its answer."""

    payload: bytes
    answer: asyncio.Future[Answer]


class BatchWriter:
    """One WriteBatch stream. A binlog that is not answered within `timeout_s` gets the answer `late`.

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
        """Return the answer for sent binlogs when the stream ends: unknown, unless the pump cannot have
        accepted any.
        """
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
