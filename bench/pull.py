"""Measure the cost of a pull by range for the pump and for its client, and of a plan of the same range for the pump."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
from binlog.envelope import scan
from binlog.pb import pump_ext_pb2
from binlog.runtime.channel import stub_of
from binlog.runtime.security import Security

from bench.fill import Pair, fill_batched, transactions
from bench.report import Report, timed
from drainer.pumps.pull import pull
from drainer.pumps.watermark import PumpRange
from tests.support.servers import Server, wait_until

PLANS = 3
PULLS = 5
FILLED_AT_ONCE = 50_000


def cpu_s(server: Server) -> float:
    """Return the CPU that a process has used."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_pull(server: Server, port: int, cluster: int, txns: int, report: Report) -> None:
    """Write `txns` transactions of one row in batches, then plan and pull them."""
    stub = stub_of(grpc.insecure_channel(f"127.0.0.1:{port}"), pump_ext_pb2.DESCRIPTOR, "PumpExt")
    after_ts = _resolved(stub, cluster)
    source = transactions(txns, 1, seed=2)
    while pairs := list(islice(source, FILLED_AT_ONCE)):
        fill_batched(port, cluster, pairs)
        last_ts = _commit_ts(pairs)
    wait_until(lambda: _resolved(stub, cluster) >= last_ts, deadline_s=60, what="all that was written is resolved")
    before_s = cpu_s(server)
    for _ in range(PLANS):
        plan = stub.Watermark(pump_ext_pb2.WatermarkReq(cluster_id=cluster, after_ts=after_ts, batch_bytes_max=1 << 40))
    planned = plan.batch_count
    if planned != txns:
        raise SystemExit(f"{txns} transactions were written, and the pump plans {planned}")
    report.add("plan: CPU of the pump a binlog", (cpu_s(server) - before_s) / PLANS / planned * 1e6, "µs")
    part = PumpRange("bench", f"127.0.0.1:{port}", True, after_ts, plan.batch_end_ts)
    pulls = [_pull(server, part, cluster) for _ in range(PULLS)]
    seconds, pump_s, own_s, messages = (statistics.median(each) for each in zip(*pulls, strict=True))
    report.add("pull by range", planned / seconds, "binlogs/s")
    report.add("pull by range: CPU of the pump a binlog", pump_s / planned * 1e6, "µs")
    report.add("pull by range: CPU of the puller a binlog", own_s / planned * 1e6, "µs")
    shown = ", ".join(f"{each[1] / planned * 1e6:.2f}" for each in pulls)
    report.note(f"{planned} binlogs in {messages:.0f} messages; CPU of the pump in {PULLS} pulls: {shown} µs")


def _pull(server: Server, part: PumpRange, cluster: int) -> tuple[float, float, float, int]:
    """Return seconds, CPU of the pump, CPU of this process, messages."""
    before_s, before_own_s = cpu_s(server), time.process_time()
    with timed() as watch:
        messages = sum(1 for _ in pull(part, cluster_id=cluster, security=Security()))
    return watch.seconds, cpu_s(server) - before_s, time.process_time() - before_own_s, messages


def _resolved(stub: Any, cluster: int) -> int:
    found: int = stub.Watermark(pump_ext_pb2.WatermarkReq(cluster_id=cluster)).resolved_ts
    return found


def _commit_ts(pairs: Sequence[Pair]) -> int:
    return scan(pairs[-1][1]).commit_ts
