"""Effects of a DDL on existing rows that depend on the time or time zone in which it runs. Pure. Upstream ran it once,
at its own time and in the writer's time zone; no binlog has those rows. And the properties of a server of the MySQL
family that DDL depends on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlog.cluster import tso
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import Flag, Tp

from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import INSTANT, Dialect
from drainer.ddl.table_diff import paired, shown_columns
from drainer.schema.steps import Ddl

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


def clock(step: Ddl) -> str:
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


def zone(step: Ddl) -> str:
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


def offset(name: str, at_ts: int) -> str:
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
