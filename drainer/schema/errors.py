"""What can go wrong when a row or a DDL is matched with a schema. Each error names the thing and the place."""

from __future__ import annotations

from binlog.errors import BinlogError


class SchemaError(BinlogError):
    """Something upstream's DDL history does not explain. Survives pickling, for it is raised in executors too."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.args, dict(self.__dict__))


def _revive(kind: type[SchemaError], args: tuple[object, ...], fields: dict[str, object]) -> SchemaError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class HistoryBroken(SchemaError):
    """A history source gave something that is not a list of jobs; `place` is a file and line, or a URL."""

    def __init__(self, place: str, detail: str) -> None:
        super().__init__(f"DDL history {place}: {detail}")
        self.place = place
        self.detail = detail


class HistoryUnavailable(HistoryBroken):
    """A source does not answer now; it may later."""


class TableUnknown(SchemaError):
    """A row belongs to a table that no known DDL job created."""

    def __init__(self, *, table_id: int, schema_version: int, commit_ts: int) -> None:
        super().__init__(
            f"no DDL job is known for table id {table_id} (row of commit_ts {commit_ts}, schema version "
            f"{schema_version}): the DDL history is incomplete. Give the whole history (TiDB's /ddl/history as a "
            f"file or the URL of a status port), or put {commit_ts} into ignore-txn-commit-ts to leave this "
            f"transaction out"
        )
        self.table_id = table_id
        self.schema_version = schema_version
        self.commit_ts = commit_ts


class JobUnknown(SchemaError):
    """The walk needs a job that is not known yet: read the history again and walk on.

    `job_id` is the DDL binlog's, or None when a row's `version` is above everything asked for so far. Everything
    up to and with `final_ts` has been handed out and is final; the binlog of `commit_ts` has not.
    """

    def __init__(self, *, job_id: int | None, version: int | None, commit_ts: int, final_ts: int) -> None:
        wanted = f"DDL job {job_id}" if job_id is not None else f"the jobs up to schema version {version}"
        super().__init__(f"{wanted} needed by the binlog of commit_ts {commit_ts} not in the known DDL history")
        self.job_id = job_id
        self.version = version
        self.commit_ts = commit_ts
        self.final_ts = final_ts


class JobMissing(SchemaError):
    """A DDL binlog's job is in no source, and the sources say that they have everything."""

    def __init__(self, *, job_id: int, commit_ts: int, sources: str) -> None:
        super().__init__(
            f"DDL job {job_id} (binlog of commit_ts {commit_ts}) is in no DDL history given: {sources}. Add a source "
            f"that has it, or put {commit_ts} into ignore-txn-commit-ts to leave this DDL out"
        )
        self.job_id = job_id
        self.commit_ts = commit_ts


class UnknownColumn(SchemaError):
    """A row carries a column id that the table's current TableInfo does not have (see unknown_column.py)."""

    def __init__(self, *, table_id: int, column_id: int, schema_version: int, commit_ts: int) -> None:
        super().__init__(
            f"column id {column_id} of table id {table_id} (row of commit_ts {commit_ts}, schema version "
            f"{schema_version}) is in no TableInfo known: a DDL on this table is running or its job is not known yet"
        )
        self.table_id = table_id
        self.column_id = column_id
        self.schema_version = schema_version
        self.commit_ts = commit_ts


class TableUnverified(SchemaError):
    """Rows are of a version up to which these tables have not been asked for: a DDL that is running may already make
    them other than the newest known job says (see drainer.schema.running_ddl)."""

    def __init__(self, *, table_ids: tuple[int, ...], schema_version: int, commit_ts: int) -> None:
        shown = ", ".join(map(str, table_ids[:5])) + (", …" if len(table_ids) > 5 else "")
        super().__init__(
            f"a DDL that no source shows yet is running, or may be, on table id {shown} (row of commit_ts {commit_ts}, "
            f"schema version {schema_version})"
        )
        self.table_ids = table_ids
        self.schema_version = schema_version
        self.commit_ts = commit_ts


class ColumnGoing(SchemaError):
    """An update lacks a column that a pending job drops: the job must run before it, for the row has no key and is not
    found by a value that it does not tell."""

    def __init__(self, *, table_id: int, column_id: int, schema_version: int, commit_ts: int) -> None:
        super().__init__(
            f"column id {column_id} of table id {table_id} is not in an updated row of commit_ts {commit_ts}, schema "
            f"version {schema_version}: a DDL that drops it must run first"
        )
        self.table_id = table_id
        self.column_id = column_id
        self.schema_version = schema_version
        self.commit_ts = commit_ts
