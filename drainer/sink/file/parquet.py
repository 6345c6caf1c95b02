"""Changes as Parquet: records of Arrow tables first, which become Parquet files when their file is complete.

    stage/binlog-…                               records: an Arrow IPC stream of changes of one table, or of a DDL
    tables/<database>/<table>/<n>-<k>.parquet    file n's changes of that table, in upstream's order; another k where
                                                 its columns changed
    ddl/<n>-0.parquet                            file n's DDLs

A Parquet file has its name only when it is whole. Until then its changes are in `stage`, which is what is committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import make_directory, sync_directory

from drainer.changes.change_segment import ChangeSegment
from drainer.protocol.pb_file.reader import records
from drainer.protocol.pb_file.records import parse_name
from drainer.schema.steps import Ddl
from drainer.sink.file.format import Put, RecordWriter, table_of
from drainer.sink.file.parquet_columns import DDL_SCHEMA, tables_of
from drainer.sink.file.record_files import RecordFiles, put_record

HELD_ROWS_MAX: Final = 1 << 16
HELD_BYTES_MAX: Final = 128 << 20
_TEMPORARY: Final = ".tmp"
_KEPT = re.compile(r"[^0-9A-Za-z_\-\u0080-\U0010ffff]")


class ParquetFormat(RecordFiles):
    """See format.FileFormat."""

    @property
    def stored_generated(self) -> bool:
        return True

    def files_directory(self, directory: Path) -> Path:
        return directory / "stage"

    def writer(self, scratch: Path, put: Put) -> TableWriter:
        return TableWriter(put)

    def ddl(self, step: Ddl, place: int, put: Put) -> None:
        schema, table = table_of(step)
        row = {
            "commit_ts": step.commit_ts,
            "start_ts": step.job.start_ts,
            "job_id": step.job.id,
            "schema": schema,
            "table": table,
            "query": step.query,
            "sql": list(step.sql),
            "early": step.early,
        }
        _put_table(put, pa.Table.from_pylist([row], DDL_SCHEMA))

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


class TableWriter(RecordWriter):
    """Writes the changes of each segment at once: those of a table are one record."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def add(self, segment: ChangeSegment) -> None:
        for table in tables_of(segment):
            _put_table(self._put, table)


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
            place = (path_of(metadata[name].decode()) for name in (b"schema", b"table"))
            directory = self._directory.joinpath("tables", *place)
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
        with self._beside.open("rb") as file:
            os.fsync(file.fileno())
        crash_point("file.parquet_written")
        self._beside.rename(self._path)

    def close(self) -> None:
        """Close the file. Without `finish` before, the file is removed."""
        self._writer.close()
        self._beside.unlink(missing_ok=True)
