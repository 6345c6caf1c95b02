"""Errors of schema lookup and DDL history. Each names the object and its position."""

from __future__ import annotations

from typing import ClassVar

from binlog.errors import BinlogError


class SchemaError(BinlogError):
    """Base class: a row or DDL does not fit the known DDL history. Executors raise it, too."""


class HistoryBroken(SchemaError):
    """A history source returned something other than a list of jobs. `where`: file and line, or URL."""

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"DDL history {where}: {detail}")


class HistoryUnavailable(HistoryBroken):
    """A history source does not answer; retried."""


class RuleRefused(SchemaError):
    """A rule (routes, columns or rows) cannot be applied to a table, or not to a DDL."""


class TableUnknown(SchemaError):
    """A row belongs to a table that no known DDL job created."""

    def __init__(self, *, table_id: int, schema_version: int, commit_ts: int) -> None:
        super().__init__(
            f"no DDL job is known for table id {table_id} (row of commit_ts {commit_ts}, schema version "
            f"{schema_version}): the DDL history is incomplete. Give the whole history (TiDB's /ddl/history as a "
            f"file or the URL of a status port), or put {commit_ts} into ignore-txn-commit-ts to skip this transaction"
        )


class JobUnknown(SchemaError):
    """The segmenter needs a job that has not been read yet: read the history again and continue.

    `job_id`: of the DDL binlog, or None where a row's schema `version` is above the one read so far. Steps up to and
    including `final_ts` have been yielded; the binlog of `commit_ts` has not.
    """

    def __init__(self, *, job_id: int | None, version: int | None, commit_ts: int, final_ts: int) -> None:
        wanted = f"DDL job {job_id}" if job_id is not None else f"the jobs up to schema version {version}"
        super().__init__(
            f"{wanted} needed by the binlog of commit_ts {commit_ts} is not in the DDL history read so far"
        )
        self.job_id = job_id
        self.version = version
        self.commit_ts = commit_ts
        self.final_ts = final_ts


class JobMissing(SchemaError):
    """The job of a DDL binlog is in none of the sources, although they are complete."""

    def __init__(self, *, job_id: int, commit_ts: int, sources: str) -> None:
        super().__init__(
            f"DDL job {job_id} (binlog of commit_ts {commit_ts}) is in none of the DDL history sources: {sources}. Add "
            f"a source that has it, or put {commit_ts} into ignore-txn-commit-ts to skip this DDL"
        )


class _OfColumn(SchemaError):
    """An error of a column of a row. `text`: with the names of the fields in braces."""

    text: ClassVar[str] = "column id {column_id} of table id {table_id} (row of commit_ts {commit_ts})"

    def __init__(self, *, table_id: int, column_id: int, schema_version: int, commit_ts: int) -> None:
        self.table_id, self.column_id = table_id, column_id
        self.schema_version, self.commit_ts = schema_version, commit_ts
        super().__init__(self.text.format_map(vars(self)))


class UnknownColumn(_OfColumn):
    """A row carries a column id that the table's current TableInfo does not have (see job_kinds.py)."""

    text = (
        "column id {column_id} of table id {table_id} (row of commit_ts {commit_ts}, schema version {schema_version}) "
        "is in no known TableInfo: a DDL on this table is running, or its job has not been read yet"
    )


class ColumnGoing(_OfColumn):
    """An update lacks a column that a pending job drops. The job must run first: the row has no key and is matched by
    all its columns."""

    text = (
        "column id {column_id} of table id {table_id} is missing in an updated row of commit_ts {commit_ts}, schema "
        "version {schema_version}: a DDL that drops it must run first"
    )


class TableUnverified(SchemaError):
    """Rows are of a schema version for which these tables have not been compared with the status port: a running DDL
    may already have changed them (see drainer.schema.provider)."""

    def __init__(self, *, table_ids: tuple[int, ...], schema_version: int, commit_ts: int) -> None:
        shown = ", ".join(map(str, table_ids[:5])) + (", …" if len(table_ids) > 5 else "")
        super().__init__(
            f"a DDL that the history does not show yet may be running on table id {shown} (row of commit_ts "
            f"{commit_ts}, schema version {schema_version})"
        )
        self.table_ids = table_ids
        self.schema_version = schema_version
        self.commit_ts = commit_ts
