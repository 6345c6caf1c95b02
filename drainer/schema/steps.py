"""The steps of a batch: rows between two DDLs, DDLs, and fences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from drainer.batch.served import ServedBinlog
from drainer.schema.merged import SourceRows
from drainer.schema.view import SchemaView


@dataclass(frozen=True, slots=True)
class Located:
    """A table with its id and schema name, before or after a DDL."""

    table_id: int
    schema: str
    info: TableInfo

    @property
    def name(self) -> str:
        return self.info.name


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a DDL does to one table: created (`before` None), dropped (`after` None), or altered, moved, renumbered.
    `rows`: what it does to rows of a merged table."""

    before: Located | None
    after: Located | None
    rows: SourceRows | None = None

    @property
    def keeps_name(self) -> bool:
        before, after = self.before, self.after
        return before is not None and after is not None and (before.schema, before.name) == (after.schema, after.name)


@dataclass(frozen=True, slots=True)
class Rows:
    """All transactions in (after_ts, until_ts], to be decoded with `view`. Never empty."""

    after_ts: int
    until_ts: int
    binlogs: tuple[ServedBinlog, ...]
    view: SchemaView


@dataclass(frozen=True, slots=True)
class Ddl:
    """One DDL to run alone.

    `commit_ts`: the position after it has run: that of its binlog or, for an `early` one (rule 14: DDL before the rows
    that need it), that before the binlog that needs it. `schema`: its database. `use`: the current database its text
    needs ("": must run without one). `sql`: the statements, in order. `query`: upstream's text, for logs. `own_ts`:
    commit_ts of its binlog, 0 where the binlog of an early one is not in the batch. `may_exist`: the job began before a
    first start, so its effect may already be in the copy that was loaded into the destination. `rewritten`: `sql` comes
    from a `ddl-rewrite` rule and runs unchanged. `by_rules`: a rule alters a table of it, so `changes`, `sql` and
    `query` are those of the destination's tables. `merged`: tables of upstream are one there, so the changes alone say
    what is done, and the job's kind is that of an ALTER TABLE.
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
    by_rules: bool = False
    merged: bool = False

    @property
    def before(self) -> TableInfo | None:
        """The TableInfo before the DDL, if it concerns one table."""
        first = self.changes[0].before if len(self.changes) == 1 else None
        return first.info if first else None

    @property
    def after(self) -> TableInfo | None:
        """The TableInfo after the DDL, if it concerns one table."""
        first = self.changes[0].after if len(self.changes) == 1 else None
        return first.info if first else None

    @property
    def is_of_temporary_table(self) -> bool:
        info = self.after or self.before
        return info is not None and info.is_temporary

    @property
    def touched_names(self) -> tuple[tuple[str, str], ...]:
        """Distinct (schema, table) names it creates, alters or drops, old and new."""
        tables = (t for c in self.changes for t in (c.before, c.after) if t is not None)
        return tuple(dict.fromkeys((t.schema, t.name) for t in tables))


def exchange_of(changes: Sequence[TableChange]) -> tuple[Located, int, Located] | None:
    """The tables of an EXCHANGE PARTITION before the job: the partitioned one, the number of its partition, the normal
    one. None if the changes do not show which partition it is."""
    if len(changes) != 2 or changes[0].before is None or changes[1].before is None or changes[1].after is None:
        return None
    parted, normal, new_id = changes[0].before, changes[1].before, changes[1].after.table_id
    definitions = parted.info.partition.definitions if parted.info.partition else ()
    number = next((n for n, definition in enumerate(definitions) if definition.id == new_id), None)
    return None if number is None else (parted, number, normal)


@dataclass(frozen=True, slots=True)
class Advance:
    """Nothing to apply: the position may advance to `until_ts`."""

    until_ts: int


Step = Rows | Ddl | Advance
