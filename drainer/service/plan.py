"""`drainer plan`: what each table of upstream's schema, as it is now, becomes at the destination.

It reads the configuration and the sources of DDL jobs as a start does. It opens no destination, writes nothing and
registers nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from binlog.cluster.etcd import connect_etcd
from binlog.tidb.table import TableInfo

from drainer.config import Config
from drainer.row.layout import choose_key, replicated
from drainer.schema.errors import RuleRefused
from drainer.schema.job_policy import Policy
from drainer.schema.merged import Destination, Union
from drainer.schema.provider import SchemaProvider
from drainer.service.daemon import job_sources, snapshot_reader

# A position after every job: the schema as it is.
_NOW: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """One table. `destination` '': it gets nothing, `rules` says why. `masked`: the masks by column."""

    source: str
    destination: str = ""
    columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    masked: tuple[tuple[str, str], ...] = ()
    key: str = ""
    rules: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All tables by name; what no rule matches; the errors that would stop a start."""

    tables: tuple[PlannedTable, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


async def planned(config: Config) -> Plan:
    """Read the schema, and apply the rules. Raises HistoryBroken, HistoryUnavailable."""
    etcd = connect_etcd(config.pd_urls, config.security.security())
    try:
        policy = config.syncer.policy()
        provider = SchemaProvider(job_sources(config, etcd), policy, snapshot_reader(config))
        schema = await provider.open(position_ts=_NOW, schema_version=_NOW)
        return plan_of(policy, [(table.schema, table.current) for table in schema.catalog.tables.values()])
    finally:
        await etcd.close()


def plan_of(policy: Policy, tables: Iterable[tuple[str, TableInfo]]) -> Plan:
    """Say what becomes of these tables."""
    tables = sorted(tables, key=lambda one: (one[0], one[1].name))
    wanted = [(schema, info) for schema, info in tables if info.has_rows and policy.filter.allows(schema, info.name)]
    unions: Mapping[Destination, Union] = {}
    errors = []
    try:
        unions = policy.rules.unions(wanted)
    except RuleRefused as error:
        errors.append(str(error))
    found = tuple(_table(policy, schema, info, unions) for schema, info in tables)
    errors = list(dict.fromkeys([*(one.error for one in found if one.error), *errors]))
    return Plan(found, tuple(policy.rules.warnings(wanted)), tuple(errors))


def _table(policy: Policy, schema: str, info: TableInfo, unions: Mapping[Destination, Union]) -> PlannedTable:
    source = f"{schema}.{info.name}"
    why = policy.filter.why_not(schema, info.name)
    if not why and policy.rules.hides(schema, info):
        why = "a view or sequence of a name to which rules apply"
    if why:
        return PlannedTable(source, rules=(why,))
    try:
        applied = policy.rules.applied(schema, info, unions)
    except RuleRefused as error:
        return PlannedTable(source, error=str(error))
    made = info if applied is None else applied.info
    names = info.columns_by_id
    masks = () if applied is None else applied.masks
    left_out = () if applied is None else sorted(applied.left_out, key=lambda column_id: names[column_id].offset)
    return PlannedTable(
        source,
        f"{schema if applied is None else applied.schema}.{made.name}",
        tuple(column.name for column in replicated(made)),
        tuple(names[column_id].name for column_id in left_out),
        tuple((names[column_id].name, mask.kind.value) for column_id, mask in masks),
        _key(made) if made.has_rows else "",
        () if applied is None else applied.rules,
    )


def _key(info: TableInfo) -> str:
    key, columns = choose_key(info), replicated(info)
    return ", ".join(columns[at].name for at in key.columns) or f"none: {key.why}"


def shown(plan: Plan, *, as_json: bool) -> str:
    """The plan as text."""
    if as_json:
        tables = [asdict(one) | {"masked": dict(one.masked)} for one in plan.tables]
        return json.dumps({"tables": tables, "warnings": plan.warnings, "errors": plan.errors}, ensure_ascii=False)
    rows = [("source", "destination", "columns", "left out", "masked", "key", "decided by")]
    for one in plan.tables:
        masks = ", ".join(f"{name} ({mask})" for name, mask in one.masked)
        destination = one.destination or ("refused" if one.error else "nothing")
        cells = (one.source, destination, ", ".join(one.columns), ", ".join(one.left_out), masks, one.key)
        rows.append((*cells, ", ".join(one.rules)))
    more = [*(f"warning: {text}" for text in plan.warnings), *(f"error: {text}" for text in plan.errors)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *more])
