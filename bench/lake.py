"""Measure a drainer with `db-type = "delta"`: how fast it writes histories, compared with plain Parquet files of the
same columns; how fast it merges changes into a mirror, compared with a rewrite of all the mirror's rows; and how long a
query takes after many merges, compared with one of a table that was written at once.

    python -m bench.lake [--rows 200000] [--mirror-rows 2000000] [--changes 20000] [--merges 200]

`history` is the work of the sink for batches whose rows are decoded: columns of the lake, Parquet, one flush, and the
commits of the history and of the control table. `plain Parquet` converts the same columns and writes them with
pyarrow, one file and one flush for each batch, and nothing else. 250,000 rows of sbtest have about the 64 MiB that a
drainer distributes when it is behind (`batch-bytes-max`). `merge` is a merge of updates of random rows into a
mirror that Spark has written, `rewrite` Spark's reading and writing all of its rows once. Delta's jars must be there:
scripts/need.sh delta.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from binlog.tidb.table import TableInfo

from bench.files import BATCHES, RUNS, decoded
from bench.report import Report, timed
from bench.rowcodec import SBTEST, WIDE, binlogs, sbtest_row, wide_row
from drainer.changes.stream import StreamDecoder
from drainer.lake.history import HistoryTable, write
from drainer.lake.sink import LakeSink
from drainer.sink.base import Identity
from tests.support.lake_case import delta_session, lake
from tests.support.row_case import BEGIN_TS, transaction, view_of


def opened(directory: Path, spark: Any, **settings: Any) -> LakeSink:
    sink = lake(directory, spark, **settings)
    sink.open(Identity(1, "default", "bench"), BEGIN_TS)
    return sink


def history(
    report: Report, spark: Any, scratch: Path, name: str, info: TableInfo, row: Callable[..., Any], rows: int
) -> None:
    segments = decoded(info, binlogs(info, row, rows))
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


def filled(sink: LakeSink, spark: Any, rows: int) -> str:
    """Give the sink a mirror of `rows` rows, written by Spark at once, and return its path."""
    info = SBTEST
    entry = sink._registry.add(("db", info.name), info.id, mirrored=True)
    sink._tables.define_history(entry, info, {})
    sink._tables.define_mirror(entry, None, info, {}, BEGIN_TS)
    path = str(sink._tables.mirror_path(entry))
    written = spark.range(1, rows + 1).selectExpr(
        "CAST(id AS INT) id",
        "CAST(id % 1000 AS INT) k",
        "sha2(CAST(id AS STRING), 512) c",
        "sha2(concat(id, 'p'), 256) pad",
    )
    written.write.format("delta").mode("append").save(path)
    sink._tables.history(entry, info)
    return path


class Updates:
    """Batches of updates of random rows."""

    def __init__(self, sink: LakeSink, rows: int) -> None:
        self._sink, self._rows, self._dice = sink, rows, random.Random(1)
        self._decoder = StreamDecoder(view_of(SBTEST))

    def batch(self, count: int) -> None:
        after_ts, payloads = self._sink.commit_ts, []
        for at, number in enumerate(self._dice.sample(range(1, self._rows + 1), count), 1):
            rows = sbtest_row(number, self._dice), sbtest_row(number, self._dice)
            payloads.append(transaction([(SBTEST, ("update", *rows))], commit_ts=after_ts + at))
        self._sink.apply(self._decoder.segment(payloads, after_ts, after_ts + count), 1)


def merging(report: Report, spark: Any, scratch: Path, rows: int, changes: int) -> None:
    sink = opened(scratch / "merge", spark)
    path = filled(sink, spark, rows)
    Updates(sink, rows).batch(changes)
    with timed() as watch:
        sink.merge_now()
    report.add("merge", 1 / watch.seconds, "1/s", digits=3)
    with timed() as watch:
        spark.read.format("delta").load(path).write.format("parquet").save(str(scratch / "rewritten"))
    report.add("rewrite of all rows", 1 / watch.seconds, "1/s", digits=3)
    report.ratio("merge", "rewrite of all rows")
    sink.close(clean=True)


def querying(report: Report, spark: Any, scratch: Path, rows: int, merges: int) -> None:
    """The merges are of a thousandth of the rows each, and maintenance comes after each of them, with a third of the
    time: with the default, a tenth, and two minutes from merge to merge, it has more."""
    sink = opened(scratch / "query", spark, compaction_share=0.33)
    path, once = filled(sink, spark, rows), str(scratch / "once")
    updates = Updates(sink, rows)
    for _ in range(merges):
        updates.batch(rows // 1000)
        sink.merge_now()
        sink.maintain_now()
    spark.read.format("delta").load(path).write.format("delta").save(once)
    for name, at in ((f"query after {merges} merges", path), ("query of a table written at once", once)):
        taken = []
        for _ in range(2 * RUNS + 1):
            with timed() as watch:
                spark.read.format("delta").load(at).selectExpr("count(*)", "sum(k)", "max(c)").collect()
            taken.append(watch.seconds)
        report.add(name, 1 / statistics.median(taken[1:]), "1/s", digits=2)
    report.ratio("query of a table written at once", f"query after {merges} merges")
    sink.close(clean=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A lake beside plain Parquet.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--mirror-rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--merges", type=int, default=200)
    options = parser.parse_args()
    report = Report(f"lake, {BATCHES} batches, median of {RUNS}")
    compiled = {"spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.codegen.wholeStage": "true"}
    compiled["spark.driver.extraJavaOptions"] = "-XX:+TieredCompilation"
    with tempfile.TemporaryDirectory() as name, delta_session(Path(name) / "spark", **compiled) as spark:
        for of, info, row in (("sbtest", SBTEST, sbtest_row), ("wide", WIDE, wide_row)):
            for rows in (options.rows, options.rows * 10) if info is SBTEST else (options.rows,):
                history(report, spark, Path(name), f"{of}, {rows // BATCHES:,} rows in a batch", info, row, rows)
        merging(report, spark, Path(name), options.mirror_rows, options.changes)
        querying(report, spark, Path(name), options.mirror_rows // 2, options.merges)


if __name__ == "__main__":
    main()
