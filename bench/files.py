"""Measure the writing of files, compared with a plain copy of the same bytes in one run.

    python -m bench.files [--rows 200000] [--directory DIR]

`pb` and `parquet` are the work of the file destination for batches whose rows are decoded: encode, append, flush to the
disk, record the position. For Parquet this is the write of the stage file, and `converting` is its later conversion to
Parquet. `decoding` is the preceding work in the driver, which is the same for every destination of changes. The copy
writes the same bytes with one flush for each batch: the cost of the disk and the kernel. Wall-clock figures are the
median of alternating runs. CPU figures are the least of them, which a loaded machine changes little. `sbtest` is
pumpload's table, `wide` has ten columns of ten types; a transaction is one row, or of sbtest 20.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

from binlog.tidb.table import TableInfo

from bench.columns import wide_binlogs
from bench.report import Report
from bench.rowcodec import SBTEST, WIDE, binlogs, sbtest_row, wide_row
from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.sink.base import Identity
from drainer.sink.file.files import FileFormat, Rotation
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.sink import FileSink
from tests.support.row_case import BEGIN_TS, view_of

BATCHES = 8
RUNS = 3
FILE_BYTES = 1 << 40  # large enough that everything is in one file, as the copy is


def decoded(info: TableInfo, payloads: Sequence[bytes]) -> list[ChangeSegment]:
    """Return the rows decoded, in consecutive batches."""
    decoder = StreamDecoder(view_of(info))
    size = -(-len(payloads) // BATCHES)
    segments = []
    for number, at in enumerate(range(0, len(payloads), size)):
        segments.append(decoder.segment(payloads[at : at + size], BEGIN_TS + number, BEGIN_TS + number + 1))
    return segments


def written_s(directory: Path, form: FileFormat, segments: Sequence[ChangeSegment]) -> tuple[float, float]:
    """Return (wall-clock time, CPU time) of writing all batches."""
    destination = FileSink(directory, form, rotation=Rotation(FILE_BYTES))
    destination.open(Identity(1, "bench", "bench"), BEGIN_TS)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for segment in segments:
        destination.apply(segment, 1)
    taken = time.perf_counter() - begin, time.process_time() - begin_cpu
    destination.close(clean=True)
    return taken


def copied_s(source: Path, into: Path) -> float:
    """Return the times of a copy through memory, with one write and flush for each batch."""
    data = source.read_bytes()
    size = -(-len(data) // BATCHES)
    begin = time.perf_counter()
    with into.open("wb") as file:
        for at in range(0, len(data), size):
            file.write(data[at : at + size])
            file.flush()
            os.fsync(file.fileno())
    return time.perf_counter() - begin


def converted_s(form: ParquetFormat, directory: Path) -> float:
    (staged,) = form.files_directory(directory).glob("binlog-*")
    begin = time.perf_counter()
    form.complete(directory, staged, lambda: False)
    return time.perf_counter() - begin


def measure(report: Report, name: str, info: TableInfo, payloads: list[bytes], rows: int, scratch: Path) -> None:
    begin = time.perf_counter()
    segments = decoded(info, payloads)
    report.add(f"{name} decoding", rows / (time.perf_counter() - begin), "rows/s")
    for kind, form in (("pb", PbFormat(UTC)), ("parquet", ParquetFormat())):
        ours, cpu, copies, converting, size = [], [], [], [], 0
        for _ in range(RUNS):
            directory = scratch / kind
            wall_s, cpu_s = written_s(directory, form, segments)
            ours.append(wall_s)
            cpu.append(cpu_s)
            (file,) = form.files_directory(directory).glob("binlog-*")
            size = file.stat().st_size
            copies.append(copied_s(file, scratch / "copy"))
            if isinstance(form, ParquetFormat):
                converting.append(converted_s(form, directory))
            shutil.rmtree(directory)
        seconds, copy = statistics.median(ours), statistics.median(copies)
        report.add(f"{name} {kind}", rows / seconds, "rows/s")
        report.add(f"{name} {kind}, of CPU time", rows / min(cpu), "rows/s")
        report.add(f"{name} {kind}, bytes", size / seconds / 1e6, "MB/s")
        report.add(f"{name} {kind}, a plain copy of them", size / copy / 1e6, "MB/s")
        report.ratio(f"{name} {kind}, bytes", f"{name} {kind}, a plain copy of them")
        if converting:
            report.add(f"{name} {kind}, converting", rows / statistics.median(converting), "rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Files beside a plain copy of the same bytes.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--directory", default=None, help="where to write; a directory for temporary files by default")
    options = parser.parse_args()
    rows = options.rows
    report = Report(f"files, {rows:,} rows in {BATCHES} batches, median of {RUNS}")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        scratch = Path(name)
        measure(report, "sbtest", SBTEST, binlogs(SBTEST, sbtest_row, rows), rows, scratch)
        measure(report, "sbtest, 20 rows each", SBTEST, wide_binlogs(rows, 20), rows, scratch)
        measure(report, "wide", WIDE, binlogs(WIDE, wide_row, rows), rows, scratch)


if __name__ == "__main__":
    main()
