"""A pull that reaches a damaged record sends every binlog before it, and then the error, as rule 25 promises."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from binlog.envelope import scan
from binlog.errors import PurgedPosition
from binlog.pb import pump_ext_pb2 as pb
from binlog.pb import pump_pb2

from pump.errors import DamagedRecord
from pump.log.record import HEADER_BYTES
from pump.pull import Reader
from pump.rpc.original_service import Gate, PumpService
from pump.store.store import Store
from tests.unit.pump.build import SetClock, commit, merged, opened, prewrite, write
from tests.unit.pump.pull.test_binlog_parts import large_prewrite
from tests.unit.pump.pull.test_ranges import service

END_TS = 1_000_000
COUNT = 300
STEP = 10
ROW = b"\x08\x01\x12\xe8\x07" + bytes(1000)  # a TableMutation of about a kilobyte
# The order in which transactions begin, and so their order in the log, is another one than that of their commits.
ORDERS = {"as committed": list(range(COUNT)), "another": random.Random(7).sample(range(COUNT), COUNT)}


def commit_ts_of(number: int) -> int:
    return END_TS // 2 + STEP * number


async def filled(
    store: Store, clock: SetClock, order: Sequence[int], *, general: frozenset[int] = frozenset(), last: bytes = b""
) -> None:
    """`general`: transactions whose commit is stored before their prewrite. `last`: the prewrite of one more."""
    late = [prewrite(10 + number, row=ROW) for number in sorted(general)]
    await write(store, *(prewrite(10 + number, row=ROW) for number in order if number not in general))
    await write(store, *(commit(10 + number, commit_ts_of(number)) for number in range(COUNT)), *late)
    if last:
        await write(store, last, commit(5, commit_ts_of(COUNT)))
    clock.ts = END_TS


def damage(store: Store, *numbers: int) -> str:
    """Return a pattern of what is said of the last of them."""
    for number in numbers:
        found = store.index.complete(commit_ts_of(number))
        assert found is not None
        path = store.log.file(found.fid).path
        data = bytearray(path.read_bytes())
        data[found.offset + HEADER_BYTES + found.length - 1] ^= 1
        path.write_bytes(data)
    return rf"{path.name}.* {found.offset}\b.*checksum mismatch"


async def until_error(stream: AsyncIterator[bytes | Sequence[bytes]]) -> tuple[list[bytes], DamagedRecord]:
    """Return the messages before the error, and the error."""
    found: list[bytes] = []
    with pytest.raises(DamagedRecord) as raised:
        async for messages in stream:
            found += [messages] if isinstance(messages, bytes) else messages
    return found, raised.value


async def of_range(store: Store, bytes_max: int) -> tuple[list[bytes], DamagedRecord]:
    """Return the binlogs that PullRange sends before the error."""
    until_ts = await store.resolver.refresh()
    request = pb.PullRangeReq(cluster_id=1, until_ts=until_ts, message_bytes_max=bytes_max, part_bytes_max=1 << 20)
    messages, error = await until_error(service(store).pull_range(request.SerializeToString()))
    parsed = [pb.PullRangeResp.FromString(message) for message in messages]
    assert not any(message.HasField("end") for message in parsed)
    for message in parsed:
        assert message.last_ts == (scan(message.payloads[-1]).commit_ts if not message.whole_bytes else message.last_ts)
    return [payload for message in parsed for payload in message.payloads], error


async def of_go_drainer(store: Store) -> tuple[list[bytes], DamagedRecord]:
    """Return the binlogs that PullBinlogs sends before the error."""
    await store.resolver.refresh()
    gate = Gate(1, lambda: "")
    gate.closed = ""
    request = pump_pb2.PullBinlogReq(clusterID=1)
    messages, error = await until_error(PumpService(store, gate).pull_binlogs(request.SerializeToString()))
    return [pump_pb2.PullBinlogResp.FromString(message).entity.payload for message in messages], error


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [0, 1, 150, COUNT - 1])
async def test_binlogs_before_a_damaged_record_are_sent(tmp_path: Path, number: int, order: str) -> None:
    """Upstream (P-PULL-03) ends the stream as if all was well, for ever."""
    async with opened(tmp_path, clock := SetClock(1), sync=False) as store:
        await filled(store, clock, ORDERS[order])
        place = damage(store, number)
        wanted = [merged(10 + each, commit_ts_of(each), row=ROW) for each in range(number)]
        for bytes_max in (0, 1000, 200_000):
            found, error = await of_range(store, bytes_max)
            assert found == wanted
            assert f"the binlog of commit_ts {commit_ts_of(number)} needs it" in str(error)
            assert re.search(place, str(error))
        found, error = await of_go_drainer(store)
        assert found == wanted
        assert f"the binlog of commit_ts {commit_ts_of(number)} needs it" in str(error)


async def test_the_first_of_several_damaged_records_is_named(tmp_path: Path) -> None:
    """The first by commit_ts, wherever it is in the log; records of other kinds are before it."""
    async with opened(tmp_path, clock := SetClock(1), sync=False) as store:
        await filled(store, clock, ORDERS["another"], general=frozenset({5, 40}))
        damage(store, 200, 60, 61, 299)
        wanted = [merged(10 + each, commit_ts_of(each), row=ROW) for each in range(60)]
        for found, error in (await of_range(store, 0), await of_go_drainer(store)):
            assert found == wanted
            assert f"commit_ts {commit_ts_of(60)} needs it" in str(error)


async def test_binlogs_before_a_damaged_large_one_are_sent(tmp_path: Path) -> None:
    async with opened(tmp_path, clock := SetClock(1), sync=False) as store:
        await filled(store, clock, ORDERS["as committed"], last=large_prewrite(5, bytes(5 << 20)))
        damage(store, COUNT)
        for found, error in (await of_range(store, 0), await of_go_drainer(store)):
            assert found[:COUNT] == [merged(10 + each, commit_ts_of(each), row=ROW) for each in range(COUNT)]
            assert f"commit_ts {commit_ts_of(COUNT)} needs it" in str(error)


async def test_pull_that_meets_record_purged_meanwhile_fails_with_purged_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is that of a purged position, and the binlogs before it are still sent."""
    async with opened(tmp_path, clock := SetClock(1), sync=False) as store:
        await filled(store, clock, ORDERS["as committed"])
        damage(store, 100)
        until_ts = await store.resolver.refresh()
        checks: list[int] = []

        def check_position(self: Reader, after_ts: int) -> None:
            checks.append(after_ts)
            if len(checks) > 1:  # the first check is that at the beginning of the pull
                raise PurgedPosition.of(after_ts, until_ts)

        monkeypatch.setattr(Reader, "check_position", check_position)
        request = pb.PullRangeReq(cluster_id=1, until_ts=until_ts, part_bytes_max=1 << 20)
        found: list[bytes] = []
        with pytest.raises(PurgedPosition):
            async for message in service(store).pull_range(request.SerializeToString()):
                found += pb.PullRangeResp.FromString(message).payloads
        assert len(found) == 100
