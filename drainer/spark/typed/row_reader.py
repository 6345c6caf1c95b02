"""Decodes rows of one table id and schema version into the columns of a query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten, missing_value, to_text
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType

from drainer.batch.work import Kind
from drainer.changes.decode import Columns, in_step
from drainer.changes.reading import RowReader as ColumnsReader
from drainer.changes.scan import Rows
from drainer.row.codec import cell_of
from drainer.row.column_type import ColumnType, DecodedValue
from drainer.row.layout import Layout, layout_of, replicated
from drainer.row.rules import RowRules, mapped, mask_function
from drainer.schema.history.base import Name, Watched
from drainer.schema.rules import ColumnRule, Mask, MaskKind
from drainer.schema.view import TableAt
from drainer.spark.typed.fields import ADDED, AFTER, KeyUnfit, Reading, SchemaChanged, ValueUnfit
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
    query's column. `convert`: also masks, if the field is masked. `refused`: why its mask cannot be used for this
    type, or ""."""

    column: ColumnInfo
    decoded: ColumnType
    convert: ConvertColumn
    refused: str

    @property
    def is_cast(self) -> bool:
        return self.decoded.kind is not self.column.type

    def decoded_value(self, value: Datum) -> DecodedValue:
        """Raises DecodeError for a damaged value, and ValueError for one that the query's column cannot hold. Values
        are cast as by TiDB's MODIFY COLUMN."""
        if self.refused and value is not None:
            raise ValueError(self.refused)
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
    masked: bool = False

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
        self._applied = reading.rules.values.applied(name[0], info)
        rule = reading.rules.values.of_values(*name)[0]
        self._mask_of = partial(_mask_of, rule)
        self.ignored_kinds = reading.rules.events.ignored_kinds(*name)
        self._collect = reading.collect
        self._schema = schema
        self._image_fields = list(schema.field(AFTER).type)
        columns = reading.fields.columns[name]
        given = info if self._applied is None else self._applied.info
        left_out = frozenset() if self._applied is None else self._applied.left_out
        column_indexes = _column_indexes(columns, given, reading.watched, table_id)
        is_changed = version > reading.begin_version
        self._differences = _differences(columns, column_indexes, given) if is_changed else _NONE
        if self._differences.added:
            self._differences = _without_left_out(self._differences, table_id, reading)
        fails = reading.zero_dates_fail
        fields = []
        self._unfit_key = ""  # the column of the key that has another mask by its name in the rows
        for column, field in zip(columns, self._image_fields, strict=True):
            written = [] if column is None or rule is None else _written(column, info, reading.watched, table_id)
            mask = None if column is None else self._mask_of(column, *written)
            if column is not None and mask != self._mask_of(column) and column.name in reading.fields.key:
                self._unfit_key = column.name if reading.changelog else ""
            shown = None if _is_left_out(rule, left_out, written) else column
            fields.append(_field(shown, field.type, column_indexes, is_changed, mask, zero_dates_fail=fails))
        self._fields = tuple(fields)

    def read(self, kind: Kind, rows: Rows, *, together_min: int) -> Iterator[Part]:
        """Decode rows of one kind. If they are at least `together_min`, those in TiDB's usual encoding are decoded
        together, with the same results. Rules may make another kind of a change. Raises DecodeError, SchemaChanged or
        ValueUnfit, naming the table and the first row's commit_ts; if several rows are bad, the error may be that of
        any of them."""
        if self._differences.what and not self._collect:
            raise SchemaChanged(".".join(self._name), self._differences.what, int(rows.commit_ts[0]))
        if self._unfit_key:
            why = "is masked by its former name only"
            raise KeyUnfit(".".join(self._name), self._unfit_key, why, int(rows.commit_ts[0]))
        together = self._together if len(rows) >= together_min else None
        if together is not None:
            every = together.targets
            with self._named(rows):
                good, old, new = in_step(together.reader, kind, rows, every, every)
            if good.any():
                found = rows.take(good)
                after, before = (self._image_of_columns(columns, together, found) for columns in (new, old))
                yield from self._chosen(kind, found, (old, new), _Images(before, after))
            rows = rows.take(~good)
        for begin in range(0, len(rows), ROWS_MAX):
            yield from self._one_by_one(kind, rows.take(np.arange(begin, min(begin + ROWS_MAX, len(rows)))))

    def _chosen(
        self, kind: Kind, rows: Rows, columns: tuple[Columns | None, Columns | None], images: _Images
    ) -> Iterator[Part]:
        """Yield the changes that the condition chooses, each with the kind that they have by it. `columns`: (old, new),
        decoded."""
        if self._conditions is None:
            yield images.part(self._name, kind, rows)
            return
        for made, chosen in self._conditions.kinds(*columns, len(rows)):
            yield images.take(chosen).part(self._name, made, rows.take(chosen))

    @cached_property
    def _layout(self) -> Layout:
        given = self._info if self._applied is None else self._applied.info
        return layout_of(TableAt(self._table_id, self._name[0], self._info, given, 0, 0))

    @cached_property
    def _conditions(self) -> RowRules | None:
        if self._applied is None or self._applied.where is None:
            return None
        return RowRules(self._layout, self._applied)

    @cached_property
    def _together(self) -> _Together | None:
        """None if rows are decoded one by one: columns are collected, or a field's values are cast or may be in one of
        two columns."""
        if self._differences.added:
            return None
        try:
            layout = self._layout
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
            with self._named(rows, field.name, masked=field.masked):
                arrays.append(field.sources[0].convert(columns[place]))
        return pa.StructArray.from_arrays(arrays, fields=self._image_fields)

    def _one_by_one(self, kind: Kind, rows: Rows) -> Iterator[Part]:
        with self._named(rows):
            values = [self._values(kind, rows.row(number)) for number in range(len(rows))]
            old = None if kind is Kind.INSERT else [old for old, _ in values]
            new = None if kind is Kind.DELETE else [new for _, new in values]
            columns = self._columns(old), self._columns(new)
        after, added_after = (None, None) if new is None else self._image(new, rows)
        before, added_before = (None, None) if old is None else self._image(old, rows)
        yield from self._chosen(kind, rows, columns, _Images(before, after, added_before, added_after))

    def _columns(self, images: Sequence[Values] | None) -> Columns | None:
        """Return the columns that the condition needs."""
        if images is None or self._conditions is None:
            return None
        return tuple(
            pa.array([cell_of(target, values) for values in images], target.column_type.decoded_type)
            if number in self._conditions.columns
            else None
            for number, target in enumerate(self._layout.targets)
        )

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
                mask = self._mask_of(column)
                for values, more in zip(images, added, strict=True):
                    more.append((column.name, _text(values.get(column.id), column.type, mask)))
        image = pa.StructArray.from_arrays(arrays, fields=self._image_fields)
        return image, pa.array([more or None for more in added], self._schema.field(ADDED).type) if any(added) else None

    def _array(self, field: _Field, images: Sequence[Values], rows: Rows, added: Sequence[Added]) -> Any:
        """Return the values of one field. With `schema-changes` = collect, values that do not fit go to `added`."""
        if not field.sources:
            return pa.nulls(len(images), field.arrow_type)
        found: list[list[DecodedValue]] = [[None] * len(images) for _ in field.sources]
        with self._named(rows, field.name, masked=field.masked):
            for row, values in enumerate(images):
                number, value = field.value_in(values)
                source = field.sources[number]
                try:
                    found[number][row] = source.decoded_value(value)
                except ValueError as error:
                    if not self._collect:
                        name, why = ".".join(self._name), "a masked value does not fit" if field.masked else str(error)
                        raise ValueUnfit(name, field.name, why, int(rows.commit_ts[0])) from None
                    added[row].append((field.name, None if field.masked else text_of(value, source.column.type)))
            arrays = [
                source.convert(pa.array(values, source.decoded.decoded_type))
                for source, values in zip(field.sources, found, strict=True)
            ]
        return pc.coalesce(*arrays)  # each row has its value in one of them

    @contextmanager
    def _named(self, rows: Rows, column: str = "", *, masked: bool = False) -> Iterator[None]:
        """Name the place of a damaged value: the table, its column and the commit_ts. The text of an error may hold the
        value, so it is left out if that is `masked`."""
        try:
            yield
        except DecodeError as error:
            found = error
        except (OverflowError, pa.ArrowInvalid) as error:
            found = DecodeError("value", offset=0, detail=str(error))
        else:
            return
        what, detail = (f"column {column}", f"{found.what}: {found.detail}") if column else (found.what, found.detail)
        detail = "a masked value cannot be read" if masked else detail
        place = f"{'.'.join(self._name)} (table id {self._table_id}, commit_ts {int(rows.commit_ts[0])})"
        raise DecodeError(f"row of {place}: {what}", offset=found.offset, detail=detail)


class _Images(NamedTuple):
    """Both images of rows, as in Part; `added_before`, `added_after`: map arrays of the columns that were added."""

    before: Any
    after: Any
    added_before: Any = None
    added_after: Any = None

    def take(self, chosen: npt.NDArray[np.bool_]) -> _Images:
        at = pa.array(np.flatnonzero(chosen))
        return _Images(*(None if image is None else image.take(at) for image in self))

    def part(self, name: Name, kind: Kind, rows: Rows) -> Part:
        before = None if kind is Kind.INSERT else self.before
        after = None if kind is Kind.DELETE else self.after
        return Part(name, kind, rows, before, after, self.added_before if kind is Kind.DELETE else self.added_after)


def _mask_of(rule: ColumnRule | None, *columns: ColumnInfo) -> Mask | None:
    """Return the mask that a rule gives to one of the columns: by its name of today or by that of the row, so that a
    value is never shown by a rename."""
    return None if rule is None else next((mask for c in columns if (mask := rule.mask(c.name)) is not None), None)


def _written(column: ColumnInfo, info: TableInfo, watched: Watched, table_id: int) -> list[ColumnInfo]:
    """Return the columns of `info` whose names count for the values of a column: those that are public, or, if none is,
    those that are not public yet."""
    ids = {column.id, *watched.ancestors(table_id, column.id)}
    found = [c for c in info.columns if c.id in ids or column.id in watched.ancestors(table_id, c.id)]
    return [c for c in found if c.is_public] or found


def _is_left_out(rule: ColumnRule | None, left_out: Collection[int], columns: Iterable[ColumnInfo]) -> bool:
    """`left_out`: ids of public columns. Another one is left out by its name, but not because it is new."""
    named = None if rule is None else replace(rule, new_column="pass")
    return any(c.id in left_out or (named is not None and named.leaves_out(c.name)) for c in columns)


def _text(value: Datum, kind: FieldType, mask: Mask | None) -> str | None:
    """Return the text of a value, masked."""
    if mask is None or value is None:
        return text_of(value, kind)
    if mask.kind is MaskKind.CONSTANT:
        return mask.text
    column_type = ColumnType.of(kind)
    masked = mask_function(mask, column_type)(column_type.decoded_value(value))
    assert isinstance(masked, bytes)  # these masks are for texts
    return text_of(masked, kind)


def _field(
    column: ColumnInfo | None,
    arrow_type: Any,
    column_indexes: Places,
    is_changed: bool,
    mask: Mask | None,
    *,
    zero_dates_fail: bool,
) -> _Field:
    if column is None:
        return _Field("", arrow_type, (), None)
    at = column_indexes[column.id]
    # A row may have the column before the column is public, with the value that it will have then.
    written = [column] if at is None else [at] if at.id == column.id else [at, column]
    sources = []
    for one in written:
        fits = spark_type(one.type) == spark_type(column.type) and not _why_not(mask, one.type, column)
        kind = one.type if fits else column.type
        decoded, convert = ColumnType.of(kind), column_converter(kind, zero_dates_fail=zero_dates_fail)
        refused = _why_not(mask, kind, column)
        if mask is not None and not refused:
            convert = _masking(mask_function(mask, decoded), convert)
        sources.append(_Source(one, decoded, convert, refused))
    default = None if at is None and is_changed else missing_value(written[0])  # dropped: NULL
    return _Field(column.name, arrow_type, tuple(sources), default, mask is not None)


def _why_not(mask: Mask | None, kind: FieldType, column: ColumnInfo) -> str:
    return "" if mask is None else mask.why_not(replace(column, type=kind), unique=False)


def _masking(mask: Callable[[Any], DecodedValue], convert: ConvertColumn) -> ConvertColumn:
    return lambda column: convert(mapped(column, mask, column.type))


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


def _without_left_out(differences: _Differences, table_id: int, reading: Reading) -> _Differences:
    """Without the added columns that have only another name, and were left out when the query was started."""
    start = reading.watched.at(table_id, reading.begin_version)
    if start is None or start.name is None:
        return differences
    applied = reading.rules.values.applied(start.name[0], start.info)
    gone = frozenset() if applied is None else applied.left_out
    ancestors = reading.watched.ancestors
    added = tuple(c for c in differences.added if gone.isdisjoint((c.id, *ancestors(table_id, c.id))))
    return replace(differences, added=added)
