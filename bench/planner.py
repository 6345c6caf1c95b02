"""Measure how the cost of planning grows with the number of pumps, and that of a Spark batch with the number of its
tasks.

    python -m bench.planner [--pumps 1,10,30,100] [--tasks 4,40,100,400] [--connections 1,2,4,16,64]

The pumps are stubs in a process of their own that answer with prepared bytes, so that the measurement shows the
driver's event loop. The floor is the same number of bare calls with the same answers, taken in the same run. A plan of
a backlog requests every pump's mark, and from every pump except one the count of the range that the one pump's batch
end determines. A plan of nothing is the work that an idle drainer does twenty times a second.

For Spark: a job of two stages, like a distributed batch, whose tasks do almost nothing, with executors on this machine.
For the destination: the plain loader over an increasing number of connections.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc.aio
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import ROOT, NodeStatus, Registry, State
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.security import Security

from bench.ceiling import PlainLoader
from bench.report import Report
from drainer.apply.batch_planner import Mode, PlannedBatch, Sizes
from drainer.pipeline import Pipeline
from drainer.pumps.client import aio_channel
from drainer.pumps.survey import PumpSet, dial_with
from drainer.service.scheduler import Scheduler
from tests.support.servers import running_etcd, running_mariadb

CLUSTER = 1
BEGIN_TS, RESOLVED_TS = 1 << 60, (1 << 60) + (1 << 40)
BATCH_BYTES = 64 << 20
PARALLELISM = 4
_PREFIX = "/binlog.ext.PumpExt/"


async def serve(pumps: int, backlog: bool) -> None:
    """Serve stub pumps until standard input ends; print their addresses. Each ends its batch at another ts."""
    servers = []
    for number in range(pumps):
        answers = {_PREFIX + "Watermark": _mark(number, pumps, backlog), _PREFIX + "Count": _count(pumps)}
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Ready(answers),))
        print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(server.stop(None) for server in servers))


class _Ready(grpc.GenericRpcHandler):
    """Answers each method with the same bytes."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self._answers = answers

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        answer = self._answers.get(details.method)
        if answer is None:
            return None

        async def handler(_request: bytes, _context: object) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(cast("Callable[..., bytes]", handler))


def _mark(number: int, pumps: int, backlog: bool) -> bytes:
    """Make a mark: a share of a full batch with four pieces, or an empty one."""
    answer = ext.WatermarkResp(resolved_ts=RESOLVED_TS, state="online", bytes_exact=True)
    if not backlog:
        answer.batch_end_ts = RESOLVED_TS
        return answer.SerializeToString()
    share = BATCH_BYTES // pumps
    answer.batch_end_ts = BEGIN_TS + (1 << 30) + number
    answer.batch_bytes, answer.batch_count, answer.stop = share, share // 256, ext.WatermarkResp.LIMIT
    answer.last_ts = answer.batch_end_ts
    for quarter in (1, 2, 3):
        answer.split_ts.append(BEGIN_TS + quarter * (1 << 28))
        answer.split_count.append(answer.batch_count * quarter // 4)
        answer.split_bytes.append(share * quarter // 4)
    return answer.SerializeToString()


def _count(pumps: int) -> bytes:
    share = BATCH_BYTES // pumps
    return ext.CountResp(count=share // 256, bytes=share, bytes_exact=True).SerializeToString()


@contextmanager
def stub_pumps(pumps: int, *, backlog: bool) -> Iterator[list[str]]:
    """Run stub pumps; yields their addresses."""
    argv = [sys.executable, "-m", "bench.planner", "--serve", str(pumps), *(["--backlog"] if backlog else [])]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        hosts = []
        while (line := process.stdout.readline().strip()) != "ready":
            if not line:
                raise SystemExit("the stub pumps did not start")
            hosts.append(line)
        try:
            yield hosts
        finally:
            process.stdin.close()
            process.wait(30)


@dataclass
class StandingPipeline:
    """The part of a pipeline that the scheduler uses; applies nothing."""

    position_ts: int = BEGIN_TS
    schema_version: int = 1
    open_intent: None = None
    driver_from: None = None

    def fold_order(self, _plan: PlannedBatch) -> None:
        return None

    def advance(self, _ts: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of one round: wall-clock time, and CPU of this process."""

    wall_ms: float
    cpu_ms: float


async def cost_of(rounds: int, work: Callable[[], Awaitable[Any]]) -> Cost:
    """Return the cost of one call. The first two calls, which connect, do not count."""
    for _ in range(2):
        await work()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        await work()
    return Cost((time.perf_counter() - wall) * 1e3 / rounds, (time.process_time() - cpu) * 1e3 / rounds)


async def floor(hosts: Sequence[str], rounds: int, calls_each: int) -> Cost:
    """Return the cost of bare calls: bytes in, bytes out, to all pumps concurrently, `calls_each` times."""
    channels = [aio_channel(host, Security()) for host in hosts]
    calls: list[Callable[[bytes], Awaitable[bytes]]] = [
        channel.unary_unary(_PREFIX + "Watermark") for channel in channels
    ]
    request = ext.WatermarkReq(cluster_id=CLUSTER, after_ts=BEGIN_TS).SerializeToString()

    async def once() -> None:
        for _ in range(calls_each):
            await asyncio.gather(*(call(request) for call in calls))

    try:
        return await cost_of(rounds, once)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def planned(endpoint: str, hosts: Sequence[str], rounds: int) -> tuple[Cost, PlannedBatch | None]:
    """Run the scheduler's work for one question of the stream reader; return the plan."""
    etcd = connect_etcd([endpoint])
    for number, host in enumerate(hosts):
        record = NodeStatus(f"p{number:03}", host, State.ONLINE)
        await etcd.put(f"{ROOT}/pumps/p{number:03}", record.to_json())
    pumps = PumpSet(Registry(etcd), dial_with(CLUSTER, Security()))
    pipeline = cast(Pipeline, StandingPipeline())
    sizes = Sizes(distributed_bytes_max=BATCH_BYTES, parallelism=PARALLELISM)
    scheduler = Scheduler(pumps, pipeline, sizes, loop=asyncio.get_running_loop())
    scheduler.watermark_state.pumps = len(hosts)
    try:
        cost = await cost_of(rounds, scheduler._poll)
        return cost, await scheduler._poll()
    finally:
        await pumps.close()
        await etcd.close()


def measure_pumps(numbers: Sequence[int], rounds: int) -> None:
    for backlog in (True, False):
        report = Report(f"planning {'a full batch' if backlog else 'nothing'}, by number of pumps, driver's event loop")
        for number in numbers:
            with running_etcd() as etcd, stub_pumps(number, backlog=backlog) as hosts:
                low = asyncio.run(floor(hosts, rounds, 2 if backlog else 1))
                cost, plan = asyncio.run(planned(etcd.endpoint, hosts, rounds))
            bare, whole = f"{number} pumps: bare calls", f"{number} pumps: the plan"
            report.add(bare, low.cpu_ms, f"ms of CPU, {low.wall_ms:.1f} ms on the clock")
            report.add(whole, cost.cpu_ms, f"ms of CPU, {cost.wall_ms:.1f} ms on the clock")
            report.ratio(whole, bare)
            if plan is not None:
                assert plan.mode is Mode.DISTRIBUTED
                ranges = sum(map(len, plan.tasks))
                size = len(pickle.dumps(plan.tasks, pickle.HIGHEST_PROTOCOL))
                report.note(f"{len(plan.tasks)} tasks of {ranges} ranges, {size:,} bytes for the stream reader")


def measure_connections(numbers: Sequence[int], rows: int) -> None:
    """Measure what a destination accepts from more executors than it has processors for."""
    report = Report("plain REPLACE into MariaDB, statements of 500 rows, by number of connections")
    with running_mariadb("--innodb-log-file-size=512M") as mariadb, PlainLoader(mariadb, rows) as loader:
        for number in numbers:
            rate = loader.replace(connections=number)
            report.add(f"{number} connections", rate, "rows/s")
            report.ratio(f"{number} connections", f"{min(numbers)} connections")


def measure_tasks(numbers: Sequence[int], rounds: int) -> None:
    from drainer.spark.startup.jvm_launch import start_jvm
    from drainer.spark.startup.session import open_session, stop_session
    from drainer.spark.startup.warmup import RESULT_DDL, _packed, _results

    report = Report("a batch of two stages whose tasks do nothing, by number of tasks, 2 cores")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        session = open_session(start_jvm(master="local[2]", output=Path(folder) / "spark.log", conf={}))

        def batch(tasks: int, slots: int) -> None:
            rows = session.range(0, 8 * tasks, numPartitions=tasks).mapInArrow(
                _packed, "pump string, seq int, blob binary"
            )
            slotted = rows.selectExpr("seq AS slot", "blob").repartitionById(slots, "slot")
            slotted.mapInArrow(_results, RESULT_DDL).toArrow()

        try:
            for tasks in (min(numbers), *numbers):  # the first run is a warm-up
                seconds = []
                for _ in range(max(3, rounds // 5)):
                    begin = time.perf_counter()
                    batch(tasks, tasks)
                    seconds.append(time.perf_counter() - begin)
                name = f"{tasks} reading tasks and as many slots"
                report.add(name, sorted(seconds)[len(seconds) // 2] * 1e3, "ms")
                report.ratio(name, f"{min(numbers)} reading tasks and as many slots")
        finally:
            stop_session(session)


def numbers_of(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.planner", description=__doc__)
    parser.add_argument("--pumps", type=numbers_of, default=[1, 10, 30, 100])
    parser.add_argument("--tasks", type=numbers_of, default=[4, 40, 100, 400], help="tasks in each of the two stages")
    parser.add_argument("--connections", type=numbers_of, default=[1, 2, 4, 16, 64])
    parser.add_argument("--rows", type=int, default=100_000, help="rows loaded with each number of connections")
    parser.add_argument("--no-servers", action="store_true", help="measure neither Spark nor MariaDB")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backlog", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.serve, args.backlog))
        return
    measure_pumps(args.pumps, args.rounds)
    if not args.no_servers:
        measure_tasks(args.tasks, args.rounds)
        measure_connections(args.connections, args.rows)


if __name__ == "__main__":
    main()
