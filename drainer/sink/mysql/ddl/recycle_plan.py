"""Plans DROP and TRUNCATE as renames into the recycle bin, and FLASHBACK and RECOVER as renames out of it.

    DROP TABLE      RENAME away
    DROP DATABASE   RENAME every replicated table away, DROP DATABASE
    TRUNCATE        create an empty copy in the bin, then exchange both in one RENAME: readers always see a table
    FLASHBACK       RENAME back, under the name upstream gave it; then its views and foreign keys

After every statement the bin's table either exists or does not, so a crash is resolved as for any DDL (rule 18: an
interrupted DDL runs once). `JobPlan.instead`: the statements to run if a table cannot be moved: upstream's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_objects import create_database, create_view
from drainer.ddl.mysql_tables import foreign_key_statements
from drainer.schema.steps import Ddl, Located
from drainer.sink.errors import DestinationError
from drainer.sink.mysql.connection import ServerError, ServerSession
from drainer.sink.mysql.ddl.job_plan import JobPlan
from drainer.sink.mysql.ddl.movable_tables import Facts, facts
from drainer.sink.mysql.ddl.recycle_bin import RecycleBin
from drainer.sink.mysql.ddl.server import Server
from drainer.sink.recycle_names import fresh_name, latest

_log = get_logger(__name__)

_AWAY = frozenset({ActionType.DROP_TABLE, ActionType.DROP_SCHEMA, ActionType.TRUNCATE_TABLE})
_BACK = frozenset({ActionType.RECOVER_TABLE, ActionType.RECOVER_SCHEMA})


class NotInBin(DestinationError):
    """A table that upstream recovered is not in the bin."""


def concerns(step: Ddl) -> bool:
    """Whether the job is run through the bin; never if an operator's text replaces it."""
    return not step.rewritten and step.job.type in (_AWAY | _BACK)


def through_bin(session: ServerSession, bin_: RecycleBin, step: Ddl, plan: JobPlan, server: Server) -> JobPlan:
    """The plan through the bin; `plan` itself if the bin is not used or no table can be moved. Raises NotInBin."""
    if step.job.type in _BACK:
        return _bring_back(session, bin_, step, plan, server)
    gone = [c.before for c in step.changes if c.before is not None and not c.before.info.is_view]
    if not bin_.keeps or not gone or not plan.sql or not bin_.prepare(session):
        return plan
    try:
        if step.job.type == ActionType.TRUNCATE_TABLE:
            return _truncate(session, bin_, plan, gone[0])
        return _put_away(session, bin_, plan, gone, whole=step.job.type == ActionType.DROP_SCHEMA)
    except ServerError as error:  # the server does not tell enough of its tables
        _log.warning("the recycle bin is not used for this DDL", job=plan.job_id, error=str(error))
        return plan


def _name(bin_: RecycleBin, plan: JobPlan, table: Located) -> str:
    return bin_.name_for(commit_ts=plan.commit_ts, job_id=plan.job_id, table_id=table.table_id, table=table.name)


def _movable(plan: JobPlan, known: Facts, tables: Iterable[Located], *, whole: bool) -> list[Located]:
    found = []
    for table in tables:
        why = known.stays(table.name, with_schema=whole)
        if why:
            _log.warning(
                "a table does not go to the recycle bin", job=plan.job_id, table=f"{table.schema}.{table.name}", why=why
            )
        else:
            found.append(table)
    return found


def _put_away(
    session: ServerSession, bin_: RecycleBin, plan: JobPlan, gone: Sequence[Located], *, whole: bool
) -> JobPlan:
    known = facts(session, gone[0].schema, [table.name for table in gone])
    moved = _movable(plan, known, gone, whole=whole)
    if not moved:
        return plan
    names = [_name(bin_, plan, table) for table in moved]
    sql = []
    for table in moved:
        keys = known.own_keys(table.name)
        if keys:
            drops = ", ".join(f"DROP FOREIGN KEY {quoted(key)}" for key in keys)
            sql.append(f"ALTER TABLE {quoted(table.schema, table.name)} {drops}")
    pairs = (
        f"{quoted(table.schema, table.name)} TO {quoted(bin_.schema, name)}"
        for table, name in zip(moved, names, strict=True)
    )
    sql.append("RENAME TABLE " + ", ".join(pairs))
    return replace(
        plan,
        sql=(*sql, *plan.sql) if whole else tuple(sql),
        tables=(*plan.tables, *((bin_.schema, name) for name in names)),
        instead=plan.sql,
        instead_codes=(),
    )


def _truncate(session: ServerSession, bin_: RecycleBin, plan: JobPlan, table: Located) -> JobPlan:
    known = facts(session, table.schema, [table.name])
    why = known.no_twin(table.name)
    if why:
        _log.warning("a truncated table does not go to the recycle bin", job=plan.job_id, table=table.name, why=why)
        return plan
    if not _movable(plan, known, [table], whole=False):
        return plan
    kept = _name(bin_, plan, table)
    place, old, fresh = (
        quoted(table.schema, table.name),
        quoted(bin_.schema, kept),
        quoted(bin_.schema, fresh_name(kept)),
    )
    return replace(
        plan,
        sql=(f"CREATE TABLE {fresh} LIKE {place}", f"RENAME TABLE {place} TO {old}, {fresh} TO {place}"),
        tables=(*plan.tables, (bin_.schema, kept), (bin_.schema, fresh_name(kept))),
        instead=(f"DROP TABLE IF EXISTS {fresh}", *plan.sql),
        instead_codes=(),
    )


def _bring_back(session: ServerSession, bin_: RecycleBin, step: Ddl, plan: JobPlan, server: Server) -> JobPlan:
    back = [c.after for c in step.changes if c.after is not None]
    there = bin_.look(session)
    found = [(table, latest(there, table.table_id)) for table in back if not table.info.is_view]
    missing = [table for table, kept in found if kept is None]
    lost = [table for table in missing if not table.info.is_sequence]
    if lost and server.is_tidb:
        return plan  # it may know the statement's own way
    if lost and not _are_there(session, plan, lost):
        names = ", ".join(f"{table.schema}.{table.name} (id {table.table_id})" for table in lost)
        raise NotInBin(
            f"{names} is not in the recycle bin {bin_.schema}: it was dropped before replication began, or longer ago "
            f"than syncer.recycle-bin says, or could not be moved there, of which the log of the drop tells"
        )
    if missing:
        _log.warning(
            "tables are not in the recycle bin and cannot be recovered",
            job=plan.job_id,
            tables=[f"{t.schema}.{t.name}" for t in missing],
        )
    pairs = [
        f"{quoted(bin_.schema, kept.name)} TO {quoted(table.schema, table.name)}"
        for table, kept in found
        if kept is not None
    ]
    sql = [*_database(step, server), *(["RENAME TABLE " + ", ".join(pairs)] if pairs else [])]
    later = [*_views(back), *_foreign_keys(table for table, kept in found if kept)]
    return replace(
        plan,
        use="",
        sql=(*sql, *later),
        tables=(*plan.tables, *((bin_.schema, kept.name) for _, kept in found if kept is not None)),
        optional_from=len(sql),
    )


def _are_there(session: ServerSession, plan: JobPlan, tables: Sequence[Located]) -> bool:
    """Whether the tables exist: the job may have begun before the destination's first copy was taken."""
    if not plan.may_exist:
        return False
    known = facts(session, tables[0].schema, [table.name for table in tables])
    return all(table.name.lower() in known.kinds for table in tables)


def _database(step: Ddl, server: Server) -> list[str]:
    database = step.job.db_info
    if step.job.type != ActionType.RECOVER_SCHEMA or database is None:
        return []
    return [create_database(database, server.dialect(), if_not_exists=True)]


def _views(back: Iterable[Located]) -> list[str]:
    views = (table for table in back if table.info.is_view)
    return [text for view in views if (text := create_view(view.schema, view.info))]


def _foreign_keys(tables: Iterable[Located]) -> list[str]:
    return [text for table in tables for text in foreign_key_statements(table.schema, table.info)]
