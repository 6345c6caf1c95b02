"""Canal-JSON as TiCDC writes it: one row in each message, every value a string. Also reads Canal's own messages, which
may have several rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from binlog.cluster.tso import physical_ms
from binlog.tidb.types import BLOBS, FieldType, Tp

from drainer.batch.work import Kind
from drainer.changes.texts import as_string
from drainer.protocol.encoder import (
    Ddl,
    DdlScope,
    DocumentTable,
    EncodedColumns,
    Message,
    OneRowMessages,
    compress,
    value_of,
)
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, DdlEvent, Event, ResolvedEvent, RowEvent, Value, canal_kind
from drainer.protocol.json_read import Columns, Reader, image_of, of_text, parse
from drainer.protocol.json_text import Fragment, Parts, Slot, joined, json_string, latin1_text, old_fragments, or_null
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import ColumnFlag, RowChanges, Table, basic_type, full_type

# Encodes rows of one version of a table as Canal-JSON. What is the same in all rows is built once, when the table is
# compiled.
# `sqlType` of Canal-JSON: numbers of java.sql.Types.
BIT, TINYINT, SMALLINT, INTEGER, BIGINT = -7, -6, 5, 4, -5
REAL, DOUBLE, DECIMAL = 7, 8, 3
CHAR, VARCHAR, BLOB, CLOB = 1, 12, 2004, 2005
DATE, TIME, TIMESTAMP = 91, 92, 93

_FIXED: Final = {
    Tp.TINY: TINYINT,
    Tp.SHORT: SMALLINT,
    Tp.INT24: INTEGER,
    Tp.LONG: INTEGER,
    Tp.LONGLONG: BIGINT,
    Tp.FLOAT: REAL,
    Tp.DOUBLE: DOUBLE,
    Tp.NEWDECIMAL: DECIMAL,
    Tp.TIMESTAMP: TIMESTAMP,
    Tp.DATETIME: TIMESTAMP,
    Tp.DATE: DATE,
    Tp.NEWDATE: DATE,
    Tp.DURATION: TIME,
    Tp.ENUM: INTEGER,
    Tp.SET: BIT,
    Tp.BIT: BIT,
}

# An unsigned integer above the signed maximum gets the next larger type. MEDIUMINT does not need this: its type is
# large enough.
_PROMOTED: Final = {
    Tp.TINY: (0x7F, SMALLINT),
    Tp.SHORT: (0x7FFF, INTEGER),
    Tp.LONG: (0x7FFF_FFFF, BIGINT),
    Tp.LONGLONG: (0x7FFF_FFFF_FFFF_FFFF, DECIMAL),
}


def java_type(kind: FieldType) -> int:
    """Return the type number of the column, regardless of the values in its rows."""
    if kind.is_binary:
        return BLOB
    if kind.tp in BLOBS:
        return CLOB
    if kind.tp is Tp.STRING:
        return CHAR
    return _FIXED.get(kind.tp, VARCHAR)


def promotion_of(kind: FieldType) -> Fragment | None:
    """Return the function that computes the type number for each row, if it depends on the value. None if `java_type`
    is right for all rows."""
    found = _PROMOTED.get(kind.tp) if kind.is_unsigned else None
    if found is None:
        return None
    limit = pa.scalar(found[0], pa.uint64())
    usual, promoted = (pa.scalar(str(number).encode(), pa.binary()) for number in (java_type(kind), found[1]))

    def run(array: Any) -> Any:
        return pc.if_else(pc.fill_null(pc.greater(array, limit), False), promoted, usual)

    return run


class CanalTable(DocumentTable):
    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options, partial(value_of, zone=options.zone, binary=latin1_text))
        self._extended = options.enable_tidb_extension
        self._updated_only = options.only_output_updated_columns or options.content_compatible
        self._short_deletes = options.delete_only_output_handle_key_columns
        columns = table.columns
        self._promotions = [promotion_of(column.column_type.kind) for column in columns]
        described = full_type if options.content_compatible else basic_type
        self._types = [json_string(described(column.column_type.kind)) for column in columns]

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        return self._encode(
            changes, self._handle(changes) if changes.kind is Kind.DELETE and self._short_deletes else self._all
        )

    def _behind_image(self, changes: RowChanges, column_indexes: tuple[int, ...], image: list[Any]) -> list[Any]:
        """Return the type numbers that depend on values, and the old values."""
        values = changes.image
        types = [promoted(values[index]) for index in column_indexes if (promoted := self._promotions[index])]
        return [*types, *self._old(changes, column_indexes, image)]

    def _old(self, changes: RowChanges, column_indexes: tuple[int, ...], values: list[Any]) -> list[Any]:
        """Return the old values. With only_output_updated_columns: the text between the braces, with only the changed
        columns."""
        if changes.kind is not Kind.UPDATE:
            return []
        old = old_fragments(changes, self._values, column_indexes, values)
        if not self._updated_only:
            return old
        names = [f"{self._names[index]}:" for index in column_indexes]
        found = [_where_changed(name, *pair) for name, *pair in zip(names, old, values, strict=True)]
        # Skip the first comma. Arrow's binary_slice fails on arrays with empty values.
        return [pc.utf8_slice_codeunits(as_string(pc.binary_join_element_wise(*found, b"")), 1).cast(pa.binary())]

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        table, names, columns = self._table, self._names, self._table.columns
        keys = [name for name, column in zip(names, columns, strict=True) if column.flags & ColumnFlag.PRIMARY_KEY]
        head = (
            f'{{"id":0,"database":{json_string(table.schema)},"table":{json_string(table.name)},'
            f'"pkNames":[{",".join(keys)}],"isDdl":false,"type":"{kind.name}","es":'
        )
        promoted = [index for index in column_indexes if self._promotions[index]]
        at_type = {index: Slot(self.FIRST_VALUE + len(column_indexes) + n) for n, index in enumerate(promoted)}
        sql_types: list[Parts] = [
            [f"{names[index]}:", at_type.get(index, str(java_type(columns[index].column_type.kind)))]
            for index in column_indexes
        ]
        mysql_types = ",".join(f"{names[index]}:{self._types[index]}" for index in column_indexes)
        behind = self.FIRST_VALUE + len(column_indexes) + len(promoted)
        members = [Slot(behind)] if self._updated_only else self._members(column_indexes, behind)
        old = ["[{", *members, "}]"] if kind is Kind.UPDATE else ["null"]
        return [
            head,
            self.TIME,
            ',"ts":',
            self.TIME,
            ',"sql":"","sqlType":{',
            *joined(sql_types),
            f'}},"mysqlType":{{{mysql_types}}},"old":',
            *old,
            ',"data":[{',
            *self._members(column_indexes, self.FIRST_VALUE),
            "}]",
            *self._extension(mark),
            "}",
        ]

    def _extension(self, mark: str) -> Parts:
        if not self._extended:
            return []
        marks: dict[str, Parts] = {
            "handle": [',"onlyHandleKey":true'],
            "claim": [',"claimCheckLocation":', self.CLAIM],
        }
        return [',"_tidb":{"commitTs":', self.COMMIT, *marks.get(mark, ()), "}"]


def _where_changed(name: str, old: Any, new: Any) -> Any:
    """Return a comma, the name and the old value. Nothing if the old text equals the new one."""
    same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(old.is_null(), new.is_null()))
    member = pc.binary_join_element_wise(f",{name}".encode(), or_null(old, b'"', b'"'), b"")
    return pc.if_else(same, b"", member)


WATERMARK: Final = "TIDB_WATERMARK"


class CanalEncoder(OneRowMessages):
    """Encodes Canal-JSON. A DDL goes only to the first partition of its topic: a reader of several applies it once."""

    name = "canal-json"
    ddl_scope = DdlScope.FIRST_PARTITION
    table_class = CanalTable

    def ddl(self, ddl: Ddl) -> list[Message]:
        head = self._head(ddl.schema, ddl.table, "true", canal_kind(ddl.type_code), ddl.commit_ts, ddl.query)
        return [self._message(head, f'"commitTs":{ddl.commit_ts}', ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        """Return a watermark. Empty without the extension, which contains the timestamp."""
        if not self.options.enable_tidb_extension:
            return []
        head = self._head("", "", "false", WATERMARK, commit_ts, "")
        return [self._message(head, f'"watermarkTs":{commit_ts}', commit_ts)]

    def _head(self, schema: str, table: str, is_ddl: str, kind: str, commit_ts: int, query: str) -> str:
        at = physical_ms(commit_ts)
        return (
            f'{{"id":0,"database":{json_string(schema)},"table":{json_string(table)},"pkNames":null,"isDdl":{is_ddl},'
            f'"type":"{kind}","es":{at},"ts":{at},"sql":{json_string(query)},"sqlType":null,"mysqlType":null,'
            f'"data":null,"old":null'
        )

    def _message(self, head: str, extension: str, commit_ts: int) -> Message:
        tail = f',"_tidb":{{{extension}}}}}' if self.options.enable_tidb_extension else "}"
        value = compress((head + tail).encode(), self.options.large_message_handle_compression)
        return Message(None, value, 0, commit_ts)


_CHANGES: Final = {"INSERT": Change.INSERT, "UPDATE": Change.UPDATE, "DELETE": Change.DELETE}


@dataclass(frozen=True, slots=True)
class CanalDecoder:
    """Decodes Canal-JSON. Keeps no state between messages."""

    options: ProtocolOptions

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """Decode one message. Without the extension every commit_ts is 0, because the message does not contain it."""
        message = parse(value, "Canal-JSON message", self.options.large_message_handle_compression)
        extension = message.child("_tidb")
        kind = message.text("type")
        if message.boolean("isDdl"):
            return [_ddl(message, extension)]
        if kind == WATERMARK:
            return [ResolvedEvent(message.needed("_tidb").integer("watermarkTs"))]
        if kind not in _CHANGES:
            raise MessageError(f"{message.where}: type {kind!r} is none of {', '.join(_CHANGES)}, {WATERMARK}")
        return [*_rows(message, extension, _CHANGES[kind])]


def _ddl(message: Reader, extension: Reader | None) -> DdlEvent:
    commit_ts = 0 if extension is None else extension.integer("commitTs", 0)
    return DdlEvent(commit_ts, message.text("database"), message.text("table"), message.text("sql"))


def _rows(message: Reader, extension: Reader | None, change: Change) -> list[RowEvent]:
    data, old = message.objects("data"), message.objects("old")
    if not data:
        message.wrong("data", "an array of at least one row")
    if change is Change.UPDATE and len(old) != len(data):
        raise MessageError(f"{message.where}: an update with {len(data)} new rows and {len(old)} old ones")
    columns, schema, table = _columns(message), message.text("database"), message.text("table")
    claim = "" if extension is None else extension.text("claimCheckLocation", "")
    commit_ts = 0 if extension is None else extension.integer("commitTs", 0)
    handle_only = bool(claim) or (extension is not None and extension.boolean("onlyHandleKey", False))
    found, before = [], None
    for n, row in enumerate(data):
        if change is Change.UPDATE:
            before = image_of(old[n], columns, canal_value_of, "mysqlType")
        image = image_of(row, columns, canal_value_of, "mysqlType")
        found.append(
            RowEvent(
                change,
                commit_ts,
                schema,
                table,
                old=image if change is Change.DELETE else before,
                new=None if change is Change.DELETE else image,
                handle_only=handle_only,
                claim=claim,
            )
        )
    return found


def _columns(message: Reader) -> Columns:
    """Return each column's type, and its flags: HANDLE_KEY for those of the primary key."""
    types, key = message.child("mysqlType"), message.document.get("pkNames")
    if types is None:
        return {}
    try:
        found = _flagged(tuple(types.document.items()), tuple(key) if isinstance(key, list) else ())
    except TypeError:  # a member that cannot be hashed is no text
        found = None
    if found is None:
        for name in types.document:
            types.text(name)
        message.wrong("pkNames", "an array of names")
    return found


@lru_cache(4096)  # every message of a table has the same types
def _flagged(types: tuple[tuple[str, object], ...], key: tuple[object, ...]) -> Columns | None:
    handle_key = int(ColumnFlag.HANDLE_KEY)
    found = {name: (kind, handle_key * (name in key)) for name, kind in types if isinstance(kind, str)}
    return found if len(found) == len(types) else None


@lru_cache(1024)
def canal_value_of(type_name: str) -> Callable[[str], Value]:
    """Return what converts the values of a column of this type. Each raises ValueError, TypeError or AttributeError."""
    return of_text(type_name, lambda text: text.encode("iso-8859-1"))
