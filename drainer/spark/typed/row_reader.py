"""Decodes rows of one table id and schema version into the columns of a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.default import missing_value
from binlog.tidb.flatten import flatten
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.unflatten import to_text

from drainer.batch.work import Kind
from drainer.changes.decode import Columns, in_step
from drainer.changes.reading import RowReader as ColumnsReader
from drainer.changes.scan import Rows
from drainer.row.column_type import ColumnType, DecodedValue
from drainer.row.layout import layout_of, replicated
from drainer.schema.table_versions import Name, Watched
from drainer.schema.view import TableAt
from drainer.spark.typed.fields import ADDED, AFTER, Reading, SchemaChanged, ValueUnfit
from drainer.spark.typed.types import ConvertColumn, column_converter, spark_type, text_of

# Rows that are decoded one by one become arrays after at most so many: until then their values take several times as
# much memory.
ROWS_MAX: Final = 4096

Added = list[tuple[str, str | None]]  # name and text of the columns for which the query has no field
Values = Mapping[int, Datum]


class Part(NamedTuple):
    """Rows of one kind, written under one table version. `before`, `after`: struct arrays, `added`: map array; None if
    no row has it."""

    name: Name
    kind: Kind
    rows: Rows
    before: Any
    after: Any
    added: Any


class _Source(NamedTuple):
    """A column that holds values of a field. `decoded`: the column's type or, if its values are cast, the type of the
    query's column."""

    column: ColumnInfo
    decoded: ColumnType
    convert: ConvertColumn

    @property
    def is_cast(self) -> bool:
        return self.decoded.kind is not self.column.type

    def decoded_value(self, value: Datum) -> DecodedValue:
        """Raises DecodeError for a damaged value, and ValueError for one that the query's column cannot hold. Values
        are cast as by TiDB's MODIFY COLUMN."""
        if self.is_cast and value is not None:
            value = flatten(to_text(value, self.column.type), self.decoded.kind)
        return self.decoded.decoded_value(value)


class _Field(NamedTuple):
    """One field of the query. `sources`: columns that may hold its value, the first one present in a row is used;
    `default`: value in the type of the first source for a row that has none of them."""

    name: str
    arrow_type: pa.DataType
    sources: tuple[_Source, ...]
    default: Datum

    def value_in(self, values: Values) -> tuple[int, Datum]:
        """Return the value of a row after the index of its source."""
        for number, source in enumerate(self.sources):
            if source.column.id in values:
                return number, values[source.column.id]
        return 0, self.default


class _Together(NamedTuple):
    """Decodes rows in TiDB's usual encoding. `targets`: of the reader's layout; `places`: for each field of the query
    its target, None for one whose value all rows lack."""

    reader: ColumnsReader
    targets: range
    places: tuple[int | None, ...]


class RowReader:
    """`name`: the table's name at the start of the query; `info`: the TableInfo with which the rows were written;
    `schema`: of the record batches."""

    def __init__(
        self, name: Name, table_id: int, version: int, info: TableInfo, reading: Reading, schema: pa.Schema
    ) -> None:
        self._name = name
        self._table_id = table_id
        self._info = info
        self._collect = reading.collect
        self._schema = schema
        self._image_fields = list(schema.field(AFTER).type)
        columns = reading.fields.columns[name]
        column_indexes = _column_indexes(columns, info, reading.watched, table_id)
        is_changed = version > reading.begin_version
        self._differences = _differences(columns, column_indexes, info) if is_changed else _NONE
        fails = reading.zero_dates_fail
        self._fields = tuple(
            _field(column, field.type, column_indexes, is_changed, zero_dates_fail=fails)
            for column, field in zip(columns, self._image_fields, strict=True)
        )

    def read(self, kind: Kind, rows: Rows, *, together_min: int) -> Iterator[Part]:
        """Decode rows of one kind. If they are at least `together_min`, those in TiDB's usual encoding are decoded
        together, with the same results. Raises DecodeError, SchemaChanged or ValueUnfit, naming the table and the first
        row's commit_ts; if several rows are bad, the error may be that of any of them."""
        if self._differences.what and not self._collect:
            raise SchemaChanged(".".join(self._name), self._differences.what, int(rows.commit_ts[0]))
        together = self._together if len(rows) >= together_min else None
        if together is not None:
            every = together.targets
            with self._named(rows):
                good, old, new = in_step(together.reader, kind, rows, every, every)
            if good.any():
                found = rows.take(good)
                after, before = (self._image_of_columns(columns, together, found) for columns in (new, old))
                yield Part(self._name, kind, found, before, after, None)
            rows = rows.take(~good)
        for begin in range(0, len(rows), ROWS_MAX):
            yield self._one_by_one(kind, rows.take(np.arange(begin, min(begin + ROWS_MAX, len(rows)))))

    @cached_property
    def _together(self) -> _Together | None:
        """None if rows are decoded one by one: columns are collected, or a field's values are cast or may be in one of
        two columns."""
        if self._differences.added:
            return None
        try:
            layout = layout_of(TableAt(self._table_id, self._name[0], self._info, self._info, 0, 0))
        except DecodeError:
            return None  # a column that is not in the query has a type without decoded values
        reader = ColumnsReader.of(layout)
        target = {column.id: number for number, column in enumerate(layout.targets)}
        for field in self._fields:
            for source in field.sources:
                is_hidden = source.column.id in self._info.columns_by_id and source.column.id not in target
                if len(field.sources) > 1 or source.is_cast or is_hidden:
                    return None
        places = [target.get(field.sources[0].column.id) if field.sources else None for field in self._fields]
        return None if reader is None else _Together(reader, range(len(layout.targets)), tuple(places))

    def _image_of_columns(self, columns: Columns | None, together: _Together, rows: Rows) -> Any:
        if columns is None:
            return None
        arrays = []
        for field, place in zip(self._fields, together.places, strict=True):
            if place is None:
                arrays.append(pa.repeat(self._array(field, [{}], rows, [])[0], len(rows)))
                continue
            with self._named(rows, field.name):
                arrays.append(field.sources[0].convert(columns[place]))
        return pa.StructArray.from_arrays(arrays, fields=self._image_fields)

    def _one_by_one(self, kind: Kind, rows: Rows) -> Part:
        with self._named(rows):
            images = [self._values(kind, rows.row(number)) for number in range(len(rows))]
        after, added = self._image([new for _, new in images], rows) if kind is not Kind.DELETE else (None, None)
        before, shown = self._image([old for old, _ in images], rows) if kind is not Kind.INSERT else (None, None)
        return Part(self._name, kind, rows, before, after, shown if kind is Kind.DELETE else added)

    def _values(self, kind: Kind, row: bytes) -> tuple[Values, Values]:
        """(old, new)."""
        if kind is Kind.INSERT:
            return {}, decode_insert(self._info, row)[1]
        return (decode_delete(self._info, row), {}) if kind is Kind.DELETE else decode_update(row)

    def _image(self, images: Sequence[Values], rows: Rows) -> tuple[Any, Any]:
        """(struct array, map array of added columns)."""
        added: list[Added] = [[] for _ in images]
        arrays = [self._array(field, images, rows, added) for field in self._fields]
        with self._named(rows):
            for column in self._differences.added:
                for values, more in zip(images, added, strict=True):
                    more.append((column.name, text_of(values.get(column.id), column.type)))
        image = pa.StructArray.from_arrays(arrays, fields=self._image_fields)
        return image, pa.array([more or None for more in added], self._schema.field(ADDED).type) if any(added) else None

    def _array(self, field: _Field, images: Sequence[Values], rows: Rows, added: Sequence[Added]) -> Any:
        """Return the values of one field. With `schema-changes` = collect, values that do not fit go to `added`."""
        if not field.sources:
            return pa.nulls(len(images), field.arrow_type)
        found: list[list[DecodedValue]] = [[None] * len(images) for _ in field.sources]
        with self._named(rows, field.name):
            for row, values in enumerate(images):
                number, value = field.value_in(values)
                source = field.sources[number]
                try:
                    found[number][row] = source.decoded_value(value)
                except ValueError as error:
                    if not self._collect:
                        name = ".".join(self._name)
                        raise ValueUnfit(name, field.name, str(error), int(rows.commit_ts[0])) from None
                    added[row].append((field.name, text_of(value, source.column.type)))
            arrays = [
                source.convert(pa.array(values, source.decoded.decoded_type))
                for source, values in zip(field.sources, found, strict=True)
            ]
        return pc.coalesce(*arrays)  # each row has its value in one of them

    @contextmanager
    def _named(self, rows: Rows, column: str = "") -> Iterator[None]:
        """Name the place of a damaged value: the table, its column and the commit_ts."""
        try:
            yield
        except DecodeError as error:
            found = error
        except (OverflowError, pa.ArrowInvalid) as error:
            found = DecodeError("value", offset=0, detail=str(error))
        else:
            return
        what, detail = (f"column {column}", f"{found.what}: {found.detail}") if column else (found.what, found.detail)
        place = f"{'.'.join(self._name)} (table id {self._table_id}, commit_ts {int(rows.commit_ts[0])})"
        raise DecodeError(f"row of {place}: {what}", offset=found.offset, detail=detail)


def _field(
    column: ColumnInfo | None, arrow_type: Any, column_indexes: Places, is_changed: bool, *, zero_dates_fail: bool
) -> _Field:
    if column is None:
        return _Field("", arrow_type, (), None)
    at = column_indexes[column.id]
    # A row may have the column before the column is public, with the value that it will have then.
    written = [column] if at is None else [at] if at.id == column.id else [at, column]
    sources = []
    for one in written:
        kind = one.type if spark_type(one.type) == spark_type(column.type) else column.type
        sources.append(_Source(one, ColumnType.of(kind), column_converter(kind, zero_dates_fail=zero_dates_fail)))
    default = None if at is None and is_changed else missing_value(written[0])  # dropped: NULL
    return _Field(column.name, arrow_type, tuple(sources), default)


Places = Mapping[int, ColumnInfo | None]


def _column_indexes(columns: Iterable[ColumnInfo | None], info: TableInfo, watched: Watched, table_id: int) -> Places:
    """Return for each column id in the query the column of `info` that holds its value; its id differs after a change
    of type. None: no column."""
    now = {c.id: c for c in replicated(info)}
    later = {ancestor: c for c in now.values() for ancestor in watched.ancestors(table_id, c.id)}
    column_indexes: dict[int, ColumnInfo | None] = {}
    for column in columns:
        if column is not None:
            ids = [column.id, *watched.ancestors(table_id, column.id)]
            column_indexes[column.id] = next((now[i] for i in ids if i in now), later.get(column.id))
    return column_indexes


@dataclass(frozen=True, slots=True)
class _Differences:
    """Differences from the start of the query. `what`: text of the first one, "" for none; `added`: columns without a
    field in the query."""

    what: str
    added: tuple[ColumnInfo, ...]


_NONE = _Differences("", ())


def _differences(columns: Iterable[ColumnInfo | None], column_indexes: Places, info: TableInfo) -> _Differences:
    """Compare the columns of a table at the start of the query with `info`."""
    texts = []
    for column in columns:
        at = column_indexes[column.id] if column is not None else None
        if column is None:
            continue
        if at is None:
            texts.append(f"column {column.name} was dropped")
        elif at.name.lower() != column.name.lower():
            texts.append(f"column {column.name} was renamed to {at.name}")
        elif spark_type(at.type) != spark_type(column.type):
            texts.append(f"the type of column {column.name} was changed to {at.type.mysql_name}")
    taken = {at.id for at in column_indexes.values() if at is not None}
    added = tuple(c for c in replicated(info) if c.id not in taken)
    texts += [f"column {c.name} was added" for c in added]
    return _Differences(texts[0] if texts else "", added)
