"""What a batch takes of memory: in proportion to its own bytes, whatever was written before it (docs/files.md)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.changes.stream import StreamDecoder
from drainer.sink.base import Identity
from drainer.sink.file.files import Appender, FileFormat, Rotation
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.sink import FileSink
from tests.support.row_case import BEGIN_TS, INT, Step, table, transaction, view_of

_TEXT = FieldType(Tp.STRING, Flag.NOT_NULL, 120, 0, "utf8mb4", "utf8mb4_bin")
INFO = table([("id", INT), ("k", INT), ("c", _TEXT), ("pad", _TEXT)], handle="id")
ROWS = 1500


def payloads(rows_each: int) -> list[bytes]:
    found = []
    for first in range(0, ROWS, rows_each):
        steps: list[tuple[TableInfo, Step]] = []
        for n in range(first, first + rows_each):
            steps.append((INFO, ("insert", {}, {1: n, 2: n, 3: b"%0120d" % n, 4: b"%060d" % n})))
        found.append(transaction(steps, commit_ts=BEGIN_TS + first + 1))
    return found


@pytest.mark.parametrize("rows_each", [1, 20])
@pytest.mark.parametrize(("form", "times"), [(PbFormat(UTC), 8), (ParquetFormat(), 10)])
def test_memory_of_batch_is_bounded_by_its_binlogs_and_freed_afterwards(
    form: FileFormat, times: int, rows_each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = payloads(rows_each)
    size = sum(map(len, given))
    in_columns = [0]
    put = Appender.put

    def watched(self: Appender, slot: int, parts: Iterable[bytes], length: int) -> None:
        in_columns.append(pa.total_allocated_bytes() - before)
        put(self, slot, parts, length)

    before = pa.total_allocated_bytes()
    monkeypatch.setattr(Appender, "put", watched)
    sink = FileSink(tmp_path, form, rotation=Rotation(1 << 40))
    sink.open(Identity(1, "a", "b"), BEGIN_TS)
    decoder = StreamDecoder(view_of(INFO))
    peaks = []
    tracemalloc.start()
    try:
        for batch in range(5):
            tracemalloc.reset_peak()
            base, before = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()
            sink.apply(decoder.segment(given, BEGIN_TS + batch * ROWS, BEGIN_TS + (batch + 1) * ROWS), 1)
            peaks.append(tracemalloc.get_traced_memory()[1] - base + max(in_columns))
            in_columns.clear()
    finally:
        tracemalloc.stop()
        sink.close(clean=True)
    assert size < min(peaks) < times * size, f"{size} bytes of binlogs, {peaks}"
    assert min(peaks[3:]) < 1.25 * min(peaks[:2]), f"it grows: {peaks}"
