"""SQL of a column definition for MySQL and MariaDB, from its ColumnInfo; and what a server of the MySQL family can,
which the destination fills in. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlog.errors import BinlogError
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import BLOBS, FieldType, Flag, Tp

from drainer.ddl.lexer import quoted

# TiDB's default collation of each character set.
TIDB_DEFAULTS: Final = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
# Substitutes of collations that a server lacks, the nearest first.
SUBSTITUTES: Final = {
    "utf8mb4_0900_ai_ci": ("utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_520_nopad_ci", "utf8mb4_unicode_520_ci"),
    "utf8mb4_0900_bin": ("utf8mb4_nopad_bin", "utf8mb4_bin"),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's capabilities and keywords, and the session that runs the statement.

    `collations`: those it supports, in lower case; empty: unknown, every one is used.
    `expression_indexes`: an index may be on an expression.
    `generated_keys`: a primary key may hold a generated column, and a generated column may be NOT NULL.
    `unenforced_checks`: a CHECK may be NOT ENFORCED.
    `if_exists`: DROP of an index or constraint takes IF EXISTS.
    `validation`: EXCHANGE PARTITION takes WITHOUT VALIDATION.
    `invisible`, `visible`: the keywords for an index that the optimizer ignores or uses.
    `time_zone`: the session's while the statement runs, '' for UTC.
    `bare`: generate only what rows depend on, without foreign keys, CHECKs, expression indexes, expression defaults
    and index visibility.
    """

    collations: frozenset[str] = frozenset()
    expression_indexes: bool = True
    generated_keys: bool = True
    unenforced_checks: bool = True
    if_exists: bool = False
    validation: bool = True
    invisible: str = "INVISIBLE"
    visible: str = "VISIBLE"
    time_zone: str = ""
    bare: bool = False

    def only_rows(self) -> Dialect:
        """A copy with `bare` set."""
        return replace(self, bare=True)

    def collation(self, name: str) -> str:
        """The collation or its nearest substitute on the server; unchanged if there is none."""
        lowered = name.lower()
        if not self.collations or lowered in self.collations:
            return name
        return next((near for near in SUBSTITUTES.get(lowered, ()) if near in self.collations), name)

    def charset(self, charset: str, collate: str) -> str:
        """`CHARACTER SET … COLLATE …`, '' for bytes."""
        if charset in ("", "binary"):
            return ""
        collate = collate or TIDB_DEFAULTS.get(charset.lower(), "")
        return f"CHARACTER SET {charset}" + (f" COLLATE {self.collation(collate)}" if collate else "")


INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?")
_OFFSET: Final = re.compile(r"([+-])(\d\d):(\d\d)")
_PLAIN: Final = frozenset({Tp.YEAR, Tp.DATE, Tp.NEWDATE, Tp.JSON})
_TIMES: Final = frozenset({Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION})
_INTEGERS: Final = frozenset({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG})


class UnsupportedType(BinlogError):
    """MySQL has no such column type or time zone."""


def literal(value: str) -> str:
    """A string literal, for a session without NO_BACKSLASH_ESCAPES."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def type_sql(kind: FieldType, dialect: Dialect) -> str:
    """`INT UNSIGNED`, `VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`. Raises UnsupportedType."""
    tp, name = kind.tp, kind.mysql_name.upper()
    if tp in _INTEGERS:
        width = f"({kind.flen})" if kind.flen > 0 and (kind.flag & Flag.ZEROFILL or kind.flen == 1) else ""
        return name + width + _sign(kind)
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        sizes = f"({kind.flen},{kind.decimal})" if kind.decimal >= 0 and kind.flen > 0 else ""
        return name + sizes + _sign(kind)
    if tp is Tp.NEWDECIMAL:
        return f"{name}({kind.flen},{max(kind.decimal, 0)})" + _sign(kind)
    if tp is Tp.BIT:
        return f"BIT({max(kind.flen, 1)})"
    if tp in _TIMES:
        return name + (f"({kind.fsp})" if kind.fsp else "")
    if tp in _PLAIN:
        return name
    if tp in (Tp.ENUM, Tp.SET):
        return f"{name}({','.join(literal(e) for e in kind.elems)})" + _charset(kind, dialect)
    if tp in BLOBS:
        return name + _charset(kind, dialect)
    if tp in (Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING):
        name = {Tp.VAR_STRING: "VARBINARY" if kind.is_binary else "VARCHAR"}.get(tp, name)
        return f"{name}({kind.flen})" + _charset(kind, dialect)
    raise UnsupportedType(f"no column type for {tp.name}")


def _sign(kind: FieldType) -> str:
    return " UNSIGNED" * kind.is_unsigned + " ZEROFILL" * bool(kind.flag & Flag.ZEROFILL)


def _charset(kind: FieldType, dialect: Dialect) -> str:
    clause = dialect.charset(kind.charset, kind.collate)
    return f" {clause}" if clause else ""


def column_sql(column: ColumnInfo, dialect: Dialect, *, counted: bool = True) -> str:
    """A column's definition. `counted`: include AUTO_INCREMENT, because there is a key for it. Raises
    UnsupportedType."""
    kind = column.type
    words = [quoted(column.name), type_sql(kind, dialect)]
    if column.is_generated:
        stored = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {stored}")
        if column.is_not_null and dialect.generated_keys:
            words.append("NOT NULL")
    else:
        if column.is_not_null:
            words.append("NOT NULL")
        elif kind.tp is Tp.TIMESTAMP:
            words.append("NULL")
        default = default_sql(column, dialect)
        if default:
            words.append(f"DEFAULT {default}")
        if kind.flag & Flag.ON_UPDATE_NOW:
            words.append("ON UPDATE CURRENT_TIMESTAMP" + (f"({kind.fsp})" if kind.fsp else ""))
        if counted and kind.flag & Flag.AUTO_INCREMENT:
            words.append("AUTO_INCREMENT")
    if column.comment:
        words.append("COMMENT " + literal(column.comment))
    return " ".join(words)


def default_sql(column: ColumnInfo, dialect: Dialect) -> str:
    """The expression after DEFAULT, '' for none. TiDB stores TIMESTAMP defaults in UTC."""
    kind, value = column.type, column.default
    if column.default_bit is not None and (kind.tp is Tp.BIT or kind.is_binary):
        return f"x'{column.default_bit.hex()}'"
    if value is None:
        return ""
    if column.default_is_expr:
        return "" if dialect.bare else f"({value})"
    text = str(value)
    if kind.tp in _TIMES and text.upper().startswith("CURRENT_TIMESTAMP"):
        return text
    if kind.is_binary and kind.tp not in BLOBS:
        return f"x'{text.encode().hex()}'" if text else "''"
    if dialect.time_zone and has_instant(column):
        return literal(in_time_zone(text, dialect.time_zone))
    return literal(text)


def has_instant(column: ColumnInfo) -> bool:
    """Whether the default is a TIMESTAMP literal, which depends on the session's time zone."""
    value = column.default if column.type.tp is Tp.TIMESTAMP else None
    return isinstance(value, str) and INSTANT.fullmatch(value) is not None and not value.startswith("0000")


def in_time_zone(utc: str, zone: str) -> str:
    """Convert a UTC timestamp text to local time in `zone` (a name or +05:30). UnsupportedType for an unknown zone."""
    offset = _OFFSET.fullmatch(zone)
    there: timezone | ZoneInfo
    if offset:
        minutes = int(offset[2]) * 60 + int(offset[3])
        there = timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    else:
        try:
            there = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise UnsupportedType(f"time zone {zone} is unknown on this machine") from error
    whole, dot, fraction = utc.partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC).astimezone(there)
    return moment.strftime("%Y-%m-%d %H:%M:%S") + dot + fraction
