"""Decides whether a job's DDL runs downstream, and with which statements (correctness rule 14: DDL before the rows that
need it). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from binlog.errors import ConfigError
from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job

from drainer.batch.work import Kind
from drainer.ddl.dialect import Dialect
from drainer.ddl.lexer import quoted, statements
from drainer.ddl.mysql_objects import exchange_partition, rename_tables
from drainer.schema import job_kinds, unknown_column
from drainer.schema.event_filter import EventFilter
from drainer.schema.filter import Filter
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.schema.view import TableVersions

# `ddl-rewrite` rules: statements configured by the operator in place of a DDL. Pure.


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Replacement of one DDL, named by its job id or by the commit_ts of its binlog. Empty `sql`: the DDL is skipped.

    A DDL that runs before its binlog (rule 14: DDL before the rows that need it) has no commit_ts yet unless its binlog
    is in the same batch; a job id always matches.
    """

    sql: tuple[str, ...]
    job_id: int | None = None
    commit_ts: int | None = None


class RewriteRules:
    """Finds the rule of a DDL. Raises ConfigError for a rule with neither or both names, or two rules for one DDL."""

    def __init__(self, rules: Sequence[RewriteRule] = ()) -> None:
        self._by_job: dict[int, tuple[str, ...]] = {}
        self._by_ts: dict[int, tuple[str, ...]] = {}
        for number, rule in enumerate(rules, start=1):
            if (rule.job_id is None) == (rule.commit_ts is None):
                raise ConfigError(f"ddl-rewrite rule {number}: give either job-id or commit-ts")
            key = rule.job_id if rule.job_id is not None else rule.commit_ts
            table = self._by_job if rule.job_id is not None else self._by_ts
            assert key is not None
            if key in table:
                raise ConfigError(f"ddl-rewrite rule {number}: a second rule for {key}")
            table[key] = rule.sql

    def decide(self, job_id: int, sql: tuple[str, ...]) -> None:
        """Replace the DDL of a job, or skip it, from now on."""
        self._by_job[job_id] = sql

    def text_for(self, job_id: int, commit_ts: int) -> tuple[str, ...] | None:
        """The replacement statements; None where no rule names this DDL. `commit_ts`: 0 if unknown."""
        by_job = self._by_job.get(job_id)
        return by_job if by_job is not None else self._by_ts.get(commit_ts)


# The SQL text of a job and the current database it needs. Pure.
#
# Used for a TiDB destination, and for every destination where the TableInfos do not show what a job did: the normalized
# text of the DDL binlog, or the job's query where the binlog has not arrived yet. Where that text depends on the
# writer's session or on other jobs, the statement is generated from the catalog, fully qualified:
#
# - RENAME: an unqualified old name is resolved in the writer's session, which the job does not record.
# - EXCHANGE PARTITION: the job's schema is the normal table's, the text's first name the partitioned one's.
# - DROP TABLE a, b: a job for each table, each with the complete text; the first would drop b before b's last rows.


@dataclass(frozen=True, slots=True)
class Statement:
    """`use` is the current database the text needs, "" when it must run without one."""

    schema: str
    use: str
    sql: tuple[str, ...]


def statement(job: Job, query: str, changes: Changes, schema: str) -> Statement:
    """Return the SQL of `job`. `query`: upstream's text; `schema`: the name of the job's schema; `changes`: the effects
    of the job on the replicated tables (of a multi-table RENAME perhaps not all)."""
    kind = job.type
    if kind in job_kinds.DROPS and changes and changes[0].before:
        return _drop(job_kinds.DROPS[kind], changes[0].before)
    if kind in (ActionType.RENAME_TABLE, ActionType.RENAME_TABLES):
        renamed = _rename(changes)
        if renamed is not None:
            return renamed
    if kind == ActionType.EXCHANGE_TABLE_PARTITION:
        exchanged = _exchange(changes)
        if exchanged is not None:
            return exchanged
    use = "" if kind in job_kinds.WITHOUT_DATABASE else schema
    return Statement(schema, use, statements(query))


def _drop(what: str, table: Located) -> Statement:
    text = f"DROP {what} IF EXISTS {quoted(table.schema, table.name)}"
    return Statement(table.schema, table.schema, (text,))


def _rename(changes: Changes) -> Statement | None:
    pairs = [(change.before, change.after) for change in changes if change.before and change.after]
    if not pairs or len(pairs) < len(changes):
        return None
    schema = pairs[0][0].schema
    text = rename_tables(((old.schema, old.name), (new.schema, new.name)) for old, new in pairs)
    return Statement(schema, schema, (text,))


def _exchange(changes: Changes) -> Statement | None:
    if len(changes) != 2 or changes[0].before is None or changes[1].before is None or changes[1].after is None:
        return None
    parted, normal = changes[0].before, changes[1].before
    definitions = parted.info.partition.definitions if parted.info.partition else ()
    partition = next((d.name for d in definitions if d.id == changes[1].after.table_id), None)
    if partition is None:
        return None
    names = (parted.schema, parted.name), (normal.schema, normal.name)
    text = exchange_partition(names[0], partition, names[1], Dialect())
    return Statement(parted.schema, parted.schema, (text,))


Changes = tuple[TableChange, ...]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """The configured replication policy. `ignored_ts`: commit_ts of skipped transactions and DDLs; the catalog still
    follows a skipped DDL. `sync_ddl` false: no DDL runs downstream, the tables are maintained by other means.
    `channel_id`: transactions with a mark of this channel are left out; None: none are."""

    filter: Filter = field(default_factory=Filter.create)
    rewrite: RewriteRules = field(default_factory=RewriteRules)
    sync_ddl: bool = True
    ignored_ts: frozenset[int] = frozenset()
    events: EventFilter = field(default_factory=EventFilter)
    channel_id: int | None = None

    def viewed(self, tables: dict[int, TableVersions]) -> tuple[dict[int, TableVersions], dict[int, frozenset[Kind]]]:
        """Return the tables as a view has them, and by table id which kinds of changes are left out. If something of a
        table is left out, the destination may have rows that upstream has not, so its rows are written as upserts
        (rule 21: one outcome wherever a stream is cut)."""
        ignored: dict[int, frozenset[Kind]] = {}
        for table_id, table in list(tables.items()) if self.events.rules else ():
            kinds = self.events.ignored_kinds(table.schema, table.name)
            if kinds:
                ignored[table_id] = kinds
            if kinds or self.events.may_keep_rows(table.schema, table.name):
                infos = tuple(replace(info, upserts=True) for info in table.infos)
                tables[table_id] = replace(table, infos=infos)
        return tables, ignored

    def step(self, proposed: Ddl, text: str) -> Ddl | None:
        """The DDL step to run: filtered, rewritten, with its SQL; None when nothing runs downstream.

        `proposed`: with all changes and an empty `sql`. `text`: its query, independent of the writer's session.
        """
        job = proposed.job
        if not self.sync_ddl or proposed.own_ts in self.ignored_ts:
            return self._log_skipped(proposed, "sync-ddl is off" if not self.sync_ddl else "ignored commit_ts")
        if job.type in job_kinds.ON_SCHEMA:
            if not self.filter.allows(proposed.schema):
                return self._log_skipped(proposed, "filtered")
            if self.events.ignores_ddl(job.type, proposed.query, proposed.schema):
                return self._log_skipped(proposed, "event filter")
            changes = self._on_schema(proposed.changes)
        elif job.type in job_kinds.ON_CLUSTER:
            changes = ()  # concerns every table; a destination stops with an error
        else:
            changes = self._replicated(job, proposed.changes)
            if not changes:
                return self._log_skipped(proposed, "filtered" if proposed.changes else "touches no known table")
            changes = self._without_ignored(proposed, changes)
            if not changes:
                return self._log_skipped(proposed, "event filter")
        plain = statement(job, text, changes, proposed.schema)
        sql = self.rewrite.text_for(job.id, proposed.own_ts)
        if sql is not None and not sql:
            return self._log_skipped(proposed, "the ddl-rewrite rule is empty")
        return replace(
            proposed,
            changes=changes,
            schema=plain.schema,
            use=plain.use,
            sql=plain.sql if sql is None else sql,
            rewritten=sql is not None,
        )

    def _on_schema(self, changes: Changes) -> Changes:
        return tuple(c for c in changes if _passes(self.filter, c.before) and _passes(self.filter, c.after))

    def _replicated(self, job: Job, changes: Changes) -> Changes:
        """The changes of tables that are replicated both before and after the job (the original checks only the new
        name of a RENAME, D-FI-03). In a RENAME chain the first and the last name of a table count."""
        replicated = tuple(c for c in changes if self._ends_replicated(changes, c))
        if not replicated or len(replicated) == len(changes):
            return replicated
        if job.type == ActionType.EXCHANGE_TABLE_PARTITION:
            _log.warning("EXCHANGE PARTITION with a table that is not replicated", job_id=job.id)
            return ()
        return replicated

    def _without_ignored(self, proposed: Ddl, changes: Changes) -> Changes:
        """The changes of tables of which the event filter leaves none out. An EXCHANGE PARTITION is one or nothing."""
        ignored = {table_id for change in changes if self._ignores(proposed, change) for table_id in _ids(change)}
        if ignored and proposed.job.type == ActionType.EXCHANGE_TABLE_PARTITION:
            return ()
        return tuple(change for change in changes if not _ids(change) & ignored)

    def _ignores(self, proposed: Ddl, change: TableChange) -> bool:
        """Whether the event filter leaves out this change of a table, by its name before or after. A statement of
        several changes is left out if each of them is."""
        names = {(one.schema, one.name) for one in (change.before, change.after) if one is not None}
        parts = unknown_column.kinds_of_parts(proposed.job)
        whole = frozenset({proposed.job.type})
        return any(
            all(self.events.ignores_ddl(kind, proposed.query, *name) for kind in kinds)
            for name in names
            for kinds in (whole, parts or whole)
        )

    def _ends_replicated(self, changes: Changes, change: TableChange) -> bool:
        ids = _ids(change)
        chain = [c for c in changes if _ids(c) & ids]
        first, last = chain[0].before, chain[-1].after
        allowed = (_passes(self.filter, first), _passes(self.filter, last))
        if first is not None and last is not None and allowed[0] != allowed[1]:
            _log.warning(
                "RENAME between a replicated and a filtered name: the DDL does not run downstream",
                old=f"{first.schema}.{first.name}",
                new=f"{last.schema}.{last.name}",
                replicated_after=allowed[1],
            )
        return all(allowed)

    @staticmethod
    def _log_skipped(proposed: Ddl, why: str) -> None:
        job = proposed.job
        _log.info("DDL does not run downstream", job_id=job.id, kind=job.type.name, why=why, query=proposed.query)


def _ids(change: TableChange) -> set[int]:
    return {table.table_id for table in (change.before, change.after) if table is not None}


def _passes(names: Filter, table: Located | None) -> bool:
    return table is None or names.allows(table.schema, table.name)
