"""Measure binlogs a second into one pump, one per call and many per message, compared with raw appends and the Go pump;
also the cost of pulling many binlogs.

    python -m bench.pump [--txns 50000] [--single 10000] [--pairs 5] [--pull 500000] [-c 256] [--go-drainer 0]

The ceiling is a loop that appends the same bytes in groups of the same size with one fdatasync each. Single writes need
pumpload in PEER_BIN; the Go pump also needs pd-server and pump there. Both pumps run at the same time and are written
to in turn, `--pairs` times. The results are the medians of the ratios within each pair. Calls have TiDB's deadline
where this pumpload can set one (`-timeout`). With `--go-drainer` a real drainer of the original reads this number of
transactions from each pump (see bench.original_pull); PEER_BIN then needs unitikv, tidb-server and drainer, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
from binlog.pb import pump_pb2

from bench.drainer import own_cluster_id
from bench.fill import Pair, fill_batched, fill_with_pumpload, transactions
from bench.original_pull import measure_original_pull
from bench.pull import cpu_s, measure_pull
from bench.report import Report
from bench.stack import Stack, peer_binary
from tests.support.servers import Server, answers, free_port, running_etcd, wait_until

GROUP = 1000
DEADLINE = "15s"  # of TiDB's pump client, for each call
FAKE_BYTES_MAX = 100  # of a PullBinlogResp
UNLIMITED = (("grpc.max_receive_message_length", -1),)


class Target(NamedTuple):
    """A pump under measurement."""

    server: Server
    port: int
    cluster: int
    directory: Path
    endpoint: str  # of etcd or PD


def raw_appends(pairs: Sequence[Pair], directory: Path) -> float:
    """Return payloads a second of write + fdatasync per group: no framing, no index, no RPC."""
    payloads = [payload for pair in pairs for payload in pair]
    path = directory / "raw"
    begin = time.perf_counter()
    with path.open("ab", buffering=0) as file:
        for at in range(0, len(payloads), GROUP):
            file.write(b"".join(payloads[at : at + GROUP]))
            os.fdatasync(file.fileno())
    seconds = time.perf_counter() - begin
    path.unlink()
    return len(payloads) / seconds


class Single(NamedTuple):
    """The figures of single writes from pumpload and /proc. Latencies in ms, CPU in µs a call."""

    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


def figures(line: str) -> tuple[float, float, float]:
    """Return writes a second, p50 and p99 from the output of pumpload."""
    rate, p50, p99 = (re.search(each, line) for each in (r"([\d.]+) writes/s", r"p50=(\S+)", r"p99=(\S+)"))
    if not (rate and p50 and p99):
        raise SystemExit(f"pumpload printed no figures: {line}")
    return float(rate[1]), milliseconds(p50[1]), milliseconds(p99[1])


def milliseconds(text: str) -> float:
    """Return the milliseconds of a duration as Go prints it."""
    found = re.fullmatch(r"([\d.]+)(ns|µs|ms|s)", text)
    if not found:
        raise SystemExit(f"pumpload printed the duration {text!r}")
    return float(found[1]) * {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]


def measure_single(target: Target, args: argparse.Namespace, run: int) -> Single:
    """Run pumpload into a pump, one binlog a call."""
    before_s = cpu_s(target.server)
    base = 10**9 + run * args.single
    line = fill_with_pumpload(target.port, target.cluster, txns=args.single, rows_each=1, base=base,
                              concurrency=args.concurrency, timeout=DEADLINE)  # fmt: skip
    rate, p50_ms, p99_ms = figures(line)
    return Single(rate, (cpu_s(target.server) - before_s) / (2 * args.single) * 1e6, p50_ms, p99_ms)


def add_singles(name: str, runs: Sequence[Single], args: argparse.Namespace, report: Report) -> None:
    title = f"{name}, one per call, -c {args.concurrency}"
    rate, cpu_us, p50_ms, p99_ms = (statistics.median(each) for each in zip(*runs, strict=True))
    report.add(title, rate, "binlogs/s")
    report.add(f"{title}: CPU a call", cpu_us, "µs")
    report.add(f"{title}: p50", p50_ms, "ms")
    report.add(f"{title}: p99", p99_ms, "ms")


def add_ratios(ours: Sequence[Single], theirs: Sequence[Single], report: Report) -> None:
    """Add the medians of the ratios within each pair: this project's pump to the Go pump."""
    pairs = list(zip(ours, theirs, strict=True))
    for what, ratios in (
        ("calls/s", [own.rate / other.rate for own, other in pairs]),
        ("CPU a call", [own.cpu_us / other.cpu_us for own, other in pairs]),
        ("p99", [own.p99_ms / other.p99_ms for own, other in pairs]),
    ):
        report.add(f"this pump / Go pump, {what}", statistics.median(ratios), "(ratio)", digits=2)
        report.note("each pair: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


def measure_upstreams_pull(name: str, target: Target, count: int, report: Report) -> None:
    """Measure PullBinlogs of everything, as Go drainers request it; `count` commits."""
    request = pump_pb2.PullBinlogReq(clusterID=target.cluster, startFrom=pump_pb2.Pos()).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{target.port}", options=UNLIMITED) as channel:
        before_s, begin, left = cpu_s(target.server), time.perf_counter(), count
        call = channel.unary_stream("/binlog.Pump/PullBinlogs")(request)
        for message in call:
            left -= len(message) > FAKE_BYTES_MAX
            if not left:
                break
        seconds = time.perf_counter() - begin
        call.cancel()
    report.add(f"{name}, PullBinlogs", count / seconds, "binlogs/s")
    report.add(f"{name}, PullBinlogs: CPU of the pump a binlog", (cpu_s(target.server) - before_s) / count * 1e6, "µs")


@contextlib.contextmanager
def running_pd(directory: Path) -> Iterator[str]:
    """Run a real PD; yields its client URL."""
    binary = peer_binary("pd-server")
    assert binary is not None
    port, peer = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [str(binary), "--name", "pd", "--data-dir", str(directory / "pd"), "--client-urls", url,
            "--peer-urls", f"http://127.0.0.1:{peer}", "--log-file", str(directory / "pd.log")]  # fmt: skip
    server = Server(argv, directory / "pd.out").start()
    try:
        wait_until(lambda: answers(port), deadline_s=60, what=f"PD answers\n{server.tail()}")
        yield url
    finally:
        server.kill()


@contextlib.contextmanager
def running_ours() -> Iterator[Target]:
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    with contextlib.ExitStack() as exits:
        exits.callback(shutil.rmtree, directory, ignore_errors=True)
        stack = Stack(directory, exits.enter_context(running_etcd()).endpoint)
        exits.callback(stack.close)
        port = stack.start_pump("bench-0")
        yield Target(stack.servers[0], port, own_cluster_id(stack.endpoint), directory, stack.endpoint)


@contextlib.contextmanager
def running_go() -> Iterator[Target]:
    """Run the Go pump under a real PD, on the same disk."""
    directory = Path(tempfile.mkdtemp(prefix="bench-go-"))
    with contextlib.ExitStack() as exits:
        exits.callback(shutil.rmtree, directory, ignore_errors=True)
        url = exits.enter_context(running_pd(directory))
        stack = Stack(directory, url)
        exits.callback(stack.close)
        port = stack.start_go_pump("go-pump")
        yield Target(stack.servers[0], port, own_cluster_id(url), directory, url)


def measure_batched(target: Target, args: argparse.Namespace, report: Report) -> None:
    if not args.txns:
        return
    pairs = list(transactions(args.txns, 1))
    report.add("raw append + fdatasync, groups of 1000", raw_appends(pairs, target.directory), "binlogs/s")
    before_s = cpu_s(target.server)
    seconds = fill_batched(target.port, target.cluster, pairs, batch=GROUP // 2)
    report.add("this pump, many per message", 2 * len(pairs) / seconds, "binlogs/s")
    cpu_us = (cpu_s(target.server) - before_s) / (2 * len(pairs)) * 1e6
    report.add("this pump, many per message: CPU a binlog", cpu_us, "µs")
    report.ratio("this pump, many per message", "raw append + fdatasync, groups of 1000")


def measure_pairs(ours: Target, theirs: Target | None, args: argparse.Namespace, report: Report) -> None:
    own: list[Single] = []
    other: list[Single] = []
    for run in range(args.pairs):
        own.append(measure_single(ours, args, run))
        if theirs is not None:
            other.append(measure_single(theirs, args, run))
    add_singles("this pump", own, args, report)
    count = args.pairs * args.single
    if theirs is None:
        report.note("the Go pump was not measured: PEER_BIN names no folder with pd-server, pump and pumpload")
        measure_upstreams_pull("this pump", ours, count, report)
        return
    add_singles("Go pump", other, args, report)
    add_ratios(own, other, report)
    measure_upstreams_pull("this pump", ours, count, report)
    measure_upstreams_pull("Go pump", theirs, count, report)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.pump", description=__doc__)
    parser.add_argument("--txns", type=int, default=50_000, help="transactions in batched writes (two binlogs each)")
    parser.add_argument("--single", type=int, default=10_000, help="transactions of pumpload, in each run")
    parser.add_argument("--pairs", type=int, default=5, help="runs of pumpload into each pump")
    parser.add_argument("--pull", type=int, default=500_000, help="transactions that are pulled; 0: none")
    parser.add_argument("--go-drainer", type=int, default=0, help="transactions that a Go drainer reads; 0: none")
    parser.add_argument("-c", "--concurrency", type=int, default=256)
    args = parser.parse_args()
    report = Report("binlogs into one pump")
    with contextlib.ExitStack() as exits:
        ours = exits.enter_context(running_ours())
        has_go = all(map(peer_binary, ("pump", "pd-server", "pumpload")))
        if args.single and peer_binary("pumpload"):
            measure_pairs(ours, exits.enter_context(running_go()) if has_go else None, args, report)
        measure_batched(ours, args, report)
        if args.pull:
            measure_pull(ours.server, ours.port, ours.cluster, args.pull, report)
    if args.go_drainer:
        measure_original_pull(args.go_drainer, args.pairs, report)


if __name__ == "__main__":
    main()
