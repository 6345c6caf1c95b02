"""`drainer load`: loads the tables of upstream, as they were at one TSO, into a destination that has none of them. They
are read in TiDB, or in a lake that a drainer has written (`-from`).

The stream then begins at that TSO: `drainer` continues from the position that this leaves. The drainer is registered
before upstream is read, so pumps keep what follows. A load that ends early is continued by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Final

from binlog.cluster.etcd import Etcd, connect_etcd
from binlog.cluster.pd import ask_first, hold_gc
from binlog.cluster.registry import Registry, State
from binlog.cluster.timestamp import cluster_id, current_ts, pd_addresses
from binlog.errors import BinlogError, ConfigError
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.page import bytes_text, span_text
from binlog.tidb.job import Job
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from drainer.apply.fold_order import PackedView
from drainer.apply.progress import LoadProgress, Stopped
from drainer.config import Config
from drainer.ranges.load import FirstLoad, LoadTask, Origin
from drainer.ranges.upstream import SnapshotGone, Upstream, open_snapshot, server_of
from drainer.schema.provider import SchemaProvider
from drainer.schema.state import FINISH_LAG_MS_MAX, Schema
from drainer.service.daemon import job_sources, snapshot_reader
from drainer.service.on_spark import distribute, spark_for
from drainer.service.registration import DrainerNode
from drainer.sink.base import SCHEMA_ID, AnySink, ChecksTables, FirstStart, Identity, LoadsOnExecutors, Position, Wants
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.spark.startup.jvm_launch import Opening

STOP_S: Final = 60.0
# A load that was stopped can be continued for so long.
GC_TTL_S: Final = 3600
_GC_EVERY_S: Final = 300.0
# After so long the history has every DDL that took effect before.
_SETTLE_S: Final = FINISH_LAG_MS_MAX / 1000 + 1

_log = get_logger(__name__)


async def load(
    config: Config,
    stop: asyncio.Event,
    progress: LoadProgress,
    opening: Opening | None = None,
    *,
    unless_begun: bool = False,
    origin: Origin | None = None,
) -> bool:
    """Return whether everything is loaded; False: `stop` was set, and the range at hand was finished. Raises
    BinlogError. `opening`: of Spark, if it has been started; `unless_begun`: nothing is to be loaded if the destination
    has a position that no load gave it; `origin`: read instead of TiDB."""
    if origin is not None:
        conf = {**origin.spark_settings(config.spark.conf), **config.spark.conf}
        config = config.model_copy(update={"spark": config.spark.model_copy(update={"conf": conf})})
    sink = load_sink(config, former_has_ended=unless_begun and config.standby)
    halted = threading.Event()
    loading = asyncio.ensure_future(_load(config, sink, halted, progress, opening, unless_begun, origin))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not stop.is_set():
        return await loading
    halted.set()
    sink.interrupt()
    try:
        return await asyncio.wait_for(loading, STOP_S)
    except (TimeoutError, DestinationDown, Stopped):  # it was waiting for etcd, PD, Spark or the destination
        return False


@contextlib.contextmanager
def shown(console: Console | None = None) -> Iterator[LoadProgress]:
    """Show a load's progress as a bar while the block runs, if standard error is a terminal."""
    console, progress = console or Console(stderr=True), LoadProgress()
    columns = (BarColumn(20), TextColumn("{task.description}"))

    def show() -> None:
        found = progress.document()
        left_s = found["secondsLeft"]
        speed = f"{found['rows']:,} rows, {bytes_text(progress.bytes)}, {found['rowsPerSecond']:,} rows/s"
        left = "" if left_s is None else f"{span_text(left_s)} left"
        text = ", ".join(filter(None, (progress.phase(), speed if progress.rows else "", left)))
        bar.update(task, completed=progress.loaded, total=progress.ranges, description=text)

    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening the destination", total=None)
        progress.watch = show
        yield progress


def load_sink(config: Config, *, former_has_ended: bool = False) -> AnySink:
    """The destination, not opened yet. `former_has_ended`: as in SyncerSettings. Raises ConfigError."""
    if not config.syncer.sync_ddl:
        raise ConfigError("syncer.sync-ddl = false: a load creates the tables")
    return config.syncer.sink(former_has_ended=former_has_ended)


async def _load(
    config: Config,
    sink: AnySink,
    halted: threading.Event,
    progress: LoadProgress,
    opening: Opening | None,
    unless_begun: bool,
    origin: Origin | None,
) -> bool:
    connect = None if origin is not None else partial(open_snapshot, server_of(config.upstream))
    security, whole = config.security.security(), False
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(spark_for(config, sink, opening, halted, origin))
        etcd = connect_etcd(config.pd_urls, security)
        stack.push_async_callback(etcd.close)
        identity = Identity(await cluster_id(etcd, config, security), config.changefeed, config.identity())
        provider = SchemaProvider(job_sources(config, etcd), config.syncer.policy(), snapshot_reader(config))
        now_ts = await current_ts(etcd, config, security)
        begin_ts = now_ts if origin is None else await _begin_ts(origin, sink, provider)
        first = FirstStart((await provider.known(begin_ts)).tables, loads=True)
        position = await asyncio.to_thread(sink.open, identity, begin_ts, first)
        stack.push_async_callback(lambda: asyncio.to_thread(sink.close, clean=whole))
        if not position.loads and not unless_begun:
            raise DestinationRefused(f"{sink.name}: it has a position already: a first load needs an empty destination")
        if all(load.is_complete for load in position.loads):
            return True
        created = SCHEMA_ID not in (load.table_id for load in position.loads if not load.is_complete)
        schema = await _schema(config, etcd, provider, sink, position, moves=not created and origin is None)
        provider.check_rules()
        if isinstance(sink, ChecksTables):
            sink.check_tables(schema.view())
        policy = schema.policy
        filter_, rules, databases = policy.filter, policy.rules, schema.catalog.schemas.values()
        view, version = schema.view(), schema.applied_version
        schemas = {table_id: table.schema for table_id, table in schema.catalog.tables.items()}
        if origin is not None:
            await asyncio.to_thread(origin.open, sink.commit_ts + (not created and sink.wants is Wants.CHANGES))
        distributing = None
        if isinstance(sink, LoadsOnExecutors) and connect is not None:
            task = partial(LoadTask, sink.for_tasks(), connect, PackedView.of(view), schemas, version)
            distributing = partial(distribute, config, opening, task, sink, progress, halted)
        first_load = FirstLoad(
            sink,
            view,
            schemas,
            origin or stack.enter_context(contextlib.closing(Upstream(connect))),
            progress,
            schema_version=version,
            stop=halted,
            databases=[one for one in databases if filter_.allows(one.name) and not rules.takes_all(one.name)],
            rewrite=policy.rewrite,
            distribute=distributing,
        )
        await _register(config, etcd, sink.commit_ts, now_ts)
        whole = await _run(config, first_load, origin)
    return whole


async def _run(config: Config, first_load: FirstLoad, origin: Origin | None) -> bool:
    """While TiDB is read, PD's GC is held."""
    sink, service = first_load.sink, f"drainer-load-{config.identity()}"
    holding = asyncio.ensure_future(keep_gc_held(config, service, sink.commit_ts)) if origin is None else None
    source = server_of(config.upstream) if origin is None else origin
    _log.info("first load begins", destination=sink.name, at=sink.commit_ts, upstream=source.address)
    try:
        whole = await asyncio.to_thread(first_load.run)
    finally:
        if holding is not None:
            holding.cancel()
    if whole and origin is None:
        await release_gc(config, service, sink.commit_ts)
    text = "is complete" if whole else "stopped before it was complete; the next one continues it"
    _log.info(f"first load {text}", at=sink.commit_ts, **first_load.progress.document())
    return whole


async def _begin_ts(origin: Origin, sink: AnySink, provider: SchemaProvider) -> int:
    """The destination's first position. Readers of every change get the rows one TSO later (FirstLoad). Raises
    BinlogError, before anything is written, if a DDL took effect close to it."""
    ts = await asyncio.to_thread(origin.open, None) - (sink.wants is Wants.CHANGES)
    await asyncio.sleep(_SETTLE_S)
    job = (await provider.open(position_ts=ts, first_start=True)).unclear_at_start
    if job is not None:
        raise DestinationRefused(f"{origin.address}: DDL job {job.id} took effect close to {ts}: -at another TSO")
    return ts


def _jobs_in_effect(config: Config, ts: int) -> list[Job]:
    with (
        contextlib.suppress(SnapshotGone),
        contextlib.closing(open_snapshot(server_of(config.upstream), ts)) as snapshot,
    ):
        return snapshot.jobs_in_effect()
    return []  # the load says what to do


async def _schema(
    config: Config, etcd: Etcd, provider: SchemaProvider, sink: AnySink, position: Position, *, moves: bool
) -> Schema:
    """The schema at the sink's position. If it `moves`, it does until no DDL took effect close to it: the history has a
    job only some time after its effect, so its table would be read as it is after a DDL that neither the load nor the
    stream after it runs."""
    while True:
        if moves:
            await asyncio.sleep(_SETTLE_S)
        schema = await provider.open(
            position_ts=sink.commit_ts,
            schema_version=position.schema_version,
            job_done=None if position.fresh else sink.job_done,
            first_start=position.fresh,
        )
        if not moves:
            return schema
        unclear = schema.unclear_at_start
        jobs = [unclear] if unclear else await asyncio.to_thread(_jobs_in_effect, config, sink.commit_ts)
        if not jobs:
            return schema
        job = jobs[0]
        _log.warning("a DDL took effect close to the timestamp: another one is taken", job=job.id, query=job.query)
        await asyncio.to_thread(sink.advance, await current_ts(etcd, config, config.security.security()), 0)


async def _register(config: Config, etcd: Etcd, position_ts: int, now_ts: int) -> None:
    """As a paused drainer: pumps keep the binlogs after its position (rule 20: what pumps must keep), and none that
    starts expects an answer from it."""
    node = DrainerNode(
        Registry(etcd),
        node_id=config.identity(),
        host=config.registered_address(),
        position=lambda: position_ts,
        started_ts=now_ts,
        reads_topics=config.source != "pumps",
    )
    await node.register(State.PAUSED)


async def keep_gc_held(config: Config, service: str, ts: int) -> None:
    """Until cancelled. Without PD's help reading goes on, if TiDB keeps old rows for long enough by itself."""
    outage = Outage(
        _log,
        "PD does not keep TiDB's GC from passing the timestamp that is read: tidb_gc_life_time must be long enough",
        "PD keeps TiDB's GC from passing the timestamp that is read again",
        every_s=_GC_EVERY_S,
    )
    while True:
        with outage.catching(BinlogError):
            await _hold_gc(config, service, ts, GC_TTL_S)
        await asyncio.sleep(_GC_EVERY_S)


async def release_gc(config: Config, service: str, ts: int) -> None:
    with contextlib.suppress(BinlogError):  # PD forgets it by itself
        await _hold_gc(config, service, ts, 0)


async def _hold_gc(config: Config, service: str, ts: int, ttl_s: int) -> None:
    security = config.security.security()
    leader = await ask_first(pd_addresses(config), security)
    await hold_gc(leader, service, ts, ttl_s, security)
