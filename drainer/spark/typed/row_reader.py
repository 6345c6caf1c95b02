"""Decodes rows of one table id and schema version into the columns of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.default import missing_value
from binlog.tidb.flatten import flatten
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType
from binlog.tidb.unflatten import to_text

from drainer.batch.work import Kind
from drainer.row.layout import replicated
from drainer.schema.table_versions import Name, Watched
from drainer.spark.typed.fields import Reading, SchemaChanged, ValueUnfit
from drainer.spark.typed.types import Convert, converter, spark_type, text_of

Image = tuple[object, ...]  # a value for each field of the query, in the form that pyarrow.array accepts
Added = list[tuple[str, str | None]]  # name and text of the columns for which the query has no field
Values = Mapping[int, Datum]


class FieldSource(NamedTuple):
    """Where a field's values come from. `column`: the column that has the field's values; None: every row has the value
    `constant`, in the form that pyarrow.array accepts."""

    column: ColumnInfo | None
    constant: object


class RowReader:
    """`name`: the table's name at the start of the query; `info`: the TableInfo with which the rows were written."""

    def __init__(self, name: Name, table_id: int, version: int, info: TableInfo, reading: Reading) -> None:
        self.name = name
        self._table_id = table_id
        self.info = info
        self._reading = reading
        self._columns = columns = reading.fields.columns[name]
        self._column_indexes = _column_indexes(columns, info, reading.watched, table_id)
        changed = version > reading.begin_version
        self._differences = _differences(columns, self._column_indexes, info) if changed else _NONE
        self._cells = tuple(self._cell(column, changed) for column in columns)

    def field_sources(self) -> tuple[FieldSource, ...] | None:
        """Return where the values of each field of the query are stored, for rows that have only columns of this table
        version. None if `read` must be used: a DDL is an error, its added columns are collected, or a value may have to
        be cast."""
        if self._differences.added or (self._differences.what and not self._reading.collect):
            return None
        sources = [self._field_source(column, cell) for column, cell in zip(self._columns, self._cells, strict=True)]
        return tuple(s for s in sources if s is not None) if None not in sources else None

    def _field_source(self, column: ColumnInfo | None, cell: _Cell) -> FieldSource | None:
        at = self._column_indexes[column.id] if column is not None else None
        if column is None or (at is None and column.id not in self.info.columns_by_id):
            return FieldSource(None, None if cell.default is None else cell.sources[0].convert(cell.default))
        if at is None or at.id != column.id or spark_type(at.type) != spark_type(column.type):
            return None
        return FieldSource(at, None)

    def read(self, kind: Kind, row: bytes, commit_ts: int) -> tuple[Image | None, Image | None, Added | None]:
        """Return (before, after, added) of a row. Raises DecodeError or SchemaChanged, naming table and commit_ts."""
        if self._differences.what and not self._reading.collect:
            raise SchemaChanged(".".join(self.name), self._differences.what, commit_ts)
        try:
            if kind is Kind.INSERT:
                new = decode_insert(self.info, row)[1]
                after, added = self._image(new, commit_ts)
                return None, after, added
            if kind is Kind.DELETE:
                before, added = self._image(decode_delete(self.info, row), commit_ts)
                return before, None, added
            old, new = decode_update(row)
            after, added = self._image(new, commit_ts)
            return self._image(old, commit_ts)[0], after, added
        except DecodeError as error:
            self._fail(error, commit_ts)

    def _image(self, values: Values, commit_ts: int) -> tuple[Image, Added | None]:
        cells: list[object] = []
        added: Added = []
        for cell in self._cells:
            try:
                cells.append(cell.read(values))
            except DecodeError as error:
                detail = f"{error.what}: {error.detail}"
                raise DecodeError(f"column {cell.name}", offset=error.offset, detail=detail) from None
            except ValueError as error:
                if not self._reading.collect:
                    raise ValueUnfit(".".join(self.name), cell.name, str(error), commit_ts) from None
                cells.append(None)
                added.append((cell.name, cell.shown(values)))
        added += [(c.name, text_of(values.get(c.id), c.type)) for c in self._differences.added]
        return tuple(cells), added or None

    def _cell(self, column: ColumnInfo | None, changed: bool) -> _Cell:
        if column is None:
            return _NO_CELL
        fails = self._reading.zero_dates_fail
        at = self._column_indexes[column.id]
        # A row may have the column before the column is public, with the value that it will have then.
        sources = [_Source(column.id, column.type, _cast(column.type, column.type, zero_dates_fail=fails))]
        if at is not None:
            sources.insert(0, _Source(at.id, at.type, _cast(at.type, column.type, zero_dates_fail=fails)))
        default = None if at is None and changed else missing_value(at or column)  # dropped: NULL
        return _Cell(column.name, tuple(sources), default)

    def _fail(self, error: DecodeError, commit_ts: int) -> NoReturn:
        column_index = f"{'.'.join(self.name)} (table id {self._table_id}, commit_ts {commit_ts})"
        raise DecodeError(f"row of {column_index}: {error.what}", offset=error.offset, detail=error.detail) from None


class _Source(NamedTuple):
    column_id: int
    kind: FieldType
    convert: Convert


@dataclass(frozen=True, slots=True)
class _Cell:
    """One field of the query. `sources`: columns that may hold its value, the first one present in a row is used;
    `default`: value in the type of the first source for a row that has none of them."""

    name: str
    sources: tuple[_Source, ...]
    default: Datum

    def read(self, values: Values) -> object:
        """Return the field's value. Raises DecodeError for a damaged value and ValueError for one that the field's type
        cannot hold.
        """
        for column_id, _, convert in self.sources:
            if column_id in values:
                value = values[column_id]
                return None if value is None else convert(value)
        return None if self.default is None else self.sources[0].convert(self.default)

    def shown(self, values: Values) -> str | None:
        """The value as text."""
        there = (text_of(values[s.column_id], s.kind) for s in self.sources if s.column_id in values)
        return next(there, text_of(self.default, self.sources[0].kind))


_NO_CELL = _Cell("", (), None)


def _cast(written: FieldType, wanted: FieldType, *, zero_dates_fail: bool) -> Convert:
    """Return a converter of values of type `written` to Spark values of type `wanted`. If their Spark types differ,
    values are cast as by TiDB's MODIFY COLUMN, and the converter raises ValueError for a value that does not fit."""
    if spark_type(written) == spark_type(wanted):
        return converter(written, zero_dates_fail=zero_dates_fail)
    convert: Callable[[Datum], object] = converter(wanted, zero_dates_fail=zero_dates_fail)
    return lambda value: convert(flatten(to_text(value, written), wanted))


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
