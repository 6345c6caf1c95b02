"""Whether a job's DDL runs downstream, and as which step. Pure (D-FI-02, correctness rule 14)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job

from drainer.schema import job_kinds
from drainer.schema.ddl_overrides import RewriteRules
from drainer.schema.filter import Filter
from drainer.schema.job_statement import statement
from drainer.schema.steps import Ddl, Located, TableChange

Changes = tuple[TableChange, ...]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says of rows and DDLs. `ignored_ts`: transactions left out whole; the catalog still
    follows an ignored DDL. `sync_ddl` false: no DDL runs downstream, someone else keeps the tables alike."""

    filter: Filter = field(default_factory=Filter.create)
    rewrite: RewriteRules = field(default_factory=RewriteRules)
    sync_ddl: bool = True
    ignored_ts: frozenset[int] = frozenset()

    def step(self, proposed: Ddl, text: str) -> Ddl | None:
        """The step as it shall run: filtered, rewritten, with its SQL; None when nothing runs downstream.

        `proposed` carries every change and an empty `sql`; `text` is its query, independent of the writer's session.
        """
        job = proposed.job
        if not self.sync_ddl or proposed.own_ts in self.ignored_ts:
            return self._left_out(proposed, "sync-ddl is off" if not self.sync_ddl else "ignored commit_ts")
        if job.type in job_kinds.ON_SCHEMA:
            if not self.filter.allows(proposed.schema):
                return self._left_out(proposed, "filtered")
            changes = self._on_schema(proposed.changes)
        elif job.type in job_kinds.ON_CLUSTER:
            changes = ()  # every table; a destination stops at it
        else:
            changes = self._replicated(job, proposed.changes)
            if not changes:
                return self._left_out(proposed, "filtered" if proposed.changes else "touches no known table")
        plain = statement(job, text, changes, proposed.schema)
        sql = self.rewrite.text_for(job.id, proposed.own_ts)
        if sql is not None and not sql:
            return self._left_out(proposed, "ddl-rewrite says so")
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
        """The changes of tables that are replicated both before and after (the original looks only at a RENAME's
        new name, D-FI-03). In a RENAME chain a table's first and last names count, not the ones in passing."""
        kept = tuple(c for c in changes if self._ends_replicated(changes, c))
        if not kept or len(kept) == len(changes):
            return kept
        if job.type == ActionType.EXCHANGE_TABLE_PARTITION:
            _log.warning("EXCHANGE PARTITION with a table that is not replicated", job_id=job.id)
            return ()
        return kept

    def _ends_replicated(self, changes: Changes, change: TableChange) -> bool:
        ids = {t.table_id for t in (change.before, change.after) if t is not None}
        chain = [c for c in changes if {t.table_id for t in (c.before, c.after) if t is not None} & ids]
        first, last = chain[0].before, chain[-1].after
        allowed = (_passes(self.filter, first), _passes(self.filter, last))
        if first is not None and last is not None and allowed[0] != allowed[1]:
            _log.warning(
                "a table is renamed across the filter: its DDL does not run downstream",
                old=f"{first.schema}.{first.name}",
                new=f"{last.schema}.{last.name}",
                replicated_after=allowed[1],
            )
        return all(allowed)

    @staticmethod
    def _left_out(proposed: Ddl, why: str) -> None:
        job = proposed.job
        _log.info("DDL does not run downstream", job_id=job.id, kind=job.type.name, why=why, query=proposed.query)


def _passes(names: Filter, table: Located | None) -> bool:
    return table is None or names.allows(table.schema, table.name)
