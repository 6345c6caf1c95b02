"""A DDL job made ready for one server: what to run, where, and with which clock. JSON in the job's mark."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Final

from binlog.log import get_logger
from binlog.tidb.job import ActionType
from binlog.tidb.types import Tp

from drainer.schema.restore import foreign_key_names
from drainer.sink.mysql import standing
from drainer.sink.mysql.fingerprint import Fingerprint
from drainer.sink.mysql.instead import by_row, in_other_words, instead
from drainer.sink.mysql.rewrite import Defaults, Dialect, rewrite
from drainer.sink.mysql.standing import INSTANT
from drainer.step import Ddl

_log = get_logger(__name__)

_SEQUENCES: Final = frozenset({ActionType.CREATE_SEQUENCE, ActionType.ALTER_SEQUENCE, ActionType.DROP_SEQUENCE})
_HARMLESS: Final = re.compile(r"\s*(?:TRUNCATE\b|DROP\s+TABLE\s+IF\s+EXISTS\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is needed to run, judge or finish a job, as JSON in its mark.

    `instead`: what runs in place of all statements when one is refused with an error of `instead_codes` (empty: with
    any); None: nothing does. Statements from `optional_from` on may fail, with a log line. `clock` and `zone`: when and
    where upstream ran it, where that matters to the rows that stood there."""

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

    @property
    def is_optional(self) -> bool:
        return self.optional_from is not None and self.statement >= self.optional_from

    @property
    def may_repeat(self) -> bool:
        """Emptying a table or dropping it again does no harm."""
        return bool(_HARMLESS.match(self.sql[self.statement]))

    def text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def parse(text: str) -> Plan:
        fields = json.loads(text)
        fields["sql"] = tuple(fields["sql"])
        instead = fields.get("instead")
        fields["instead"] = None if instead is None else tuple(instead)
        fields["instead_codes"] = tuple(fields.get("instead_codes", ()))
        fields["schemas"] = tuple(fields["schemas"])
        fields["tables"] = tuple((schema, table) for schema, table in fields["tables"])
        return Plan(**fields)


def plan_of(step: Ddl, dialect: Dialect, *, may_exist: bool) -> Plan:
    """The step's statements as the destination must be told them. Logs what had to be changed."""
    defaults, zone = _defaults(step), standing.zone(step)
    if zone:  # the text is read where it was written
        defaults = replace(defaults, timestamps=())
    sql: list[str] = []
    for text in () if _is_temporary(step) and dialect.flavour != "tidb" else step.sql:
        rewritten = rewrite(text, defaults, dialect, operators=step.rewritten)
        for note in rewritten.notes:
            _log.warning("DDL changed for the destination", job=step.job.id, note=note)
        if rewritten.sql:
            sql.append(rewritten.sql)
    if not step.sql and not step.rewritten:  # a service or a restore that published its tables without a text
        sql += in_other_words(step, dialect) or ()
    other = None if zone else instead(step, tuple(sql), dialect)
    own = by_row(step, dialect)
    if own is not None:
        sql, other = list(own.sql), None
    after = tuple(standing.fills(step, dialect.flavour)) if sql else ()
    names = (*step.touched_names, *(way for said in (own, other) if said is not None for way in said.tables))
    return Plan(
        job_id=step.job.id,
        kind=int(step.job.type),
        commit_ts=step.commit_ts,
        schema_version=step.job.schema_version,
        use=step.use,
        sql=(*sql, *after),
        schemas=tuple(dict.fromkeys(filter(None, (step.schema, *(schema for schema, _ in names))))),
        tables=names,
        may_exist=may_exist,
        clock=standing.clock(step),
        zone=zone,
        instead=(*other.sql, *after) if other else None,
        instead_codes=other.codes if other else (),
        optional_from=0 if _holds_no_rows(step, dialect) else None,
    )


def _holds_no_rows(step: Ddl, dialect: Dialect) -> bool:
    """A view that the destination cannot have, or a sequence in MySQL, is no reason to stop."""
    kind = step.job.type
    return kind == ActionType.CREATE_VIEW or (kind in _SEQUENCES and dialect.flavour == "mysql")


def _is_temporary(step: Ddl) -> bool:
    """GLOBAL TEMPORARY tables have no rows in any binlog, and only TiDB has them."""
    info = step.after or step.before
    temporary = info is not None and info.rest.get("temp_table_type") not in (None, 0) and not step.rewritten
    if temporary:
        _log.warning("a global temporary table is left to upstream", job=step.job.id, query=step.query)
    return temporary


def _defaults(step: Ddl) -> Defaults:
    info, database = step.after, step.job.db_info
    if info is None:
        return Defaults(database.charset, database.collate) if database is not None else Defaults()
    stamps = tuple(
        (column.name.lower(), column.default)
        for column in info.columns
        if column.type.tp == Tp.TIMESTAMP and isinstance(column.default, str) and INSTANT.fullmatch(column.default)
    )
    if step.rewritten:
        return Defaults(info.charset, info.collate, stamps)
    checks = bool(info.rest.get("constraint_info"))
    return Defaults(info.charset, info.collate, stamps, checks, tuple(foreign_key_names(info)), info.id)
