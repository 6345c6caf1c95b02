"""The client against stub pumps: where prewrites go, what follows them, and the failover rules (C-10 to C-14)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import patch

import pytest
from binlog.cluster.registry import State
from binlog.errors import ConfigError
from binlog.pb import binlog_pb2

from pumpclient import writer
from pumpclient.errors import (
    ClientClosed,
    CommitTsChanged,
    CommitUndelivered,
    DuplicateTransaction,
    NoPump,
    PayloadTooLarge,
    PrewriteFailed,
    PumpClientError,
    UnknownTransaction,
)
from tests.support.counted import counting
from tests.unit.pumpclient.conftest import FAST, Field, until
from tests.unit.pumpclient.stub_pump import Fault

KEY, VALUE = b"t\x80key", b"\x08\x01"


def value_of(size: int) -> bytes:
    """A prewrite value with rows of so many bytes."""
    rows = binlog_pb2.TableMutation(inserted_rows=[b"\x00" * size])
    return bytes(binlog_pb2.PrewriteValue(schema_version=1, mutations=[rows]).SerializeToString())


PATIENT = replace(FAST, write_timeout_s=30, patience_s=30)  # nothing fails, and a busy machine must not make it fail
BOTH_WAYS = pytest.mark.parametrize("extension", [True, False], ids=["batched", "plain"])


@BOTH_WAYS
async def test_commit_goes_to_pump_that_acknowledged_prewrite(field: Field, extension: bool) -> None:
    """Each pump commits exactly what it acknowledged, over either RPC."""
    pumps = [await field.add(name, extension=extension) for name in ("a", "b", "c")]
    client = await field.client(limits=PATIENT)
    for start_ts in range(10, 70, 2):
        acked = await client.write_prewrite(start_ts, KEY, VALUE)
        await client.commit(start_ts, start_ts + 1)
        assert field.pumps[acked].commits[start_ts] == start_ts + 1
    assert [len(pump.commits) for pump in pumps] == [10, 10, 10]  # range: round robin
    assert not any(pump.pending for pump in pumps)
    assert client.open_transactions == 0
    assert all((pump.plain_calls == 0) is extension for pump in pumps)


async def test_hash_strategy_chooses_pump_by_start_ts(field: Field) -> None:
    for name in ("a", "b", "c"):
        await field.add(name)
    client = await field.client("hash", limits=PATIENT)
    for start_ts in range(9, 18):
        assert await client.write_prewrite(start_ts, KEY, VALUE) == "abc"[start_ts % 3]


async def test_unknown_strategy_falls_back_to_range_and_set_strategy_refuses_it(field: Field) -> None:
    await field.add("a")
    client = await field.client("best")
    assert await client.write_prewrite(5, KEY, VALUE) == "a"
    with pytest.raises(PumpClientError, match="strategy best is not support"):
        client.set_strategy("best")
    with pytest.raises(PumpClientError, match="label needs labels"):
        client.set_strategy("label")
    client.set_strategy("score")
    assert await client.write_prewrite(7, KEY, VALUE) == "a"


async def test_score_strategy_follows_scores_in_registry(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pumps report arrives by the watch; beside the best possible score the least one gets next to nothing."""
    monkeypatch.setattr("pumpclient.pool.STALE_S", 600.0)  # stub pumps have no heartbeats
    good, bad = await field.add("good"), await field.add("bad")
    for pump, score in ((good, 1000), (bad, 1)):
        pump.score = score
        await field.announce(pump)
    client = await field.client("score", limits=PATIENT)
    for start_ts in range(100, 160, 2):
        await client.write_prewrite(start_ts, KEY, VALUE)
    assert len(good.pending) >= 25
    for pump, score in ((good, 1), (bad, 1000)):
        pump.score = score
        await field.announce(pump)
    await until(lambda: client._pool.weights(("bad", "good")) == [1000, 1])
    for start_ts in range(200, 260, 2):
        await client.write_prewrite(start_ts, KEY, VALUE)
    assert len(bad.pending) >= 25


async def test_label_strategy_uses_matching_pumps_and_others_only_without_them(field: Field) -> None:
    """While there is one; then any other takes its place, and the count tells."""
    near, far, go = [await field.add(name) for name in ("near", "far", "go")]
    near.label, far.label = {"zone": "a"}, {"zone": "b"}
    for pump in (near, far):
        await field.announce(pump)
    client = await field.client("label", limits=PATIENT, labels={"zone": "a"})
    outside = counting(writer.OUTSIDE)
    for start_ts in range(100, 120, 2):
        assert await client.write_prewrite(start_ts, KEY, VALUE) == "near"
    assert outside() == 0
    near.state = State.PAUSED
    await field.announce(near)
    await until(lambda: client.available_pumps == ("far", "go"))
    assert await client.write_prewrite(200, KEY, VALUE) in ("far", "go")
    assert outside() == 1
    await client.commit(118, 119)  # still where its prewrite is
    assert near.commits == {118: 119}
    assert not go.commits


async def test_labels_only_fails_if_no_matching_pump_is_available(field: Field) -> None:
    near, far = await field.add("near"), await field.add("far")
    near.label, far.label = {"zone": "a"}, {"zone": "b"}
    for pump in (near, far):
        await field.announce(pump)
    client = await field.client("label", limits=PATIENT, labels={"zone": "a"}, labels_only=True)
    assert await client.write_prewrite(100, KEY, VALUE) == "near"
    client._writer.limits = replace(FAST, write_timeout_s=0.05)
    near.faults.extend([Fault.REFUSE] * 1000)
    with pytest.raises(PrewriteFailed, match="the last error: near"):
        await client.write_prewrite(102, KEY, VALUE)
    near.state = State.PAUSED
    await field.announce(near)
    await until(lambda: not client.available_pumps)
    with pytest.raises(NoPump, match="2 registered, 1 of them with zone=a"):
        await client.write_prewrite(104, KEY, VALUE)
    assert not far.received


async def test_labels_without_the_strategy_are_refused(field: Field) -> None:
    await field.add("a")
    for strategy, labels in (("range", {"zone": "a"}), ("label", {}), ("label", {"zone": 1})):
        with pytest.raises(ConfigError):
            await field.client(strategy, labels=labels)


async def test_queued_binlogs_share_one_batch_message(field: Field) -> None:
    """Natural batching: what queues while a message is under way goes in the next one."""
    pump = await field.add("a")
    client = await field.client(limits=PATIENT)
    await client.write_prewrite(1, KEY, VALUE)
    await asyncio.gather(*(client.write_prewrite(ts, KEY, VALUE) for ts in range(2, 502)))
    assert len(pump.pending) == 501
    assert sum(pump.messages) == 501
    assert len(pump.messages) < 10


async def test_client_start_fails_if_no_pump_is_registered(field: Field) -> None:
    with pytest.raises(NoPump, match="no pump found in pd"):
        await field.client()


async def test_prewrite_fails_if_no_pump_is_online(field: Field) -> None:
    pump = await field.add("a")
    client = await field.client()
    pump.state = State.PAUSED
    await field.announce(pump)
    await until(lambda: not client.available_pumps)
    with pytest.raises(NoPump, match="1 registered"):
        await client.write_prewrite(5, KEY, VALUE)
    assert client.open_transactions == 0


@BOTH_WAYS
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.REFUSE_TEXT, Fault.ERRMSG, Fault.LOSE_ANSWER, Fault.HANG])
async def test_prewrite_moves_on_to_next_pump_after_any_failure(field: Field, fault: Fault, extension: bool) -> None:
    """C-10: any failure but `too large` moves on to the next pump; errmsg counts as a failure."""
    bad, good = await field.add("a", extension=extension), await field.add("b", extension=extension)
    client = await field.client()
    bad.faults.append(fault)
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    await client.commit(100, 101)
    assert good.commits == {100: 101}


@pytest.mark.parametrize(("times", "pump"), [(1, "a"), (2, "b")])
async def test_stream_that_ends_without_the_pumps_status_is_opened_once_more(
    field: Field, times: int, pump: str
) -> None:
    """grpc says INTERNAL in place of a Go pump's UNIMPLEMENTED if a message is being written when that arrives."""
    bad, _ = await field.add("a"), await field.add("b")
    client = await field.client()
    bad.faults += [Fault.UNCLEAR] * times
    assert await client.write_prewrite(100, KEY, VALUE) == pump
    assert len(bad.received) == 2


@BOTH_WAYS
async def test_prewrite_refused_as_too_large_is_not_retried(field: Field, extension: bool) -> None:
    pumps = [await field.add(name, extension=extension) for name in ("a", "b")]
    client = await field.client()
    pumps[0].faults.append(Fault.TOO_LARGE)
    with pytest.raises(PayloadTooLarge, match="larger than max"):
        await client.write_prewrite(100, KEY, VALUE)
    assert not pumps[1].received
    assert client.open_transactions == 0


async def test_batch_above_message_limit_of_pump_is_sent_as_single_calls(field: Field) -> None:
    """A batch above the pump's limit ends the stream and says nothing of its binlogs; single calls then do."""
    pump = await field.add("a", returns=True)
    await pump.stop()
    pump.receive_bytes_max = 100_000
    await pump.start(pump.port)
    client = await field.client(limits=PATIENT)
    await client.write_prewrite(1, KEY, VALUE)
    await asyncio.gather(*(client.write_prewrite(ts, KEY, value_of(40_000)) for ts in range(2, 40)))
    assert set(pump.pending) == set(range(1, 40))
    assert pump.plain_calls >= 37
    with pytest.raises(PayloadTooLarge, match="larger than max"):
        await client.write_prewrite(100, KEY, value_of(120_000))
    with pytest.raises(PayloadTooLarge):
        await client.write_prewrite(101, KEY, value_of(1_200_000))


async def test_concurrent_writers_share_one_connection_attempt(field: Field) -> None:
    """A pump that does not answer the dial costs each of many writers one dial's time, not the sum of all."""
    pump = await field.add("a", returns=True)
    port = pump.port
    await pump.stop()
    server = await asyncio.start_server(
        lambda reader, writer: reader.read(), "127.0.0.1", port
    )  # accepts, says nothing
    good = await field.add("b")
    client = await field.client("hash", limits=replace(FAST, write_timeout_s=4))
    async with asyncio.timeout(60):
        await asyncio.gather(*(client.write_prewrite(ts, KEY, VALUE) for ts in range(1000, 1060, 2)))
    assert len(good.pending) == 30
    server.close()


async def test_a_pausing_pump_keeps_its_connection(field: Field) -> None:
    """Its commits are still on their way; only a new address means a new connection."""
    pump = await field.add("a")
    client, failed = await field.client(), counting(writer.TRIES_FAILED)
    await client.write_prewrite(100, KEY, VALUE)
    pump.state = State.PAUSING
    await field.announce(pump)
    await until(lambda: not client.available_pumps)
    await client.commit(100, 101)
    assert pump.commits == {100: 101}
    assert failed() == 0


async def test_prewrite_tries_every_pump_and_then_fallback_before_failure(field: Field) -> None:
    """C-10 and C-13: past the timeout each pump has been tried, then once more over a fresh connection."""
    pumps = [await field.add(name) for name in ("a", "b")]
    client = await field.client(limits=replace(FAST, write_timeout_s=0.05))
    for pump in pumps:
        pump.faults.extend([Fault.REFUSE] * 1000)
    with (
        patch.object(client._writer, "falls_back", wraps=client._writer.falls_back) as falls_back,
        pytest.raises(PrewriteFailed, match=r"prewrite 100: write binlog failed after \d+ tries, the last error: b"),
    ):
        await client.write_prewrite(100, KEY, VALUE)
    falls_back.assert_called_once()
    assert all(pump.received for pump in pumps)


async def test_fallback_reaches_pump_marked_unavailable(field: Field) -> None:
    pump = await field.add("a")
    client = await field.client(limits=replace(FAST, detect_s=60, detect_soonest_s=60))
    pump.faults.extend([Fault.REFUSE] * 11)
    with patch.object(client._writer, "falls_back", wraps=client._writer.falls_back) as falls_back:
        await client.write_prewrite(100, KEY, VALUE)
    falls_back.assert_called_once()
    assert client.available_pumps == ("a",)  # marked available again


async def test_refused_probe_does_not_make_pump_available_again(field: Field) -> None:
    """C-05 fixed: a probe that is refused is no sign of life; one that is accepted brings the pump back."""
    bad, _good = await field.add("a"), await field.add("b")
    client = await field.client()
    bad.state = State.PAUSING  # the registry does not say so yet
    for start_ts in range(100, 140):
        await client.write_prewrite(start_ts, KEY, VALUE)
    assert client.available_pumps == ("b",)
    probes = bad.plain_calls
    await until(lambda: bad.plain_calls >= probes + 2)
    assert client.available_pumps == ("b",)
    bad.state = State.ONLINE
    await until(lambda: client.available_pumps == ("a", "b"))


async def test_commit_waits_for_restart_of_pump_with_prewrite(field: Field) -> None:
    """A commit waits for the pump that has the prewrite, whatever the others offer."""
    pump, other = await field.add("a", returns=True), await field.add("b")
    client = await field.client("hash")
    assert await client.write_prewrite(100, KEY, VALUE) == "a"
    port = pump.port
    await pump.stop()
    failed = counting(writer.TRIES_FAILED)
    commit = asyncio.create_task(client.commit(100, 101))
    await until(lambda: failed() >= 2)
    assert not commit.done()
    await pump.start(port)
    await asyncio.wait_for(commit, 60)
    assert pump.commits == {100: 101}
    assert not other.commits


async def test_undelivered_commit_is_reported(field: Field) -> None:
    """C-11 is not silent: a named error, a callback and a count; a later try with the same commit_ts succeeds."""
    pump = await field.add("a")
    seen: list[CommitUndelivered] = []
    client = await field.client(limits=replace(FAST, commit_budget_s=0.05), on_undelivered=seen.append)
    await client.write_prewrite(100, KEY, VALUE)
    undelivered = counting(writer.UNDELIVERED)
    pump.faults.extend([Fault.ERRMSG] * 1000)
    with pytest.raises(CommitUndelivered, match="transaction 100: pump a did not acknowledge the commit 101") as caught:
        await client.commit(100, 101)
    assert seen == [caught.value]
    assert undelivered() == 1
    pump.faults.clear()
    with pytest.raises(CommitTsChanged):
        await client.commit(100, 102)
    await client.commit(100, 101)
    assert pump.commits == {100: 101}


async def test_commit_goes_on_when_its_caller_is_cancelled(field: Field) -> None:
    pump = await field.add("a")
    client = await field.client()
    await client.write_prewrite(100, KEY, VALUE)
    pump.faults.extend([Fault.ERRMSG] * 3)
    failed = counting(writer.TRIES_FAILED)
    task = asyncio.create_task(client.commit(100, 101))
    await until(failed)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: pump.commits == {100: 101})


async def test_start_ts_in_use_is_refused_for_another_transaction(field: Field) -> None:
    await field.add("a")
    client = await field.client()
    await client.write_prewrite(100, KEY, VALUE)
    with pytest.raises(DuplicateTransaction):
        await client.write_prewrite(100, KEY, VALUE)
    await client.rollback(100)
    with pytest.raises(UnknownTransaction):
        await client.commit(100, 101)


async def test_closed_client_refuses_prewrite(field: Field) -> None:
    await field.add("a")
    client = await field.client()
    await client.close()
    with pytest.raises(ClientClosed):
        await client.write_prewrite(100, KEY, VALUE)


async def test_registry_watch_adds_removes_and_redials_pumps(field: Field) -> None:
    """C-04: new pumps are used, pumps that leave `online` are not, deleted ones vanish, moved ones are redialled."""
    first = await field.add("a")
    client = await field.client()
    second = await field.add("b")
    await until(lambda: client.available_pumps == ("a", "b"))
    first.state = State.PAUSING
    await field.announce(first)
    await until(lambda: client.available_pumps == ("b",))
    await field.etcd.delete("/tidb-binlog/v1/pumps/a")
    await field.etcd.delete("/tidb-binlog/v1/pumps/b")
    await until(lambda: not client.available_pumps)
    await field.announce(second)
    await until(lambda: client.available_pumps == ("b",))
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    await second.stop()
    await second.start()
    await field.announce(second)
    await client.commit(100, 101)  # at the new address
    assert second.commits == {100: 101}


async def test_registry_watch_lists_pumps_again_after_etcd_outage(field: Field) -> None:
    await field.add("a")
    client = await field.client()
    field.etcd.fail()
    await asyncio.sleep(0.01)
    field.etcd.recover()
    await field.add("b")
    await until(lambda: client.available_pumps == ("a", "b"))


async def test_expired_transactions_are_reported_once(field: Field) -> None:
    """C-09: an end that never comes is not a silent leak."""
    await field.add("a")
    seen: list[int] = []
    client = await field.client(
        limits=replace(FAST, open_ttl_s=0.0), on_expired=lambda found: seen.append(found.start_ts)
    )
    expired = counting(writer.EXPIRED)
    for start_ts in (100, 102, 104):
        await client.write_prewrite(start_ts, KEY, VALUE)
    assert seen == [100, 102]
    assert expired() == 2
