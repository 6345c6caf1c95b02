"""The values a batch turns into: binlogs in, rows between two DDLs and the DDLs themselves out."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.batch.binlog import ServedBinlog
from drainer.schema.view import SchemaView


@dataclass(frozen=True, slots=True)
class Located:
    """A table with its place: before a DDL, or after it."""

    table_id: int
    schema: str
    info: TableInfo

    @property
    def name(self) -> str:
        return self.info.name


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a DDL does to one table: created (`before` None), dropped (`after` None), or altered, moved, renumbered."""

    before: Located | None
    after: Located | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Every transaction in (after_ts, until_ts], to be decoded with `view`. Never without a binlog."""

    after_ts: int
    until_ts: int
    binlogs: tuple[ServedBinlog, ...]
    view: SchemaView


@dataclass(frozen=True, slots=True)
class Ddl:
    """One DDL to run alone.

    `commit_ts` is the position once it has run: its binlog's own, or, for an `early` one (rule 14), the one just
    before the binlog that needs it. `schema` is the database it is about, `use` the current database its text
    needs ("" = must run without one). `sql` are the statements, in order. `query` is upstream's text, for logs.
    `own_ts` is the commit_ts of its own binlog, 0 when an early one's is not in the batch. `may_exist`: the job began
    before a first start, so its effect may be in the copy the destination was filled from. `rewritten`: `sql` is the
    operator's own (`ddl-rewrite`), and runs as it is.
    """

    job: Job
    commit_ts: int
    early: bool
    schema: str
    use: str
    sql: tuple[str, ...]
    query: str
    own_ts: int
    changes: tuple[TableChange, ...]
    may_exist: bool = False
    rewritten: bool = False

    @property
    def before(self) -> TableInfo | None:
        """The table as it was, when the DDL is about one table."""
        first = self.changes[0].before if len(self.changes) == 1 else None
        return first.info if first else None

    @property
    def after(self) -> TableInfo | None:
        """The table as it will be, when the DDL is about one table."""
        first = self.changes[0].after if len(self.changes) == 1 else None
        return first.info if first else None

    @property
    def touched_names(self) -> tuple[tuple[str, str], ...]:
        """(schema, table) of everything it creates, alters or drops, old names and new ones, each once."""
        places = (t for c in self.changes for t in (c.before, c.after) if t is not None)
        return tuple(dict.fromkeys((t.schema, t.name) for t in places))


@dataclass(frozen=True, slots=True)
class Fence:
    """Nothing to apply: the position may move to `until_ts`."""

    until_ts: int


Step = Rows | Ddl | Fence
