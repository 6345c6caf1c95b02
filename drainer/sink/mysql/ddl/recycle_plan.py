"""Plans DROP and TRUNCATE as renames into the recycle bin, and FLASHBACK and RECOVER as renames out of it.

    DROP TABLE      RENAME away
    DROP DATABASE   RENAME every replicated table away, DROP DATABASE
    TRUNCATE        create an empty copy in the bin, then exchange both in one RENAME: readers always see a table
    FLASHBACK       RENAME back, under the name upstream gave it; then its views and foreign keys

After every statement the bin's table either exists or does not, so a crash is resolved as for any DDL (rule 18: an
interrupted DDL runs once). `JobPlan.instead`: the statements to run if a table cannot be moved: upstream's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_objects import create_database, create_view
from drainer.ddl.mysql_tables import foreign_key_statements
from drainer.schema.steps import Ddl, Located
from drainer.sink import recycle_names
from drainer.sink.base import Identity
from drainer.sink.errors import DestinationError
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import Retry, ServerError, ServerSession
from drainer.sink.mysql.ddl.job_plan import JobPlan, Server
from drainer.sink.mysql.rows.format import qualified, quote
from drainer.sink.recycle_names import Kept, fresh_name, latest

# Which tables can be moved to another schema without changing the remaining ones.
#
# A trigger cannot be moved with its table. A foreign key that refers to the table would follow it, and would still
# refer to the bin when upstream creates a table of the old name. The table's own foreign keys are dropped first,
# because their names are unique in a schema.

# No PROCESS privilege, or no such information_schema table.
_NOT_TOLD = frozenset({1044, 1109, 1115, 1142, 1146, 1227})


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A constraint of `child` that refers to `parent`; both (schema, table) in lower case."""

    name: str
    child: tuple[str, str]
    parent: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """The server's metadata of one schema; names in lower case. `kinds`: table → TABLE_TYPE."""

    schema: str
    kinds: Mapping[str, str]
    triggered: frozenset[str]
    checked: frozenset[str]
    foreign_keys: tuple[ForeignKey, ...]

    def own_keys(self, table: str) -> tuple[str, ...]:
        """Return the names of the table's foreign keys."""
        child = (self.schema.lower(), table.lower())
        return tuple(key.name for key in self.foreign_keys if key.child == child)

    def stays(self, table: str, *, with_schema: bool = False) -> str:
        """Return why a table cannot be moved, '' if it can. `with_schema`: the complete schema is dropped."""
        name = table.lower()
        kind = self.kinds.get(name)
        if kind is None:
            return "it is not there"
        if kind not in ("BASE TABLE", "SEQUENCE"):
            return f"it is a {kind}"
        if name in self.triggered:
            return "it has triggers"
        qualified_name = (self.schema.lower(), name)
        for key in self.foreign_keys:
            inside = key.child == qualified_name or (with_schema and key.child[0] == qualified_name[0])
            if key.parent == qualified_name and not inside:
                return f"the foreign key {key.name} of {'.'.join(key.child)} refers to it"
        return ""

    def no_twin(self, table: str) -> str:
        """Why CREATE TABLE … LIKE would not create an identical table, '' when it would."""
        qualified_name = (self.schema.lower(), table.lower())
        if any(qualified_name in (key.child, key.parent) for key in self.foreign_keys):
            return "it has to do with foreign keys"
        return "it has CHECK constraints, which get new names" if table.lower() in self.checked else ""


def facts(session: ServerSession, schema: str, tables: Iterable[str]) -> Facts:
    """Ask the server about these tables."""
    where = session.literal(schema)
    names = b",".join(session.literal(table) for table in tables)
    kinds = session.query(
        b"SELECT LOWER(TABLE_NAME), TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s"
        b" AND TABLE_NAME IN (%s)" % (where, names)
    )
    triggers = session.query(
        b"SELECT DISTINCT LOWER(EVENT_OBJECT_TABLE) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA=" + where
    )
    checks: list[tuple[object, ...]] = []
    if session.flavour != "mariadb":  # there they keep their names
        checks += session.query(
            b"SELECT LOWER(TABLE_NAME) FROM information_schema.TABLE_CONSTRAINTS WHERE CONSTRAINT_TYPE='CHECK'"
            b" AND TABLE_SCHEMA=" + where
        )
    return Facts(
        schema,
        {str(name): str(kind) for name, kind in kinds},
        frozenset(str(row[0]) for row in triggers),
        frozenset(str(row[0]) for row in checks),
        tuple(_foreign_keys(session, schema)),
    )


def _foreign_keys(session: ServerSession, schema: str) -> Iterable[ForeignKey]:
    if not _may_have_keys(session, schema):
        return
    where = session.literal(schema)
    rows = session.query(
        b"SELECT CONSTRAINT_NAME, LOWER(CONSTRAINT_SCHEMA), LOWER(TABLE_NAME), LOWER(UNIQUE_CONSTRAINT_SCHEMA),"
        b" LOWER(REFERENCED_TABLE_NAME) FROM information_schema.REFERENTIAL_CONSTRAINTS"
        b" WHERE CONSTRAINT_SCHEMA=%s OR UNIQUE_CONSTRAINT_SCHEMA=%s" % (where, where)
    )
    for name, child_schema, child, parent_schema, parent in rows:
        yield ForeignKey(str(name), (str(child_schema), str(child)), (str(parent_schema), str(parent)))


def _may_have_keys(session: ServerSession, schema: str) -> bool:
    """InnoDB's own list is fast; the standard view opens every table of the server."""
    source = b"INNODB_SYS_FOREIGN" if session.flavour == "mariadb" else b"INNODB_FOREIGN"
    path = b"LOWER(CONVERT(CONCAT(CAST(CONVERT(%s USING filename) AS BINARY),'/') USING utf8mb4))"
    path = path % session.literal(schema)
    try:
        found = session.query(
            b"SELECT 1 FROM information_schema.%s WHERE INSTR(LOWER(FOR_NAME),%s)=1 OR INSTR(LOWER(REF_NAME),%s)=1"
            b" LIMIT 1" % (source, path, path)
        )
    except ServerError as error:
        if error.code not in _NOT_TOLD:
            raise
        return True
    return bool(found)


# The recycle bin of a server: the dropped tables in the drainer's schema, and which of them have expired.
#
# DROP, TRUNCATE ──RENAME──► tidb_binlog.<name> ──RENAME──► FLASHBACK, RECOVER
#                                     └── retention passed, in the stream's own time ──► DROP


# A table may be locked by a reader; the stream does not wait for that.
_LOCK_WAIT_S = 1


class RecycleBin:
    """One changefeed's tables in the bin. `keeps` false: no tables are added; existing ones are found and expire."""

    def __init__(self, config: ServerConfig, identity: Identity) -> None:
        self.schema = config.recycle_schema
        self.keeps = config.recycle_keep_ms > 0
        self._keep_ms = config.recycle_keep_ms
        self._tag = recycle_names.tag(identity)
        self._kept: list[Kept] = []

    def name_for(self, plan: JobPlan, table: Located) -> str:
        return recycle_names.name_for(
            self._tag, commit_ts=plan.commit_ts, job_id=plan.job_id, table_id=table.table_id, table=table.name
        )

    def prepare(self, session: ServerSession) -> bool:
        """Create the schema; False, with a log line, if the user lacks the privilege."""
        try:
            session.execute(b"CREATE DATABASE IF NOT EXISTS " + quote(self.schema))
        except ServerError as error:
            _log.warning("cannot create the recycle bin: dropped tables cannot be recovered", error=str(error))
            return False
        return True

    def read(self, session: ServerSession) -> list[Kept]:
        """The changefeed's tables in the bin, read from the server."""
        text = b"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=" + session.literal(self.schema)
        self._kept = recycle_names.kept(self._tag, (str(row[0]) for row in session.query(text)))
        return self._kept

    def is_due(self, position_ts: int) -> bool:
        """Whether a table there has expired, as of the last `read`."""
        return bool(self._kept) and self._kept[0].is_expired(position_ts, self._keep_ms)

    def purge(self, session: ServerSession, position_ts: int) -> None:
        """Drop expired tables. One that is in use, or that the server refuses to drop, remains until the next start."""
        expired = [table for table in self.read(session) if table.is_expired(position_ts, self._keep_ms)]
        (waited,) = session.query(b"SELECT @@SESSION.lock_wait_timeout")[0]
        session.execute(b"SET SESSION lock_wait_timeout=%d" % _LOCK_WAIT_S)
        try:
            for table in expired:
                self._drop(session, table)
        finally:
            session.execute(b"SET SESSION lock_wait_timeout=%d" % int(waited or 0))
        self._kept = [table for table in self._kept if table not in expired]

    def _drop(self, session: ServerSession, table: Kept) -> None:
        try:
            session.execute(b"DROP TABLE IF EXISTS " + qualified(self.schema, table.name))
            _log.info("table deleted from the recycle bin", table=table.name, job_id=table.job_id)
        except (ServerError, Retry) as error:
            _log.warning(
                "cannot delete a table from the recycle bin; the next start tries again",
                table=table.name,
                error=str(error),
            )


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
    elsewhere = len({table.schema for table in gone}) > 1  # routes give the tables of a database to several
    if not bin_.keeps or not gone or elsewhere or not plan.sql or not bin_.prepare(session):
        return plan
    try:
        if step.job.type == ActionType.TRUNCATE_TABLE:
            return _truncate(session, bin_, plan, gone[0])
        return _put_away(session, bin_, plan, gone, whole=step.job.type == ActionType.DROP_SCHEMA)
    except ServerError as error:  # the server does not tell enough of its tables
        _log.warning("the recycle bin is not used for this DDL", job=plan.job_id, error=str(error))
        return plan


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
    names = [bin_.name_for(plan, table) for table in moved]
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
    kept = bin_.name_for(plan, table)
    name, old, fresh = (
        quoted(table.schema, table.name),
        quoted(bin_.schema, kept),
        quoted(bin_.schema, fresh_name(kept)),
    )
    return replace(
        plan,
        sql=(f"CREATE TABLE {fresh} LIKE {name}", f"RENAME TABLE {name} TO {old}, {fresh} TO {name}"),
        tables=(*plan.tables, (bin_.schema, kept), (bin_.schema, fresh_name(kept))),
        instead=(f"DROP TABLE IF EXISTS {fresh}", *plan.sql),
        instead_codes=(),
    )


def _bring_back(session: ServerSession, bin_: RecycleBin, step: Ddl, plan: JobPlan, server: Server) -> JobPlan:
    back = [c.after for c in step.changes if c.after is not None]
    there = bin_.read(session)
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
    views = [text for table in back if table.info.is_view and (text := create_view(table.schema, table.info))]
    keys = (text for table, kept in found if kept for text in foreign_key_statements(table.schema, table.info))
    return replace(
        plan,
        use="",
        sql=(*sql, *views, *keys),
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
