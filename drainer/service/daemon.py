"""The drainer process: start order and stop order.

Start: etcd and the cluster's id ─ status page and gRPC ─ with `standby` the turn of this drainer ─ destination (its
position) ─ schema ─ record in the registry ─ query. At the same time, since drainer.__main__: the JVM ─
Spark's session ─ warm-up (drainer.spark.startup.jvm_launch).
Stop, in this order: `pausing` or `closing` ─ planning ends ─ the batch in flight ends ─ query ─ Spark ─
last record (`paused` or `offline`) ─ destination ─ gRPC and status page ─ etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from binlog.cluster import tso
from binlog.cluster.candidates import Candidate
from binlog.cluster.etcd import Etcd, connect_etcd, keep_in_thread
from binlog.cluster.registry import Event, Registry
from binlog.cluster.timestamp import ClusterClock, cluster_id, connect_timestamps, current_ts, pd_addresses
from binlog.errors import BinlogError, ConfigError, PurgedPosition
from binlog.pb import cistern_pb2
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method
from binlog.rpc.session import Settings
from binlog.runtime import metrics
from binlog.runtime.fields import reachable
from binlog.runtime.http import StatusServer
from binlog.runtime.listener import Listener
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security
from binlog.runtime.waiting import cancel

from drainer.apply.batch_planner import Sizes
from drainer.apply.distributed import Cut
from drainer.apply.in_driver import LargePuller
from drainer.apply.progress import Decisions, LoadProgress
from drainer.config import Config
from drainer.pipeline import Pipeline
from drainer.pumps.survey import Membership, PumpSet, dial_topics, dial_with, scope_of
from drainer.pumps.watermark import BatchLimits
from drainer.ranges.upstream import open_snapshot, server_of
from drainer.schema.history import sources
from drainer.schema.history.base import JobSource
from drainer.schema.history.snapshot import SchemaSnapshot, read_snapshot
from drainer.schema.provider import Known, LoopSchemaProvider, SchemaProvider
from drainer.schema.state import Schema
from drainer.service.on_spark import use_session
from drainer.service.registration import DrainerNode
from drainer.service.scheduler import Scheduler, Steering
from drainer.service.spark_runner import SparkRun
from drainer.service.status import PageSwitch, StartingPages, Status
from drainer.service.steering import SteeringApi, why_not_stop_at
from drainer.service.verification import Verifier
from drainer.sink.base import (
    AnySink,
    ChecksTables,
    DerivesDdl,
    FirstStart,
    Identity,
    Position,
    Wants,
    advance_s,
)
from drainer.sink.errors import DestinationRefused
from drainer.spark.startup.class_archive import make_where_missing
from drainer.spark.startup.jvm_launch import Opening
from drainer.ticdc.tables import MessageSchemas, TopicHistory

# The drainer's address: the gRPC service Cistern, and over HTTP/1 the same pages as at status-addr.
#
# A Go pump refuses to start unless every drainer answers Notify (P-LC-05), and the original's binlogctl requests a
# drainer over HTTP/1 at this address to pause or to close. Notify only answers: a survey lists the pumps every time
# (correctness rule 8: which pumps count), so no notification is needed.
STOP_S = 1.0


def cistern_server(security: Security, pages: StatusServer) -> Listener:
    """Return the server of `addr`, not started yet: gRPC, and the pages, which may already be serving or only be
    prepared. They are closed after it."""
    listener = Listener(Settings({b"/binlog.Cistern/Notify": Method(unary=_notify)}), security)
    listener.serve_http1(pages.protocol)
    return listener


async def _notify(_request: Buffer) -> bytes:
    _log.info("Notify received from a pump")
    return cistern_pb2.NotifyResp().SerializeToString()


INSPECT_S = 2.0
OBSERVE_S = 1.0
CLOCK_WAIT_S = 2.0
SKIPPED = "skipped.jsonl"  # in data-dir: transactions that an operator skipped
STOP_BATCH_S = 60.0
BEGINNING_TS = 0
PURGED_WAIT_S = 5.0
TABLES_SHOWN_MAX = 20
REMEDY = (
    "to apply the binlogs that the pumps hold, or those after a copy of the upstream that was loaded into the "
    "destination: stop the drainer, delete its row in tidb_binlog.drainer_position, and start it with "
    "initial-commit-ts = 0, or with the TSO of that copy"
)

_log = get_logger(__name__)


T = TypeVar("T")


class _StoppedEarly(BinlogError):
    """A stop was requested before the destination was open."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The upstream cluster: etcd, the registry of pumps, the cluster id, a TSO of the start, this drainer among those
    with its node id, and the source of DDL jobs where topics have the schemas."""

    etcd: Etcd
    registry: Registry
    cluster_id: int
    now_ts: int
    candidate: Candidate
    schemas: MessageSchemas | None


@dataclass(frozen=True, slots=True)
class Opened:
    """The open destination, its position, and the schema at that position. `first_ts`: see provider.Known."""

    destination: AnySink
    position: Position
    schema_provider: LoopSchemaProvider
    first_ts: int


async def drain(config: Config, opening: Opening, stop: asyncio.Event) -> None:
    """Run until `stop` is set, until --until-now is reached, or until something fails, which is raised. The caller
    closes `opening`."""
    async with contextlib.AsyncExitStack() as stack:
        security = config.security.security()
        etcd = connect_etcd(config.pd_urls, security)
        stack.push_async_callback(etcd.close)
        try:
            found = await _unless(stop, cluster_id(etcd, config, security))
        except _StoppedEarly:
            _log.info("stopped before etcd was reached")
            return
        starting = StartingPages(config.identity(), config.syncer.address())
        pages = PageSwitch(starting)
        await stack.enter_async_context(_serving(config, pages))
        keep = keep_in_thread(config.pd_urls, security)
        candidate = Candidate(etcd, keep, node_id=config.identity(), address=config.registered_address())
        stack.push_async_callback(candidate.leave)
        try:
            if config.standby:
                await _unless(stop, _first(candidate, starting))
            if config.upstream.first_load and not await _first_load(config, stop, starting, opening):
                raise _StoppedEarly
            now_ts = await _unless(stop, _now_ts(config, etcd, security))  # heartbeats are counted from it
            schemas = MessageSchemas() if config.has_schemas_in_topics else None
            upstream = Upstream(etcd, Registry(etcd), found, now_ts, candidate, schemas)
            opened = await stack.enter_async_context(_opened(config, upstream, stop, opening))
        except _StoppedEarly:
            _log.info("stopped before the destination was open")
            return
        await _drain(config, upstream, opened, opening, pages, stop)


async def _first(candidate: Candidate, pages: StartingPages) -> None:
    """Wait while another drainer with this node id runs."""

    def waiting(address: str) -> None:
        _log.info("another drainer with this node id runs: waiting to take over", running_at=address)
        pages.wait_for(address)

    await candidate.first(waiting)
    pages.wait_for("")
    _log.info("no other drainer with this node id runs")


async def _first_load(config: Config, stop: asyncio.Event, pages: StartingPages, opening: Opening) -> bool:
    from drainer.service.first_load import load  # imports a client of servers, for which no other start waits

    pages.load = LoadProgress()
    return await load(config, stop, pages.load, opening, unless_begun=True)


async def _now_ts(config: Config, etcd: Etcd, security: Security) -> int:
    """Return the current TSO: from the timestamp source if initial-commit-ts is not set, else approximated from the
    clock.
    """
    if config.initial_commit_ts >= 0:
        return tso.compose(int(time.time() * 1000))
    return await current_ts(etcd, config, security)


@contextlib.asynccontextmanager
async def _opened(config: Config, upstream: Upstream, stop: asyncio.Event, opening: Opening) -> AsyncIterator[Opened]:
    destination = config.syncer.sink(former_has_ended=config.standby)
    use_session(destination, opening)
    identity = Identity(upstream.cluster_id, config.changefeed, config.identity())
    initial_ts = upstream.now_ts if config.initial_commit_ts < 0 else config.initial_commit_ts
    jobs = job_sources(config, upstream.etcd, upstream.schemas)
    provider = SchemaProvider(jobs, config.syncer.policy(), snapshot_reader(config))
    pumps = _pumps(config, upstream)
    try:
        known = await _unless(stop, provider.known(initial_ts))
        first = await _unless(stop, first_start(config, known, pumps))
    finally:
        await pumps.close()
    position = await _position(lambda: destination.open(identity, initial_ts, first), destination, stop)
    clean = False
    try:
        _log.info(
            "destination opened",
            destination=destination.name,
            position=position.commit_ts,
            fresh=position.fresh,
            open_batch=position.intent is not None,
        )
        log_start_position(config, initial_ts, first, position)
        # Which DDLs have run is recorded at the destination, except with a position from the original's checkpoint.
        reading = provider.open(
            position_ts=position.commit_ts,
            schema_version=position.schema_version,
            job_done=None if position.fresh else destination.job_done,
            first_start=position.fresh,
        )
        await _unless(stop, reading)
        if upstream.schemas is None:
            provider.check_rules()
        if not all(load.is_complete for load in position.loads):
            raise DestinationRefused(f"{destination.name}: its first load is not complete; continue it: drainer load")
        if isinstance(destination, ChecksTables):
            destination.check_tables(provider.schema.view())
        schema_provider = LoopSchemaProvider(provider, asyncio.get_running_loop())
        yield Opened(destination, position, schema_provider, known.first_ts)
        clean = True
    finally:
        await asyncio.to_thread(destination.close, clean=clean)


def is_given(config: Config) -> bool:
    """Return whether initial-commit-ts is set in the file, by a flag or in the environment."""
    return "initial_commit_ts" in config.model_fields_set


async def first_start(config: Config, known: Known, pumps: PumpSet) -> FirstStart:
    """Return the start options from which the destination chooses if it has no position (docs/operations.md, "How the
    drainer chooses where to start")."""
    only_published = not config.schema_.history_file and not config.schema_.history_url
    may_begin = not is_given(config) and only_published and bool(known.tables)
    if may_begin and await _has_everything(pumps, known.first_ts):
        return FirstStart(known.tables, BEGINNING_TS)
    return FirstStart(known.tables)


async def _has_everything(pumps: PumpSet, first_ts: int) -> bool:
    """Return whether no pump that answers has purged binlogs after `first_ts`. Pumps that do not answer are not
    checked.
    """
    try:
        async with asyncio.timeout(PURGED_WAIT_S):
            found = await pumps.survey(after_ts=BEGINNING_TS, limits=BatchLimits(1))
    except PurgedPosition:
        return False
    except (BinlogError, TimeoutError):
        return True
    return found.purged_ts < first_ts


def log_start_position(config: Config, initial_ts: int, first: FirstStart, position: Position) -> None:
    """Log the start position and what it skips."""
    # The checkpoint row of the original drainer is a position, too.
    elsewhere = config.initial_commit_ts >= 0 and position.commit_ts != initial_ts
    if is_given(config) and (elsewhere or not position.fresh):
        _log.warning(
            "initial-commit-ts is ignored: the destination already has a position",
            initial_commit_ts=config.initial_commit_ts,
            position=position.commit_ts,
        )
    if not position.fresh:
        return
    if first.empty_ts is not None and position.commit_ts == first.empty_ts:
        _log.info(
            "the destination has no position and none of the published tables: starting from the oldest binlog",
            tables=len(first.tables),
        )
    elif position.commit_ts == initial_ts and initial_ts:
        _log_skipped(position)


def _log_skipped(position: Position) -> None:
    skipped = {"skipped_until_ts": position.commit_ts, "skipped_until": tso.format_local(position.commit_ts)}
    if not position.missing:
        _log.info("the destination has no position: older binlogs are not applied", **skipped)
        return
    names = [f"{schema}.{table}" for schema, table in position.missing]
    _log.warning(
        "the destination has no position: older binlogs are not applied, and tables created before are missing; the "
        "first row of one of them will stop the drainer",
        **skipped,
        missing=names[:TABLES_SHOWN_MAX],
        missing_count=len(names),
        remedy=REMEDY,
    )


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If `stop` is set first, cancel the work and raise _StoppedEarly."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _StoppedEarly
        return working.result()
    finally:
        await cancel(working, stopping)


async def _position(open_: Callable[[], Position], destination: AnySink, stop: asyncio.Event) -> Position:
    """Open the destination, waiting while it is down; `stop` interrupts the wait with _StoppedEarly."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not opening.done():
        destination.interrupt()
    try:
        return await opening
    except BinlogError as error:
        if stop.is_set():
            raise _StoppedEarly from error
        raise


def job_sources(config: Config, etcd: Etcd, schemas: MessageSchemas | None = None) -> list[JobSource]:
    """Return the configured sources of DDL jobs. `schemas`: of a running drainer, the only one that has the jobs of
    topics. Raises ConfigError without it."""
    if schemas is not None:
        return [schemas]
    if config.has_schemas_in_topics:
        raise ConfigError('source = "ticdc": give [schema] history-url: without it, schemas come while topics are read')
    schema = config.schema_
    security = config.security.security()
    return sources.job_sources(etcd, security, history_file=schema.history_file, history_url=schema.history_url)


def snapshot_reader(config: Config) -> Callable[[], Awaitable[SchemaSnapshot]] | None:
    """Return what reads the schema from TiKV, if a status port has the jobs after it."""
    if not config.schema_.history_url or config.schema_.history_file:
        return None
    return partial(read_snapshot, pd_addresses(config), config.security.security())


async def _drain(
    config: Config, upstream: Upstream, opened: Opened, opening: Opening, pages: PageSwitch, stop: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    security, syncer = config.security.security(), config.syncer
    pipeline = Pipeline(
        opened.destination,
        opened.schema_provider,
        Cut(syncer.worker_count, syncer.txn_rows_max, syncer.digest(), syncer.consistency == "transaction"),
        position_ts=opened.position.commit_ts,
        intent=opened.position.intent,
        pull_large=LargePuller(upstream.cluster_id, security),
        decisions=Decisions(waits=config.syncer.when_refused == "wait", record=config.data_dir / SKIPPED),
    )
    scope = scope_of(config.changefeed, config.syncer.address())
    membership = Membership(
        upstream.etcd, scope, position=lambda: pipeline.position_ts, unfinished=lambda: pipeline.open_intent is not None
    )
    await membership.load()
    pumps = _pumps(config, upstream, membership, opened.schema_provider.schema)
    clock = ClusterClock(lambda: connect_timestamps(upstream.etcd, config, security, wait_s=CLOCK_WAIT_S))
    scheduler = Scheduler(
        pumps,
        pipeline,
        batch_sizes(config, opened.destination),
        loop=loop,
        until_now=config.until_now,
        finish_without=config.syncer.finish_without,
        advance_every_s=advance_s(opened.destination),
        on_reached=stop.set,
        steering=_steering(config, pipeline),
        now_ts=clock.now_ts,
    )
    runs_text = not isinstance(opened.destination, DerivesDdl)
    spark = SparkRun(config, opening, upstream.cluster_id, pipeline, scheduler, loop=loop)
    verifier = Verifier(config, opened.position.verifications)
    status = Status(
        node_id=config.identity(),
        destination=opened.destination,
        pipeline=pipeline,
        scheduler=scheduler,
        pumps=pumps,
        synced_after_s=config.synced_check_time * 60.0,
        first_ts=opened.first_ts,
        stop=stop.set,
        steer=SteeringApi(config.identity(), pipeline, scheduler, runs_text=runs_text).handle,
        available_bytes=lambda: shutil.disk_usage(config.data_dir).free,
        standbys=lambda: upstream.candidate.waiting,
        verification=verifier.document,
    )
    node = _node(config, upstream, pipeline)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pumps.close)
        stack.push_async_callback(clock.close)
        pages.shown = status
        await node.register()
        stack.push_async_callback(node.move, Event.DRAINED)
        heartbeats = asyncio.ensure_future(node.heartbeats())  # before Spark, whose start takes seconds
        stack.push_async_callback(cancel, heartbeats)
        stack.push_async_callback(spark.stop, STOP_BATCH_S)
        stack.push_async_callback(lambda: node.move(status.asked or Event.PAUSE))
        stack.callback(setattr, status, "phase", "stopping")
        if await spark.start():
            if config.spark.class_archive:
                stack.push_async_callback(cancel, asyncio.ensure_future(make_where_missing()))
            say = _say_running(config, opening, pipeline, status)
            leading = upstream.candidate.stay_first() if config.standby else asyncio.Future[None]()
            await _until_any(stop, spark.wait(), heartbeats, leading, _watch(pumps, status), verifier.run(), say)
    _log.info("drainer stopped", position=pipeline.position_ts)


async def _say_running(config: Config, opening: Opening, pipeline: Pipeline, status: Status) -> None:
    """Log that the drainer runs, on a cluster when its executors do. Never return."""
    if not config.spark.conf.get("spark.master", config.spark.master).startswith("local"):
        status.phase = "waiting for Spark's executors"
        await asyncio.to_thread(opening.finish_warm_up)
    status.phase = ""
    _log.info("drainer is running", node=config.identity(), addr=config.addr, position=pipeline.position_ts)
    await asyncio.Event().wait()


def _steering(config: Config, pipeline: Pipeline) -> Steering:
    why = why_not_stop_at(config.stop_at, pipeline)
    if why:
        raise ConfigError(why)
    return Steering(config.stop_at, config.delay // timedelta(milliseconds=1))


def _node(config: Config, upstream: Upstream, pipeline: Pipeline) -> DrainerNode:
    return DrainerNode(
        upstream.registry,
        node_id=config.identity(),
        host=config.registered_address(),
        position=lambda: pipeline.position_ts,
        started_ts=upstream.now_ts,
        status_addr=reachable(config.status_address(), config.registered_address()),
        reads_topics=config.source != "pumps",
    )


def _pumps(
    config: Config, upstream: Upstream, membership: Membership | None = None, schema: Schema | None = None
) -> PumpSet:
    silence_max_s = config.go_pump_silence_max
    if config.source == "kafka":
        topics = dial_topics(config.kafka_source, upstream.cluster_id, silence_max_s=silence_max_s)
        return PumpSet(upstream.registry, topics, membership=membership, archived=True)
    if config.source == "ticdc":
        from drainer.ticdc.partition import Partitions, source_address  # loads the client library

        section = config.ticdc_source
        history = TopicHistory(job_sources(config, upstream.etcd, upstream.schemas))
        if schema is not None:
            schema.is_left_out = history.lacks
        address = source_address(section.uri, section.client)
        connect = partial(open_snapshot, server_of(config.upstream)) if config.upstream.host else None
        partitions = Partitions(
            address,
            section.topics,
            history,
            silence_max_s=silence_max_s,
            to_end=config.until_now,
            connect=connect,
        )
        return PumpSet(partitions, partitions.dial, membership=membership)
    dial = dial_with(upstream.cluster_id, config.security.security(), silence_max_s=silence_max_s)
    return PumpSet(upstream.registry, dial, membership=membership)


def batch_sizes(config: Config, destination: AnySink) -> Sizes:
    """Return the limits of a batch: bytes and binlogs read, which bound the memory that it takes."""
    # With a relay log, the original's destination can be completed without pumps. Here it is never incomplete then.
    whole = bool(config.syncer.relay.log_dir) and destination.wants is Wants.NET
    if config.syncer.distributed and destination.parallel is not None and not whole:
        return Sizes(
            driver_bytes_max=config.driver_bytes_max,
            distributed_bytes_min=config.distributed_bytes_min,
            distributed_bytes_max=config.batch_bytes_max,
        )
    # Only the driver writes: larger batches in the driver.
    return Sizes(driver_bytes_max=4 * config.driver_bytes_max, driver_count_max=40_000, distributed_bytes_max=0)


@contextlib.asynccontextmanager
async def _serving(config: Config, pages: PageSwitch) -> AsyncIterator[None]:
    """Serve the pages at `status-addr`, if it is set, and at `addr`, together with gRPC. They are served from the
    beginning, because a Go pump that starts while the destination is down queries this drainer if it finds it online in
    the registry, as a killed drainer is."""
    security = config.security.security()
    server = StatusServer(config.status_address(), pages.routes(), actions=pages.actions(), security=security)
    cistern = cistern_server(security, server)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        if config.status_address():
            await server.start()
        else:
            await server.prepare()
        stack.push_async_callback(cistern.stop, STOP_S)
        await cistern.start(config.addr)
        if config.metrics_addr and config.metrics_interval:
            pushing = metrics.push(config.metrics_addr, config.identity(), interval_s=config.metrics_interval)
            stack.push_async_callback(cancel, asyncio.create_task(pushing, name="metrics"))
        yield


async def _watch(pumps: PumpSet, status: Status) -> None:
    """Refresh pump details every INSPECT_S and metrics every OBSERVE_S seconds."""
    while True:
        await pumps.inspect()
        for _ in range(int(INSPECT_S / OBSERVE_S)):
            status.observe()
            await asyncio.sleep(OBSERVE_S)


async def _until_any(stop: asyncio.Event, *works: Awaitable[None]) -> None:
    """Wait until `stop` is set or one of the works ends; raise its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    stopping = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            await task
    finally:
        await cancel(*tasks, stopping)
