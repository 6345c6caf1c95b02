"""A DDL job prepared for one server: the statements, their database, and their session time. Stored as JSON in the
job's mark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

from binlog.runtime.log import get_logger

from drainer.ddl.mysql_columns import Dialect
from drainer.schema.steps import Ddl
from drainer.sink.mysql.ddl import session_context
from drainer.sink.mysql.ddl.fingerprint import Fingerprint
from drainer.sink.mysql.ddl.session_context import Server
from drainer.sink.mysql.ddl.translate import Translation, translate
from drainer.sink.position import tuples

_log = get_logger(__name__)

_HARMLESS: Final = re.compile(r"\s*(?:TRUNCATE\b|DROP\s+TABLE\s+IF\s+EXISTS\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything needed to run, verify or finish a job, as JSON in its mark.

    `instead`: what runs in place of all statements when one is refused with an error of `instead_codes` (empty: with
    any); None: nothing does. Statements from `optional_from` on may fail, with a log line. `clock` and `zone`: time and
    time zone in which upstream ran it, if existing rows depend on them. `index`: the name of the index that the only
    statement builds beside the stream (background.py)."""

    job_id: int
    kind: int
    commit_ts: int
    schema_version: int
    use: str
    sql: tuple[str, ...]
    schemas: tuple[str, ...]
    tables: tuple[tuple[str, str], ...]
    may_exist: bool
    clock: str = ""
    zone: str = ""
    statement: int = 0
    before: Fingerprint | None = None
    instead: tuple[str, ...] | None = None
    instead_codes: tuple[int, ...] = ()
    optional_from: int | None = None
    index: str = ""

    @property
    def may_repeat(self) -> bool:
        """Emptying a table or dropping it again does no harm."""
        return bool(_HARMLESS.match(self.sql[self.statement]))

    def begun(self, before: Fingerprint) -> JobPlan:
        return replace(self, before=before)

    def text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def parse(text: str) -> JobPlan:
        return JobPlan(**tuples(json.loads(text)))


def plan_of(step: Ddl, server: Server, *, may_exist: bool) -> JobPlan:
    """The step's statements for the destination. Logs differences from upstream."""
    zone = session_context.zone(step)
    dialect = server.dialect(zone)
    made = translate(step, server, dialect)
    for note in _notes(step, made, dialect):
        _log.warning("DDL differs from upstream's in the destination", job=step.job.id, note=note)
    if not made.sql:
        _log.info("DDL affects nothing in the destination; nothing to run", job=step.job.id, query=step.query)
    after = tuple(session_context.fills(step, server)) if made.sql else ()
    names = (*step.touched_names, *made.tables)
    return JobPlan(
        job_id=step.job.id,
        kind=int(step.job.type),
        commit_ts=step.commit_ts,
        schema_version=step.job.schema_version,
        use=made.use,
        sql=(*made.sql, *after),
        schemas=tuple(dict.fromkeys(filter(None, (step.schema, *(schema for schema, _ in names))))),
        tables=names,
        may_exist=may_exist,
        clock=session_context.clock(step),
        zone=zone,
        instead=None if made.instead is None else (*made.instead, *after),
        instead_codes=made.codes,
        optional_from=0 if made.optional else None,
    )


def _notes(step: Ddl, made: Translation, dialect: Dialect) -> Iterator[str]:
    if step.rewritten:
        return
    collations = {
        column.type.collate for change in step.changes if change.after for column in change.after.info.columns
    }
    for name in sorted(filter(None, collations)):
        if dialect.collation(name) != name:
            yield f"collation {name} is not known there, {dialect.collation(name)} is used"
