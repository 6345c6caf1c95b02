"""A recording through a pipeline into a directory of files, without Spark, and what they then hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from drainer.protocol.pb_file.decoder import FileBinlog, decode
from drainer.protocol.pb_file.reader import records, sorted_files
from drainer.protocol.pb_file.records import parse_name
from drainer.sink.file.appender import Rotation
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.sink import FileSink
from tests.support.jsonl_case import WHO, run_into

FORMATS = {
    "pb": PbFormat(UTC, held_bytes_max=300),
    "pb-gzip": PbFormat(UTC, compresses=True, held_bytes_max=300),
    "parquet": ParquetFormat(),
}


def sink(directory: Path, form: str, *, rotate_bytes: int = 4000, interval_ms: int = 0, **more: Any) -> FileSink:
    return FileSink(directory, FORMATS[form], rotation=Rotation(rotate_bytes, interval_ms), **more)


def run(directory: Path, edges: Sequence[int], form: str) -> None:
    """See jsonl_case.run_into."""
    run_into(sink(directory, form), edges)


def finish(directory: Path, form: str) -> None:
    """Complete the current file, whatever its size, and put all of them away."""
    destination = sink(directory, form, rotate_bytes=1)
    destination.open(WHO, 1)
    destination.settle()
    destination.close(clean=True)


def payloads(directory: Path) -> list[bytes]:
    """Of all files of records."""
    names = sorted_files(directory, parse_name)
    return [
        one.payload
        for at, name in enumerate(names)
        for one in records(directory / name.text, is_last=at == len(names) - 1)
    ]


def binlogs(directory: Path) -> list[FileBinlog]:
    return [decode(payload) for payload in payloads(directory)]


def parquet_rows(directory: Path) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every change and DDL of the Parquet files, with its place in the stream."""
    found = []
    for path in sorted(directory.rglob("*.parquet")):
        table = pq.read_table(path)
        of = (str(path.parent.relative_to(directory)),)
        for row in table.to_pylist():
            is_ddl = "query" in row
            place = (row["commit_ts"], is_ddl, 0 if is_ddl else row["start_ts"], row.get("place", 0))
            found.append((place, {**row, "of": of}))
    return found
