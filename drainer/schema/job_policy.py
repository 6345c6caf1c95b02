"""Decides whether a job's DDL runs downstream, and with which statements (correctness rule 14: DDL before the rows that
need it). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from binlog.errors import ConfigError
from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import TableInfo

from drainer.batch.work import Kind
from drainer.ddl.lexer import quoted, statements
from drainer.ddl.mysql_columns import Dialect, UnsupportedType
from drainer.ddl.mysql_objects import (
    alter_database,
    alter_sequence,
    create_database,
    create_sequence,
    exchange_partition,
    rename_tables,
)
from drainer.ddl.mysql_tables import alter_table, create_table
from drainer.ddl.table_diff import table_diff
from drainer.schema import job_kinds
from drainer.schema.errors import RuleRefused
from drainer.schema.filter import EventFilter, Filter
from drainer.schema.merged import Destination, Part, merged_change
from drainer.schema.rules import Rules
from drainer.schema.steps import Ddl, Located, TableChange, exchange_of
from drainer.schema.view import TableVersions, retyped

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


def with_text(step: Ddl, query: str) -> Ddl:
    """Return the step with its SQL. `query`: upstream's text; the step's changes: those of the replicated tables (of a
    multi-table RENAME perhaps not all)."""
    first = step.changes[0].before if step.changes else None
    own = _of_tables(step.job.type, step.changes)
    if first is not None and own is not None:
        return replace(step, schema=first.schema, use=first.schema, sql=(own,))
    use = "" if step.job.type in job_kinds.WITHOUT_DATABASE else step.schema
    return replace(step, use=use, sql=statements(query))


def _of_tables(kind: ActionType, changes: Changes) -> str | None:
    """A statement with the names of the catalog; None where the job's text serves."""
    if kind in job_kinds.DROPS and changes and changes[0].before:
        return _drop(job_kinds.DROPS[kind], changes[0].before)
    if kind in job_kinds.RENAMES:
        return _rename(changes)
    return exchange(changes, Dialect()) if kind == ActionType.EXCHANGE_TABLE_PARTITION else None


def _drop(what: str, table: Located) -> str:
    return f"DROP {what} IF EXISTS {quoted(table.schema, table.name)}"


def _drop_any(table: Located) -> str:
    return _drop("VIEW" if table.info.is_view else "SEQUENCE" if table.info.is_sequence else "TABLE", table)


def _rename(changes: Changes) -> str | None:
    pairs = [(change.before, change.after) for change in changes if change.before and change.after]
    if not pairs or len(pairs) < len(changes):
        return None
    return rename_tables(((old.schema, old.name), (new.schema, new.name)) for old, new in pairs)


def exchange(changes: Changes, dialect: Dialect) -> str | None:
    """EXCHANGE PARTITION with the names of the catalog; None if the changes do not show which partition it is."""
    found = exchange_of(changes)
    if found is None:
        return None
    parted, number, normal = found
    assert parted.info.partition is not None
    name = parted.info.partition.definitions[number].name
    return exchange_partition((parted.schema, parted.name), name, (normal.schema, normal.name), dialect)


def generated(step: Ddl, dialect: Dialect) -> tuple[str, ...] | None:
    """The job as the difference of its TableInfos; () if it does not affect the destination, None if the difference is
    unknown. Raises UnsupportedType."""
    kind, database = step.job.type, step.job.db_info
    if step.merged:
        return tuple(chain.from_iterable(of_change(step, change, dialect) for change in step.changes))
    if kind == ActionType.DROP_SCHEMA and step.by_rules:  # other tables may be in the databases that routes name
        gone = [change.before for change in step.changes if change.before]
        return tuple(map(_drop_any, gone)) or None
    if kind == ActionType.DROP_SCHEMA:
        return (f"DROP DATABASE {quoted(step.schema)}",)
    if kind in job_kinds.DATABASES:
        if database is None:
            return None
        make = create_database if kind == ActionType.CREATE_SCHEMA else alter_database
        return (make(database, dialect),)
    if kind in job_kinds.CREATES:
        new = [change.after for change in step.changes]
        return tuple(create_table(table.schema, table.info, dialect) for table in new if table is not None) or None
    return _one(step, step.changes[0], dialect) if len(step.changes) == 1 else None


def _one(step: Ddl, change: TableChange, dialect: Dialect) -> tuple[str, ...] | None:
    """A job on one table, view or sequence."""
    kind, before, after = step.job.type, change.before, change.after
    if after is None:
        return None
    if kind == ActionType.TRUNCATE_TABLE:
        return (f"TRUNCATE TABLE {quoted(after.schema, after.name)}",)
    if after.info.is_sequence:
        make = create_sequence if before is None else alter_sequence
        return tuple(filter(None, [make(after.schema, after.info)])) or None
    if before is None or after.info.is_view or not change.keeps_name:
        return None
    diff = table_diff(before.info, after.info, kind=kind, query=step.query)
    return tuple(alter_table(after.schema, before.info, after.info, diff, dialect))


def of_change(step: Ddl, change: TableChange, dialect: Dialect) -> tuple[str, ...]:
    """One table of a DDL of which tables are merged. Raises UnsupportedType."""
    before, after = change.before, change.after
    if after is None:
        assert before is not None
        return (_drop_any(before),)
    if before is None:
        database = f"CREATE DATABASE IF NOT EXISTS {quoted(after.schema)}"
        return database, create_table(after.schema, after.info, dialect)
    if not change.keeps_name:
        return (rename_tables([((before.schema, before.name), (after.schema, after.name))]),)
    diff = table_diff(before.info, after.info, kind=step.job.type, query=step.query)
    altered = alter_table(after.schema, before.info, after.info, diff, dialect)
    if change.rows is None:
        return tuple(altered)
    text = change.rows.sql(after.schema, after.info)
    return (*altered, text) if change.rows.sets else (text, *altered)


Changes = tuple[TableChange, ...]
_BACK: Final = frozenset({ActionType.RECOVER_TABLE, ActionType.RECOVER_SCHEMA})
# Kinds that are none of an ALTER TABLE, but alter a table that several tables of upstream are merged into.
_MADE_ALTER: Final = (job_kinds.CREATES | job_kinds.RENAMES) | {
    *(ActionType.DROP_TABLE, ActionType.DROP_SCHEMA, ActionType.TRUNCATE_TABLE)
}
# Of rows that the merged table cannot tell apart, because it is not partitioned, or does not keep.
_NOT_MERGED: Final = _BACK | job_kinds.TAKES_PARTITIONS
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """The configured replication policy. `ignored_ts`: commit_ts of skipped transactions and DDLs; the catalog still
    follows a skipped DDL. `sync_ddl` false: no DDL runs downstream, the tables are maintained by other means.
    `channel_id`: transactions with a mark of this channel are left out; None: none are. `rules`: what becomes of the
    tables that are replicated. `shows_lost`: the destination is shown which tables get a name that is not replicated,
    as dropped ones, and an EXCHANGE PARTITION with a table that is not."""

    filter: Filter = field(default_factory=Filter.create)
    rewrite: RewriteRules = field(default_factory=RewriteRules)
    sync_ddl: bool = True
    ignored_ts: frozenset[int] = frozenset()
    events: EventFilter = field(default_factory=EventFilter)
    channel_id: int | None = None
    rules: Rules = field(default_factory=Rules)
    shows_lost: bool = False

    def viewed(self, tables: dict[int, TableVersions]) -> tuple[dict[int, TableVersions], dict[int, frozenset[Kind]]]:
        """Return the tables as a view has them, and by table id which kinds of changes are left out. If something of a
        table is left out, the destination may have rows that upstream has not, so its rows are written as upserts
        (rule 21: one outcome wherever a stream is cut). Raises RuleRefused if a rule cannot be applied."""
        ignored: dict[int, frozenset[Kind]] = {}
        for table_id, table in list(tables.items()) if self.events.rules else ():
            kinds = self.events.ignored_kinds(table.schema, table.name)
            if kinds:
                ignored[table_id] = kinds
            if kinds or self.events.may_keep_rows(table.schema, table.name):
                infos = tuple(replace(info, upserts=True) for info in table.infos)
                tables[table_id] = replace(table, infos=infos)
        unions = self.rules.unions((table.schema, table.current) for table in tables.values())
        for table_id, table in list(tables.items()) if self.rules else ():
            applied = self.rules.applied(table.schema, table.current, unions)
            if applied is not None:
                tables[table_id] = replace(table, schema=applied.schema, applied=applied)
        return tables, ignored

    def step(self, proposed: Ddl, text: str, tables: Iterable[tuple[str, TableInfo]] = ()) -> Ddl | None:
        """The DDL step to run: filtered, rewritten, with its SQL; None when nothing runs downstream.

        `proposed`: with all changes and an empty `sql`. `text`: its query, independent of the writer's session.
        `tables`: upstream's before it, if rules merge some. Raises RuleRefused for a DDL that rules do not allow.
        """
        job = proposed.job
        if not self.sync_ddl or proposed.own_ts in self.ignored_ts:
            return self._log_skipped(proposed, "sync-ddl is off" if not self.sync_ddl else "ignored commit_ts")
        if job.type in job_kinds.ON_SCHEMA:
            if not self.filter.allows(proposed.schema):
                return self._log_skipped(proposed, "filtered")
            if self.events.ignores_ddl(job.type, proposed.query, proposed.schema):
                return self._log_skipped(proposed, "event filter")
            if job.type in job_kinds.DATABASES and self.rules.takes_all(proposed.schema):
                return self._log_skipped(proposed, "its tables go to other databases")
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
        sql = self.rewrite.text_for(job.id, proposed.own_ts)
        if sql is not None and not sql:
            return self._log_skipped(proposed, "the ddl-rewrite rule is empty")
        shown = tuple(change for change in changes if not self._hides(change)) if self.rules else changes
        if changes and not shown:
            return self._log_skipped(proposed, "a view or sequence of a name to which rules apply")
        if sql is None:
            self._check_same_rules(proposed, shown)
            self._check_renamed_columns(proposed, shown)
        shared = job.type == ActionType.DROP_SCHEMA and self.rules.shares(proposed.schema)
        if shared and not shown and sql is None:
            return self._log_skipped(proposed, "tables of other databases may be in the destination's")
        merged = self._merged(replace(proposed, changes=shown), tables) if sql is None and self.rules.merges else None
        if merged is not None:
            return self._step_by_rules(merged, None)
        changes = tuple(map(self._by_rules, shown))
        if changes != shown or (shared and shown):
            return self._step_by_rules(replace(proposed, changes=changes, by_rules=True), sql)
        plain = with_text(replace(proposed, changes=changes), text)
        return plain if sql is None else replace(plain, sql=sql, rewritten=True)

    def _hides(self, change: TableChange) -> bool:
        return any(one is not None and self.rules.hides(one.schema, one.info) for one in (change.before, change.after))

    def _by_rules(self, change: TableChange) -> TableChange:
        """The change of the destination's tables."""
        return TableChange(self._located(change.before), self._located(change.after)) if self.rules else change

    def _located(self, table: Located | None) -> Located | None:
        found = self.rules.applied(table.schema, table.info) if table is not None else None
        return Located(table.table_id, found.schema, found.info) if table is not None and found is not None else table

    def _merged(self, step: Ddl, tables: Iterable[tuple[str, TableInfo]]) -> Ddl | None:
        """The DDL, if tables of it are merged with others; None: as of any table."""
        parts = self.rules.parts(tables)
        made = [self._merged_change(step, change, parts) for change in step.changes]
        if not any(made):
            return None
        changes = tuple(one or self._by_rules(change) for one, change in zip(made, step.changes, strict=True))
        kind = ActionType.MULTI_SCHEMA_CHANGE if step.job.type in _MADE_ALTER else step.job.type
        return replace(step, job=replace(step.job, type=kind), changes=changes, by_rules=True, merged=True)

    def _merged_change(
        self, step: Ddl, change: TableChange, parts: dict[Destination, dict[int, Part]]
    ) -> TableChange | None:
        """What a change of a part does to the destination's table, None if the part is alone. `parts`: before it; they
        are then those after it. Raises RuleRefused."""
        before, after = change.before, change.after
        old, new = (self.rules.part(one.schema, one.info) if one is not None else None for one in (before, after))
        one = new or old
        if one is None:
            return None
        if step.job.type in _NOT_MERGED:
            raise _not_merged(step, one, "has not the partitions or dropped rows of each")
        if before is not None and after is not None and (old and old.destination) != (new and new.destination):
            raise _not_merged(step, one, "cannot lose a table to another name, or get one from there")
        there = parts.setdefault(one.destination, {})
        if old is not None:
            there.pop(old.info.id, None)
        others = tuple(there.values())
        if new is not None:
            there[new.info.id] = new
        renamed = old is not None and new is not None and old.source != new.source
        emptied = step.job.type == ActionType.TRUNCATE_TABLE
        kept = emptied and self.events.rules  # there may be rows of a part whose DROP TABLE was left out
        if not (others or renamed or kept) or (old is None and step.job.type not in job_kinds.CREATES):
            return None
        try:
            was, now, rows = merged_change(old, new, others, query=step.query, emptied=emptied)
        except ConfigError as error:
            raise _not_merged(step, one, f"is not altered for one of them: {error}") from None
        return TableChange(Located(one.info.id, one.schema, was), Located(one.info.id, one.schema, now), rows)

    def _step_by_rules(self, step: Ddl, sql: tuple[str, ...] | None) -> Ddl | None:
        """A DDL of which rules alter tables: its statements are made from the destination's tables. `sql`: of a
        ddl-rewrite rule."""
        one = step.changes[0].after or step.changes[0].before
        assert one is not None
        step = replace(step, schema=one.schema)
        if sql is not None:
            return replace(step, sql=sql, use=one.schema, rewritten=True)
        made = _made(step)
        if made is None:
            raise RuleRefused(
                f"DDL job {step.job.id} ({step.query[:200]}): its effect on {one.schema}.{one.name}, which rules "
                f"alter, is not known. Say with a ddl-rewrite rule what runs, or nothing (job-id = {step.job.id})"
            )
        if not made:
            return self._log_skipped(step, "it changes nothing that rules leave")
        return replace(step, sql=made, query="; ".join(made))

    def _check_same_rules(self, step: Ddl, upstream: Changes) -> None:
        """Raise RuleRefused for a DDL after which other columns or rows rules apply to a table or to its rows: the
        destination lacks what the former rules left out."""
        whole = step.job.type == ActionType.EXCHANGE_TABLE_PARTITION
        for changes in (upstream,) if whole else ((change,) for change in upstream):
            both = [one for change in changes for one in (change.before, change.after)]
            tables = [one for one in both if one is not None and one.info.has_rows]
            if any(self.rules.of_values(*_name(one)) != self.rules.of_values(*_name(tables[0])) for one in tables):
                names = " and ".join(sorted({".".join(_name(one)) for one in tables}))
                raise RuleRefused(
                    f"DDL job {step.job.id} ({step.query[:200]}): different columns or rows rules apply to {names}. "
                    f"Make the rules the same, or say with a ddl-rewrite rule what runs (job-id = {step.job.id})"
                )

    def _check_renamed_columns(self, step: Ddl, upstream: Changes) -> None:
        """Raise RuleRefused for a DDL by which a column that was left out gets a name that is not."""
        for old, new in ((one.before, one.after) for one in upstream if one.before and one.after):
            was, now = self._left_out(old), self._left_out(new)
            whole = step.job.type == ActionType.MODIFY_COLUMN
            old_ids = dict(retyped(old.info, new.info, one_changed=whole, query=step.query)) if was else {}
            shown = [c.name for c in new.info.public_columns if old_ids.get(c.id, c.id) in was and c.id not in now]
            if shown:
                raise RuleRefused(
                    f"DDL job {step.job.id} ({step.query[:200]}): column {shown[0]} of {'.'.join(_name(new))} was left "
                    f"out under its former name, so the destination lacks its values: leave it out, too, or say with a "
                    f"ddl-rewrite rule what runs (job-id = {step.job.id})"
                )

    def _left_out(self, table: Located) -> frozenset[int]:
        applied = self.rules.applied(table.schema, table.info)
        return applied.left_out if applied is not None else frozenset()

    def _on_schema(self, changes: Changes) -> Changes:
        return tuple(c for c in changes if _passes(self.filter, c.before) and _passes(self.filter, c.after))

    def _replicated(self, job: Job, changes: Changes) -> Changes:
        """The changes of tables that are replicated both before and after the job (the original checks only the new
        name of a RENAME, D-FI-03). In a RENAME chain the first and the last name of a table count."""
        replicated = tuple(c for c in changes if self._ends_replicated(changes, c))
        if self.shows_lost and job.type in job_kinds.RENAMES:
            others = [c for c in changes if c not in replicated and _passes(self.filter, c.before)]
            return (*replicated, *(TableChange(c.before, None) for c in others if not _passes(self.filter, c.after)))
        if not replicated or len(replicated) == len(changes):
            return replicated
        if job.type == ActionType.EXCHANGE_TABLE_PARTITION and not self.shows_lost:
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
        parts = job_kinds.kinds_of_parts(proposed.job)
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


def _name(table: Located) -> tuple[str, str]:
    return table.schema, table.name


def _not_merged(step: Ddl, part: Part, why: str) -> RuleRefused:
    return RuleRefused(
        f"DDL job {step.job.id} ({step.query[:200]}): {part.schema}.{part.info.name}, into which {part.source} and "
        f"other tables are merged, {why}. Say with a ddl-rewrite rule what runs, or nothing (job-id = "
        f"{step.job.id})"
    )


def _made(step: Ddl) -> tuple[str, ...] | None:
    """The statements of a DDL from its tables alone; None if these do not show what it does."""
    kind = step.job.type
    if kind in job_kinds.DROPS:
        return tuple(_drop(job_kinds.DROPS[kind], one.before) for one in step.changes if one.before is not None)
    if kind in job_kinds.RENAMES:
        if not all(one.before for one in step.changes):
            return None
        gone = [_drop("TABLE", one.before) for one in step.changes if one.before and not one.after]
        renamed = _rename(tuple(one for one in step.changes if one.after and not one.keeps_name))
        return (*gone, renamed) if renamed is not None else tuple(gone)
    if kind == ActionType.EXCHANGE_TABLE_PARTITION:
        exchanged = exchange(step.changes, Dialect())
        return (exchanged,) if exchanged is not None else None
    if kind in _BACK:
        return tuple(f"RECOVER TABLE {quoted(*_name(one.after))}" for one in step.changes if one.after is not None)
    try:
        return generated(step, Dialect())
    except UnsupportedType:
        return None


def _passes(names: Filter, table: Located | None) -> bool:
    return table is None or names.allows(table.schema, table.name)
