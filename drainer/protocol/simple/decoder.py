"""Decodes Simple's JSON and Avro. Keeps the table schemas that it has read, because rows do not contain types."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from drainer.protocol.encoder import decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.event import (
    BootstrapEvent,
    Change,
    DdlEvent,
    Event,
    Image,
    ResolvedEvent,
    RowEvent,
    Value,
)
from drainer.protocol.json_read import UINT64_MAX, Columns, Reader, image_of, of_text, parse
from drainer.protocol.json_text import single_digits
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.simple.avro_schema import DDL_KINDS, read_document
from drainer.protocol.table import ColumnFlag

VERSION: Final = 1
# The most versions of tables that are kept. Then the oldest is dropped.
SCHEMAS_MAX: Final = 65_536

_WHAT: Final = "Simple message"
_CHANGES: Final = {"INSERT": Change.INSERT, "UPDATE": Change.UPDATE, "DELETE": Change.DELETE}


class SchemaUnknown(MessageError):
    """The schema of a row's table has not been read: earlier messages of the partition are missing."""


class _Version(NamedTuple):
    schema: str
    table: str
    version: int


# From schema, table and a row's commit_ts.
KnownColumns = Callable[[str, str, int], Columns | None]


class SimpleDecoder:
    """Decodes one partition. It must begin at the partition's beginning, or at a bootstrap message of every table whose
    rows follow, unless its columns are known."""

    def __init__(
        self, options: ProtocolOptions, known: KnownColumns = lambda _schema, _table, _commit_ts: None
    ) -> None:
        """`known`: the columns of tables whose schema is known from elsewhere."""
        self._known = known
        self._compression = options.large_message_handle_compression
        self._is_avro = options.encoding_format == "avro"
        self._schemas: dict[_Version, Columns] = {}

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """Decode one message. Raises SchemaUnknown, a MessageError, for a row whose schema has not been read yet."""
        message = self.parse(value)
        if message.integer("version") != VERSION:
            message.wrong("version", str(VERSION))
        kind = message.text("type")
        commit_ts = message.integer("commitTs")
        if kind == "WATERMARK":
            return [ResolvedEvent(commit_ts)]
        if kind == "BOOTSTRAP":
            schema = message.needed("tableSchema")
            self._keep([schema])
            return [BootstrapEvent(schema.text("schema"), schema.text("table"), commit_ts)]
        if kind in _CHANGES:
            return [self._row(message, _CHANGES[kind], commit_ts)]
        if kind in DDL_KINDS:
            return [self._ddl(message, commit_ts)]
        raise MessageError(f"{message.where}: type {kind!r} is not known")

    def parse(self, value: bytes | None) -> Reader:
        """Return the message's document. Raises MessageError."""
        if self._is_avro and value is not None:
            return Reader(read_document(decompress(value, self._compression)), _WHAT)
        return parse(value, _WHAT, self._compression)

    def _ddl(self, message: Reader, commit_ts: int) -> DdlEvent:
        after, before = message.child("tableSchema"), message.child("preTableSchema")
        query = message.text("sql")
        self._keep([schema for schema in (after, before) if schema is not None])
        if after is None:
            return DdlEvent(commit_ts, message.text("database", ""), message.text("table", ""), query)
        return DdlEvent(commit_ts, after.text("schema"), after.text("table"), query)

    def _keep(self, schemas: list[Reader]) -> None:
        read = [_schema_of(schema) for schema in schemas]
        for version, columns in read:
            self._schemas.pop(version, None)
            self._schemas[version] = columns
        while len(self._schemas) > SCHEMAS_MAX:
            del self._schemas[next(iter(self._schemas))]

    def _row(self, message: Reader, change: Change, commit_ts: int) -> RowEvent:
        version = _Version(message.text("database"), message.text("table"), message.integer("schemaVersion"))
        columns = self._schemas.get(version) or self._known(version.schema, version.table, commit_ts)
        if columns is None:
            raise SchemaUnknown(
                f"{message.where}: the {change.value} with commit_ts {commit_ts} in "
                f"`{version.schema}`.`{version.table}` has schema version {version.version}, which no DDL or bootstrap "
                f"message before it in the partition has: read the partition from its beginning, or from the table's "
                f"next bootstrap message"
            )
        new = message.needed("data") if change is not Change.DELETE else None
        old = message.needed("old") if change is not Change.INSERT else None
        return RowEvent(
            change,
            commit_ts,
            version.schema,
            version.table,
            old=None if old is None else self._image(old, columns),
            new=None if new is None else self._image(new, columns),
            handle_only=message.boolean("handleKeyOnly", False),
            claim=message.text("claimCheckLocation", ""),
        )

    def _image(self, row: Reader, columns: Columns) -> Image:
        return image_of(row, columns, _native if self._is_avro else value_of, "the table's schema")


def _schema_of(schema: Reader) -> tuple[_Version, Columns]:
    key = _key_of(schema)
    columns = {
        name: (column.needed("dataType").text("mysqlType"), ColumnFlag.HANDLE_KEY * (name in key))
        for column in schema.objects("columns")
        for name in [column.text("name")]
    }
    return _Version(schema.text("schema"), schema.text("table"), schema.integer("version")), columns


def _key_of(schema: Reader) -> list[object]:
    """Return the names of the columns of the primary key, or else of a unique key that no two rows share."""
    indexes = schema.objects("indexes")
    indexes = [one for one in indexes if one.boolean("unique", False) and not one.boolean("nullable", True)]
    indexes.sort(key=lambda one: not one.boolean("primary", False))
    names = indexes[0].document.get("columns") if indexes else []
    return names if isinstance(names, list) else []


def _timestamp(value: Mapping[str, object]) -> str:
    text = value.get("value")
    if not isinstance(text, str):
        raise TypeError
    return text


@lru_cache(1024)
def value_of(mysql_type: str) -> Callable[[Any], Value]:
    """Return what converts values of this type in JSON. Each raises ValueError, TypeError or AttributeError."""
    return _timestamp if mysql_type == "timestamp" else of_text(mysql_type, partial(base64.b64decode, validate=True))


@lru_cache(1024)
def _native(mysql_type: str) -> Callable[[Any], Value]:
    return partial(_native_value, mysql_type)


def _native_value(mysql_type: str, value: object) -> Value:
    """Convert a value of Avro. A TIMESTAMP is a record. So is a BIGINT UNSIGNED, negative above 2^63-1."""
    if isinstance(value, dict):
        inner = value.get("value")
        return inner & UINT64_MAX if isinstance(inner, int) else str(inner)
    if not isinstance(value, int | float | str | bytes):
        raise TypeError
    if isinstance(value, int) and value < 0 and mysql_type in ("bit", "set"):
        return value & UINT64_MAX
    return float(single_digits(value)) if isinstance(value, float) and mysql_type == "float" else value
