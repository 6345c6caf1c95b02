"""The schema built from the published jobs, with the versions for which each table handle is valid. Pure.

Jobs are applied in the order of schema versions. A table handle is valid from its own version up to the next job on its
table. A transaction carries a single version, which must be valid for all its tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, TableInfo

from pumpclient.sdk.errors import SchemaConflict, SchemaExists, SchemaNotFound, of_kind
from pumpclient.sdk.table import Bound, Table, bound_table

FOREVER = 1 << 62


@dataclass(slots=True)
class Database:
    """A database and its current tables, by lower-case name."""

    info: DBInfo
    tables: dict[str, Bound] = field(default_factory=dict)


class Catalog:
    """The schema as of `version`, the version of the last applied job (0 before the first)."""

    def __init__(self) -> None:
        self.version = 0
        self._databases: dict[str, Database] = {}
        self._changes: dict[int, list[int]] = {}  # table id -> versions of the jobs that made or changed it, ascending
        self._gone: dict[int, int] = {}  # table id -> version of the job that dropped or truncated it

    def apply(self, job: Job) -> None:
        """Apply one published job. A version that was applied before changes nothing."""
        if job.schema_version <= self.version:
            return
        self.version = job.schema_version
        if not job.took_effect:
            return
        if job.type is ActionType.CREATE_SCHEMA and job.db_info is not None:
            self._databases[job.db_info.name.lower()] = Database(job.db_info)
        elif job.type is ActionType.DROP_SCHEMA:
            self._drop_database(job)
        elif job.type is ActionType.DROP_TABLE:
            self._remove(job.table_id, gone_in=job.schema_version)
        elif job.table_info is not None:
            self._put(job, job.table_info)

    def _drop_database(self, job: Job) -> None:
        for key, database in list(self._databases.items()):
            if database.info.id == job.schema_id:
                for bound in list(database.tables.values()):
                    self._remove(bound.info.id, gone_in=job.schema_version)
                del self._databases[key]

    def _put(self, job: Job, info: TableInfo) -> None:
        self._remove(job.table_id, gone_in=None if job.table_id == info.id else job.schema_version)
        database = next((d for d in self._databases.values() if d.info.id == job.schema_id), None)
        if database is None:
            return  # the database was dropped later; its older jobs need no handling
        database.tables[info.name.lower()] = Bound(database.info.name, info, job.schema_version)
        self._changes.setdefault(info.id, []).append(job.schema_version)

    def _remove(self, table_id: int, *, gone_in: int | None) -> None:
        for database in self._databases.values():
            for key, bound in list(database.tables.items()):
                if bound.info.id == table_id:
                    del database.tables[key]
                    if gone_in is not None:
                        self._gone[table_id] = gone_in

    def database(self, name: str) -> Database:
        of_kind("database name", name, str)
        known = self._databases.get(name.lower())
        if known is None:
            raise SchemaNotFound(f"there is no database {name}")
        return known

    def databases(self) -> tuple[str, ...]:
        return tuple(sorted(d.info.name for d in self._databases.values()))

    def tables(self, schema: str) -> tuple[str, ...]:
        return tuple(sorted(bound.info.name for bound in self.database(schema).tables.values()))

    def bound(self, schema: str, name: str) -> Bound:
        found = self.database(schema).tables.get(of_kind("table name", name, str).lower())
        if found is None:
            raise SchemaNotFound(f"there is no table {schema}.{name}")
        return found

    def table(self, schema: str, name: str) -> Table:
        """Return the current handle. Raises SchemaNotFound."""
        return bound_table(self.bound(schema, name))

    def must_be_free(self, schema: str, name: str) -> Database:
        """Return the database if it has no such table; raise SchemaExists otherwise."""
        database = self.database(schema)
        if name.lower() in database.tables:
            raise SchemaExists(f"table {schema}.{name} already exists")
        return database

    def good_until(self, bound: Bound) -> int:
        """Return the last schema version for which this handle's TableInfo is valid."""
        later = [v for v in self._changes.get(bound.info.id, ()) if v > bound.version]
        if bound.info.id in self._gone:
            later.append(self._gone[bound.info.id])
        return min(later, default=FOREVER) - 1

    def version_for(self, used: Iterable[Bound], *, preferred: int) -> int:
        """Return the version nearest to `preferred` at which every handle in `used` is valid. Raises SchemaConflict if
        there is none: an old handle of an altered table is mixed with newer ones.
        """
        low, high = 0, FOREVER
        oldest: Bound | None = None
        newest: Bound | None = None
        for bound in used:
            until = self.good_until(bound)
            if bound.version > low:
                low, newest = bound.version, bound
            if until < high:
                high, oldest = until, bound
        if low > high:
            assert newest is not None and oldest is not None
            raise SchemaConflict(
                f"{oldest.schema}.{oldest.info.name} as of version {oldest.version} was changed in version {high + 1}, "
                f"and {newest.schema}.{newest.info.name} is used as of version {newest.version}: get both handles again"
            )
        return max(low, min(high, preferred))
