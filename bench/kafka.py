"""Measure a backlog in two pumps published to Kafka: rows a second for each protocol, compared with the producer
library's own ceiling; CPU by program; peak memory.

    python -m bench.kafka [--rows 100000] [--protocol open-protocol] [--profile]

There are one broker (KRaft, no replicas) and two pumps with `--rows` transactions of one row into sysbench's table. The
backlog is read again for each protocol. Rows are dispatched by their key over `--partitions`, with Kafka's
transactions.

*Published* counts from "drainer is running" to the last row that a read-committed reader gets; *behind the first*
counts from the first row that it gets, because the time in which Spark starts its workers is the same for any number of
rows. *Ceiling*: messages of the same rows, prepared in memory, that PRODUCERS processes of the library's producer, as
many as slots are written concurrently, get acknowledged by the same broker, in batches of the same size, idempotent. It
is measured before and after the drainer, and the mean counts. *Slot writers alone*: the same number of processes that
dispatch, encode and produce decoded rows from memory, in transactions: the rate of this part if pumps, decoding and
Spark cost nothing. After each protocol a read-committed reader reads and decodes every message: the run fails unless
every row's id occurs exactly once. A table of all protocols is printed last.

A drainer that is not measured comes before the others: the first drainer reads its files and the archive of the JVM's
classes from the disk, and its broker is new.

`--profile` prints each program's CPU for a row. Memory is the peak of the driver, the JVM and the Python workers. On a
machine that is not idle, compare ratios of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from bench import cpu
from bench.drainer import Case, OwnBacklog, fill, make_archive
from bench.kafka_ceiling import ceiling_per_s, writers_per_s
from bench.kafka_rows import Counted, count, differences
from bench.protocol import CASES, TOPIC, changes_of, encoder_of
from bench.report import Report
from bench.sbtest import SBTEST, jobs
from bench.stack import Stack
from drainer.batch.work import Kind
from drainer.protocol.encoder import Message
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.http_registry import Registry, serving
from tests.support.kafka import Broker, running_kafka
from tests.support.servers import Server, free_port, running_etcd, wait_until

PROTOCOLS = ("open-protocol", "avro", "canal-json", "debezium", "simple", "secondary-binlog")
PRODUCERS = 2
SAMPLE_ROWS = 20_000
POLL_S = 0.1
SETTLED_S = 3.0
DRAIN_S = 1800.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Seen:
    """`ends`: each partition's end offset for a read-committed reader. Also the CPU seconds by program since the
    programs started."""

    at: float
    ends: tuple[int, ...]
    cpu: cpu.Cpu


@dataclass
class Watch:
    """Samples a topic's end offsets and the programs; consumes nothing while the drainer works."""

    broker: Broker
    topic: str
    partitions: int
    drainer: Server
    pumps: Sequence[int]
    memory: dict[str, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    polls: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = {"bootstrap.servers": self.broker.address, "group.id": "bench", "log_level": 0}
        self._reader = Consumer({**settings, "isolation.level": "read_committed"})

    def close(self) -> None:
        self._reader.close()

    def poll(self) -> Seen:
        if not self.drainer.alive:
            raise SystemExit(f"the drainer ended:\n{self.drainer.tail()}")
        assert self.drainer.process is not None and self.broker.server.process is not None
        ends = tuple(
            self._reader.get_watermark_offsets(TopicPartition(self.topic, number), timeout=60, cached=False)[1]
            for number in range(self.partitions)
        )
        now, groups = time.perf_counter(), cpu.drainer_pids(self.drainer.process.pid)
        used = {"pumps": cpu.sum_s(self.pumps), **{name: cpu.sum_s(pids) for name, pids in groups.items()}}
        used["broker"] = cpu.process_s(self.broker.server.process.pid)
        self.polls.append(Seen(now, ends, used))
        if len(self.polls) % 5 == 1:
            self._weigh(groups)
        return self.polls[-1]

    def _weigh(self, groups: dict[str, list[int]]) -> None:
        for name, pids in groups.items():
            each = [cpu.memory_bytes([pid]) for pid in pids]
            self.memory[name] = max(self.memory.get(name, 0), sum(each))
            self.largest[name] = max(self.largest.get(name, 0), max(each, default=0))

    def until_settled(self) -> None:
        """Wait until the topic has records and no more have arrived for some time."""
        changed = time.perf_counter()
        while True:
            before = self.polls[-1].ends if self.polls else ()
            found = self.poll()
            if found.ends != before or not any(found.ends):
                changed = found.at
            if found.at - changed > SETTLED_S:
                return
            time.sleep(POLL_S)


def watched(watch: Watch, rows: int, protocol: str, registry: str, *, lacks: int = 0) -> list[Counted]:
    """Wait until every row has arrived exactly once; return every message that has rows. `lacks`: how many rows may be
    missing; the difference is then printed. Raises SystemExit."""
    deadline = time.perf_counter() + DRAIN_S
    while True:
        watch.until_settled()
        found = count(watch.broker, watch.topic, protocol, registry)
        total = len({id_ for one in found for id_ in one.ids}) if lacks else sum(one.rows for one in found)
        if total + lacks >= rows or time.perf_counter() > deadline:
            watch.poll()  # no sample has seen the records that arrived during the count
            wrong = differences(found, rows)
            if wrong and (not lacks or total + lacks < rows):
                raise SystemExit(f"{protocol}: {total:,} of {rows:,} rows are there: {wrong}\n{watch.drainer.tail()}")
            if wrong:
                print(f"  {wrong}", flush=True)
            return found


def ready_messages(protocol: str, rows: int) -> list[Message]:
    changes = changes_of(*CASES["sbtest"], min(rows, SAMPLE_ROWS), Kind.INSERT)
    encoder = encoder_of(protocol, changes.table)
    return [*framed_rows(encoder, encoded_rows(encoder.table(changes.table, TOPIC), changes))]


def config(stack: Stack, broker: Broker, topic: str, protocol: str, registry: str, args: argparse.Namespace) -> Path:
    history = stack.directory / "jobs.json"
    history.write_text(jobs(SBTEST))
    path = stack.directory / f"drainer-{topic}.toml"
    more = f'schema-registry = "{registry}"\n' if protocol == "avro" else ""
    top = f"batch-bytes-max = {args.batch_bytes}\n" if args.batch_bytes else ""
    top += 'log-level = "debug"\n' if args.debug else ""
    schema = f'history-file = "{history}"'
    write_config(path, stack.endpoint, broker, topic, protocol, schema=schema, top=top, more=more)
    return path


def write_config(
    path: Path, endpoint: str, broker: Broker, topic: str, protocol: str, *, schema: str, top: str = "", more: str = ""
) -> None:
    """Write the configuration of a drainer into a topic. `schema`: the line of `[schema]`; `top`, `more`: further lines
    at the beginning of the file and in `[syncer.to]`."""
    path.write_text(
        f'pd-urls = "{endpoint}"\nnode-id = "{topic}"\naddr = "127.0.0.1:{free_port()}"\nstatus-addr = ""\n'
        f'data-dir = "{path.with_suffix("")}"\ninitial-commit-ts = 0\n{top}\n[schema]\n{schema}\n'
        f'[syncer]\ndb-type = "kafka"\n[syncer.to]\naddresses = ["{broker.address}"]\ntopic = "{topic}"\n'
        f'protocol = "{protocol}"\ncontrol-topic = "{topic}-control"\nresolved-interval = "1h"\n{more}'
        f'[[syncer.to.dispatchers]]\nmatcher = ["*.*"]\npartition = "index-value"\n'
    )


@dataclass
class World:
    stack: Stack
    broker: Broker
    registry: Registry
    pumps: Sequence[int]
    args: argparse.Namespace

    def ceiling(self, messages: Sequence[Message]) -> float:
        """Return messages a second, written into a topic of its own."""
        topic = self.broker.topic(self.args.partitions, name="ceiling")
        try:
            return ceiling_per_s(self.broker.address, topic, self.args.partitions, messages, PRODUCERS)
        finally:
            self.broker.delete(topic)

    def writers(self, protocol: str) -> float:
        """Return rows a second of slot writers alone."""
        topic = self.broker.topic(self.args.partitions, name="writers")
        try:
            return writers_per_s(self.broker.address, topic, self.args.partitions, protocol, PRODUCERS)
        finally:
            self.broker.delete(topic)

    def drained(self, protocol: str) -> tuple[Watch, list[Counted]]:
        topic = self.broker.topic(self.args.partitions, name=protocol)
        file = config(self.stack, self.broker, topic, protocol, self.registry.url, self.args)
        drainer = self.stack.launch_drainer(file)
        watch = Watch(self.broker, topic, self.args.partitions, drainer, self.pumps)
        try:
            wait_until(
                lambda: "drainer is running" in drainer.text() or not drainer.alive, deadline_s=300, what=drainer.tail()
            )
            return watch, watched(watch, self.args.rows, protocol, self.registry.url)
        finally:
            watch.close()
            drainer.stop(deadline_s=120)
            if self.args.debug:
                print("\n".join(line for line in drainer.text().splitlines() if "DEBUG" in line.upper()))
            self.broker.delete(topic)


def last_poll(watch: Watch, counted: Sequence[Counted]) -> Seen:
    """Return the first sample that saw the last row of every partition."""
    last: dict[int, int] = {}
    for one in counted:
        last[one.partition] = max(last.get(one.partition, -1), one.offset)
    return next(poll for poll in watch.polls if all(poll.ends[at] > offset for at, offset in last.items()))


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one protocol: bytes of a row, rows of a message, rows a second, CPU of all programs for a row."""

    protocol: str
    bytes: float
    each: float
    ceiling: float
    alone: float
    published: float
    behind: float
    cpu_us: float


def measure(world: World, protocol: str) -> Measured | None:
    """Measure one protocol. Returns None with `--writers`."""
    args, rows = world.args, world.args.rows
    report = Report(f"{protocol}: {rows:,} transactions of a row, in two pumps, to Kafka")
    messages = ready_messages(protocol, rows)
    each = sum(message.rows for message in messages) / len(messages)
    rates = [world.ceiling(messages)]
    alone = world.writers(protocol)
    if args.writers:
        report.add("ceiling", rates[0] * each, "rows/s")
        report.add("slot writers alone", alone, "rows/s")
        report.ratio("slot writers alone", "ceiling")
        return None
    watch, counted = world.drained(protocol)
    rates.append(world.ceiling(messages))
    begin, end = watch.polls[0], last_poll(watch, counted)
    first = next(poll for poll in watch.polls if any(poll.ends))
    behind = sum(one.rows for one in counted if one.offset >= first.ends[one.partition])
    size, ready = sum(one.bytes for one in counted), sum(len(m.key or b"") + len(m.value or b"") for m in messages)
    ready_rows = sum(message.rows for message in messages)
    report.note(f"load {os.getloadavg()[0]:.1f}; ceiling before {rates[0] * each:,.0f}, after {rates[1] * each:,.0f}")
    report.note(
        f"a row has {size / rows:.0f} bytes, of the ceiling {ready / ready_rows:.0f}; "
        f"a message {rows / len(counted):.1f} rows, of the ceiling {each:.1f}"
    )
    report.add("ceiling", sum(rates) / 2 * each, "rows/s")
    report.add("slot writers alone", alone, "rows/s")
    report.ratio("slot writers alone", "ceiling")
    report.add("published", rows / (end.at - begin.at), "rows/s")
    report.ratio("published", "ceiling")
    if behind:
        report.add("behind the first", behind / (end.at - first.at), "rows/s")
        report.ratio("behind the first", "ceiling")
    for name, held in watch.memory.items():
        report.add(f"memory of {name}, peak", held / MIB, "MiB")
    report.add(f"memory of one of {cpu.WORKERS}, peak", watch.largest[cpu.WORKERS] / MIB, "MiB")
    used = sum(cpu.between(begin.cpu, end.cpu).values())
    if args.profile:
        tell_cpu(report, begin, first, end, rows)
    published, ceiling = report.values["published"], report.values["ceiling"]
    behind_rate = report.values.get("behind the first", published)
    return Measured(
        protocol, size / rows, rows / len(counted), ceiling, alone, published, behind_rate, used / rows * 1e6
    )


def tell_table(measured: Sequence[Measured]) -> None:
    heads = (
        "protocol",
        "bytes a row",
        "rows a message",
        "ceiling",
        "writers alone",
        "published",
        "behind the first",
        "CPU",
    )
    print(f"\n| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|")
    for one in measured:
        print(
            f"| {one.protocol} | {one.bytes:,.0f} | {one.each:.1f} | {one.ceiling:,.0f} rows/s "
            f"| {one.alone / one.ceiling:.2f} | {one.published:,.0f} rows/s, {one.published / one.ceiling:.2f} "
            f"| {one.behind / one.ceiling:.2f} | {one.cpu_us:.1f} µs |"
        )


def tell_cpu(report: Report, begin: Seen, first: Seen, end: Seen, rows: int) -> None:
    used = cpu.between(begin.cpu, end.cpu)
    for name, seconds in used.items():
        report.add(f"CPU of {name}", seconds / rows * 1e6, "µs/row")
    before = ", ".join(f"{name} {seconds:.1f}" for name, seconds in cpu.between(begin.cpu, first.cpu).items())
    report.note(f"of this before the first row, after {first.at - begin.at:.1f} s: {before} (CPU seconds)")
    cores = len(os.sched_getaffinity(0))
    report.add(f"share of {cores} cores", 100 * sum(used.values()) / (end.at - begin.at) / cores, "%")


@contextlib.contextmanager
def running(args: argparse.Namespace) -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
    with running_etcd() as etcd, running_kafka() as broker, serving(Registry()) as registry:
        stack = Stack(directory, etcd.endpoint)
        try:
            for number in range(2):
                stack.start_pump(f"bench-{number}")
            backlog = OwnBacklog(stack, SBTEST)
            fill(backlog, Case("single rows", SBTEST, args.rows))
            yield World(stack, broker, registry, backlog.pump_pids(), args)
        finally:
            stack.close()
            shutil.rmtree(directory, ignore_errors=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.kafka", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="rows in the backlog, an even number")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS, help="may be repeated; default: all")
    parser.add_argument("--batch-bytes", type=int, default=0, help="batch-bytes-max of the drainer; 0: its default")
    parser.add_argument("--writers", action="store_true", help="measure only the ceiling and the slot writers")
    parser.add_argument("--debug", action="store_true", help="print the drainer's log of its batches")
    parser.add_argument("--profile", action="store_true", help="print each program's CPU for a row")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    make_archive()
    protocols = args.protocol or PROTOCOLS
    with running(args) as world:
        if not args.writers:
            world.drained(protocols[0])
        found = [measure(world, protocol) for protocol in protocols]
    tell_table([one for one in found if one is not None])


if __name__ == "__main__":
    main()
