"""Measure a drainer with `db-type = "delta"`: how fast it writes histories, compared with plain Parquet files of the
same columns, and how fast it merges changes into a mirror, compared with a rewrite of all the mirror's rows.

    python -m bench.lake [--rows 200000] [--mirror-rows 2000000] [--changes 20000]

`history` is the work of the sink for batches whose rows are decoded: columns of the lake, Parquet, one flush, and the
commits of the history and of the control table. `plain Parquet` converts the same columns and writes them with
pyarrow, one file and one flush for each batch, and nothing else. `merge` is a merge of random changes into a mirror
that Spark has written, `rewrite` Spark's reading and writing all of its rows once. Delta's jars must be there:
scripts/need.sh delta.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.files import BATCHES, RUNS, decoded
from bench.report import Report, timed
from bench.rowcodec import SBTEST, WIDE, binlogs, sbtest_row, wide_row
from drainer.lake.history import HistoryTable, write
from drainer.lake.sink import LakeSink
from drainer.sink.base import Identity
from tests.support.lake_case import delta_session, lake
from tests.support.row_case import BEGIN_TS


def opened(directory: Path, spark: Any) -> LakeSink:
    sink = lake(directory, spark)
    sink.open(Identity(1, "default", "bench"), BEGIN_TS)
    return sink


def history(report: Report, spark: Any, scratch: Path, name: str, info: Any, payloads: list[bytes]) -> None:
    segments, rows = decoded(info, payloads), len(payloads)
    ours, plain = [], []
    for run in range(RUNS):
        sink = opened(scratch / f"{name}-{run}", spark)
        table = sink._histories({("db", info.name): info})["db", info.name]
        with timed() as watch:
            for segment in segments:
                sink.apply(segment, 1)
        ours.append(watch.seconds)
        sink.close(clean=True)
        beside = scratch / f"{name}-{run}-plain"
        beside.mkdir()
        tables = {("db", info.name): HistoryTable(beside, table.fields)}
        with timed() as watch:
            for number, segment in enumerate(segments):
                write(segment, tables, str(number))
        plain.append(watch.seconds)
    report.add(f"{name}: history", rows / statistics.median(ours), "rows/s")
    report.add(f"{name}: plain Parquet", rows / statistics.median(plain), "rows/s")
    report.ratio(f"{name}: history", f"{name}: plain Parquet")


def merging(report: Report, spark: Any, scratch: Path, mirror_rows: int, changes: int) -> None:
    """The mirror has `mirror_rows` rows, in files of about a million; the changes are updates of random rows."""
    sink = opened(scratch / "merge", spark)
    info = SBTEST
    entry = sink._registry.add(("db", info.name), info.id, mirrored=True)
    sink._tables.define_history(entry, info, {})
    sink._tables.define_mirror(entry, None, info, {}, BEGIN_TS)
    path = str(sink._tables.mirror_path(entry))
    filled = spark.range(1, mirror_rows + 1).selectExpr(
        "CAST(id AS INT) id", "CAST(id % 1000 AS INT) k", "repeat(CAST(id AS STRING), 15) c", "repeat('p', 60) pad"
    )
    filled.write.format("delta").mode("append").save(path)
    sink._tables.history(entry, info)
    for number, segment in enumerate(decoded(info, binlogs(info, sbtest_row, changes))):
        sink.apply(segment, 1)
        assert number < BATCHES
    before = time.perf_counter()
    sink.merge_now()
    report.add("merge", 1 / (time.perf_counter() - before), "1/s", digits=3)
    with timed() as watch:
        spark.read.format("delta").load(path).write.format("parquet").save(str(scratch / "rewritten"))
    report.add("rewrite of all rows", 1 / watch.seconds, "1/s", digits=3)
    report.ratio("merge", "rewrite of all rows")
    sink.close(clean=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A lake beside plain Parquet.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--mirror-rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=20_000)
    options = parser.parse_args()
    report = Report(f"lake, {options.rows:,} rows in {BATCHES} batches, median of {RUNS}")
    with tempfile.TemporaryDirectory() as name, delta_session(Path(name) / "spark") as spark:
        for of, info, row in (("sbtest", SBTEST, sbtest_row), ("wide", WIDE, wide_row)):
            history(report, spark, Path(name), of, info, binlogs(info, row, options.rows))
        merging(report, spark, Path(name), options.mirror_rows, options.changes)


if __name__ == "__main__":
    main()
