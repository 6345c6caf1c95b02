"""While the event loop processes a message, nobody else is answered, and no lease is renewed. Work is counted in calls
of functions, which other programs of the machine do not change, and compared with that of a full batch of a client."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import cast

import grpc
from binlog.envelope import FIELDS_MAX, encode_varint
from binlog.extension import PAYLOADS_MAX, PENDING_MAX
from binlog.pb import pump_ext_pb2 as pb
from binlog.pb import pump_pb2
from binlog.rpc.method import REQUEST_BYTES_MAX

from pump.rpc.extension_service import ExtService
from pump.rpc.messages import LARGE_BYTES_MIN
from pump.rpc.methods import MessageLimits, PumpListener
from pump.rpc.original_service import Gate, PumpService
from tests.unit.pump.build import SetClock, commit, opened, prewrite

FULL_BATCHES_MAX = 6
MESSAGE_BYTES = 8 << 20
BASE, COMMITTED = 1 << 40, 1500
TINY = b"\x98\x06\x01"  # field 99, a varint


def tiny(size: int) -> bytes:
    return TINY * (size // len(TINY))


def batch(payload: bytes, count: int) -> bytes:
    return (b"\x1a" + encode_varint(len(payload)) + payload) * count


def crowded(count: int) -> bytes:
    """A binlog with so many fields, and so many in its value."""
    value = TINY * count
    return b"\x2a" + encode_varint(len(value)) + value + TINY * (count - 1)


ASKED = pb.OutcomeReq(cluster_id=7, start_ts=range(BASE, BASE + PENDING_MAX)).SerializeToString()
FULL_BATCH = b"".join(batch(prewrite(BASE + (1 << 19) + n), 1) for n in range(PAYLOADS_MAX))
UNTIL = BASE + 2 * COMMITTED
COSTLIEST: dict[str, list[bytes]] = {
    "/binlog.Pump/WriteBinlog": [
        b"\x08\x07" + tiny(MESSAGE_BYTES - 2),
        *(pump_pb2.WriteBinlogReq(clusterID=7, payload=each).SerializeToString()
          for each in (tiny(MESSAGE_BYTES - 64), crowded(FIELDS_MAX), crowded(MESSAGE_BYTES // 8))),
    ],
    "/binlog.Pump/PullBinlogs": [pump_pb2.PullBinlogReq(clusterID=7).SerializeToString()],
    "/binlog.ext.PumpExt/WriteBatch": [
        b"\x08\x07" + each
        for each in (
            FULL_BATCH,
            tiny(MESSAGE_BYTES - 2),
            batch(b"", MESSAGE_BYTES // 2 - 1),
            batch(b"", LARGE_BYTES_MIN // 2 - 1),
            batch(crowded(FIELDS_MAX), PAYLOADS_MAX),
            batch(tiny(MESSAGE_BYTES // PAYLOADS_MAX - 8), PAYLOADS_MAX),
        )
    ],
    "/binlog.ext.PumpExt/PullRange": [
        pb.PullRangeReq(cluster_id=7, until_ts=UNTIL, message_bytes_max=1).SerializeToString()
    ],
    "/binlog.ext.PumpExt/Count": [pb.CountReq(cluster_id=7, until_ts=UNTIL).SerializeToString()],
    "/binlog.ext.PumpExt/Watermark": [
        pb.WatermarkReq(cluster_id=7, batch_bytes_max=1 << 62).SerializeToString(),
    ],
    "/binlog.ext.PumpExt/Inspect": [pb.InspectReq(cluster_id=7, pending_max=1 << 31).SerializeToString()],
    "/binlog.ext.PumpExt/Settle": [pb.SettleReq(cluster_id=7, start_ts=BASE).SerializeToString()],
    "/binlog.ext.PumpExt/PassOver": [pb.PassOverReq(cluster_id=7, commit_ts=1).SerializeToString()],
    "/binlog.ext.PumpExt/Outcome": [
        ASKED,
        b"\x08\x07\x12" + encode_varint(REQUEST_BYTES_MAX - 8) + b"\x01" * (REQUEST_BYTES_MAX - 8),
        b"\x08\x07" + b"\x10\x01" * (4 << 19),
    ],
}  # fmt: skip


class CountingLoop(asyncio.SelectorEventLoop):
    """`longest`: the calls of the longest step since it was set to 0. A step is all that runs between two looks at the
    sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = self.longest = 0

    def count(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _run_once(self) -> None:
        self._calls = 0
        super()._run_once()  # type: ignore[misc]  # asyncio's own
        self.longest = max(self.longest, self._calls)


def ask(channel: grpc.Channel, method: str, message: bytes) -> str:
    """Call a method, and return the status."""
    try:
        if method.endswith("WriteBatch"):
            list(channel.stream_stream(method)(iter([message]), timeout=120))
        else:
            for _ in channel.unary_stream(method)(message, timeout=120):
                if method.endswith("PullBinlogs"):
                    break
    except grpc.RpcError as error:
        return error.code().name  # type: ignore[attr-defined, no-any-return]  # a call, too
    return "OK"


async def steps(directory: Path, loop: CountingLoop) -> list[tuple[str, int, str, int]]:
    """Ask all; return the method, the number of its message, the status and the longest step of each."""
    found: list[tuple[str, int, str, int]] = []
    async with opened(directory / "data", SetClock(BASE + (1 << 20))) as store:
        gate = Gate(7, lambda: "")
        gate.closed = ""
        services = [
            PumpService(store, gate).service(),
            ExtService(store, gate, node_id="p", state=lambda: "online").service(),
        ]
        listener = PumpListener(services, limits=MessageLimits(message_bytes_max=MESSAGE_BYTES))
        methods = {f"/{each.name}/{name}" for each in services for name in each.methods}
        assert methods == set(COSTLIEST), "a method whose costliest message nobody wrote down"
        await listener.start("127.0.0.1:0")
        await store.writes.write([prewrite(BASE + n) for n in range(COMMITTED)])
        await store.writes.write([commit(BASE + n, BASE + COMMITTED + n) for n in range(COMMITTED)])
        await store.resolver.refresh()
        await store.writes.write([prewrite(BASE + (1 << 20) + n) for n in range(PENDING_MAX)])
        sys.setprofile(loop.count)
        try:
            with grpc.insecure_channel(
                f"127.0.0.1:{listener.port}", [("grpc.max_receive_message_length", -1)]
            ) as channel:
                for method, messages in COSTLIEST.items():
                    for number, message in enumerate(messages):
                        loop.longest = 0
                        status = await asyncio.to_thread(ask, channel, method, message)
                        found.append((method, number, status, loop.longest))
        finally:
            sys.setprofile(None)
            await listener.stop(0)
    return found


def test_event_loop_step_is_bounded_for_costliest_message_of_each_method(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        found = runner.run(steps(tmp_path, cast(CountingLoop, runner.get_loop())))
    (full,) = [calls for method, number, _, calls in found if method.endswith("WriteBatch") and not number]
    assert full > 10 * PAYLOADS_MAX, "the calls of the loop are not counted"
    assert not [each for each in found if each[3] > FULL_BATCHES_MAX * full]
    refused = {(method[-10:], number) for method, number, status, _ in found if status == "RESOURCE_EXHAUSTED"}
    assert refused == {("WriteBatch", 2), ("WriteBatch", 3), ("xt/Outcome", 1), ("xt/Outcome", 2)}
