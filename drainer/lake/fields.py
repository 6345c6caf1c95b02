"""The fields of a table in the lake, and what a DDL makes of them. Pure.

A field belongs to a column by TiDB's column id, which is in the field's metadata. In files a column has the field's
physical name, which never changes. So RENAME and a new order change no file, and a column that is dropped and added
again under its name is another one.

| TiDB | in the lake |
|---|---|
| as in docs/changes.md | Spark's type |
| TIME | string, because Delta has no intervals |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from binlog.errors import ConfigError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten, missing_value
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.time import is_date
from binlog.tidb.types import FieldType, Tp

from drainer.ddl.lexer import tokens
from drainer.protocol.table import handle_index
from drainer.row.column_type import TypeClass, type_class_of
from drainer.row.layout import published
from drainer.row.partition import locator
from drainer.sink.sqlite.format import converter
from drainer.spark.typed.types import spark_type, text_of

ID: Final = "delta.columnMapping.id"
PHYSICAL: Final = "delta.columnMapping.physicalName"
WIDENED: Final = "delta.typeChanges"
COLUMN: Final = "tidb.column.id"
FILL: Final = "tidb.fill"
OWN: Final = (
    ("kind", "string"),
    ("commit_ts", "long"),
    ("commit_time", "timestamp"),
    ("start_ts", "long"),
    ("place", "integer"),
)
BEFORE, AFTER = "before", "after"
IMAGE_IDS: Final = {BEFORE: len(OWN) + 1, AFTER: len(OWN) + 2}  # Delta's numbers of the two images
INTEGERS: Final = ("byte", "short", "integer", "long")
_DIGITS: Final = {"byte": 10, "short": 10, "integer": 10, "long": 20}
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def type_name(kind: FieldType, where: str) -> str:
    """Return the type in the lake, in the words of Delta's schemas. Raises ConfigError if there is none."""
    if kind.tp is Tp.DURATION:
        return "string"
    found = spark_type(kind)
    if found is None:
        raise ConfigError(f"column {where}: a lake has no type for {kind.mysql_name}; leave the column out by a rule")
    return str(found.jsonValue())


@dataclass(frozen=True, slots=True)
class Field:
    """A field. `id`: Delta's number of it, never used again; `column_id`: TiDB's; -1: its column is gone, and it is
    kept under another name; `widened`: (from, to) of the changes of its type; `fill`: SQL of the value that rows
    written before have, from the table's fields; "": none is missing."""

    name: str
    type: str
    id: int
    physical: str
    column_id: int
    widened: tuple[tuple[str, str], ...] = ()
    fill: str = ""

    def in_image(self, name: str) -> Field:
        """The field in an image of a history, whose fields have the numbers of `after`; in `before` one less."""
        return replace(self, id=self.id + IMAGE_IDS[name] - IMAGE_IDS[AFTER])

    def json(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {ID: self.id, PHYSICAL: self.physical, COLUMN: self.column_id}
        if self.widened:
            metadata[WIDENED] = [{"fromType": old, "toType": new} for old, new in self.widened]
        if self.fill:
            metadata[FILL] = self.fill
        return field_json(self.name, self.type, metadata)

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Field:
        of = found["metadata"]
        widened = tuple((one["fromType"], one["toType"]) for one in of.get(WIDENED, ()))
        return cls(found["name"], found["type"], of[ID], of[PHYSICAL], of.get(COLUMN, -1), widened, of.get(FILL, ""))


def field_json(name: str, kind: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A field in the JSON of Delta's schemas."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def named_fields(columns: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the fields, in the JSON of Delta's schemas, of columns (name, type) that upstream's tables do not have,
    such as `commit_ts`. Their ids begin at 1; they are never renamed."""
    return [field_json(name, kind, {ID: at, PHYSICAL: name}) for at, (name, kind) in enumerate(columns, 1)]


def evolved(
    fields: Sequence[Field],
    info: TableInfo,
    ids: Iterator[int],
    *,
    before: TableInfo | None = None,
    was: Mapping[int, int],
    keeps: bool,
) -> tuple[Field, ...]:
    """Return the fields of this table. `before`: the table before the DDL; `was`: ids of columns that got another one
    by a change of type, by their new ids; `keeps`: fields whose columns are gone, or have a type that cannot hold the
    old values, stay beside; without, they stay while a `fill` needs them. May be repeated with its result."""
    kinds = {} if before is None else {column.id: column.type for column in before.columns}
    known = {field.column_id: field for field in fields if field.column_id >= 0}
    gone = [field for field in fields if field.column_id < 0]
    used = {field.physical for field in fields}
    kept: list[Field] = []
    for column in published(info):
        kind = type_name(column.type, f"{info.name}.{column.name}")
        field, of = known.pop(column.id, None), was.get(column.id, column.id)
        rewritten = False
        if field is None and of in known:
            field = known.pop(of)
            rewritten = not keeps and rewrites(kinds[of], column.type)
        if field is not None and ((field.type == kind and not rewritten) or widens(field.type, kind)):
            steps = field.widened if field.type == kind else (*field.widened, (field.type, kind))
            kept.append(replace(field, name=column.name, type=kind, column_id=column.id, widened=steps))
            continue
        fill = default_of(column, kind) if field is None and fields else ""
        if field is not None and not keeps:
            fill = cast_of(field, kinds[of], column, kind)
        gone += [field] if field is not None else []
        id_, name = next(ids), f"c{column.id}"
        physical = name if name not in used else f"{name}_{id_}"
        kept.append(Field(column.name, kind, id_, physical, column.id, (), "" if keeps else fill))
    gone += known.values()
    if not keeps:
        gone = [field for field in gone if any(quoted(aside(field)) in one.fill for one in kept)]
    return (*kept, *_beside(gone, kept, keeps=keeps))


def _beside(gone: Iterable[Field], kept: Iterable[Field], *, keeps: bool) -> Iterator[Field]:
    """The fields without a column, under names that no column has."""
    names = {field.name.lower() for field in kept}
    for field in gone:
        name = field.name if keeps and field.name.lower() not in names else aside(field)
        names.add(name.lower())
        yield replace(field, name=name, column_id=-1)


def aside(field: Field) -> str:
    """The name of a field whose column is gone, where another column has its name."""
    return f"{field.physical}__before"


def widens(old: str, new: str) -> bool:
    """Whether Delta reads values of one type as the other (type widening)."""
    if old in INTEGERS and new in INTEGERS:
        return INTEGERS.index(old) < INTEGERS.index(new)
    now = DECIMAL.fullmatch(new)
    if now is None:
        return (old, new) in {("float", "double"), ("date", "timestamp_ntz")} or (
            old in INTEGERS[:3] and new == "double"
        )
    digits, scale = int(now[1]), int(now[2])
    if old in _DIGITS:
        return digits - scale >= _DIGITS[old]
    was = DECIMAL.fullmatch(old)
    return was is not None and scale >= int(was[2]) and digits - scale >= int(was[1]) - int(was[2])


def rewrites(old: FieldType, new: FieldType) -> bool:
    """Whether a change of type changes values although the lake's type is the same: fewer digits of seconds, JSON."""
    times = type_class_of(old) is type_class_of(new) is TypeClass.DATETIME
    return converter(old, new) is not None and not (times and new.decimal >= old.decimal)


def cast_of(field: Field, old: FieldType, column: ColumnInfo, new: str) -> str:
    """SQL of a field's values under another type, as TiDB converts them."""
    return f"CAST({function_of(column)}({_text_sql(field, aside(field), old)}) AS {sql_type(new)})"


def _text_sql(field: Field, name: str, kind: FieldType) -> str:
    """SQL of a field's values as text; bytes stay bytes."""
    if field.type in ("timestamp", "timestamp_ntz"):
        fraction = "." + "S" * kind.decimal if kind.decimal > 0 else ""
        return f"date_format({quoted(name)}, 'yyyy-MM-dd HH:mm:ss{fraction}')"
    return quoted(name) if field.type == "binary" else f"CAST({quoted(name)} AS STRING)"


def function_of(column: ColumnInfo) -> str:
    """The name of the SQL function of `conversion`."""
    return f"tidb_column_{column.id}"


def conversion(old: FieldType, new: FieldType) -> Callable[[Any], str | bytes | None]:
    """From a value's text (bytes of a binary string) under one type to that under another. Raises ValueError."""
    convert = converter(old, new)
    source, is_binary = type_class_of(old), type_class_of(new) is TypeClass.BYTES

    def converted(value: Any) -> str | bytes | None:
        given = float(value) if value is not None and source is TypeClass.FLOAT else value
        found = given if convert is None else convert(bytes(given) if isinstance(given, bytearray) else given)
        if found is None or isinstance(found, bytes):
            return found
        if type_class_of(new) in (TypeClass.DATE, TypeClass.DATETIME) and not is_date(str(found)[:10]):
            return None
        return str(found).encode() if is_binary else str(found)

    return converted


def in_partitions(
    fields: Sequence[Field], info: TableInfo, partitions: Collection[int]
) -> tuple[str, Callable[..., bool]]:
    """Return a function that says whether a row is in one of these partitions, and before it its arguments, as SQL of
    a mirror's fields. Raises PartitionUnknown, also when called."""
    locate, parts = locator(info), info.partition
    names = {name.lower() for name in parts.columns} if parts is not None else set()
    names |= {one.value.lower() for one in tokens(parts.expr)} if parts is not None else set()
    used = {column.id: column for column in info.columns if column.name.lower() in names}
    used |= {id_: info.columns_by_id[id_] for id_ in key_of(info)}  # KEY() names no column
    chosen = [field for field in fields if field.column_id in used]
    columns = [used[field.column_id] for field in chosen]

    def belongs(*values: Any) -> bool:
        row = {column.id: _datum(one, column) for column, one in zip(columns, values, strict=True)}
        return locate(row) in partitions

    return ", ".join(_text_sql(field, field.name, used[field.column_id].type) for field in chosen), belongs


def _datum(value: Any, column: ColumnInfo) -> Datum:
    """The datum of a value of `_text_sql`."""
    kind = column.type
    if value is None and column.is_not_null and type_class_of(kind) in (TypeClass.DATE, TypeClass.DATETIME):
        value = "0000-00-00"
    return flatten(int(value) if kind.tp is Tp.BIT and value is not None else value, kind)


def sql_type(name: str) -> str:
    return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(name, name.upper())


def default_of(column: ColumnInfo, kind: str) -> str:
    """SQL of the value of rows that are older than the column; "": NULL. A date that Spark cannot hold is NULL."""
    text = text_of(missing_value(column), column.type)
    if text is None or (kind in ("date", "timestamp", "timestamp_ntz") and not is_date(text[:10])):
        return ""
    if kind == "string":
        return literal(text)
    if kind == "binary":
        return f"X'{text.removeprefix('0x')}'"
    if text.startswith("0x"):  # a BIT
        text = str(int(text, 16))
    return f"CAST({literal(text)} AS {sql_type(kind)})"


def literal(text: str) -> str:
    """A string in Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def key_of(info: TableInfo) -> tuple[int, ...]:
    """The ids of the columns that tell a table's rows apart; none if it has no such key."""
    index = handle_index(info)
    return tuple(column.id for column in info.index_columns(index)) if index is not None else ()


def alters(before: TableInfo, after: TableInfo) -> bool:
    """Whether a DDL changes what a lake has of a table."""
    return _shape(before) != _shape(after)


def _shape(info: TableInfo) -> object:
    columns = published(info)
    return [(column.id, column.name, type_name(column.type, info.name)) for column in columns], key_of(info)
