"""Changes as Parquet: records of Arrow tables first, which become Parquet files when their file is complete.

    stage/binlog-…                               records: an Arrow IPC stream of changes of one table, or of a DDL
    tables/<database>/<table>/<n>-<k>.parquet    file n's changes of that table, in upstream's order; another k where
                                                 its columns changed
    ddl/<n>-0.parquet                            file n's DDLs

A Parquet file has its name only when it is whole. Until then its changes are in `stage`, which is what is committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import make_directory, sync_directory, sync_file
from binlog.tidb.types import Tp

from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes, Columns
from drainer.changes.texts import numbers_of
from drainer.protocol.column_text import texts_of
from drainer.protocol.errors import converted
from drainer.protocol.pb_file import parse_name, records
from drainer.row.column_type import ColumnType, TypeClass
from drainer.schema.steps import Ddl
from drainer.sink.file.files import Add, Put, RecordFiles, put_record
from drainer.sink.file.lines import ddl_row

# Columns of decoded values (row/column_type.py) as readers of Parquet know them. Pure.
#
# | MySQL | Arrow |
# |---|---|
# | integers, YEAR | int64; of BIGINT UNSIGNED decimal(20, 0) |
# | DECIMAL(p, s) | decimal(p, s) up to 38 digits, else a string |
# | FLOAT, DOUBLE | float, double |
# | character strings, ENUM, SET, JSON | string |
# | binary strings | binary |
# | DATE, DATETIME, TIMESTAMP (UTC), TIME | string: zero dates are values, too |
# | BIT | int64; BIT(64) decimal(20, 0) |

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
        if type_class in (TypeClass.INT, TypeClass.FLOAT, TypeClass.BYTES, TypeClass.DECIMAL, TypeClass.BIT):
            return numbers_of(column_type, array).cast(wanted)
        if type_class is TypeClass.TEXT:
            return array.cast(pa.string())
        return texts_of(column_type, array, UTC).cast(pa.string())
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
        by_order = np.argsort(np.concatenate([changes.order for changes in group]), kind="stable")
        yield table.take(by_order).combine_chunks()


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
    where = f"`{changes.shape.schema}`.`{changes.shape.table}`.`{name}`"
    return converted(where, changes.commit_ts, partial(arrow_column, column_type), array)


HELD_ROWS_MAX: Final = 1 << 16
HELD_BYTES_MAX: Final = 128 << 20
_TEMPORARY: Final = ".tmp"
_KEPT = re.compile(r"[^0-9A-Za-z_\-\u0080-\U0010ffff]")


class ParquetFormat(RecordFiles):
    """See files.FileFormat."""

    stored_generated = True

    def files_directory(self, directory: Path) -> Path:
        return directory / "stage"

    def writer(self, scratch: Path, put: Put) -> AbstractContextManager[Add]:
        def add(segment: ChangeSegment) -> None:
            for table in tables_of(segment):
                _put_table(put, table)

        return nullcontext(add)

    def ddl(self, step: Ddl, place: int, put: Put) -> None:
        _put_table(put, pa.Table.from_pylist([ddl_row(step, place)], DDL_SCHEMA))

    def complete(self, directory: Path, file: Path, stopped: Callable[[], bool]) -> None:
        name = parse_name(file.name)
        assert name is not None
        writers = _Writers(directory, name.number)
        try:
            for one in records(file):
                if stopped():
                    return
                with pa.ipc.open_stream(one.payload) as reader:
                    writers.add(reader.read_all())
            writers.finish()
        finally:
            writers.close()
        crash_point("file.converted")
        file.unlink()
        sync_directory(file.parent)

    def kept(self, directory: Path) -> Iterable[Path]:
        return sorted(directory.rglob("*.parquet"))


def _put_table(put: Put, table: pa.Table) -> None:
    """Write a record: an Arrow IPC stream of the table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    payload = bytes(sink.getvalue())
    put_record(put, (payload,), len(payload))


def path_of(name: str) -> str:
    """Return a database's or table's name as a directory name that no reader mistakes for a hidden directory, a pattern
    or a partition: characters other than letters, digits, `-` and `_` become %XX, and so does a leading `_`."""
    quoted = _KEPT.sub(lambda found: f"%{ord(found[0]):02X}", name)
    return f"%5F{quoted[1:]}" if quoted.startswith("_") else quoted


class _Writers:
    """Write the Parquet files that one record file becomes."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._number = number
        self._open: dict[tuple[Path, Any], _Writer] = {}
        self._layouts: dict[Path, int] = {}

    def add(self, table: Any) -> None:
        metadata = table.schema.metadata or {}
        if b"schema" in metadata:
            names = (path_of(metadata[name].decode()) for name in (b"schema", b"table"))
            directory = self._directory.joinpath("tables", *names)
        else:
            directory = self._directory / "ddl"
        key = directory, table.schema
        if key not in self._open:
            layout = self._layouts[directory] = self._layouts.get(directory, -1) + 1
            make_directory(directory)
            path = directory / f"{self._number:09d}-{layout}.parquet"
            self._open[key] = _Writer(path, table.schema)
        self._open[key].add(table)
        if sum(writer.held_bytes for writer in self._open.values()) > HELD_BYTES_MAX:
            max(self._open.values(), key=lambda writer: writer.held_bytes).flush()

    def finish(self) -> None:
        """Sync all files and give them their names."""
        for writer in self._open.values():
            writer.finish()
        for directory in self._layouts:
            sync_directory(directory)

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()


class _Writer:
    """Write one Parquet file; rows are held in memory until they fill a row group."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._path = path
        self._beside = path.with_name(path.name + _TEMPORARY)
        self._writer = pq.ParquetWriter(self._beside, schema, compression="zstd")
        self._held: list[Any] = []
        self._held_rows = 0
        self.held_bytes = 0

    def add(self, table: Any) -> None:
        self._held.append(table)
        self._held_rows += table.num_rows
        self.held_bytes += table.nbytes
        if self._held_rows >= HELD_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held).combine_chunks())
        self._held, self._held_rows, self.held_bytes = [], 0, 0

    def finish(self) -> None:
        self.flush()
        self._writer.close()
        sync_file(self._beside)
        crash_point("file.parquet_written")
        self._beside.rename(self._path)

    def close(self) -> None:
        """Close the file. Without `finish` before, the file is removed."""
        self._writer.close()
        self._beside.unlink(missing_ok=True)
