"""Writers and readers that go on through the deaths of a pump.

A `Load` writes transactions to one pump, one by one and in batches, until the pump is gone; `finish` says again what
was not answered. A `Stream` reads the pump as a drainer does: from where it was, past every death.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from binlog.cluster.timestamp import TimestampSource
from binlog.errors import TimestampUnavailable
from binlog.pb import pump_ext_pb2 as pb
from grpc import aio

from tests.crash.journal import Journal, Served, Transaction
from tests.integration.pump.rpc import Client

GONE = (aio.AioRpcError, asyncio.InvalidStateError, TimestampUnavailable, ValueError)
SINGLE_WRITERS = 4
BATCH_WRITERS = 2
BATCH_MAX = 20
LEFT_OPEN = 0.02  # of the transactions: their writer does not come back before the pump has died
ROLLED_BACK = 0.05
MESSAGE_BYTES = 2000  # of a pull: a death comes between two messages, too


class Load:
    """`run` until the pump is gone, then `finish` in its next life."""

    def __init__(self, journal: Journal, source: TimestampSource, chance: random.Random) -> None:
        self.journal = journal
        self.acknowledged = 0
        self.ended_by: list[str] = []
        self._source = source
        self._chance = chance

    async def run(self, client: Client, *, refused: Callable[[str], bool] = lambda _: False) -> None:
        """Write until a call fails; `ended_by` says how. `refused` says which of a batch's errors are no failure: the
        binlog of one that is refused counts as sent and not acknowledged."""
        writers = [self._single(client) for _ in range(SINGLE_WRITERS)]
        writers += [self._batches(client, refused) for _ in range(BATCH_WRITERS)]
        await asyncio.gather(*writers)

    async def _single(self, client: Client) -> None:
        try:
            while True:
                each = self.journal.begin(await self._source.get())
                await client.write(each.prewrite)
                each.prewrite_acked = True
                if self._chance.random() >= LEFT_OPEN:
                    await self._end(each, client)
        except GONE as error:
            self.ended_by.append(repr(error))

    async def _end(self, each: Transaction, client: Client) -> None:
        each.commit_ts = 0 if self._chance.random() < ROLLED_BACK else await self._source.get()
        await client.write(each.outcome)
        each.outcome_acked = True
        self.acknowledged += 1

    async def _timestamps(self, count: int) -> list[int]:
        return await asyncio.gather(*(self._source.get() for _ in range(count)))

    async def _batches(self, client: Client, refused: Callable[[str], bool]) -> None:
        try:
            while True:
                count = self._chance.randint(1, BATCH_MAX)
                begun = [self.journal.begin(ts) for ts in await self._timestamps(count)]
                for each in await self._send(client, begun, [each.prewrite for each in begun], refused):
                    each.prewrite_acked = True
                ending = [each for each in begun if each.prewrite_acked and self._chance.random() >= LEFT_OPEN]
                if not ending:
                    continue
                for each, ts in zip(ending, await self._timestamps(len(ending)), strict=True):
                    each.commit_ts = 0 if self._chance.random() < ROLLED_BACK else ts
                for each in await self._send(client, ending, [each.outcome for each in ending], refused):
                    each.outcome_acked = True
                    self.acknowledged += 1
        except GONE as error:
            self.ended_by.append(repr(error))

    async def _send(
        self, client: Client, of: Sequence[Transaction], payloads: list[bytes], refused: Callable[[str], bool]
    ) -> list[Transaction]:
        """Those that were acknowledged."""
        answers = await client.write_batches([payloads])
        if not answers:
            raise ValueError("the stream ended without an answer")
        errors = {error.index: error.message for error in answers[0].errors}
        for message in errors.values():
            if not refused(message):
                raise ValueError(message)
        return [each for index, each in enumerate(of) if index not in errors]

    async def finish(self, client: Client, *, keep: int = 0) -> None:
        """A client repeats what was not answered, in the same words: all of it is taken. The last `keep` prewrites
        without an outcome stay without one."""
        open_ones = self.journal.unfinished()
        kept = {each.start_ts for each in open_ones if each.prewrite_acked and each.commit_ts < 0}
        kept = set(sorted(kept)[-keep:]) if keep else set()
        ending = [each for each in open_ones if each.start_ts not in kept]
        if not ending:
            return
        assert len(await self._send(client, ending, [e.prewrite for e in ending if e.commit_ts != 0], _none)) >= 0
        for each in ending:
            each.prewrite_acked = True
            if each.commit_ts < 0:
                each.commit_ts = await self._source.get()
        await self._send(client, ending, [each.outcome for each in ending], _none)
        for each in ending:
            each.outcome_acked = True


def _none(_: str) -> bool:
    return False


class Stream:
    """Everything above ts 0 that a pump has served, in the order in which it came; fakes apart.

    `ranges`: as our drainer reads, else as the original's. What came before a death is kept, and the next life is read
    from there on."""

    def __init__(self, *, ranges: bool) -> None:
        self.served: list[Served] = []
        self.position_ts = 0
        self._ranges = ranges

    async def read_until(self, client: Client, commit_ts: int) -> None:
        """Until everything up to this ts was served; TimeoutError after a minute."""
        async with asyncio.timeout(60):
            while self.position_ts < commit_ts:
                await (self._range(client) if self._ranges else self._stream(client, commit_ts))

    async def read_resolved(self, client: Client) -> int:
        """Up to the pump's resolved ts, which is returned."""
        await self._range(client)
        return self.position_ts

    async def follow(self, client: Client) -> None:
        """Until the pump is gone."""
        try:
            while True:
                await (self._range(client) if self._ranges else self._stream(client, 1 << 62))
        except GONE:
            return

    async def _range(self, client: Client) -> None:
        resolved_ts = (await client.watermark(self.position_ts)).resolved_ts
        if resolved_ts <= self.position_ts:
            await asyncio.sleep(0.02)
            return
        request = pb.PullRangeReq(cluster_id=client.cluster_id, after_ts=self.position_ts, until_ts=resolved_ts)
        request.message_bytes_max = MESSAGE_BYTES
        call: Any = client.channel.unary_stream("/binlog.ext.PumpExt/PullRange")(request.SerializeToString())
        count, end = 0, None
        async for data in call:
            message = pb.PullRangeResp.FromString(data)
            if message.HasField("end"):
                end = message.end.count
                break
            count += len(message.payloads)
            self._take(message.payloads)
        assert end == count, f"{count} binlogs came, and the end says {end}"
        self.position_ts = max(self.position_ts, resolved_ts)

    async def _stream(self, client: Client, until_ts: int) -> None:
        async for entity in client.pull_binlogs(self.position_ts):
            self._take([entity.payload])
            if self.position_ts >= until_ts:
                break

    def _take(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            binlog = Served.of(payload)
            self.position_ts = max(self.position_ts, binlog.commit_ts)
            if binlog.start_ts != binlog.commit_ts:
                self.served.append(binlog)
