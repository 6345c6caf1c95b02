"""Columns of decoded values (row/decoded_value.py) as readers of Parquet know them. Pure.

| MySQL | Arrow |
|---|---|
| integers, YEAR | int64; of BIGINT UNSIGNED decimal(20, 0) |
| DECIMAL(p, s) | decimal(p, s) up to 38 digits, else a string |
| FLOAT, DOUBLE | float, double |
| character strings, ENUM, SET, JSON | string |
| binary strings | binary |
| DATE, DATETIME, TIMESTAMP (UTC), TIME | string: zero dates are values, too |
| BIT | int64; BIT(64) decimal(20, 0) |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any, Final

import numpy as np
import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.types import Tp

from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.protocol.column_text import texts_of
from drainer.protocol.errors import EncodeError
from drainer.row.column_type import ColumnType
from drainer.row.scalar import bit_number
from drainer.row.type_class import TypeClass

DDL_SCHEMA: Final = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("job_id", pa.int64()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("query", pa.string()),
        ("sql", pa.list_(pa.string())),
        ("early", pa.bool_()),
    ]
)
_DIGITS_MAX: Final = 38
_UNSIGNED: Final = pa.decimal128(20, 0)


def arrow_type(column_type: ColumnType) -> Any:
    kind, type_class = column_type.kind, column_type.type_class
    if type_class is TypeClass.INT:
        return _UNSIGNED if kind.tp is Tp.LONGLONG and kind.is_unsigned else pa.int64()
    if type_class is TypeClass.BIT:
        return _UNSIGNED if kind.flen >= 64 else pa.int64()
    if type_class is TypeClass.DECIMAL:
        return pa.decimal128(kind.flen, max(kind.decimal, 0)) if 0 < kind.flen <= _DIGITS_MAX else pa.string()
    if type_class is TypeClass.FLOAT:
        return pa.float32() if kind.tp is Tp.FLOAT else pa.float64()
    return pa.binary() if type_class is TypeClass.BYTES else pa.string()


def arrow_column(column_type: ColumnType, array: Any) -> Any:
    """Raises DecodeError for what no column of that type holds, and for text that is not UTF-8."""
    type_class, wanted = column_type.type_class, arrow_type(column_type)
    try:
        if type_class in (TypeClass.INT, TypeClass.FLOAT, TypeClass.BYTES, TypeClass.DECIMAL):
            return array.cast(wanted)
        if type_class is TypeClass.TEXT:
            return array.cast(pa.string())
        if type_class is TypeClass.BIT:
            for value in set(array.to_pylist()) - {None}:
                bit_number(value, max(column_type.kind.flen, 1))
            return array.cast(wanted)
        return pa.array(texts_of(column_type, array, UTC), pa.string())
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise DecodeError(f"{column_type.kind.mysql_name} value", offset=0, detail=str(error)) from error


def tables_of(segment: ChangeSegment) -> Iterator[Any]:
    """The changes of each table, in upstream's order. Raises EncodeError naming table, column and commit_ts."""
    groups: dict[Any, list[Changes]] = {}
    for changes in segment.changes:
        schema = _schema(changes)
        groups.setdefault((changes.shape.schema, changes.shape.table, schema), []).append(changes)
    for (_, _, schema), group in groups.items():
        table = pa.concat_tables([_table(changes, schema) for changes in group])
        by_place = np.argsort(np.concatenate([changes.order for changes in group]), kind="stable")
        yield table.take(by_place).combine_chunks()


def _schema(changes: Changes) -> Any:
    shape = changes.shape
    image = pa.struct(
        [
            pa.field(name, arrow_type(column_type))
            for name, column_type in zip(shape.columns, changes.column_types, strict=True)
        ]
    )
    fields = [("commit_ts", pa.int64()), ("start_ts", pa.int64()), ("place", pa.int64()), ("kind", pa.string())]
    names = {"schema": shape.schema, "table": shape.table}
    return pa.schema([*fields, ("before", image), ("after", image)], names)


def _table(changes: Changes, schema: Any) -> Any:
    count = len(changes)
    columns = [
        pa.array(changes.commit_ts.astype(np.int64)),
        pa.array(changes.start_ts.astype(np.int64)),
        pa.array(changes.sequence.astype(np.int64)),
        pa.array([changes.kind.name.lower()] * count, pa.string()),
    ]
    for name, image in (("before", changes.old), ("after", changes.new)):
        wanted = schema.field(name).type
        columns.append(pa.nulls(count, wanted) if image is None else _image(changes, image, wanted))
    return pa.Table.from_arrays(columns, schema=schema)


def _image(changes: Changes, image: Columns, wanted: Any) -> Any:
    arrays = [
        _column(changes, name, column_type, array)
        for name, column_type, array in zip(changes.shape.columns, changes.column_types, image, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(wanted))


def _column(changes: Changes, name: str, column_type: ColumnType, array: Any) -> Any:
    try:
        return arrow_column(column_type, array)
    except DecodeError as error:
        place = f"`{changes.shape.schema}`.`{changes.shape.table}`.`{name}`"
        raise EncodeError(_first_refused(place, column_type, array, changes.commit_ts.tolist(), error)) from error


def _first_refused(
    place: str, column_type: ColumnType, array: Any, commit_ts: Sequence[int], error: DecodeError
) -> str:
    for at, ts in enumerate(commit_ts):
        try:
            arrow_column(column_type, array[at : at + 1])
        except DecodeError as first:
            return f"{place} at commit_ts {ts}: {first}"
    return f"{place}: {error}"
