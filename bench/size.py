"""Measure one pump with many binlogs: its memory at each million; the seconds until it serves again after a stop, after
SIGKILL, and without its index; last, the removal of all binlogs.

    python -m bench.size [--binlogs 10000000] [--keep]

The binlogs are small, a prewrite and a commit for each transaction, written in batches. Another process pulls meanwhile
as a drainer does. Memory counts as flat if the pump's own memory (RssAnon), as the mean of each million, has grown by
no more than GROWTH_MAX_MIB since the first million. The mapped pages of LevelDB's tables belong to the page cache. Ten
million take about 1.5 GiB of disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
from binlog.envelope import encode_binlog
from binlog.pb import pump_ext_pb2
from binlog.runtime.channel import stub_of
from binlog.tidb.datum import encode_value
from binlog.tidb.mutation import PrewriteValue

from bench.drainer import own_cluster_id
from bench.pull import cpu_s
from bench.report import Report
from bench.stack import Stack
from tests.support.servers import Server, answers, free_port, python_module, running_etcd, wait_until

MARK = 1_000_000
BATCH = 500
SAMPLES = 10  # for each million: LevelDB fills a table in memory, of 64 MiB, and releases it
GROWTH_MAX_MIB = 48  # for each million: LevelDB keeps the index blocks of its tables, a MiB or two
RESTART_MAX_S = 8.0  # of CPU
REBUILD_DEADLINE_S = 3600.0
RETENTION_S = 5
TABLE_ID = 45
MIB = 1 << 20


class Transactions:
    """Writes transactions of one small row each, in batches, over one stream. A commit gets its timestamp when its
    prewrite is acknowledged, as a TiDB's does: until then the pump may resolve what is above the start. Timestamps are
    the wall clock's."""

    def __init__(self, port: int, cluster: int) -> None:
        self._stub = stub_of(grpc.insecure_channel(f"127.0.0.1:{port}"), pump_ext_pb2.DESCRIPTOR, "PumpExt")
        self._cluster = cluster
        value = PrewriteValue(1)
        value.insert(TABLE_ID, encode_value(7) + b"".join(encode_value(each) for each in (1, 7, 2, b"a small row")))
        self._row = value.serialize()
        self._number = 0
        self.last_ts = 0

    def write(self, count: int) -> None:
        """Write the transactions. All are durable when this returns."""
        acknowledged: queue.SimpleQueue[None] = queue.SimpleQueue()
        for answer in self._stub.WriteBatch(self._requests(count, acknowledged)):
            if answer.errors:
                raise SystemExit(f"the pump refused: {answer.errors[0]}")
            acknowledged.put(None)

    def _requests(self, count: int, acknowledged: queue.SimpleQueue[None]) -> Iterator[pump_ext_pb2.WriteBatchReq]:
        """Yield messages: a batch's prewrites, then the commits of the preceding batch, whose prewrites have been
        acknowledged.
        """
        starts: list[int] = []
        for at in range(0, count + BATCH, BATCH):
            before, starts = starts, [self._timestamp() for _ in range(min(BATCH, count - at))]
            if starts:
                yield self._request([encode_binlog(tp=0, start_ts=ts, prewrite_key=ts.to_bytes(8, "big"),
                                                   prewrite_value=self._row) for ts in starts])  # fmt: skip
                if at:
                    acknowledged.get(timeout=60)
            if before:
                acknowledged.get(timeout=60)
                yield self._request([encode_binlog(tp=1, start_ts=ts, commit_ts=self._timestamp(),
                                                   prewrite_key=ts.to_bytes(8, "big")) for ts in before])  # fmt: skip

    def _request(self, payloads: list[bytes]) -> pump_ext_pb2.WriteBatchReq:
        self._number += 1
        return pump_ext_pb2.WriteBatchReq(cluster_id=self._cluster, batch_id=self._number, payloads=payloads)

    def _timestamp(self) -> int:
        # The upper half of the millisecond's counter, because a pump's fakes use the lower half.
        self.last_ts = max(self.last_ts + 8, int(time.time() * 1000) << 18 | 1 << 17)
        return self.last_ts


def memory(server: Server) -> dict[str, float]:
    """Return a process's resident memory in MiB: VmRSS, RssAnon, RssFile, VmHWM."""
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon", "RssFile", "VmHWM")}


class Size:
    """The pump, its puller, and the figures measured."""

    def __init__(self, stack: Stack, directory: Path, report: Report) -> None:
        self.stack, self.directory, self.report = stack, directory, report
        self.port, self.status = free_port(), free_port()
        self.last_ts = self.written = 0
        self.server = self.start()
        self.server.wait_for_output("pump is serving")
        self.cluster = own_cluster_id(stack.endpoint)
        self.progress = directory / "pulled"
        self.puller = Server(
            [sys.executable, "-m", "bench.size_puller", stack.endpoint, str(self.port), str(self.cluster),
             str(self.progress)], directory / "puller.log",
        ).start()  # fmt: skip
        stack.servers.append(self.puller)

    def start(self) -> Server:
        argv = ("-node-id", "size", "-addr", f"127.0.0.1:{self.port}", "-pd-urls", self.stack.endpoint,
                "-status-addr", f"127.0.0.1:{self.status}", "-data-dir", str(self.directory / "size"),
                "-gc", f"{RETENTION_S}s")  # fmt: skip
        server = python_module("pump", *argv, output=self.directory / "size.log").start()
        self.stack.servers.append(server)
        return server

    def page(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.status}{path}", method=method)
        with urllib.request.urlopen(request, timeout=REBUILD_DEADLINE_S) as answer:
            return bytes(answer.read())

    def pulled(self) -> tuple[int, int]:
        with contextlib.suppress(FileNotFoundError):
            count, ts = self.progress.read_text().split()
            return int(count), int(ts)
        return 0, 0

    def write(self, transactions: int) -> None:
        source = Transactions(self.port, self.cluster)
        source.write(transactions)
        self.written += transactions
        self.last_ts = source.last_ts

    def fill(self, transactions: int) -> None:
        """Write the binlogs, and print the pump's memory at each million."""
        first = 0.0
        began_s = time.perf_counter()
        while self.written < transactions:
            samples = [self._sample(min(MARK, 2 * transactions) // 2 // SAMPLES) for _ in range(SAMPLES)]
            own = [sample["RssAnon"] for sample in samples]
            written, last = 2 * self.written, samples[-1]
            mean = self.report.add(f"{written:,} binlogs: memory of the pump's own", statistics.mean(own), "MiB")
            self.report.note(
                f"{min(own):,.0f} to {max(own):,.0f} MiB; with pages of files {last['VmRSS']:,.0f} MiB; "
                f"pulled {self.pulled()[0]:,} transactions"
            )
            first = first or mean
        self.report.add("written", written / (time.perf_counter() - began_s), "binlogs/s")
        grown = self.report.add("growth since the first million", mean - first, "MiB")
        if grown > GROWTH_MAX_MIB:
            raise SystemExit(f"memory is not flat: {grown:.0f} MiB more, {GROWTH_MAX_MIB} are allowed")
        self.all_pulled()
        self.report.add("pulled, all", time.perf_counter() - began_s, "s since the first write")

    def _sample(self, transactions: int) -> dict[str, float]:
        self.write(transactions)
        return memory(self.server)

    def all_pulled(self) -> None:
        wait_until(lambda: self.pulled()[1] >= self.last_ts, deadline_s=600, what="everything is pulled")
        if self.pulled()[0] != self.written:
            raise SystemExit(f"{self.written} transactions were written, {self.pulled()[0]} were pulled")

    def restarted(self, what: str, limit_s: float, *, deadline_s: float = 120) -> None:
        """Start the pump again. Return the seconds until it serves a write and a pull of the last transactions."""
        shown: list[int] = []
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(shown, over))
        watcher.start()
        began_s, before = time.perf_counter(), len(self.server.text())
        self.server = self.start()
        try:
            wait_until(self._pulls, deadline_s=deadline_s, what=f"a pull is served\n{self.server.tail()}")
            pulls_s = time.perf_counter() - began_s
            self.write(1)
            writes_s = time.perf_counter() - began_s
            used_s = cpu_s(self.server)
        finally:
            over.set()
            watcher.join()
        self.report.add(f"{what}: pulls are served after", pulls_s, "s")
        self.report.add(f"{what}: writes are served after", writes_s, "s")
        self.report.add(f"{what}: CPU until then", used_s, "s")
        self.report.add(f"{what}: memory of the pump's own", memory(self.server)["RssAnon"], "MiB")
        log = [line for line in self.server.text()[before:].splitlines() if "value log" in line and "percent" in line]
        self.report.note(f"progress in the log: {len(log)} lines; on /status: {len(shown)} figures")
        if used_s > limit_s:
            raise SystemExit(f"{what}: {used_s:.1f} s of CPU are too many, {limit_s} s are allowed")

    def _watch(self, shown: list[int], over: threading.Event) -> None:
        """Print the /status of a recovery while it lasts."""
        while not over.wait(0.2):
            with contextlib.suppress(OSError, ValueError):
                recovery = json.loads(self.page("/status"))["pump"].get("recovery")
                if recovery and recovery["percent"] not in shown[-1:]:
                    shown.append(recovery["percent"])

    def _pulls(self) -> bool:
        """Return whether the last transactions are served."""
        if not answers(self.port):
            return False
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            stub = stub_of(channel, pump_ext_pb2.DESCRIPTOR, "PumpExt")
            request = pump_ext_pb2.PullRangeReq(
                cluster_id=self.cluster, after_ts=self.last_ts - (1 << 18), until_ts=self.last_ts
            )
            try:
                *_, last = stub.PullRange(request, timeout=10)
            except grpc.RpcError:
                return False
        return bool(last.end.count)

    def collect(self) -> None:
        """Measure the removal when all binlogs are older than the retention and the drainer has read them."""
        self.all_pulled()
        wait_until(lambda: time.time() * 1000 - (self.last_ts >> 18) > RETENTION_S * 1000, what="all is old enough")
        before_s, began_s = cpu_s(self.server), time.perf_counter()
        self.page("/debug/gc/trigger", "POST")
        self.report.add("removing all: on the clock", time.perf_counter() - began_s, "s")
        self.report.add("removing all: CPU", cpu_s(self.server) - before_s, "s")
        self.report.add("removing all: memory of the pump's own", memory(self.server)["RssAnon"], "MiB")


def disk_mib(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / MIB


def measure(size: Size, transactions: int, report: Report) -> None:
    size.fill(transactions)
    for part in ("value", "kv"):
        report.add(f"disk: {part}", disk_mib(size.directory / "size" / part), "MiB")
    before_s = time.perf_counter()
    size.server.stop(deadline_s=120)
    report.add("stop", time.perf_counter() - before_s, "s")
    size.restarted("after a stop", RESTART_MAX_S)
    size.write(MARK // 20)
    size.server.kill()
    size.restarted("after SIGKILL", RESTART_MAX_S)
    size.server.kill()
    shutil.rmtree(size.directory / "size" / "kv")
    size.restarted("without its index", REBUILD_DEADLINE_S, deadline_s=REBUILD_DEADLINE_S)
    size.collect()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.size", description=__doc__)
    parser.add_argument("--binlogs", type=int, default=10_000_000)
    parser.add_argument("--keep", action="store_true", help="keep the directory with the pump's data")
    args = parser.parse_args()
    report = Report(f"{args.binlogs:,} binlogs in one pump")
    directory = Path(tempfile.mkdtemp(prefix="bench-size-"))
    with contextlib.ExitStack() as exits:
        if not args.keep:
            exits.callback(shutil.rmtree, directory, ignore_errors=True)
        stack = Stack(directory, exits.enter_context(running_etcd()).endpoint)
        exits.callback(stack.close)
        measure(Size(stack, directory, report), args.binlogs // 2, report)


if __name__ == "__main__":
    main()
