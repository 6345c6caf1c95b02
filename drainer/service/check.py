"""`drainer check`: compares the tables of a destination with upstream's, while the drainer runs, and repairs them.

Tables are compared in rounds: each opens the destination as it is then, and compares the tables that are left. A table
whose comparison a DDL, the GC or a lost connection ended is left for the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import glob
import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final

from binlog.cluster.etcd import connect_etcd
from binlog.cluster.timestamp import cluster_id
from binlog.errors import BinlogError, ConfigError
from binlog.runtime.log import get_logger

from drainer.apply.progress import Stopped
from drainer.config import Config
from drainer.ranges.check import RowDifference, Table, passes
from drainer.ranges.upstream import Source, Upstream, open_snapshot, server_of
from drainer.schema.provider import SchemaProvider
from drainer.schema.view import SchemaView
from drainer.service.daemon import job_sources, snapshot_reader
from drainer.service.first_load import keep_gc_held, release_gc
from drainer.service.on_spark import on_executors, spark_session
from drainer.sink.base import Identity, Verification
from drainer.sink.errors import PositionMoved
from drainer.sink.registry import consumer_replayer
from drainer.sink.snapshot import DestinationSnapshot, ReadsTables, SchemaDifference

ROUNDS: Final = 20
GROUPS_OF_TASK: Final = 4  # of tables; several, because some take longer
SHOWN_MAX: Final = 20  # differences of a table that are printed as text
_VALUE_CHARS: Final = 200  # of a value
_OPEN_S: Final = 60.0  # how long the end of a distributed batch or of a DDL is waited for
_PAUSE_S: Final = 0.5
_PAUSE_S_MAX: Final = 10.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """`tables`: patterns of names at the destination; none: all tables. `repair`: write what differs. `redact`: show no
    value but those of keys. `executors`: compare on Spark's executors. `consumer`: what `kafka-consumer --to` has:
    compare the tables that it makes of the drainer's topics. `strict`: a pattern must match a table."""

    tables: tuple[str, ...] = ()
    repair: bool = False
    redact: bool = False
    as_json: bool = False
    executors: bool = False
    consumer: str = ""
    strict: bool = True

    def chosen(self, tables: Iterable[str], *, first: bool) -> list[str]:
        """`first`: in the first round, where a pattern that matches no table raises ConfigError."""
        found = {pattern: fnmatch.filter(tables, pattern) for pattern in self.tables or ("*",)}
        for pattern, names in found.items():
            if self.strict and first and not names:
                raise ConfigError(f"-table {pattern}: no replicated table has such a name at the destination")
        return sorted({name for names in found.values() for name in names})


@dataclass(frozen=True, slots=True)
class TableCheck:
    """A table of the destination. `table_id`: upstream's, of merged tables the lowest; `schema`: how its definition
    differs; `at`: the TSO of both sides; `rows`: upstream's; `is_cut`: there are more differences than these;
    `repaired`: differences that were mended before; `written`: how many rows that took, also such as were not compared
    one by one; `error`: why its rows were not compared."""

    table: str
    table_id: int = 0
    schema: tuple[SchemaDifference, ...] = ()
    at: int = 0
    rows: int = 0
    differences: tuple[RowDifference, ...] = ()
    is_cut: bool = False
    repaired: tuple[RowDifference, ...] = ()
    written: int = 0
    error: str = ""

    @property
    def is_equal(self) -> bool:
        return not self.error and not self.differences and not self.schema

    def verification(self) -> Verification:
        """What is stored of it, if it was compared; else a `checked_ts` of 0."""
        if self.error:
            return Verification(self.table_id, self.table, 0, 0)
        count = len(self.differences) + len(self.schema)
        return Verification(self.table_id, self.table, 0 if count else self.at, self.at, count)


async def check(config: Config, options: CheckOptions, stop: asyncio.Event) -> list[TableCheck]:
    """Compare the chosen tables, ordered by name. A repaired table is compared again. `stop`: those that are left have
    an error. Raises BinlogError if they cannot be opened the first time."""
    if options.consumer and options.repair:
        raise ConfigError("-repair: what kafka-consumer wrote is not repaired: the topic would still differ")
    done: dict[str, TableCheck] = {}
    left: list[str] = []
    ended = threading.Event()
    stopping = asyncio.ensure_future(stop.wait())
    stopping.add_done_callback(lambda _: ended.set())
    try:
        if options.executors:
            return await _on_executors(config, options, ended)
        for number in range(ROUNDS):
            try:
                async with _opened(config, options, ended) as (there, tables):
                    chosen = options.chosen(tables, first=not number)
                    for name in {*left} - {*tables}:  # dropped, or renamed
                        done.pop(name, None)
                    left = [name for name in chosen if name in left or name not in done]
                    chosen = left
                    left = await asyncio.to_thread(_round, there, {name: tables[name] for name in left}, options, done)
                    ended_checks = [done[name] for name in chosen if name not in left]
                    await asyncio.to_thread(_record, there, tables.values(), ended_checks)
            except BinlogError as error:
                if not left or not passes(error):
                    raise
                _log.warning("tables could not be compared", error=str(error))
            if not left or ended.is_set():
                break
            _log.info("tables are compared again", tables=len(left))
            await asyncio.wait([stopping], timeout=min(_PAUSE_S * 2**number, _PAUSE_S_MAX))
    finally:
        stopping.cancel()
    return [done[name] for name in sorted(done)]


async def _on_executors(config: Config, options: CheckOptions, ended: threading.Event) -> list[TableCheck]:
    """As `check`. A task has some of the tables, and snapshots of its own for them: two sessions of a server cannot
    share one."""
    of_task = replace(options, executors=False, strict=False)

    def run(names: list[str]) -> list[list[TableCheck]]:
        with spark_session(config, ended) as session:
            count = min(len(names), GROUPS_OF_TASK * session.sparkContext.defaultParallelism)
            groups = [names[number::count] for number in range(count)]
            return on_executors(session, partial(_in_task, config, of_task), groups, ended, lambda: None)

    async with _opened(config, options, ended) as (_, tables):
        names = options.chosen(tables, first=True)
    found = await asyncio.to_thread(run, names) if names else []
    return sorted(chain.from_iterable(found), key=lambda one: one.table)


def _in_task(config: Config, options: CheckOptions, names: Sequence[str]) -> list[TableCheck]:
    chosen = replace(options, tables=tuple(map(glob.escape, names)))
    return asyncio.run(check(config, chosen, asyncio.Event()))


@contextlib.asynccontextmanager
async def _opened(
    config: Config, options: CheckOptions, ended: threading.Event
) -> AsyncIterator[tuple[DestinationSnapshot, dict[str, Table]]]:
    """Open a snapshot of the destination; yield it, and the tables in it by name."""
    server, security = server_of(config.upstream), config.security.security()
    async with contextlib.AsyncExitStack() as stack:
        etcd = connect_etcd(config.pd_urls, security)
        stack.push_async_callback(etcd.close)
        identity = Identity(await cluster_id(etcd, config, security), config.changefeed, config.identity())
        there = await _destination(config, options, identity, ended)
        stack.callback(there.close)
        gc = config, f"drainer-check-{config.identity()}-{secrets.token_hex(4)}", there.commit_ts
        stack.push_async_callback(release_gc, *gc)
        holding = asyncio.ensure_future(keep_gc_held(*gc))
        stack.callback(holding.cancel)
        provider = SchemaProvider(job_sources(config, etcd), config.syncer.policy(), snapshot_reader(config))
        schema = await provider.open(
            position_ts=there.commit_ts, schema_version=there.schema_version, job_done=there.job_done
        )
        view = schema.view()
        schemas = {table_id: table.schema for table_id, table in schema.catalog.tables.items()}
        sources = sources_of(view, schemas)
        upstream = stack.enter_context(contextlib.closing(Upstream(partial(open_snapshot, server))))
        rate = config.upstream.check_rate
        await asyncio.to_thread(_check_ids, upstream, there.commit_ts, chain.from_iterable(sources.values()))
        _log.info("check begins", at=there.commit_ts, upstream=server.address, tables=len(sources))
        yield (
            there,
            {
                name: Table(group, upstream, there, ended, [view.tables[source.info.id] for source in group], rate)
                for name, group in sources.items()
            },
        )


def _check_ids(upstream: Upstream, ts: int, sources: Iterable[Source]) -> None:
    with upstream.at(ts) as snapshot:
        snapshot.check_ids({source.info.id: source for source in sources})


async def _destination(
    config: Config, options: CheckOptions, identity: Identity, ended: threading.Event
) -> DestinationSnapshot:
    """While a batch is distributed or a DDL runs, wait for its end."""
    sink = consumer_replayer(options.consumer) if options.consumer else config.syncer.sink()
    if not isinstance(sink, ReadsTables):
        raise ConfigError(f"{sink.name} has no typed tables to compare with upstream's; for topics see -consumer")
    deadline_s = asyncio.get_running_loop().time() + _OPEN_S
    while True:
        try:
            return await asyncio.to_thread(sink.snapshot, identity)
        except PositionMoved:
            if asyncio.get_running_loop().time() >= deadline_s or ended.is_set():
                raise
        await asyncio.sleep(_PAUSE_S)


def sources_of(view: SchemaView, schemas: Mapping[int, str]) -> dict[str, list[Source]]:
    """The tables upstream of each table of the destination. `schemas`: upstream's databases of the tables by id. Tables
    of which a rule leaves kinds of changes out are not compared."""
    found: dict[str, list[Source]] = {}
    for table_id in sorted(set(schemas) & set(view.tables) - set(view.ignored_kinds)):
        source = Source.of(view, table_id, schemas[table_id])
        if source is not None:
            found.setdefault(f"{source.codec.shape.schema}.{source.codec.shape.table}", []).append(source)
    return found


def _round(
    there: DestinationSnapshot, tables: Mapping[str, Table], options: CheckOptions, done: dict[str, TableCheck]
) -> list[str]:
    """Compare tables, and return the names of those that must be compared again. Raises BinlogError if the definitions
    cannot be compared."""
    again: list[str] = []
    schema = there.schema_differences([version for table in tables.values() for version in table.versions])
    for name, table in tables.items():
        before = done.get(name, TableCheck(name))
        differing = tuple(found for found in schema if found.table == name)
        one = TableCheck(name, table.table_id, differing, there.commit_ts)
        one = done[name] = replace(one, repaired=before.repaired, written=before.written)
        try:
            if table.stop.is_set():
                raise Stopped("stopped")
            found = table.compared()
            one = done[name] = replace(one, rows=found.rows, differences=found.differences, is_cut=found.is_cut)
            _log.info("table compared", table=name, rows=found.rows, differences=len(found.differences))
            if found.differences and there.schema_moved():
                again.append(name)
            elif options.repair and found.differences:
                rows = table.repair(found)
                again.append(name)
                done[name] = replace(
                    one, repaired=(*before.repaired, *found.differences), written=before.written + rows
                )
                _log.info("table repaired", table=name, rows=rows)
        except BinlogError as error:
            done[name] = replace(one, error=str(error))
            if passes(error):
                again.append(name)
            elif not isinstance(error, Stopped):
                _log.warning("table not compared or not repaired", table=name, error=str(error))
    return again


def _record(there: DestinationSnapshot, tables: Iterable[Table], checks: Sequence[TableCheck]) -> None:
    found = [one.verification() for one in checks if not one.error]
    if not found:
        return
    try:
        there.record(found, {table.table_id for table in tables})
    except BinlogError as error:
        _log.warning("the comparison cannot be stored at the destination", error=str(error))


def shown(checks: Sequence[TableCheck], options: CheckOptions) -> str:
    """The report."""
    if options.as_json:
        return json.dumps([_as_json(one, options) for one in checks], ensure_ascii=False, indent=2)
    lines = []
    for one in checks:
        parts = [f"{'at least ' * one.is_cut}{len(one.differences)} rows differ"] if one.differences else []
        parts += ["equal"] if not one.differences and not one.error else []
        parts += [f"{max(one.written, len(one.repaired))} rows repaired"] if one.repaired else []
        parts += [f"not {'repaired' if one.differences else 'compared'}: {one.error}"] if one.error else []
        counted = "" if one.error else f" ({one.rows} rows upstream at {one.at})"
        lines.append(f"{one.table}: {', '.join(parts)}{counted}")
        lines += [
            f"    schema: {found.what}" + f"; to mend it: {found.statement}" * bool(found.statement)
            for found in one.schema
        ]
        lines += [f"    {_line(row, options)}" for row in (one.differences or one.repaired)[:SHOWN_MAX]]
    return "\n".join(lines)


def _as_json(one: TableCheck, options: CheckOptions) -> dict[str, Any]:
    rows = {name: [_values(row, options) for row in getattr(one, name)] for name in ("differences", "repaired")}
    return {**asdict(one), "equal": one.is_equal, **rows}


def _values(row: RowDifference, options: CheckOptions) -> dict[str, Any]:
    def of(side: Mapping[str, str] | None) -> dict[str, str] | None:
        if side is None:
            return None
        return {name: "?" if options.redact and name not in row.key else value for name, value in side.items()}

    return {"key": row.key, "upstream": of(row.upstream), "destination": of(row.destination)}


def _line(row: RowDifference, options: CheckOptions) -> str:
    found = _values(row, options)
    key, ours, theirs = (
        ", ".join(f"{name} = {_short(value)}" for name, value in (found[side] or {}).items())
        for side in ("key", "upstream", "destination")
    )
    if row.destination is None:
        return f"missing: {ours}"
    return f"surplus: {theirs}" if row.upstream is None else f"different: {key}: upstream {ours}; here {theirs}"


def _short(value: str) -> str:
    """On one line of a terminal."""
    text = "".join(one if one.isprintable() else repr(one)[1:-1] for one in value[:_VALUE_CHARS])
    return text + "…" * (len(value) > _VALUE_CHARS)
