"""Binlogs a second into one pump, one call each and many per message, against raw appends and the Go pump; and what a
pull of many of them costs.

    python -m bench.pump [--txns 50000] [--single 10000] [--pull 500000] [-c 256]

The ceiling is a loop that appends the same bytes in groups of the same size with one fdatasync each. Single writes need
pumpload; the Go pump needs pd-server and pump beside it in PEER_BIN.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.drainer import own_cluster_id
from bench.fill import Pair, fill_batched, fill_with_pumpload, transactions
from bench.pull import cpu_s, measure_pull
from bench.report import Report
from bench.stack import Stack, peer_binary, running_stack
from tests.support.servers import Server, answers, free_port, wait_until

GROUP = 1000


def raw_appends(pairs: Sequence[Pair], directory: Path) -> float:
    """Payloads a second of write + fdatasync per group: no framing, no index, no RPC."""
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


def writes_a_second(line: str) -> float:
    """The figure in what pumpload prints."""
    found = re.search(r"([\d.]+) writes/s", line)
    if not found:
        raise SystemExit(f"pumpload printed no writes/s: {line}")
    return float(found.group(1))


def measure_single(name: str, stack: Stack, port: int, cluster: int, args: argparse.Namespace, report: Report) -> str:
    """pumpload into a pump, one binlog a call; what the line in the report is called."""
    (server,) = stack.servers
    before_s = cpu_s(server)
    line = fill_with_pumpload(port, cluster, txns=args.single, rows_each=1, base=10**9, concurrency=args.concurrency)
    title = f"{name}, one per call, -c {args.concurrency}"
    report.add(title, writes_a_second(line), "binlogs/s")
    report.add(f"{title}: CPU a call", (cpu_s(server) - before_s) / (2 * args.single) * 1e6, "µs")
    report.note(line)
    return title


@contextlib.contextmanager
def running_pd(directory: Path) -> Iterator[str]:
    """A real PD; its client URL."""
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


def measure_ours(args: argparse.Namespace, report: Report) -> None:
    with running_stack(pumps=1) as (stack, _):
        cluster = own_cluster_id(stack.endpoint)
        port = stack.pump_ports[0]
        pairs = list(transactions(args.txns, 1))
        report.add("raw append + fdatasync, groups of 1000", raw_appends(pairs, stack.directory), "binlogs/s")
        seconds = fill_batched(port, cluster, pairs, batch=GROUP // 2)
        report.add("this pump, many per message", 2 * len(pairs) / seconds, "binlogs/s")
        report.ratio("this pump, many per message", "raw append + fdatasync, groups of 1000")
        if peer_binary("pumpload"):
            measure_single("this pump", stack, port, cluster, args, report)
        if args.pull:
            measure_pull(stack.servers[0], port, cluster, args.pull, report)


def measure_go(args: argparse.Namespace, report: Report) -> None:
    """The Go pump under a real PD, on the same disk, right after ours."""
    directory = Path(tempfile.mkdtemp(prefix="bench-go-"))
    with contextlib.ExitStack() as exits:
        exits.callback(shutil.rmtree, directory, ignore_errors=True)
        url = exits.enter_context(running_pd(directory))
        stack = Stack(directory, url)
        exits.callback(stack.close)
        port = stack.start_go_pump("go-pump")
        cluster = own_cluster_id(url)
        title = measure_single("Go pump", stack, port, cluster, args, report)
        report.ratio(f"this pump, one per call, -c {args.concurrency}", title)
        report.ratio("this pump, many per message", title)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.pump", description=__doc__)
    parser.add_argument("--txns", type=int, default=50_000, help="transactions in batched writes (two binlogs each)")
    parser.add_argument("--single", type=int, default=10_000, help="transactions of pumpload")
    parser.add_argument("--pull", type=int, default=500_000, help="transactions that are pulled; 0: none")
    parser.add_argument("-c", "--concurrency", type=int, default=256)
    args = parser.parse_args()
    report = Report("binlogs into one pump")
    measure_ours(args, report)
    if peer_binary("pump") and peer_binary("pd-server") and peer_binary("pumpload"):
        measure_go(args, report)
    else:
        report.note("the Go pump was not measured: PEER_BIN names no folder with pd-server, pump and pumpload")


if __name__ == "__main__":
    main()
