"""What a pull serves of any mixture of fakes and binlogs, and of what is purged meanwhile (rule 22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from binlog.envelope import encode_fake, scan
from binlog.errors import ClusterMismatch, PurgedPosition
from binlog.pb import pump_ext_pb2 as pb
from binlog.pb.pump_ext_pb2 import WatermarkReq
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import NotResolved, Stopping
from pump.index.keys import COMPLETE, FLAG_FAKE, Complete
from pump.index.leveldb import Index
from pump.pull import ENTRIES_MAX, Reader
from pump.rpc.admission import InFlight
from pump.rpc.extension_service import ExtService
from pump.rpc.original_service import Gate, PumpService
from pump.store.read_path import ReadPath
from pump.store.store import Store
from tests.unit.pump.build import SetClock, binlogs_of, commit, merged, opened, prewrite, write

STEP = 10


def fakes_in_the_index(store: Store, begin_ts: int, count: int) -> None:
    """As an idle pump writes one every three seconds; a pull without fakes reads nothing of them but the index."""
    batch = store.index.batch()
    for ts in range(begin_ts, begin_ts + count):
        batch.complete(ts, Complete(ts, 0, 0, 30, 0, 0, 0, FLAG_FAKE, b""))
    store.index.write(batch)


@pytest.mark.parametrize("count", [ENTRIES_MAX - 1, ENTRIES_MAX, ENTRIES_MAX + 1, 3 * ENTRIES_MAX])
async def test_rows_behind_a_long_run_of_fakes_are_served(tmp_path: Path, count: int) -> None:
    """6 h 50 min of an idle pump, then a write: it was planned, never served, and the position moved past it."""
    async with opened(tmp_path, SetClock(100_000)) as store:
        fakes_in_the_index(store, 100, count)
        await write(store, prewrite(50_000), commit(50_000, 50_001))
        resolved_ts = await store.resolver.refresh()
        assert (await store.reads.plan(0, resolved_ts, WatermarkReq(batch_bytes_max=1))).batch_count == 1
        assert await binlogs_of(store) == [merged(50_000, 50_001)]


@st.composite
def mixtures(draw: st.DrawFn) -> list[str]:
    """In turns: runs of fakes, of rows small and large, of commits that came before their prewrite."""
    runs = draw(
        st.lists(st.tuples(st.sampled_from(["fake", "row", "large", "general"]), st.integers(1, 9)), max_size=8)
    )
    return [kind for kind, length in runs for _ in range(length)]


async def filled(store: Store, kinds: list[str]) -> list[bytes]:
    """What is to be served, fakes with it, ascending: the n-th at ts (n + 1) * STEP."""
    payloads: list[bytes] = []
    served = []
    for number, kind in enumerate(kinds):
        ts = (number + 1) * STEP
        row = b"\x08\x01\x12" + (b"\x7drow" + b"x" * 122 if kind == "large" else b"\x03row")
        pair = [prewrite(ts - 1, row=row) if kind != "large" else prewrite(ts - 1), commit(ts - 1, ts)]
        if kind == "fake":
            pair = [encode_fake(ts)]
        payloads += reversed(pair) if kind == "general" else pair
        served.append(pair[0] if kind == "fake" else merged(ts - 1, ts))
    if payloads:
        await write(store, *payloads)
    await store.resolver.refresh()
    return served


@given(
    mixtures(),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 7),
    st.sampled_from([1, 60, 200, 1 << 20]),
    st.booleans(),
)
def test_pull_serves_any_mixture_of_binlogs_in_any_chunk_size(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[str],
    after: int,
    more: int,
    entries_max: int,
    bytes_max: int,
    fakes: bool,
) -> None:
    """And the plan of just that range counts what comes, in all and up to each split."""

    async def run() -> None:
        async with opened(tmp_path_factory.mktemp("mixture"), SetClock(10_000)) as store:
            served = await filled(store, kinds)
            after_ts, until_ts = after * STEP // 2, (after + more) * STEP // 2
            wanted = [p for p in served if after_ts < scan(p).commit_ts <= until_ts]
            rows = [p for p in wanted if not scan(p).is_fake]
            chunks = list(
                Reader(store.index, store.log, entries_max=entries_max).pull(
                    after_ts, until_ts, bytes_max=bytes_max, fakes=fakes
                )
            )
            assert [s.payload for chunk in chunks for s in chunk] == (wanted if fakes else rows)
            assert all(1 <= len(chunk) <= entries_max for chunk in chunks)
            check_plan(await store.reads.count(after_ts, until_ts), rows)

    asyncio.run(run())


def check_plan(plan: pb.WatermarkResp, rows: list[bytes]) -> None:
    assert plan.batch_count == len(rows)
    assert plan.last_ts == (scan(rows[-1]).commit_ts if rows else 0)
    if plan.bytes_exact:
        assert plan.batch_bytes == sum(map(len, rows))
    for split_ts, count in zip(plan.split_ts, plan.split_count, strict=True):
        assert count == sum(1 for row in rows if scan(row).commit_ts <= split_ts)


async def test_plan_splits_give_count_and_bytes_before_them(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(10_000)) as store:
        row = b"\x08\x01\x12\x78" + b"x" * 120
        for ts in range(10, 6010, 10):
            await write(store, prewrite(ts - 1, row=row), commit(ts - 1, ts), encode_fake(ts + 3))
        await store.resolver.refresh()
        plan = await store.reads.count(0, 6000)
        assert len(plan.split_ts) == 3 and plan.bytes_exact
        for split_ts, *split in zip(plan.split_ts, plan.split_count, plan.split_bytes, strict=True):
            part = await binlogs_of(store, 0, split_ts)
            assert split == [len(part), sum(map(len, part))]


async def test_plan_bytes_are_not_exact_if_commit_overtook_prewrite(tmp_path: Path) -> None:
    """A commit that came before its prewrite: both are read and merged when they are served."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        await store.resolver.refresh()
        assert (await store.reads.count(0, 20)).bytes_exact
        await write(store, commit(30, 40), prewrite(30))
        await store.resolver.refresh()
        plan = await store.reads.count(0, 40)
        assert (plan.batch_count, plan.bytes_exact) == (2, False)


class PurgedWhileLooking(Index):
    """A purge runs to its end just before every look at the entries."""

    purge_ts = 0

    def completes(self, after_ts: int, until_ts: int) -> Iterator[tuple[bytes, bytes]]:
        if self.purge_ts:
            self.save_purged(self.purge_ts)
            list(self.delete_until(COMPLETE, self.purge_ts))
        return super().completes(after_ts, until_ts)


async def purging(store: Store) -> None:
    """From now on there is a purge between any two looks at the store's index."""
    await write(store, prewrite(10), commit(10, 20), prewrite(30), commit(30, 40))
    await store.resolver.refresh()
    index = PurgedWhileLooking.__new__(PurgedWhileLooking)
    vars(index).update(vars(store.index))  # the same database: LevelDB opens one only once
    index.purge_ts = 25
    store.reads = ReadPath(index, store.log, store.resolver)


async def test_pull_fails_if_position_is_purged_between_two_index_reads(tmp_path: Path) -> None:
    """Never a later start in silence, as upstream's (P-RPC-09)."""
    async with opened(tmp_path, SetClock(100)) as store:
        await purging(store)
        with pytest.raises(PurgedPosition):
            await binlogs_of(store, 24)
        with pytest.raises(PurgedPosition):
            await store.reads.count(0, 40)
        assert await binlogs_of(store, 25) == [merged(30, 40)]
        assert (await store.reads.count(25, 40)).batch_count == 1


async def answers(stream: AsyncIterator[bytes]) -> list[pb.PullRangeResp]:
    return [pb.PullRangeResp.FromString(message) async for message in stream]


def service(store: Store, in_flight: InFlight | None = None) -> ExtService:
    gate = Gate(1, lambda: "")
    gate.closed = ""
    return ExtService(store, gate, in_flight or InFlight(1 << 30), node_id="p", state=lambda: "online")


async def test_watermark_has_purged_ts_of_purge_between_two_index_reads(tmp_path: Path) -> None:
    """The drainer compares its position with purged_ts: an older one would let it pass what is gone."""
    async with opened(tmp_path, SetClock(100)) as store:
        await purging(store)
        request = pb.WatermarkReq(after_ts=0, batch_bytes_max=1 << 20)
        answer = await service(store).watermark(request)
        assert (answer.batch_count, answer.purged_ts) == (1, 25)


async def test_extension_refuses_calls_for_another_cluster(tmp_path: Path) -> None:
    """Of all methods that answer one request, and of pulls."""
    requests = (pb.WatermarkReq, pb.CountReq, pb.InspectReq, pb.SettleReq, pb.PassOverReq, pb.OutcomeReq)
    async with opened(tmp_path, SetClock(100)) as store:
        handlers = {name: method.unary for name, method in service(store).service().methods.items() if method.unary}
        assert set(handlers) == {kind.DESCRIPTOR.name.removesuffix("Req") for kind in requests}
        for kind in requests:
            with pytest.raises(ClusterMismatch):
                await handlers[kind.DESCRIPTOR.name.removesuffix("Req")](kind(cluster_id=8).SerializeToString())
        with pytest.raises(ClusterMismatch):
            await answers(service(store).pull_range(pb.PullRangeReq(cluster_id=8).SerializeToString()))


async def test_pull_range_ends_with_message_of_count_and_bytes_sent(tmp_path: Path) -> None:
    """In a message of its own, also where there was nothing to send; and the plan says the same before."""
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20), encode_fake(25), prewrite(30), commit(30, 40))
        await store.resolver.refresh()
        ext = service(store)
        for after_ts, until_ts, wanted in ((0, 40, 2), (20, 40, 1), (20, 30, 0)):
            request = pb.PullRangeReq(cluster_id=1, after_ts=after_ts, until_ts=until_ts, message_bytes_max=1)
            *messages, last = await answers(ext.pull_range(request.SerializeToString()))
            sizes = [len(payload) for message in messages for payload in message.payloads]
            assert not any(message.HasField("end") for message in messages) and not last.payloads
            assert (last.end.count, last.end.bytes) == (wanted, sum(sizes)) == (len(sizes), sum(sizes))
            found = await ext.count(pb.CountReq(after_ts=after_ts, until_ts=until_ts))
            assert (found.count, found.bytes, found.bytes_exact) == (wanted, sum(sizes), True)
        with pytest.raises(NotResolved):
            await ext.count(pb.CountReq(until_ts=store.resolved_ts + 1))


async def test_open_pull_fails_with_stopping_error_when_pump_stops(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100)) as store:
        await write(store, prewrite(10), commit(10, 20))
        gate = Gate(1, lambda: "")
        gate.closed = ""
        stream = PumpService(store, gate, InFlight(1 << 30)).pull_binlogs(b"\x08\x01")
        await anext(stream)
        gate.closed = "the pump is stopping"
        with pytest.raises(Stopping, match="stopping"):
            await anext(stream)
