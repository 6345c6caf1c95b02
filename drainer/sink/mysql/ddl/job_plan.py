"""A DDL job prepared for one server: the statements that run it there, their database, and their session time. Stored
as JSON in the job's mark.

MySQL and MariaDB: statements generated from the difference of the job's TableInfos (drainer.ddl). Upstream's complete
text is used for what a TableInfo does not contain:

    ALTER SEQUENCE              no TableInfo contains the sequence's current value (RESTART)
    a table not known before    the history begins after its creation, so there is no TableInfo to compare with
    a kind of job not known     it may change rows; if the server refuses the text, the difference is run
    Job.by_text                 likewise: the TableInfo was made of a message, which does not say everything
    a type MySQL has not        the server's own error names it

If a server refuses a statement because it does not support a feature, the statement runs again
without everything that no row depends on (Dialect.only_rows).

TiDB: upstream's text, unedited. Its effect may depend on the writer's session, which the job does not record:

- the current database: see schema/job_policy.py;
- the time zone: a TIMESTAMP's DEFAULT 'text' would be another moment here. So statements are generated from the
  difference of the TableInfos instead. A CREATE TABLE, whose text contains more than the TableInfo, runs as it is,
  followed by a statement that sets the default;
- the collation of the database: if the destination's database has another one, a CREATE TABLE that names no collation
  is generated, too.

If a rule alters a table, its statements are generated for a TiDB as for a MySQL (schema/rules.py), and the database
that a route names is created with the first table that goes there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlog.cluster import tso
from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import Flag, Tp

from drainer.ddl.lexer import quoted, tokens, without_comments
from drainer.ddl.mysql_columns import INSTANT, Dialect, UnsupportedType, default_sql, has_instant
from drainer.ddl.mysql_objects import create_view
from drainer.ddl.table_diff import paired, same_default, shown_columns
from drainer.row.layout import replicated
from drainer.schema import job_kinds
from drainer.schema.job_policy import exchange, generated
from drainer.schema.steps import Ddl, Located, TableChange, exchange_of
from drainer.sink.mysql.ddl.fingerprint import Fingerprint
from drainer.sink.position import tuples

# Effects of a DDL on existing rows that depend on the time or time zone in which it runs. Upstream ran it once, at its
# own time and in the writer's time zone; no binlog has those rows. And the properties of a server of the MySQL family
# that DDL depends on.

_MARIADB: Final = Dialect(
    expression_indexes=False,
    generated_keys=False,
    unenforced_checks=False,
    if_exists=True,
    validation=False,
    invisible="IGNORED",
    visible="NOT IGNORED",
)


@dataclass(frozen=True, slots=True)
class Server:
    """`flavour`: mysql, mariadb or tidb. `collations`: those it knows, in lower case. `database_collation`: the
    collation of a table of the job's database that names none, '' if not read."""

    flavour: str
    collations: frozenset[str] = frozenset()
    database_collation: str = ""

    @property
    def is_tidb(self) -> bool:
        return self.flavour == "tidb"

    @property
    def is_mariadb(self) -> bool:
        return self.flavour == "mariadb"

    def dialect(self, time_zone: str = "") -> Dialect:
        """How statements are written for it. `time_zone`: of the session that runs them, '' for UTC."""
        return replace(_MARIADB if self.is_mariadb else Dialect(), collations=self.collations, time_zone=time_zone)


_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_DATES: Final = frozenset({Tp.DATE, Tp.NEWDATE, Tp.DATETIME, Tp.TIMESTAMP})


def clock_of(step: Ddl) -> str:
    """The time, in UTC, at which upstream filled existing rows with DEFAULT CURRENT_TIMESTAMP, or added the day to a
    TIME; '' for any other job."""
    if step.before is None or step.after is None:
        return ""
    known = step.before.columns_by_id
    for column in step.after.columns:
        moving = isinstance(column.default, str) and column.default.upper().startswith(("CURRENT_", "NOW"))
        if moving and column.id not in known and isinstance(column.origin_default, str):
            if INSTANT.fullmatch(column.origin_default):
                return column.origin_default
            return f"{column.origin_default} 00:00:00" if _DAY.fullmatch(column.origin_default) else ""
    if any(was.type.tp is Tp.DURATION and now.type.tp in _DATES for was, now in _converted(step)):
        return datetime.fromtimestamp(tso.physical_ms(step.commit_ts) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return ""


def zone_of(step: Ddl) -> str:
    """The writer's time zone, if existing values are converted between TIMESTAMP and local time; '' otherwise, and for
    UTC."""
    if not any((was.type.tp is Tp.TIMESTAMP) != (now.type.tp is Tp.TIMESTAMP) for was, now in _converted(step)):
        return ""
    meta = step.job.rest.get("reorg_meta")
    location = meta.get("location") if isinstance(meta, Mapping) else None
    if not isinstance(location, Mapping):
        return ""
    name, offset_s = location.get("name"), location.get("offset")
    if isinstance(name, str) and name not in ("", "Local", "System"):
        return "" if name in ("UTC", "Etc/UTC") else name
    if not isinstance(offset_s, int) or not offset_s:
        return ""
    return _clock_offset(offset_s)


def offset_of(name: str, at_ts: int) -> str:
    """The offset of a named zone from UTC at a TSO, for a server without time zone tables; the name itself if Python
    does not know it either."""
    try:
        there = datetime.fromtimestamp(tso.physical_ms(at_ts) / 1000, ZoneInfo(name)).utcoffset()
    except (ZoneInfoNotFoundError, ValueError):
        return name
    return _clock_offset(int(there.total_seconds()) if there else 0)


def _clock_offset(offset_s: int) -> str:
    minutes = abs(offset_s) // 60
    return f"{'-' if offset_s < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def fills(step: Ddl, server: Server) -> Iterator[str]:
    """UPDATEs of existing rows whose new column the server fills with another value than upstream: MariaDB's JSON is a
    text, which NOT NULL fills with '' instead of the JSON null."""
    if not server.is_mariadb or step.before is None or step.after is None or step.rewritten:
        return
    known = {column.id for column in paired(shown_columns(step.before), shown_columns(step.after), step.query).values()}
    known |= step.before.columns_by_id.keys()
    for column in shown_columns(step.after):
        made = column.id not in known and not column.is_generated
        if made and column.type.tp is Tp.JSON and column.is_not_null and column.origin_default is None:
            # A column with ON UPDATE must not change.
            moving = (c for c in shown_columns(step.after) if c.type.flag & Flag.ON_UPDATE_NOW)
            still = "".join(f", {quoted(c.name)}={quoted(c.name)}" for c in moving)
            name, table = quoted(column.name), step.changes[0].after
            assert table is not None
            yield f"UPDATE {quoted(table.schema, table.name)} SET {name}='null'{still} WHERE {name}=''"


def _converted(step: Ddl) -> Iterator[tuple[ColumnInfo, ColumnInfo]]:
    """(before, after) of the columns whose type changes."""
    if step.before is None or step.after is None:
        return
    pairs = paired(shown_columns(step.before), shown_columns(step.after), step.query)
    for column in shown_columns(step.after):
        was = pairs.get(column.id)
        if was is not None and was.type.tp is not column.type.tp:
            yield was, column


# TRUNCATE and EXCHANGE PARTITION if the partition has other rows in the destination than upstream.
#
# TiDB stores a row whose HASH expression is NULL in the first partition. MySQL and MariaDB treat NULL as the smallest
# BIGINT, so with three partitions they store it in the third. Every other row of RANGE, LIST and HASH is in the same
# partition on both sides. Rows of KEY partitions are not, and such a DDL is refused.

_NULL_IS: Final = 1 << 63  # its absolute value


def null_partition(info: TableInfo) -> int | None:
    """Number of the partition that holds the rows which upstream has in its first one because the expression is NULL;
    None where there are no such rows, or where it is the first one here, too."""
    parts = info.partition
    if parts is None or not parts.enable or parts.type != PartitionType.HASH or not parts.definitions:
        return None
    number = _NULL_IS % len(parts.definitions)
    return number if number and _may_be_null(info, parts) else None


def _may_be_null(info: TableInfo, parts: PartitionInfo) -> bool:
    """Whole numbers and columns that are NOT NULL give no NULL, added or multiplied; a function or a division may."""
    columns = {column.name.lower(): column for column in info.columns}
    for token in tokens(parts.expr):
        column = columns.get(token.value.lower()) if token.is_name else None
        plain = column.is_not_null if column is not None else token.value.isdigit() or token.value in "()+-*"
        if not plain:
            return True
    return False


def emptied(step: Ddl) -> tuple[str, ...] | None:
    """Statements of a TRUNCATE PARTITION that name the rows to delete; None if the server's own deletes the same."""
    if step.job.type != ActionType.TRUNCATE_TABLE_PARTITION or len(step.changes) != 1:
        return None
    before, after = step.changes[0].before, step.changes[0].after
    if before is None or after is None or before.info.partition is None or after.info.partition is None:
        return None
    elsewhere = null_partition(before.info)
    staying = {definition.id for definition in after.info.partition.definitions}
    definitions = before.info.partition.definitions
    gone = [number for number, definition in enumerate(definitions) if definition.id not in staying]
    if elsewhere is None or (0 in gone) == (elsewhere in gone):
        return None
    table = quoted(before.schema, before.name)
    names = [quoted(definitions[number].name) for number in gone if number != elsewhere]
    truncated = (f"ALTER TABLE {table} TRUNCATE PARTITION {', '.join(names)}",) if names else ()
    return (*truncated, f"DELETE FROM {_rows(before, elsewhere, null=0 in gone)}")


def rows_of(table: Located, number: int) -> tuple[str, ...]:
    """`t PARTITION (p) WHERE …`, for FROM: together they are upstream's rows of a partition."""
    elsewhere = null_partition(table.info)
    if elsewhere is not None and number == elsewhere:
        return (_rows(table, number, null=False),)
    all_here = _rows(table, number)
    return (all_here, _rows(table, elsewhere, null=True)) if elsewhere is not None and number == 0 else (all_here,)


def _rows(table: Located, number: int, *, null: bool | None = None) -> str:
    """`null`: only rows whose expression is NULL, or only the others."""
    parts = table.info.partition
    assert parts is not None
    where = "" if null is None else f" WHERE ({parts.expr}) IS {'' if null else 'NOT '}NULL"
    return f"{quoted(table.schema, table.name)} PARTITION ({quoted(parts.definitions[number].name)}){where}"


# EXCHANGE PARTITION by copying rows, for partitions that the server cannot exchange, or of which it would exchange
# other rows. Pure.


def is_disputed(parted: Located, number: int) -> bool:
    """Whether the partition of that name has other rows in the destination than upstream."""
    elsewhere = null_partition(parted.info)
    return elsewhere is not None and number in (0, elsewhere)


def copied(step: Ddl, parted: Located, number: int, normal: Located) -> tuple[str, ...]:
    """Exchanges the rows through a second table, which replaces the normal table in one RENAME."""
    rows = rows_of(parted, number)
    into, out = (quoted(*name) for name in tables_between(step))
    here = quoted(normal.schema, normal.name)
    names = ", ".join(quoted(column.name) for column in replicated(normal.info))
    return (
        f"DROP TABLE IF EXISTS {into}",
        f"CREATE TABLE {into} LIKE {here}",
        *(f"INSERT INTO {into} ({names}) SELECT {names} FROM {some}" for some in rows),
        *(f"DELETE FROM {some}" for some in rows),
        f"INSERT INTO {quoted(parted.schema, parted.name)} ({names}) SELECT {names} FROM {here}",
        f"RENAME TABLE {here} TO {out}, {into} TO {here}",
        f"DROP TABLE IF EXISTS {out}",
    )


def tables_between(step: Ddl) -> tuple[tuple[str, str], ...]:
    """The two tables that `copied` makes and drops: for arriving rows, for leaving ones."""
    normal = step.changes[1].before
    assert normal is not None
    return tuple((normal.schema, f"tidb_binlog_exchange_{step.job.id}_{way}") for way in ("in", "out"))


# A word, type, character set or option that is not known, or known but not there; a foreign key without an index to
# refer to, an index too long for a ROW_FORMAT, and a counter without a key, all of which TiDB takes; an index or
# constraint to drop that could not be made.
CANNOT_SAY: Final = (
    *(1005, 1031, 1064, 1071, 1075, 1091, 1115, 1210, 1215, 1235, 1273, 1286, 1305, 1478, 1492, 1709),
    *(1822, 1826, 1845, 1846, 1901, 1903, 1907, 1911, 1912, 3105, 3106, 3780, 4161),
)
# Tables that differ in more than their rows, rows that do not belong into the partition, foreign keys.
_CANNOT_EXCHANGE: Final = (1064, 1731, 1732, 1733, 1734, 1735, 1736, 1737, 1740)
_NOT_ALLOWED: Final = (1227,)
_BY_PARTITION: Final = frozenset({ActionType.TRUNCATE_TABLE_PARTITION, ActionType.EXCHANGE_TABLE_PARTITION})
_SEQUENCES: Final = frozenset({ActionType.CREATE_SEQUENCE, ActionType.ALTER_SEQUENCE, ActionType.DROP_SEQUENCE})
# A character set or collation that a TiDB of another version has not.
_UNKNOWN_COLLATION: Final = (1115, 1273)


@dataclass(frozen=True, slots=True)
class Translation:
    """`sql` runs in order; `instead` in place of all of it when a statement is refused with an error of `codes` (empty:
    any). `use`: the current database the text needs. `tables`: of its own. `optional`: a statement that is refused in
    the end is skipped, because no row depends on it."""

    sql: tuple[str, ...]
    instead: tuple[str, ...] | None = None
    codes: tuple[int, ...] = ()
    use: str = ""
    tables: tuple[tuple[str, str], ...] = ()
    optional: bool = False


def translate(step: Ddl, server: Server, dialect: Dialect) -> Translation:
    """The statements for the server; an operator's text runs unchanged."""
    if step.rewritten:
        return Translation(step.sql, use=step.use)
    if server.is_tidb and not step.by_rules:
        return _on_tidb(step, server, dialect)
    made = _on_mysql(step, server, dialect)
    if not step.by_rules or step.job.type not in job_kinds.CREATES | job_kinds.RENAMES or not made.sql:
        return made
    names = dict.fromkeys(change.after.schema for change in step.changes if change.after is not None)
    first = tuple(f"CREATE DATABASE IF NOT EXISTS {quoted(name)}" for name in names)
    return replace(made, sql=(*first, *made.sql), instead=made.instead and (*first, *made.instead))


def _on_mysql(step: Ddl, server: Server, dialect: Dialect) -> Translation:
    """For MySQL or MariaDB."""
    kind = step.job.type
    text = Translation(tuple(map(without_comments, step.sql)), use=step.use)
    if step.is_of_temporary_table or (kind in _SEQUENCES and server.flavour == "mysql"):  # which has no sequences
        return Translation(())
    if kind in job_kinds.DROPS or kind in job_kinds.RENAMES:
        return text  # made of the changes by schema/job_policy.py, whatever the server
    if kind == ActionType.EXCHANGE_TABLE_PARTITION:
        return _exchange(step, dialect) or text
    if kind == ActionType.CREATE_VIEW:
        return _view(step) or text
    rows = emptied(step)
    if rows is not None:
        return Translation(rows)
    try:
        made, bare = generated(step, dialect), generated(step, dialect.only_rows())
    except UnsupportedType:
        return text
    if kind == ActionType.ALTER_SEQUENCE or kind not in ActionType.__members__.values() or step.job.by_text:
        return Translation(text.sql, made, CANNOT_SAY, step.use)
    if made is None:
        return text
    return Translation(made) if made == bare else Translation(made, bare, CANNOT_SAY)


def why_not(step: Ddl, server: Server) -> str:
    """Why a job must not run although the server would accept it, '' if it may."""
    if step.rewritten:
        return ""
    if step.job.type == ActionType.FLASHBACK_CLUSTER:
        return "no destination goes back to another time: load it anew from upstream"
    if step.job.type in _BY_PARTITION and not server.is_tidb and step.job.by_text:
        return "messages do not say how upstream divides the table's rows: say with a ddl-rewrite rule what runs"
    parted = next((c.before.info.partition for c in step.changes if c.before and c.before.info.partition), None)
    if step.job.type in _BY_PARTITION and not server.is_tidb and parted and parted.type == PartitionType.KEY:
        return "the partitions of a table PARTITION BY KEY hold other rows here than in TiDB, whose hash is another"
    return ""


def _view(step: Ddl) -> Translation | None:
    """Only a privileged user may create a view for another; a view that the destination refuses is skipped."""
    after = step.changes[0].after if len(step.changes) == 1 else None
    text = create_view(after.schema, after.info, definer=names_definer(step.query)) if after is not None else ""
    if after is None or not text:
        return None
    mine = create_view(after.schema, after.info, for_reader=True)
    return Translation((text,), (mine,), _NOT_ALLOWED, optional=True)


def names_definer(query: str) -> bool:
    """Whether upstream's text names a DEFINER. A TableInfo always has one; by default it is the writer."""
    words = list(tokens(query))
    at = next((at for at, word in enumerate(words) if word.is_word("DEFINER")), None)
    return at is not None and not any(word.is_word("CURRENT_USER") for word in words[at + 1 : at + 3])


def _exchange(step: Ddl, dialect: Dialect) -> Translation | None:
    found, text = exchange_of(step.changes), exchange(step.changes, dialect)
    if found is None or text is None:
        return None
    by_rows, tables = copied(step, *found), tables_between(step)
    if is_disputed(*found[:2]):
        return Translation(by_rows, tables=tables)
    return Translation((text,), by_rows, _CANNOT_EXCHANGE, tables=tables)


def _on_tidb(step: Ddl, server: Server, dialect: Dialect) -> Translation:
    text = Translation(step.sql, use=step.use)
    if step.job.by_text:
        return text
    try:
        made = generated(step, dialect)
    except UnsupportedType:
        made = None
    view = step.changes[0].after if step.job.type == ActionType.CREATE_VIEW and step.changes else None
    select = create_view(view.schema, view.info, definer=names_definer(step.query)) if view is not None else ""
    if select:
        return Translation((select,), optional=True)
    if made is not None and (step.job.type in job_kinds.DATABASES or not step.sql):
        return Translation(made)
    if made is not None and _names_no_collation(step, server.database_collation):
        return Translation(made)
    if dialect.time_zone:  # the session's is the writer's
        return text
    moments = [(change, list(_moments(step, change))) for change in step.changes]
    if any(columns for _, columns in moments):
        if step.job.type in job_kinds.CREATES:
            return Translation((*step.sql, *_defaults(moments, dialect)), use=step.use)
        if made is not None:
            return Translation(made)
    return Translation(step.sql, made, _UNKNOWN_COLLATION, step.use) if made else text


def _names_no_collation(step: Ddl, there: str) -> bool:
    """Whether a CREATE TABLE uses the database's default collation, which differs from upstream's."""
    if step.job.type not in job_kinds.CREATES or not there or "COLLATE" in step.query.upper():
        return False
    return any(change.after and change.after.info.collate.lower() != there.lower() for change in step.changes)


def _moments(step: Ddl, change: TableChange) -> Iterator[ColumnInfo]:
    """TIMESTAMP columns that get a moment for their default which the text does not give in UTC."""
    if change.after is None:
        return
    known = {} if change.before is None else change.before.info.columns_by_id
    for column in shown_columns(change.after.info):
        was = known.get(column.id)
        new = has_instant(column) and (was is None or not same_default(was, column))
        if new and str(column.default) not in step.query:
            yield column


def _defaults(moments: list[tuple[TableChange, list[ColumnInfo]]], dialect: Dialect) -> Iterator[str]:
    for change, columns in moments:
        assert change.after is not None or not columns
        if change.after is not None and columns:
            clauses = (f"ALTER COLUMN {quoted(c.name)} SET DEFAULT {default_sql(c, dialect)}" for c in columns)
            yield f"ALTER TABLE {quoted(change.after.schema, change.after.name)} {', '.join(clauses)}"


_log = get_logger(__name__)

_HARMLESS: Final = re.compile(r"\s*(?:TRUNCATE\b|DROP\s+TABLE\s+IF\s+EXISTS\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything needed to run, verify or finish a job, as JSON in its mark.

    `instead`: what runs in place of all statements when one is refused with an error of `instead_codes` (empty: with
    any); None: nothing does. Statements from `optional_from` on may fail, with a log line. `clock` and `zone`: time and
    time zone in which upstream ran it, if existing rows depend on them. `index`: the name of the index that the only
    statement builds beside the stream (runner.BackgroundIndexes)."""

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
    zone = zone_of(step)
    dialect = server.dialect(zone)
    made = translate(step, server, dialect)
    for note in _notes(step, made, dialect):
        _log.warning("DDL differs from upstream's in the destination", job=step.job.id, note=note)
    if not made.sql:
        _log.info("DDL affects nothing in the destination; nothing to run", job=step.job.id, query=step.query)
    after = tuple(fills(step, server)) if made.sql else ()
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
        clock=clock_of(step),
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
