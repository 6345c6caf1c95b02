"""PullBinlogs to the original's drainer, from the original's pump and from ours. For bench.pump.

Each pump has a cluster of its own, because a drainer reads all pumps of its cluster: PD, TiKV, and a TiDB until the
table exists. Pumpload fills both pumps with the same number of transactions of one row. The drainer ignores the table's
schema, so it does the unavoidable work for each binlog (receive, decode, merge, look up the table) and writes nothing.
Its own count of received binlogs gives the rate. Pairs of drainers run in turn, each from the beginning.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.cpu import process_s
from bench.fill import fill_with_pumpload
from bench.original import create_table
from bench.report import Report
from bench.sbtest import SBTEST
from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.support.servers import Server, free_port, wait_until

SCHEMA = "bench"
POLL_S = 0.02
DRAIN_S = 600.0
CONCURRENCY = 256
_RECEIVED = re.compile(r"^binlog_drainer_read_binlog_size_count\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Filled:
    """A cluster with one pump, and the number of transactions that pumpload wrote to it."""

    name: str
    peer: Peer
    pump: Server
    txns: int


class Drained(NamedTuple):
    """Binlogs a second, and CPU of both sides in µs a binlog."""

    rate: float
    pump_us: float
    drainer_us: float


def received(port: int) -> float:
    """Return the number of binlogs that a drainer of the original has received."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return sum(map(float, _RECEIVED.findall(answer.read().decode())))


@contextlib.contextmanager
def filled(name: str, binaries: Path, txns: int, *, ours: bool) -> Iterator[Filled]:
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        with running_peer(binaries, directory) as peer:
            place = peer.place(f"{name}-pump")
            pump = peer.our_pump(place) if ours else peer.go_pump(place)
            tidb = peer.start_tidb()
            table_id = create_table(peer, SBTEST.create(SCHEMA))
            tidb.kill()
            fill_with_pumpload(
                place.port, cluster_id_of(peer), txns=txns, rows_each=1, base=1, concurrency=CONCURRENCY,
                table_id=table_id,
            )  # fmt: skip
            yield Filled(name, peer, pump, txns)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cluster_id_of(peer: Peer) -> int:
    """Return PD's cluster id."""
    with urllib.request.urlopen(f"{peer.pd_url}/pd/api/v1/cluster", timeout=10) as answer:
        found = re.search(rb'"id":\s*(\d+)', answer.read())
    if found is None:
        raise SystemExit("PD does not tell its cluster id")
    return int(found[1])


def drain(source: Filled, run: int) -> Drained:
    """Measure one drainer that starts from the beginning, from its first binlogs to the last."""
    port = free_port()
    name = f"drainer-{run}"
    drainer = source.peer.go_file_drainer(
        source.peer.directory / f"files-{run}", name=name, ignored=[SCHEMA], port=port
    )
    assert source.pump.process is not None and drainer.process is not None
    pump, own = source.pump.process.pid, drainer.process.pid
    try:
        begin = wait_until(lambda: received(port), deadline_s=DRAIN_S, what=f"the first binlog\n{drainer.tail()}")
        begin_s, pump_s, own_s = time.monotonic(), process_s(pump), process_s(own)
        end = begin
        while end < source.txns:
            if time.monotonic() - begin_s > DRAIN_S or not drainer.alive:
                raise SystemExit(f"{end:.0f} of {source.txns} binlogs were received\n{drainer.tail()}")
            time.sleep(POLL_S)
            end = received(port)
        count, seconds = end - begin, time.monotonic() - begin_s
        return Drained(
            count / seconds, (process_s(pump) - pump_s) / count * 1e6, (process_s(own) - own_s) / count * 1e6
        )
    finally:
        drainer.kill()


def measure_original_pull(txns: int, pairs: int, report: Report) -> None:
    binaries = peer_bin()
    if binaries is None:
        raise SystemExit("PEER_BIN names no folder with pd-server, unitikv, tidb-server, pump, drainer and pumpload")
    own: list[Drained] = []
    other: list[Drained] = []
    with (
        filled("ours", binaries, txns, ours=True) as ours,
        filled("original", binaries, txns, ours=False) as theirs,
    ):
        for run in range(pairs):
            own.append(drain(ours, run))
            other.append(drain(theirs, run))
    for name, runs in (("this pump", own), ("Go pump", other)):
        rate, pump_us, drainer_us = (statistics.median(each) for each in zip(*runs, strict=True))
        title = f"{name}, PullBinlogs to the Go drainer"
        report.add(title, rate, "binlogs/s")
        report.add(f"{title}: CPU of the pump a binlog", pump_us, "µs")
        report.add(f"{title}: CPU of the drainer a binlog", drainer_us, "µs")
    ratios = [mine.rate / yours.rate for mine, yours in zip(own, other, strict=True)]
    report.add("this pump / Go pump, PullBinlogs to the Go drainer", statistics.median(ratios), "(ratio)", digits=2)
    report.note("each pair: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))
