"""Simple, in JSON and in Avro: watermarks, schemas of tables, and one encoder for each table. Columns are ordered by
name, as Go orders the keys of maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from binlog.cluster.tso import physical_ms
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import FLOATS, Flag, Tp
from binlog.tidb.varint import encode_compact_bytes, encode_varint

from drainer.batch.work import Kind
from drainer.changes.texts import numbers_of
from drainer.protocol.avro.blocks import Piece, beside, constant, filled, in_union, joined, lengths, real, varints
from drainer.protocol.column_text import texts_of
from drainer.protocol.encoder import (
    Ddl,
    DocumentTable,
    EncodedColumns,
    Message,
    OneRowMessages,
    TableEncoder,
    compress,
    compressed,
    null_column,
    value_of,
)
from drainer.protocol.event import canal_kind
from drainer.protocol.json_text import Parts, Slot, base64, fragments_of, json_document, json_string
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.simple.avro_schema import CHANGES, DOCUMENT, KINDS, VALUES, named, write_document
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import ColumnType, TypeClass

# The schema of a table in Simple's messages.

Document = dict[str, object]

# TiCDC's name for a primary key that is the handle and so has no index.
_HANDLE: Final = "primary"
_NUMBERS: Final = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "bit", "year", "decimal"}
)
# Members of a type in Avro that only these types have.
_ONLY_OF: Final = {"decimal": ("decimal",), "elements": ("enum", "set"), "unsigned": _NUMBERS, "zerofill": _NUMBERS}


def schema_version(table: Table) -> int:
    """Return the version by which rows refer to the schema: the timestamp of the table's last change, or its schema
    version if TiDB gave no timestamp."""
    return table.info.update_timestamp or table.version


def table_schema(table: Table, *, of_avro: bool) -> Document:
    info = table.info
    indexes = [_index(info, index) for index in info.indexes if index.is_public]
    primary = info.primary_index()
    if info.pk_is_handle and primary is not None:
        indexes.append(_index(info, primary) | {"name": _HANDLE})
    return {
        "database" if of_avro else "schema": table.schema,
        "table": table.name,
        "tableID": table.id,
        "version": schema_version(table),
        "columns": [_column(column, of_avro=of_avro) for column in sorted(info.public_columns, key=lambda one: one.id)],
        "indexes": indexes,
    }


def _column(column: ColumnInfo, *, of_avro: bool) -> Document:
    """Describe a column. JSON leaves out what is 0, false or empty, Avro what its kind of type does not have."""
    kind, name, default = column.type, column.type.mysql_name, column.default
    described: Document = {
        "mysqlType": name,
        "charset": kind.charset,
        "collate": kind.collate,
        "length": kind.flen,
        "decimal": 0 if kind.tp in FLOATS else kind.decimal,
        "elements": list(kind.elems),
        "unsigned": kind.is_unsigned,
        "zerofill": bool(kind.flag & Flag.ZEROFILL),
    }
    if of_avro:
        data_type = {member: value for member, value in described.items() if name in _ONLY_OF.get(member, (name,))}
    else:
        always = ("mysqlType", "charset", "collate")
        data_type = {member: value for member, value in described.items() if member in always or value}
    if kind.tp is Tp.BIT and column.default_bit is not None:
        default = int.from_bytes(column.default_bit, "big")
    return {
        "name": column.name,
        "dataType": data_type,
        "nullable": not kind.is_not_null,
        "default": str(default) if of_avro and default is not None else default,
    }


def _index(info: TableInfo, index: IndexInfo) -> Document:
    return {
        "name": index.name,
        "unique": index.unique,
        "primary": index.primary,
        "nullable": not all(column.is_not_null for column in info.index_columns(index)),
        "columns": [part.name for part in index.columns],
    }


class SimpleTable(DocumentTable):
    BY_NAME = True

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options, partial(value_of, zone=options.zone, binary=base64))
        self._zone = json_string(options.time_zone)

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        return self._encode(changes, self._all)

    def _parts(self, kind: Kind, column_indexes: tuple[int, ...], mark: str) -> Parts:
        table = self._table
        claim: Parts = [',"claimCheckLocation":', self.CLAIM] if mark == "claim" else []
        new = self._image("data", column_indexes, self.FIRST_VALUE) if kind is not Kind.DELETE else []
        behind_new = self.FIRST_VALUE + (len(column_indexes) if new else 0)
        old = self._image("old", column_indexes, behind_new) if kind is not Kind.INSERT else []
        return [
            f'{{"version":1,"database":{json_string(table.schema)},"table":{json_string(table.name)},'
            f'"tableID":{table.id},"type":"{kind.name}","commitTs":',
            self.COMMIT,
            ',"buildTs":',
            self.TIME,
            f',"schemaVersion":{schema_version(table)}',
            *claim,
            ',"handleKeyOnly":true' if mark else "",
            *new,
            *old,
            "}",
        ]

    def _image(self, name: str, column_indexes: tuple[int, ...], first: int) -> Parts:
        return [f',"{name}":{{', *self._members(column_indexes, first), "}"]

    def _member(self, index: int, slot: int) -> Parts:
        """A TIMESTAMP has its time zone next to it."""
        if self._table.columns[index].column_type.kind.tp is not Tp.TIMESTAMP:
            return super()._member(index, slot)
        return [f"{self._names[index]}:", Slot(slot, True, f'{{"location":{self._zone},"value":', "}")]


# Encodes rows of one version of a table as Simple's Avro, a column at a time.
# One column: its branch in the union of values, and its bytes.
Pieces = Callable[[Any], list[Piece]]


def _string(text: str) -> bytes:
    return encode_compact_bytes(text.encode())


# The start of a row's message: the index of its record in the schema, the kind of message, and the version.
_HEAD: Final = encode_varint(len(DOCUMENT) - 1) + 2 * encode_varint(KINDS.index("DML")) + encode_varint(1)
_NULL, _SOME = encode_varint(0), encode_varint(1)


class SimpleAvroTable(TableEncoder):
    BY_NAME = True

    def __init__(self, table: Table, options: ProtocolOptions) -> None:
        super().__init__(table, options)
        self._values = [_pieces_of(column.column_type, options) for column in table.columns]
        self._names = _HEAD + _string(table.schema) + _string(table.name) + encode_varint(table.id)

    def encode_columns(self, changes: RowChanges) -> list[EncodedColumns]:
        return self._encode(changes, self._all, [constant(_NULL + _NULL, len(changes))])

    def encode_handle_only(self, changes: RowChanges, claims: Sequence[str] | None = None) -> list[EncodedColumns]:
        rows = len(changes)
        claim: list[Piece] = [constant(_NULL, rows)]
        if claims is not None:
            claim = [pa.array([_SOME + _string(text) for text in claims], pa.binary())]
        return self._encode(changes, self._handle(changes), [*claim, constant(_SOME + b"\x01", rows)])

    def _encode(self, changes: RowChanges, column_indexes: tuple[int, ...], marks: list[Piece]) -> list[EncodedColumns]:
        rows = len(changes)
        if not rows:
            return []
        stamps = changes.commit_ts
        messages = joined(
            [
                constant(self._names + encode_varint(CHANGES.index(changes.kind.name)), rows),
                varints(stamps.view(np.int64)),
                varints((stamps >> np.uint64(18)).view(np.int64)),
                constant(encode_varint(schema_version(self._table)), rows),
                *marks,
                constant(_NULL, rows),  # no checksum
                *self._image(changes, None if changes.kind is Kind.DELETE else changes.new, column_indexes),
                *self._image(changes, None if changes.kind is Kind.INSERT else changes.old, column_indexes),
            ],
            rows,
        )
        return [EncodedColumns(null_column(rows), compressed(messages, self._compression), changes.commit_ts)]

    def _image(self, changes: RowChanges, image: Any, column_indexes: tuple[int, ...]) -> list[Piece]:
        """Encode an image: the branch of a union with null, then a map of one block of entries and its end."""
        rows = len(changes)
        if image is None:
            return [constant(_NULL, rows)]
        found: list[Piece] = [constant(_SOME + encode_varint(len(column_indexes)), rows)]
        columns = fragments_of(changes, image, self._values, column_indexes)
        for column_index, pieces in zip(column_indexes, columns, strict=True):
            found += [constant(_string(self._table.columns[column_index].name), rows), *pieces]
        return [*found, constant(encode_varint(0), rows)] if column_indexes else found


def _pieces_of(column_type: ColumnType, options: ProtocolOptions) -> Pieces:
    branch, location = _branch_of(column_type), _string(options.time_zone)
    value = 2 * VALUES.index(branch)

    def run(array: Any) -> list[Piece]:
        rest: list[Piece] = []
        if branch in ("float", "double"):
            block = real(branch, array)
        elif branch in ("long", _UNSIGNED):  # a number above 2^63-1 becomes negative, as in TiCDC
            block = varints(filled(numbers_of(column_type, array)).view(np.int64))
        else:
            text = texts_of(column_type, array, options.zone)
            block, rest = lengths(text), [text]
            if branch == _LOCATED:
                block = beside(constant(location, len(array)), block)
        return [in_union(block, array, value, 0), *rest]

    return run


_UNSIGNED, _LOCATED = named("UnsignedBigint"), named("Timestamp")


def _branch_of(column_type: ColumnType) -> str:
    kind = column_type.kind
    match column_type.type_class:
        case TypeClass.INT if kind.tp is Tp.LONGLONG and kind.is_unsigned:
            return _UNSIGNED
        case TypeClass.INT | TypeClass.ENUM | TypeClass.SET | TypeClass.BIT:
            return "long"
        case TypeClass.FLOAT:
            return "float" if kind.tp is Tp.FLOAT else "double"
        case TypeClass.DATETIME if kind.tp is Tp.TIMESTAMP:
            return _LOCATED
        case type_class:
            return "bytes" if type_class is TypeClass.BYTES else "string"


class SimpleEncoder(OneRowMessages):
    """Encodes Simple. Readers need a table's schema to use its rows. They get it from DDLs and from bootstrap messages,
    which are sent when the sink's BootstrapSchedule says so."""

    name = "simple"

    @property
    def _is_avro(self) -> bool:
        return self.options.encoding_format == "avro"

    def table(self, table: Table, topic: str = "") -> TableEncoder:
        made = SimpleAvroTable if self._is_avro else SimpleTable
        return self._tables.get(table.key, lambda: made(table, self.options))

    def ddl(self, ddl: Ddl) -> list[Message]:
        """Encode a DDL. A dropped table is described as it was before; a DDL of a database has the database's name."""
        table = ddl.after
        if table is None and ddl.type_code == ActionType.DROP_TABLE:
            table = ddl.before
        document: dict[str, object] = {"version": 1}
        if table is None:
            document |= {"database": ddl.schema} | ({"table": ddl.table} if ddl.table else {})
        document |= {
            "type": canal_kind(ddl.type_code),
            "sql": ddl.query,
            "commitTs": ddl.commit_ts,
            "buildTs": physical_ms(ddl.commit_ts),
        }
        if table is not None:
            document["tableSchema"] = table_schema(table, of_avro=self._is_avro)
        if ddl.before is not None:
            document["preTableSchema"] = table_schema(ddl.before, of_avro=self._is_avro)
        return [self._message(document, ddl.commit_ts)]

    def resolved(self, commit_ts: int) -> list[Message]:
        at = physical_ms(commit_ts)
        document = {"version": 1, "type": "WATERMARK", "commitTs": commit_ts, "buildTs": at}
        return [self._message(document, commit_ts)]

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        """Encode a table's schema. Its commitTs is 0, as in TiCDC."""
        document = {
            "version": 1,
            "type": "BOOTSTRAP",
            "commitTs": 0,
            "buildTs": physical_ms(commit_ts),
            "tableSchema": table_schema(table, of_avro=self._is_avro),
        }
        return [self._message(document, commit_ts)]

    def _message(self, document: dict[str, object], commit_ts: int) -> Message:
        written = write_document(document) if self._is_avro else json_document(document).encode()
        value = compress(written, self.options.large_message_handle_compression)
        return Message(None, value, 0, commit_ts)
