"""Debezium JSON: schema change events with the table after the DDL, watermarks, and one encoder for each table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from binlog.cluster.tso import physical_ms
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import BLOBS, FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.debezium.schema import (
    NEVER_UNSIGNED,
    Document,
    envelope_schema,
    fields_of,
    key_schema,
    source_schema,
    value_of,
    watermark_schemas,
)
from drainer.protocol.encoder import Ddl, DocumentTable, EncodedColumns, Message, OneRowMessages, compress, compressed
from drainer.protocol.json_text import Parts, Rows, Slot, constant, json_document, json_string
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges, Table, default_length

_CREATES: Final = frozenset({ActionType.CREATE_TABLE, ActionType.CREATE_TABLES, ActionType.CREATE_VIEW})
_DROPS: Final = frozenset({ActionType.DROP_TABLE, ActionType.DROP_VIEW})
_RENAMES: Final = frozenset({ActionType.RENAME_TABLE, ActionType.RENAME_TABLES})

# Numbers of java.sql.Types, as in Debezium's MySQL connector. Those of Canal-JSON differ.
_JDBC: Final = {
    Tp.TINY: 5,
    Tp.SHORT: 5,
    Tp.INT24: 4,
    Tp.LONG: 4,
    Tp.YEAR: 4,
    Tp.LONGLONG: -5,
    Tp.FLOAT: 6,
    Tp.DOUBLE: 8,
    Tp.NEWDECIMAL: 3,
    Tp.TIMESTAMP: 2014,
    Tp.DATETIME: 93,
    Tp.DATE: 91,
    Tp.NEWDATE: 91,
    Tp.DURATION: 92,
    Tp.ENUM: 1,
    Tp.SET: 1,
    Tp.BIT: -7,
    Tp.JSON: 1111,
}
_STRINGS: Final = {Tp.STRING: (1, -2), Tp.VARCHAR: (12, -3), Tp.VAR_STRING: (12, -3)}  # text, binary
_OTHER_STRINGS: Final = (12, 2004)
_WITH_CHARSET: Final = BLOBS | {Tp.STRING, Tp.VARCHAR, Tp.ENUM, Tp.SET, Tp.TIMESTAMP, Tp.DURATION, Tp.NEWDECIMAL}


def changes_of(ddl: Ddl) -> list[Document]:
    """Return `tableChanges`. Empty for a DDL of a database, for TRUNCATE TABLE, and if the table is not known."""
    if not ddl.table or ddl.type_code == ActionType.TRUNCATE_TABLE:
        return []
    if ddl.type_code in _DROPS:
        return [{"type": "DROP", "id": _id(ddl.schema, ddl.table), "table": None}]
    if ddl.after is None:
        return []
    after = _id(ddl.after.schema, ddl.after.name)
    if ddl.type_code in _RENAMES and ddl.before is not None:
        after = f"{_id(ddl.before.schema, ddl.before.name)},{after}"
    kind = "CREATE" if ddl.type_code in _CREATES else "ALTER"
    return [{"type": kind, "id": after, "table": _table(ddl.after)}]


def _id(schema: str, table: str) -> str:
    return f'"{schema}"."{table}"'


def _table(table: Table) -> Document:
    info = table.info
    primary = info.primary_index()
    return {
        "defaultCharsetName": info.charset,
        "primaryKeyColumnNames": [] if primary is None else [column.name for column in info.index_columns(primary)],
        "columns": [_column(column) for column in info.public_columns if not column.hidden],
        "comment": None,
    }


def _column(column: ColumnInfo) -> Document:
    """Describe a column. Comments are left out, as in Debezium's default configuration."""
    kind = column.type
    expression, name = _names(kind)
    has_charset = kind.charset not in ("", "binary") and kind.tp in _WITH_CHARSET
    updates = bool(kind.flag & Flag.ON_UPDATE_NOW) and kind.tp is Tp.TIMESTAMP
    generated = bool(kind.flag & Flag.AUTO_INCREMENT) or updates
    return {
        "name": column.name,
        "jdbcType": _jdbc_type(kind),
        "nativeType": None,
        "comment": None,
        "defaultValueExpression": _default(column),
        "enumValues": [f"'{name}'" for name in kind.elems] or None,
        "typeName": name,
        "typeExpression": expression,
        "charsetName": kind.charset if has_charset else None,
        "length": _length(kind),
        "scale": kind.decimal if kind.tp in (Tp.NEWDECIMAL, Tp.FLOAT, Tp.DOUBLE) and kind.decimal >= 0 else None,
        "position": column.offset + 1,
        "optional": not kind.is_not_null,
        "autoIncremented": generated,
        "generated": generated,
    }


def _jdbc_type(kind: FieldType) -> int:
    if kind.is_string:
        text, binary = _STRINGS.get(kind.tp, _OTHER_STRINGS)
        return binary if kind.is_binary else text
    return _JDBC[kind.tp]


def _default(column: ColumnInfo) -> str | None:
    default = column.default
    if column.type.tp is Tp.BIT and column.default_bit:
        width = max(column.type.flen, 1)
        return f"{int.from_bytes(column.default_bit, 'big'):0{width}b}"
    if isinstance(default, str) and default.upper().startswith("CURRENT_TIMESTAMP"):
        return "1970-01-01 00:00:00"
    return None if default is None else str(default)


def _length(kind: FieldType) -> int | None:
    default, _ = default_length(kind)
    match kind.tp:
        case Tp.TIMESTAMP | Tp.DATETIME | Tp.DURATION:
            found = kind.decimal or -1
        case Tp.SET:
            found = 2 * len(kind.elems) - 1
        case Tp.ENUM:
            found = 1
        case Tp.YEAR | Tp.NEWDECIMAL:
            found = kind.flen
        case Tp.TINY | Tp.SHORT | Tp.INT24 | Tp.LONG:
            shorter = kind.is_unsigned and not (kind.tp is Tp.TINY and kind.flag & Flag.ZEROFILL)
            found = -1 if kind.flen == default - shorter else kind.flen
        case Tp.BIT | Tp.VARCHAR | Tp.STRING | Tp.VAR_STRING | Tp.LONGLONG | Tp.FLOAT | Tp.DOUBLE:
            found = -1 if kind.flen == default else kind.flen
        case _:
            found = -1
    return found if found >= 0 else None


def _names(kind: FieldType) -> tuple[str, str]:
    """Return (typeExpression, typeName)."""
    name = kind.mysql_name.upper()
    if kind.tp in NEVER_UNSIGNED:
        return name, name
    suffix = " UNSIGNED ZEROFILL" if kind.flag & Flag.ZEROFILL else " UNSIGNED" if kind.is_unsigned else ""
    size = f"({max(kind.flen, 22)},{kind.decimal})" if kind.tp is Tp.DOUBLE and kind.decimal > 0 else ""
    return name + size + suffix, name + suffix


def ddl_key_schema() -> Document:
    return {
        "type": "struct",
        "name": "io.debezium.connector.mysql.SchemaChangeKey",
        "optional": False,
        "version": 1,
        "fields": _fields(databaseName="string"),
    }


def _fields(**types: str) -> list[Document]:
    """Return fields with the members of TiCDC's order."""
    return [{name: of[name] for name in ("field", "optional", "type")} for of in fields_of(**types)]


def _list(name: str, items: Document, *, optional: bool = False) -> Document:
    return {"field": name, "optional": optional, "type": "array", "items": items}


def _struct(name: str, *fields: Document) -> Document:
    return {
        "name": f"io.debezium.connector.schema.{name}",
        "optional": False,
        "type": "struct",
        "version": 1,
        "fields": [*fields],
    }


def ddl_value_schema() -> Document:
    text: Document = {"type": "string", "optional": False}
    column = _struct(
        "Column",
        *_fields(name="string", jdbcType="int32", nativeType="int32?", typeName="string", typeExpression="string?"),
        *_fields(charsetName="string?", length="int32?", scale="int32?", position="int32", optional="boolean?"),
        *_fields(autoIncremented="boolean?", generated="boolean?", comment="string?"),
        *_fields(defaultValueExpression="string?"),
        _list("enumValues", text, optional=True),
    )
    table = _struct(
        "Table",
        *_fields(defaultCharsetName="string?"),
        _list("primaryKeyColumnNames", text, optional=True),
        _list("columns", column),
        *_fields(comment="string?"),
    )
    change = _struct("Change", *_fields(type="string", id="string"), table | {"optional": True, "field": "table"})
    return {
        "optional": False,
        "type": "struct",
        "version": 1,
        "name": "io.debezium.connector.mysql.SchemaChangeValue",
        "fields": [
            source_schema(),
            *_fields(ts_ms="int64", databaseName="string?", schemaName="string?", ddl="string?"),
            _list("tableChanges", change),
        ],
    }


# The source block of Debezium's messages: the text in front of and after its two numbers.

# TiCDC states the version of Debezium whose messages it imitates.
_VERSION = "2.4.0.Final"


def source_parts(
    namespace: str, schema: str, table: str, time: Slot | str, commit_ts: Slot | str, *, is_snapshot: bool = False
) -> list[str | Slot]:
    """Return the parts of the source block. `time`: milliseconds since 1970."""
    name = json_string(namespace)
    return [
        f'{{"version":"{_VERSION}","connector":"TiCDC","name":{name},"ts_ms":',
        time,
        f',"snapshot":"{str(is_snapshot).lower()}","db":{json_string(schema)},"table":{json_string(table)},"server_id":0,"gtid":null,'
        f'"file":"","pos":0,"row":0,"thread":0,"query":null,"commit_ts":',
        commit_ts,
        f',"cluster_id":{name}}}',
    ]


def source_text(namespace: str, schema: str, table: str, commit_ts: int) -> str:
    parts = source_parts(namespace, schema, table, str(physical_ms(commit_ts)), str(commit_ts))
    return "".join(part for part in parts if isinstance(part, str))


# Encodes rows of one version of a table as Debezium JSON. Both schemas are constants of the compiled documents.
_OPERATIONS = {Kind.INSERT: "c", Kind.UPDATE: "u", Kind.DELETE: "d"}
_READ = "r"  # by a first load


def _tail(schema: Document, options: ProtocolOptions) -> str:
    """Return what follows the payload: its schema, unless it is disabled."""
    return "}" if options.debezium_disable_schema else f',"schema":{json_document(schema)}}}'


class DebeziumTable(DocumentTable):
    """A compiled table."""

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        self._options = options
        self._has_old = options.output_old_value
        self._are_quoted = [value_of(column.column_type, options).is_quoted for column in table.columns]
        super().__init__(table, options, lambda column_type: value_of(column_type, options).fragment)
        # A table without a handle key has an empty key, which all its rows share. Slot 0 is the end of the payload.
        parts = self._members(table.handle, 1)
        self._key = Rows(['{"payload":{', *parts, Slot(0), _tail(key_schema(table, options), options)])

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        return self._encode(changes, self._all, _READ if changes.are_read else "")

    def _keys(self, changes: RowChanges, image: list[Any], mark: str, claims: Sequence[str] | None) -> Any:
        columns = [constant(b"}", len(changes)), *(image[index] for index in self._table.handle)]
        return compressed(self._key.build(columns), self._compression)

    def _member(self, index: int, slot: int) -> Parts:
        return [f"{self._names[index]}:", Slot(slot, quoted=self._are_quoted[index])]

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        options, table, operation = self._options, self._table, mark or _OPERATIONS[kind]
        source = source_parts(
            options.namespace, table.schema, table.name, self.TIME, self.COMMIT, is_snapshot=operation == _READ
        )
        return [
            '{"payload":{"source":',
            *source,
            ',"ts_ms":',
            self.TIME,
            f',"transaction":null,"op":"{operation}"',
            *self._images(kind, column_indexes),
            "}" + _tail(envelope_schema(table, options), options),
        ]

    def _images(self, kind: Kind, column_indexes: tuple[int, ...]) -> Parts:
        image = self._members(column_indexes, self.FIRST_VALUE)
        if kind is Kind.INSERT:
            return [',"before":null,"after":{', *image, "}"]
        if kind is Kind.DELETE:
            return [',"after":null,"before":{', *image, "}"]
        before: Parts = []
        if self._has_old:
            before = [',"before":{', *self._members(column_indexes, self.FIRST_VALUE + len(column_indexes)), "}"]
        return [*before, ',"after":{', *image, "}"]


class DebeziumEncoder(OneRowMessages):
    """Encodes Debezium JSON. `namespace` has the role of TiCDC's cluster id: it is the source's name, and the first
    part of schema names."""

    name = "debezium"
    table_class = DebeziumTable

    def ddl(self, ddl: Ddl) -> list[Message]:
        named = ddl.after or ddl.before
        schema, table = (ddl.schema, ddl.table) if named is None else (named.schema, named.name)
        key = f'{{"databaseName":{json_string(schema)}}}'
        payload = (
            f'{{"source":{source_text(self.options.namespace, schema, table, ddl.commit_ts)},'
            f'"ts_ms":{physical_ms(ddl.commit_ts)},"databaseName":{json_string(schema)},"schemaName":null,'
            f'"ddl":{json_string(ddl.query)},"tableChanges":{json_document(changes_of(ddl))}}}'
        )
        schemas = ddl_key_schema(), ddl_value_schema()
        return [self._message(key, payload, schemas, ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        """Return a watermark. Empty without the extension."""
        if not self.options.enable_tidb_extension:
            return []
        payload = (
            f'{{"source":{source_text(self.options.namespace, "", "", commit_ts)},'
            f'"ts_ms":{physical_ms(commit_ts)},"transaction":null,"op":"m"}}'
        )
        return [self._message("{}", payload, watermark_schemas(self.options.namespace), commit_ts)]

    def _message(self, key: str, value: str, schemas: tuple[Document, Document], commit_ts: int) -> Message:
        return Message(self._whole(key, schemas[0]), self._whole(value, schemas[1]), 0, commit_ts)

    def _whole(self, payload: str, schema: Document) -> bytes:
        whole = f'{{"payload":{payload}{_tail(schema, self.options)}'
        return compress(whole.encode(), self.options.large_message_handle_compression)
