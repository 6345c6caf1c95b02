"""A Go pump behind its plain service, and how a range is pulled from either kind, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.envelope import encode_binlog, encode_fake
from binlog.errors import ERROR_TRAILER, BinlogError, ClusterMismatch, PumpError, PumpUnavailable, PurgedPosition
from binlog.runtime.security import Security

from drainer.pumps.client import ExtensionPump, Missed, translate
from drainer.pumps.go_pump import GoPump
from drainer.pumps.pull import pull
from drainer.pumps.survey import HeldBack, PumpSet, dial_with
from drainer.pumps.watermark import BatchLimits, Counted, PumpMark, PumpRange, Watermark
from tests.support.memory_etcd import MemoryEtcd
from tests.support.servers import free_port
from tests.support.stub_pump import StubPump

PLAIN = Security()
BASE = 470_000_000_000_000_000


def binlog(ts: int, *, job: int = 0) -> bytes:
    return encode_binlog(tp=1, start_ts=BASE + ts - 1, commit_ts=BASE + ts, prewrite_key=b"k", ddl_job_id=job)


@pytest.fixture
def stub() -> Iterator[StubPump]:
    pump = StubPump()
    yield pump
    pump.stop()


@pytest.fixture
def go() -> Iterator[StubPump]:
    pump = StubPump(extension=False)
    yield pump
    pump.stop()


async def marked(pump: GoPump, after_ts: int, until_ts: int) -> PumpMark:
    """Ask until the stream has brought `until_ts`."""

    for _ in range(6000):
        try:
            found = await pump.mark(after_ts=after_ts, limits=BatchLimits(1 << 20, stop_at_schema=True))
            if found.resolved_ts >= until_ts:
                return found
        except PumpUnavailable:
            pass
        await asyncio.sleep(0.01)
    raise AssertionError(f"{until_ts} did not come")


async def test_go_pump_resolved_ts_is_last_binlog_or_fake(go: StubPump) -> None:
    go.put(binlog(10), binlog(20), encode_fake(BASE + 30))
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN)
    found = await marked(pump, BASE, BASE + 30)
    assert (found.resolved_ts, found.batch_count, found.extension) == (BASE + 30, 2, False)
    found = await marked(pump, BASE + 10, BASE + 30)
    assert found.batch_count == 1
    go.put(binlog(40, job=7))
    found = await marked(pump, BASE + 30, BASE + 40)
    assert (found.end_ts, found.stop_ts) == (BASE + 39, BASE + 40)
    await pump.close()


async def test_go_pump_asked_from_earlier_position_counts_from_there(go: StubPump) -> None:
    """The next batch was asked for ahead, and this one failed: it is planned anew, from its own beginning."""
    go.put(binlog(10), binlog(20), encode_fake(BASE + 30))
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN)
    assert (await marked(pump, BASE, BASE + 30)).batch_count == 2
    assert (await marked(pump, BASE + 30, BASE + 30)).batch_count == 0
    found = await marked(pump, BASE, BASE + 30)
    assert (found.batch_count, found.counted(BASE + 30)) == (2, Counted(2, len(binlog(10)) + len(binlog(20))))
    assert await pump.count(after_ts=BASE + 10, until_ts=BASE + 30) == Counted(1, len(binlog(20)))
    assert not pump.interrupted
    await pump.close()


async def test_go_pump_full_backlog_is_not_read_until_position_moves(go: StubPump) -> None:
    go.put(*(binlog(ts) for ts in range(10, 100, 10)))
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN, backlog_max=3)
    found = await marked(pump, BASE, BASE + 30)
    assert found.resolved_ts == BASE + 30
    found = await marked(pump, BASE + 30, BASE + 60)
    assert found.resolved_ts <= BASE + 70
    await pump.close()


async def test_go_pump_is_unavailable_until_its_first_binlog(go: StubPump) -> None:
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN)
    with pytest.raises(PumpUnavailable):
        await pump.mark(after_ts=0, limits=BatchLimits(1))
    await pump.close()


async def until_it_raises(pump: GoPump, match: str) -> None:
    for _ in range(6000):
        try:
            await pump.mark(after_ts=BASE, limits=BatchLimits(1 << 20))
        except PumpUnavailable as error:
            if match in str(error):
                return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it was believed all the time: {match}")


async def test_silent_go_pump_is_unavailable_and_reconnected(go: StubPump) -> None:
    """Its host is gone, and TCP does not say so: no fake binlog came where one comes every three seconds."""
    go.put(binlog(10), encode_fake(BASE + 30))
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN, silence_max_s=0.3)
    await marked(pump, BASE, BASE + 30)
    await until_it_raises(pump, "nothing came for 0.3 s, not even a fake binlog")
    async with asyncio.timeout(60):
        while go.streams.count(BASE + 30) < 2:  # noqa: ASYNC110  the stub is on threads of its own
            await asyncio.sleep(0.01)
    begun = go.streams[: go.streams.index(BASE + 30)]
    assert begun and begun == sorted(begun), "more than one where the first answers took too long"
    assert set(begun) <= {BASE, BASE + 10}
    assert set(go.streams[len(begun) :]) == {BASE + 30}
    with pytest.raises(PumpUnavailable):
        await pump.mark(after_ts=BASE, limits=BatchLimits(1 << 20))
    go.put(binlog(40), encode_fake(BASE + 50))
    found = await marked(pump, BASE, BASE + 50)
    assert found.batch_count == 2, "what was received before stays known"
    await pump.close()


async def test_survey_names_silent_go_pump(go: StubPump) -> None:
    """`HeldBack` in /status, and the metric of how long a pump has held the watermark."""
    registry = Registry(MemoryEtcd())
    await registry.create("pumps", NodeStatus("p", go.host, State.ONLINE))
    pumps = PumpSet(registry, dial_with(1, PLAIN, silence_max_s=0.3))
    go.put(encode_fake(BASE + 30))
    said = ""
    try:
        async with asyncio.timeout(60):
            while "nothing came for 0.3 s" not in said:
                try:
                    await pumps.survey(after_ts=BASE, limits=BatchLimits(1 << 20))
                except HeldBack as error:
                    assert error.node_id == "p"
                    said = str(error)
                await asyncio.sleep(0.01)
        assert said.startswith("held back by pump p: ")
        assert pumps.views["p"].down_since is not None
    finally:
        await pumps.close()


async def test_go_pump_with_full_backlog_is_not_silent(go: StubPump) -> None:
    """The destination is slow: nobody reads the stream, so that its silence says nothing."""
    go.put(*(binlog(ts) for ts in range(10, 100, 10)))
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN, backlog_max=2, silence_max_s=0.2)
    await marked(pump, BASE, BASE + 20)
    pump.interrupted = False  # it may have taken too long to connect
    await asyncio.sleep(0.6)  # three times as long as it may be silent
    assert (await pump.mark(after_ts=BASE, limits=BatchLimits(1 << 20))).resolved_ts >= BASE + 20
    assert not pump.interrupted
    assert (await marked(pump, BASE + 80, BASE + 90)).resolved_ts == BASE + 90
    await pump.close()


@pytest.mark.parametrize(
    ("cluster", "after", "until", "kind"),
    [(2, 0, 40, ClusterMismatch), (1, 0, 40, PurgedPosition), (1, 10, 99, PumpUnavailable)],
)
def test_pull_raises_cluster_mismatch_purged_position_or_unavailable(
    stub: StubPump, cluster: int, after: int, until: int, kind: type[BinlogError]
) -> None:
    stub.put(binlog(10))
    stub.resolve(BASE + 50)
    stub.purged_ts = BASE + 5
    part = PumpRange("a", stub.host, True, BASE + after, BASE + until)
    with pytest.raises(kind, match=r"pump a \("):
        list(pull(part, cluster_id=cluster, security=PLAIN))


@pytest.mark.parametrize("extension", [True, False])
async def test_missed_binlogs_of_passed_range_are_counted(extension: bool) -> None:
    """Rule 2: both ends as in a pull, fakes apart."""
    stub = StubPump(extension=extension)
    stub.put(binlog(10), binlog(20), encode_fake(BASE + 25), binlog(30), binlog(40), encode_fake(BASE + 50))
    stub.resolve(BASE + 50)
    kind = ExtensionPump if extension else GoPump
    pump = kind("p", stub.host, cluster_id=1, security=PLAIN)
    try:
        found = await pump.missed(after_ts=BASE + 10, until_ts=BASE + 30)
        assert found == Missed(2, ((BASE + 19, BASE + 20), (BASE + 29, BASE + 30)))
        assert (await pump.missed(after_ts=BASE + 40, until_ts=BASE + 50)) == Missed()
        assert (await pump.missed(after_ts=BASE + 30, until_ts=BASE + 39)) == Missed()
    finally:
        await pump.close()
        stub.stop()


async def test_go_pump_lost_connection_sets_interrupted(go: StubPump) -> None:
    go.put(encode_fake(BASE + 30))
    pump = GoPump("go", go.host, cluster_id=1, security=PLAIN)
    await marked(pump, BASE, BASE + 30)
    assert not pump.interrupted
    await asyncio.to_thread(go.stop)
    for _ in range(6000):
        if pump.interrupted:
            break
        await asyncio.sleep(0.01)
    assert pump.interrupted
    await pump.close()


@pytest.mark.parametrize("ours_first", [False, True], ids=["a Go pump, then ours", "ours, then a Go pump"])
async def test_survey_follows_data_dir_that_another_kind_of_pump_takes_over(ours_first: bool) -> None:
    """One id, one address, two programs after each other: the survey goes on with the other one in its own way."""
    registry = Registry(MemoryEtcd())
    first = StubPump(extension=ours_first, port=free_port())
    await registry.create("pumps", NodeStatus("p", first.host, State.ONLINE))
    pumps = PumpSet(registry, dial_with(1, PLAIN))

    async def survey(extension: bool) -> Watermark:
        for _ in range(6000):
            try:
                found = await pumps.survey(after_ts=BASE, limits=BatchLimits(1 << 20))
                if found.marks[0].extension is extension and found.ts >= BASE + 30:
                    return found
            except HeldBack:
                pass
            await asyncio.sleep(0.01)
        raise AssertionError("it was not noticed")

    binlogs = (binlog(10), encode_fake(BASE + 30))
    first.put(*binlogs)
    first.resolve(BASE + 30)
    await survey(ours_first)
    await asyncio.to_thread(first.stop)
    second = StubPump(extension=not ours_first, port=int(first.host.rpartition(":")[2]))
    try:
        second.put(*binlogs)
        second.resolve(BASE + 30)
        assert not (await survey(not ours_first)).empty
    finally:
        await pumps.close()
        await asyncio.to_thread(second.stop)


@pytest.mark.parametrize(
    ("code", "text", "trailers"),
    [
        (grpc.StatusCode.UNKNOWN, "cluster ID are mismatch, 1 vs 2", ()),
        (grpc.StatusCode.FAILED_PRECONDITION, "in other words", ((ERROR_TRAILER, PumpError.CLUSTER_MISMATCH),)),
    ],
    ids=["Go's", "ours"],
)
def test_a_pump_of_another_cluster_is_known_by_its_trailer_or_the_originals_text(
    code: grpc.StatusCode, text: str, trailers: tuple[tuple[str, str], ...]
) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), text)
    assert isinstance(translate(error, "pump a"), ClusterMismatch)
