"""A process that pulls from one pump as a drainer does, and keeps a drainer's record in etcd, so that the pump may
remove what was pulled.

    python -m bench.size_puller ETCD PORT CLUSTER FILE

After each batch the process writes `count last_ts` to FILE. It runs until a signal.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import grpc
from binlog.cluster.etcd import Etcd, connect_etcd
from binlog.cluster.registry import NodeStatus, State, key_of
from binlog.errors import BinlogError
from binlog.pb import pump_ext_pb2
from binlog.runtime.channel import stub_of
from binlog.runtime.security import Security

from drainer.pumps.pull import pull
from drainer.pumps.watermark import PumpRange

NODE_ID = "bench-puller"
BATCH_BYTES = 16 << 20
PAUSE_S = 0.2


def pulled(port: int, cluster: int, after_ts: int) -> tuple[int, int]:
    """Pull one batch after `after_ts`. Return the number of binlogs, and the ts where the batch ended."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = stub_of(channel, pump_ext_pb2.DESCRIPTOR, "PumpExt")
        asked = pump_ext_pb2.WatermarkReq(cluster_id=cluster, after_ts=after_ts, batch_bytes_max=BATCH_BYTES)
        plan = stub.Watermark(asked, timeout=30)
    if not plan.batch_count:
        return 0, max(after_ts, plan.resolved_ts)
    part = PumpRange("bench", f"127.0.0.1:{port}", True, after_ts, plan.batch_end_ts)
    messages = pull(part, cluster_id=cluster, security=Security())
    count = sum(len(pump_ext_pb2.PullRangeResp.FromString(message).payloads) for message in messages)
    if count != plan.batch_count:
        raise SystemExit(f"{plan.batch_count} binlogs were planned, {count} came")
    return count, plan.batch_end_ts


async def drain(endpoint: str, port: int, cluster: int, progress: Path) -> None:
    etcd = connect_etcd([endpoint])
    count = after_ts = 0
    while True:
        try:
            more, after_ts = await asyncio.to_thread(pulled, port, cluster, after_ts)
        except (grpc.RpcError, BinlogError):  # the pump is restarting
            await asyncio.sleep(PAUSE_S)
            continue
        count += more
        await _register(etcd, after_ts)
        new = progress.with_suffix(".new")
        new.write_text(f"{count} {after_ts}")
        new.replace(progress)
        if not more:
            await asyncio.sleep(PAUSE_S)


async def _register(etcd: Etcd, after_ts: int) -> None:
    """Register a drainer that is paused: pumps keep binlogs above its position, and do not notify it."""
    now_ts = int(time.time() * 1000) << 18
    status = NodeStatus(NODE_ID, "127.0.0.1:1", State.PAUSED, max_commit_ts=after_ts, update_ts=now_ts)
    await etcd.put(key_of("drainers", NODE_ID), status.to_json())


if __name__ == "__main__":
    asyncio.run(drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
