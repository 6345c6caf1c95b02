"""MySQL's words for what a TableInfo says: columns, keys, partitions. Pure.

For statements whose own text a destination does not take. What no row depends on may be missing: foreign keys, CHECKs,
indexes on expressions, placement, TTL.
"""

from __future__ import annotations

from typing import Final

from binlog.errors import BinlogError
from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexInfo
from binlog.tidb.partition import PartitionDefinition, PartitionInfo, PartitionType
from binlog.tidb.table import TableInfo
from binlog.tidb.types import STRINGS, FieldType, Flag, Tp

from drainer.ddl.lexer import quoted

_PLAIN: Final = frozenset({Tp.YEAR, Tp.DATE, Tp.NEWDATE, Tp.JSON})
_TIMES: Final = frozenset({Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION})
_BLOBS: Final = frozenset({Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB, Tp.BLOB})
_INTEGERS: Final = frozenset({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG})


class NoWords(BinlogError):
    """MySQL has no such type."""


def text(value: str) -> str:
    """A string literal, for a session without NO_BACKSLASH_ESCAPES."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def type_words(kind: FieldType) -> str:
    """`INT UNSIGNED`, `VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`. Raises NoWords."""
    tp, name = kind.tp, kind.mysql_name.upper()
    if tp in _INTEGERS:
        width = f"({kind.flen})" if kind.flen > 0 and (kind.flag & Flag.ZEROFILL or kind.flen == 1) else ""
        return name + width + _signs(kind)
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        sizes = f"({kind.flen},{kind.decimal})" if kind.decimal >= 0 and kind.flen > 0 else ""
        return name + sizes + _signs(kind)
    if tp is Tp.NEWDECIMAL:
        return f"{name}({kind.flen},{max(kind.decimal, 0)})" + _signs(kind)
    if tp is Tp.BIT:
        return f"BIT({max(kind.flen, 1)})"
    if tp in _TIMES:
        return name + (f"({kind.fsp})" if kind.fsp else "")
    if tp in _PLAIN:
        return name
    if tp in (Tp.ENUM, Tp.SET):
        return f"{name}({','.join(text(e) for e in kind.elems)})" + _letters(kind)
    if tp in _BLOBS:
        return name + _letters(kind)
    if tp in (Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING):
        name = {Tp.VAR_STRING: "VARBINARY" if kind.is_binary else "VARCHAR"}.get(tp, name)
        return f"{name}({kind.flen})" + _letters(kind)
    raise NoWords(f"no column type for {tp.name}")


def _signs(kind: FieldType) -> str:
    return " UNSIGNED" * kind.is_unsigned + " ZEROFILL" * bool(kind.flag & Flag.ZEROFILL)


def _letters(kind: FieldType) -> str:
    if kind.charset in ("", "binary"):
        return ""
    return f" CHARACTER SET {kind.charset}" + (f" COLLATE {kind.collate}" if kind.collate else "")


def column_words(column: ColumnInfo, *, counted: bool = True) -> str:
    """A column's definition. `counted`: AUTO_INCREMENT may be said, there is a key for it. Raises NoWords."""
    kind = column.type
    words = [quoted(column.name), type_words(kind)]
    if column.is_generated:
        stored = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {stored}")
    if column.is_not_null:
        words.append("NOT NULL")
    elif kind.tp is Tp.TIMESTAMP:
        words.append("NULL")
    if not column.is_generated:
        words += _default(column)
        if kind.flag & Flag.ON_UPDATE_NOW:
            words.append("ON UPDATE CURRENT_TIMESTAMP" + (f"({kind.fsp})" if kind.fsp else ""))
        if counted and kind.flag & Flag.AUTO_INCREMENT:
            words.append("AUTO_INCREMENT")
    if column.comment:
        words.append("COMMENT " + text(column.comment))
    return " ".join(words)


def _default(column: ColumnInfo) -> list[str]:
    kind, value = column.type, column.default
    if column.default_bit is not None and (kind.tp is Tp.BIT or (kind.tp in STRINGS and kind.is_binary)):
        return [f"DEFAULT x'{column.default_bit.hex()}'"]
    if value is None:
        return []
    if column.default_is_expr:
        return [f"DEFAULT ({value})"]
    if kind.tp in _TIMES and str(value).upper().startswith("CURRENT_TIMESTAMP"):
        return [f"DEFAULT {value}"]
    return ["DEFAULT " + text(str(value))]


def table_words(info: TableInfo) -> list[str]:
    """What stands in the parentheses of CREATE TABLE: columns and indexes. Raises NoWords."""
    keys = [words for index in _indexes(info) if (words := index_words(info, index))]
    return [*(column_words(c, counted=is_counted(info, c)) for c in shown(info)), *keys]


def shown(info: TableInfo) -> list[ColumnInfo]:
    """The columns a destination has."""
    return [column for column in info.public_columns if not column.hidden]


def is_counted(info: TableInfo, column: ColumnInfo) -> bool:
    """AUTO_INCREMENT needs an index that begins with the column."""
    return any(info.columns[index.columns[0].offset].id == column.id for index in _indexes(info))


def index_list(info: TableInfo) -> dict[str, str]:
    """Index name → its definition, for every index that can be said."""
    return {index.name: words for index in _indexes(info) if (words := index_words(info, index))}


def _indexes(info: TableInfo) -> list[IndexInfo]:
    primary = info.primary_index()
    others = [index for index in info.indexes if index.is_public and not index.primary]
    return [*([primary] if primary is not None and primary.is_public else []), *others]


def index_words(info: TableInfo, index: IndexInfo) -> str:
    """`UNIQUE KEY name (parts)`, '' for an index on an expression. A primary key on a generated column, which MariaDB
    has not, is a unique one."""
    parts = []
    generated = False
    for part in index.columns:
        column = info.columns[part.offset]
        if column.hidden:
            return ""
        generated = generated or column.is_generated
        whole = part.length < 0 or part.length == column.type.flen
        parts.append(quoted(column.name) + ("" if whole else f"({part.length})"))
    body = f"({', '.join(parts)})" + (" INVISIBLE" if index.invisible else "")
    if index.comment:
        body += " COMMENT " + text(index.comment)
    if index.primary and not generated:
        return "PRIMARY KEY " + body
    name = "pk_generated" if index.primary else index.name
    return f"{'UNIQUE ' * (index.unique or index.primary)}KEY {quoted(name)} {body}"


def partition_words(info: TableInfo) -> str:
    """`PARTITION BY …`, '' for a table without partitions."""
    parts = info.partition
    if parts is None or not parts.enable:
        return ""
    by = {PartitionType.RANGE: "RANGE", PartitionType.LIST: "LIST"}.get(parts.type)
    if by is not None:
        what = f"{by} COLUMNS ({', '.join(map(quoted, parts.columns))})" if parts.columns else f"{by} ({parts.expr})"
        return f"PARTITION BY {what} ({', '.join(definition_words(parts, d) for d in parts.definitions)})"
    count = len(parts.definitions) or parts.num
    if parts.type == PartitionType.HASH:
        return f"PARTITION BY HASH ({parts.expr}) PARTITIONS {count}"
    if parts.type == PartitionType.KEY:
        return f"PARTITION BY KEY ({', '.join(map(quoted, parts.columns))}) PARTITIONS {count}"
    return ""


def definition_words(parts: PartitionInfo, definition: PartitionDefinition) -> str:
    """`PARTITION p VALUES LESS THAN (10)`."""
    head = f"PARTITION {quoted(definition.name)}"
    if parts.type == PartitionType.RANGE:
        return f"{head} VALUES LESS THAN ({', '.join(definition.less_than)})"
    if any(value.upper() == "DEFAULT" for row in definition.in_values for value in row):
        return f"{head} DEFAULT"
    rows = (", ".join(row) for row in definition.in_values)
    many = len(parts.columns) > 1
    return f"{head} VALUES IN ({', '.join(f'({row})' if many else row for row in rows)})"
