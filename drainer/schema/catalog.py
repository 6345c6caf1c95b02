"""The catalog, and the effect of each kind of DDL job on it. No rules of replication.

The catalog has databases by id, recent TableInfos of each table, and dropped ids. No effect raises; upstream stops
(L-02). A job that does not fit the catalog is applied as far as possible and logged, because a table without rows must
not stop the others. A row whose table is then unknown raises TableUnknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, TableInfo

from drainer.ddl.lexer import Unexpected, rename_pairs
from drainer.schema import job_kinds
from drainer.schema.steps import Located, TableChange
from drainer.schema.view import Relocation, SkipReason, TableVersions

# TiDB 6.2 and later create this schema outside SQL, so there is no DDL job for it (D-IN-04).
MYSQL_SCHEMA_ID = 1
MYSQL_SCHEMA = "mysql"

# Rows of a dropped id come only shortly after its DDL, so only the last dropped ids are kept.
GONE_KEPT = 8192
DROPPED_SCHEMAS_KEPT = 64
RELOCATED_IDS_KEPT = 8192
RELOCATIONS_KEPT = 4

K = TypeVar("K")
V = TypeVar("V")


class Catalog:
    """The catalog at one schema version. Mutable; `copy` is cheap (tables are values), so a DDL can be tried first."""

    def __init__(self) -> None:
        self.schemas: dict[int, DBInfo] = {MYSQL_SCHEMA_ID: DBInfo(MYSQL_SCHEMA_ID, MYSQL_SCHEMA)}
        self.tables: dict[int, TableVersions] = {}
        self.gone: dict[int, SkipReason] = {}
        # Tables of dropped schemas by schema id: FLASHBACK DATABASE restores them with their ids.
        self.dropped_schemas: dict[int, dict[int, TableVersions]] = {}
        # Old id → new id where a DDL gave a table a new id and kept its rows (ALTER TABLE … PARTITION BY).
        self.renumbered: dict[int, int] = {}
        # See SchemaView.
        self.relocations: dict[int, tuple[Relocation, ...]] = {}
        self.relocated_ids: dict[int, int | None] = {}

    def copy(self) -> Catalog:
        twin = Catalog.__new__(Catalog)
        vars(twin).update((name, dict(entries)) for name, entries in vars(self).items())
        return twin

    def schema_name(self, schema_id: int) -> str:
        """The name of a schema, '' for an unknown id."""
        found = self.schemas.get(schema_id)
        return found.name if found else ""

    def locate(self, table_id: int) -> Located | None:
        found = self.tables.get(table_id)
        return Located(table_id, found.schema, found.current) if found else None

    def named(self, schema_id: int, name: str) -> int | None:
        """The id of the table of this name, compared without case as in TiDB; None if there is none."""
        lowered = name.lower()
        for table_id, table in self.tables.items():
            if table.schema_id == schema_id and table.name.lower() == lowered:
                return table_id
        return None

    def put(self, schema_id: int, schema: str, version: int, info: TableInfo) -> None:
        """Add a table that is created or recovered."""
        self.tables[info.id] = TableVersions(schema, schema_id, (version,), (info,))
        self.gone.pop(info.id, None)

    def drop_table(self, table_id: int, why: SkipReason) -> TableVersions | None:
        """Remove a table; its rows are skipped from now on. Returns what was known of it, None for an unknown id."""
        found = self.tables.pop(table_id, None)
        put_last(self.gone, table_id, why, GONE_KEPT)
        return found

    def drop_schema(self, schema_id: int) -> dict[int, TableVersions]:
        """Remove a schema with all its tables, which are kept for FLASHBACK DATABASE. Returns the tables by id."""
        tables = {i: t for i, t in self.tables.items() if t.schema_id == schema_id}
        for table_id in tables:
            self.drop_table(table_id, SkipReason.DROPPED)
        self.schemas.pop(schema_id, None)
        put_last(self.dropped_schemas, schema_id, tables, DROPPED_SCHEMAS_KEPT)
        return tables

    def renumber(self, old_id: int, new_id: int) -> None:
        """Give a table a new id; it keeps its TableInfos."""
        found = self.tables.pop(old_id)
        self.tables[new_id] = replace(found, infos=(*found.infos[:-1], replace(found.infos[-1], id=new_id)))
        self.gone.pop(new_id, None)

    def relocate(self, table_id: int, relocation: Relocation, relocated_ids: Mapping[int, int | None]) -> None:
        """Record a DDL that moved or dropped partitions. `relocated_ids`: physical id → id of the table that holds its
        rows since then, None where they were dropped."""
        known = (*self.relocations.get(table_id, ()), relocation)
        known = tuple(sorted(known, key=lambda relocation: relocation.before_version))[-RELOCATIONS_KEPT:]
        put_last(self.relocations, table_id, known, RELOCATED_IDS_KEPT)
        for physical_id, home in relocated_ids.items():
            put_last(self.relocated_ids, physical_id, home, RELOCATED_IDS_KEPT)

    def replicated(self, allows: Callable[[str, str], bool]) -> tuple[dict[int, TableVersions], dict[int, SkipReason]]:
        """For a view: the replicated tables by id, and for the other known ids why their rows are skipped."""
        tables: dict[int, TableVersions] = {}
        gone = dict(self.gone)
        for table_id, table in self.tables.items():
            if table.current.is_view or table.current.is_sequence:
                continue
            if allows(table.schema, table.name):
                tables[table_id] = table
            else:
                gone[table_id] = SkipReason.FILTERED
        for old_id, new_id in self.renumbered.items():
            if new_id in tables:
                tables.setdefault(old_id, tables[new_id])
            elif new_id in gone:
                gone.setdefault(old_id, gone[new_id])
        return tables, gone


def put_last(entries: dict[K, V], key: K, value: V, most: int) -> None:
    """Set an entry, as the newest one, and remove the oldest ones above `most`."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > most:
        del entries[next(iter(entries))]


def partition_ids(info: TableInfo) -> set[int]:
    """Physical ids of a table's partitions; empty for a table without partitions."""
    return {d.id for d in info.partition.definitions} if info.partition else set()


def removed_partitions(before: TableInfo, after: TableInfo) -> set[int]:
    """Return the physical ids of partitions that `before` has and `after` has not."""
    return partition_ids(before) - partition_ids(after)


Changes = tuple[TableChange, ...]
_log = get_logger(__name__)


def apply_job(catalog: Catalog, job: Job, public_version: int = 0) -> Changes:
    """Apply one finished job to `catalog`; returns the change of each table, in order.

    A cyclic RENAME returns one id several times. Jobs of skipped kinds change nothing. `public_version`: the schema
    version from which rows match the table after the job; 0: the job's own.
    """
    if not job_kinds.takes_effect(job):
        return ()
    if job.type in job_kinds.REMOVES_PARTITIONS:
        _drop_partitions(catalog, job, public_version or job.schema_version)
    return _EFFECTS.get(job.type, _replace)(catalog, job)


def _create_schema(catalog: Catalog, job: Job) -> Changes:
    if job.db_info is not None:
        catalog.schemas[job.db_info.id] = job.db_info
    else:
        _log.warning("DDL job has no DBInfo", job_id=job.id, kind=job.type.name)
    return ()


def _drop_schema(catalog: Catalog, job: Job) -> Changes:
    dropped_schemas = catalog.drop_schema(job.schema_id)
    return tuple(TableChange(Located(i, t.schema, t.current), None) for i, t in dropped_schemas.items())


def _flashback_schema(catalog: Catalog, job: Job) -> Changes:
    _create_schema(catalog, job)
    name = _schema_name(catalog, job)
    changes = []
    for table_id, table in catalog.dropped_schemas.pop(job.schema_id, {}).items():
        catalog.tables[table_id] = table.moved(name, job.schema_id)
        catalog.gone.pop(table_id, None)
        changes.append(TableChange(None, catalog.locate(table_id)))
    if not changes:
        _log.warning("FLASHBACK DATABASE of a schema whose tables are unknown", job_id=job.id, schema=name)
    return tuple(changes)


def _create(catalog: Catalog, job: Job) -> Changes:
    if job.table_info is None:
        return _without_info(job)
    return (_create_one(catalog, job, job.table_info),)


def _create_many(catalog: Catalog, job: Job) -> Changes:
    return tuple(_create_one(catalog, job, info) for info in job.multiple_table_infos)


def _create_one(catalog: Catalog, job: Job, info: TableInfo) -> TableChange:
    # CREATE OR REPLACE VIEW gives an existing name a new id.
    existing = catalog.named(job.schema_id, info.name) if job.type == ActionType.CREATE_VIEW else None
    before = catalog.locate(existing) if existing is not None else None
    if existing is not None and existing != info.id:
        catalog.drop_table(existing, SkipReason.DROPPED)
    catalog.put(job.schema_id, _schema_name(catalog, job), job.schema_version, info)
    return TableChange(before, catalog.locate(info.id))


def _drop(catalog: Catalog, job: Job) -> Changes:
    before = catalog.locate(job.table_id)
    if before is None and job.table_info is not None:
        before = Located(job.table_id, _schema_name(catalog, job), job.table_info)
    catalog.drop_table(job.table_id, SkipReason.DROPPED)
    return (TableChange(before, None),) if before else ()


def _truncate(catalog: Catalog, job: Job) -> Changes:
    if job.table_info is None:
        return _without_info(job)
    before = catalog.locate(job.table_id)
    catalog.drop_table(job.table_id, SkipReason.TRUNCATED)
    catalog.put(job.schema_id, _schema_name(catalog, job), job.schema_version, job.table_info)
    return (TableChange(before, catalog.locate(job.table_info.id)),)


def _rename(catalog: Catalog, job: Job) -> Changes:
    if job.table_info is None:
        return _without_info(job)
    return (_move(catalog, job, job.table_info, job.schema_id, _schema_name(catalog, job)),)


def _rename_many(catalog: Catalog, job: Job) -> Changes:
    """RENAME of several tables: ids and new names are in the job, the target schemas only in its text."""
    infos = job.multiple_table_infos
    targets = _target_schemas(catalog, job, infos)
    changes = []
    for info, target in zip(infos, targets, strict=True):
        schema_id = next((i for i, found in catalog.schemas.items() if found.name.lower() == target.lower()), None)
        if schema_id is None:
            _log.warning("RENAME TABLE into an unknown schema", job_id=job.id, schema=target)
            schema_id = job.schema_id
        changes.append(_move(catalog, job, info, schema_id, catalog.schema_name(schema_id) or target))
    return tuple(changes)


def _target_schemas(catalog: Catalog, job: Job, infos: tuple[TableInfo, ...]) -> list[str]:
    """The target schema of each renamed table. An unqualified name refers to the session's schema, which the job does
    not record: it is that of a table with an unqualified old name, else the job's own (that of the last target)."""
    last = _schema_name(catalog, job)
    try:
        pairs = rename_pairs(job.query)
    except Unexpected as error:
        _log.warning("cannot parse RENAME TABLE", job_id=job.id, error=str(error))
        pairs = ()
    if len(pairs) != len(infos):
        return [_schema_of(catalog, info.id, last) for info in infos[:-1]] + [last] * bool(infos)
    session = last
    for (old, _), info in zip(pairs, infos, strict=True):
        if not old[0]:
            session = _schema_of(catalog, info.id, last)
            break
    return [new[0] or session for _, new in pairs]


def _schema_of(catalog: Catalog, table_id: int, default: str) -> str:
    found = catalog.tables.get(table_id)
    return found.schema if found else default


def _move(catalog: Catalog, job: Job, info: TableInfo, schema_id: int, schema: str) -> TableChange:
    before = catalog.locate(info.id)
    known = catalog.tables.get(info.id)
    if known is None:
        catalog.put(schema_id, schema, job.schema_version, info)
    else:
        catalog.tables[info.id] = known.moved(schema, schema_id).add(job.schema_version, info)
    return TableChange(before, catalog.locate(info.id))


def _exchange(catalog: Catalog, job: Job) -> Changes:
    """EXCHANGE PARTITION: the normal table gets the id of the partition that is missing in the new definitions."""
    info = job.table_info
    if info is None:
        return _without_info(job)
    before_normal, before_parted = catalog.locate(job.table_id), catalog.locate(info.id)
    if before_normal is None or before_parted is None:
        _log.warning("EXCHANGE PARTITION of an unknown table", job_id=job.id, table_id=job.table_id)
        return _replace(catalog, job)
    removed = removed_partitions(before_parted.info, info)
    if len(removed) != 1:
        _log.warning(
            "EXCHANGE PARTITION: cannot determine the exchanged partition", job_id=job.id, candidates=len(removed)
        )
        return _replace(catalog, job)
    new_id = removed.pop()
    # Rows of older versions belong to the table that holds their physical id now.
    relocated_ids: dict[int, int | None] = {job.table_id: info.id, new_id: new_id}
    catalog.relocate(info.id, Relocation(job.schema_version, before_parted.info, job.finished_ts), relocated_ids)
    catalog.relocate(job.table_id, Relocation(job.schema_version, before_normal.info, job.finished_ts), {})
    catalog.renumber(job.table_id, new_id)
    catalog.tables[info.id] = catalog.tables[info.id].add(job.schema_version, info)
    return (
        TableChange(before_parted, catalog.locate(info.id)),
        TableChange(before_normal, catalog.locate(new_id)),
    )


def _drop_partitions(catalog: Catalog, job: Job, public_version: int) -> None:
    """Record that rows of older versions in the dropped partitions are dropped, also if they arrive later."""
    info = job.table_info
    before = catalog.locate(info.id) if info is not None else None
    if info is not None and before is not None:
        dropped = removed_partitions(before.info, info)
        if dropped:
            relocation = Relocation(public_version, before.info, job.finished_ts)
            catalog.relocate(info.id, relocation, dict.fromkeys(dropped))


def _replace(catalog: Catalog, job: Job) -> Changes:
    """Every other kind: the job's TableInfo replaces the table's."""
    info = job.table_info
    if info is None:
        return _without_info(job)
    old_id = info.id
    if info.id not in catalog.tables and job.table_id in catalog.tables:
        old_id = job.table_id
    before = catalog.locate(old_id)
    if before is None:
        _log.warning("DDL job on an unknown table", job_id=job.id, table_id=info.id, table=info.name)
        catalog.put(job.schema_id, _schema_name(catalog, job), job.schema_version, info)
        return (TableChange(None, catalog.locate(info.id)),)
    if old_id != info.id:
        catalog.renumber(old_id, info.id)
        catalog.renumbered[old_id] = info.id
    one_changed = job.type == ActionType.MODIFY_COLUMN
    known = catalog.tables[info.id]
    catalog.tables[info.id] = known.add(job.schema_version, info, one_changed=one_changed, query=job.query)
    return (TableChange(before, catalog.locate(info.id)),)


def _without_info(job: Job) -> Changes:
    _log.warning("DDL job has no TableInfo and is ignored", job_id=job.id, kind=job.type.name)
    return ()


def _schema_name(catalog: Catalog, job: Job) -> str:
    """The job's schema name by id; where the history is incomplete, the name recorded in the job."""
    if job.schema_name and job.schema_id not in catalog.schemas:
        catalog.schemas[job.schema_id] = DBInfo(job.schema_id, job.schema_name, charset="", collate="")  # not known
    return catalog.schema_name(job.schema_id)


_EFFECTS: dict[ActionType, Callable[[Catalog, Job], Changes]] = {
    ActionType.CREATE_SCHEMA: _create_schema,
    ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE: _create_schema,
    ActionType.DROP_SCHEMA: _drop_schema,
    ActionType.RECOVER_SCHEMA: _flashback_schema,
    ActionType.CREATE_TABLE: _create,
    ActionType.CREATE_TABLES: _create_many,
    ActionType.CREATE_VIEW: _create,
    ActionType.CREATE_SEQUENCE: _create,
    ActionType.RECOVER_TABLE: _create,
    ActionType.DROP_TABLE: _drop,
    ActionType.DROP_VIEW: _drop,
    ActionType.DROP_SEQUENCE: _drop,
    ActionType.TRUNCATE_TABLE: _truncate,
    ActionType.RENAME_TABLE: _rename,
    ActionType.RENAME_TABLES: _rename_many,
    ActionType.EXCHANGE_TABLE_PARTITION: _exchange,
}
