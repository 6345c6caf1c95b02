"""A table's two schemas, as the text that TiCDC registers: members in TiCDC's order, without spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drainer.protocol.avro.types import AvroType, avro_type, default_of
from drainer.protocol.errors import EncodeError
from drainer.protocol.json_text import json_document, json_double, json_string
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Column, ColumnFlag, Table

# Names in schemas, and the subjects under which a registry stores schemas.

_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS: Final = frozenset("0123456789")


def avro_name(name: str) -> str:
    """Replace each character that Avro's names do not have by `_`, and put `_` in front of a leading digit. Different
    names may become the same."""
    if not name:
        return ""
    first, rest = name[0], name[1:]
    head = first if first in _LETTERS else f"_{first}" if first in _DIGITS else "_"
    return head + "".join(c if c in _LETTERS or c in _DIGITS else "_" for c in rest)


def record_namespace(namespace: str, schema: str) -> str:
    """Return the namespace of a record, from the changefeed's namespace and the database's name."""
    if not schema:
        return avro_name(namespace)
    return f"{avro_name(namespace)}.{avro_name(schema)}"


def subjects(options: ProtocolOptions, topic: str) -> tuple[str, str]:
    """Return the subjects of the topic's key and value schemas: of TiCDC, which replaces every `.` by `_`, or of
    Confluent's TopicNameStrategy."""
    prefix = topic.replace(".", "_") if options.avro_subject_names == "ticdc" else topic
    return f"{prefix}-key", f"{prefix}-value"


OP = "_tidb_op"
COMMIT_TS = "_tidb_commit_ts"
PHYSICAL_TIME = "_tidb_commit_physical_time"
CHECKSUM = "_tidb_row_level_checksum"
CORRUPTED = "_tidb_corrupted"
CHECKSUM_VERSION = "_tidb_checksum_version"
# Newer versions of TiCDC use this name. In every other respect the field is an extension of this project.
BEFORE = "_ticdc_before"

_OP_FIELD: Final[dict[str, object]] = {"default": "", "name": OP, "type": "string"}
_TIME_FIELDS: Final[tuple[dict[str, object], ...]] = (
    {"default": 0, "name": COMMIT_TS, "type": "long"},
    {"default": 0, "name": PHYSICAL_TIME, "type": "long"},
)


@dataclass(frozen=True, slots=True)
class Field:
    """One column. `null_first`: whether null is the first branch of a nullable column's union; None if the type is not
    a union."""

    name: str
    type: AvroType
    null_first: bool | None
    document: dict[str, object]


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """The schemas of a table. `fields`: parallel to `table.columns`. `key`: None if the table has no handle key."""

    fields: tuple[Field, ...]
    key: str | None
    value: str


def table_schemas(table: Table, options: ProtocolOptions) -> TableSchemas:
    """Return the schemas. Raises EncodeError if two names are the same in Avro, or if a name becomes empty."""
    name, namespace = avro_name(table.name), record_namespace(options.namespace, table.schema)
    fields = tuple(_field(column, options) for column in table.columns)
    extra = _extra_fields(options)
    _check_names(table, [*extra, {"name": BEFORE}] if options.avro_output_old_row else extra)
    documents = [field.document for field in fields]
    value: list[dict[str, object]] = [*documents, *extra]
    if options.avro_output_old_row:
        before = {"type": "record", "name": f"{name}_before", "fields": documents}
        value.append({"default": None, "name": BEFORE, "type": ["null", before]})
    key = None
    if table.handle:
        key = _record(name, namespace, [fields[column_index].document for column_index in table.handle])
    return TableSchemas(fields, key, _record(name, namespace, value))


def _record(name: str, namespace: str, fields: Sequence[dict[str, object]]) -> str:
    return compact_json({"type": "record", "name": name, "namespace": namespace, "fields": list(fields)})


def _extra_fields(options: ProtocolOptions) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    if options.enable_tidb_extension or options.avro_output_old_row:
        found.append(_OP_FIELD)
    if options.enable_tidb_extension:
        found += _TIME_FIELDS
    return found


def _field(column: Column, options: ProtocolOptions) -> Field:
    name, made = avro_name(column.name), avro_type(column.column_type, options)
    default = default_of(column.info, column.column_type, made, options)
    # A row may have been written before its column became NOT NULL.
    nullable = bool(column.flags & ColumnFlag.NULLABLE) or not column.column_type.kind.is_not_null
    if not nullable:
        document: dict[str, object] = {"name": name, "type": made.document}
        if default is not None:
            document = {"default": default, **document}
        return Field(name, made, None, document)
    union = ["null", made.document] if default is None else [made.document, "null"]
    return Field(name, made, default is None, {"default": default, "name": name, "type": union})


def _check_names(table: Table, extra: Sequence[dict[str, object]]) -> None:
    taken = {str(field["name"]): "a field that messages have besides columns" for field in extra}
    for column in table.columns:
        name = avro_name(column.name)
        if name in taken:
            raise EncodeError(
                f"`{table.schema}`.`{table.name}`: the column `{column.name}` is called {name} in Avro, which has only "
                f"letters, digits and _, and so is {taken[name]}: rename one of them, or use another protocol"
            )
        taken[name] = f"the column `{column.name}`"


def compact_json(value: object) -> str:
    """Return JSON as Go's encoding/json writes it. Members keep their order."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_string(name)}:{compact_json(of)}" for name, of in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact_json, value)) + "]"
    return json_double(value) if isinstance(value, float) else json_document(value)
