"""Compare rows decoded as columns with rows decoded one by one, both folded, in CPU time of one run: µs a row, and the
ratio.

    python -m bench.columns [--rows 50000] [--typed]

`sbtest` is pumpload's table: 70 % inserts, 20 % updates, 10 % deletes, with 1 or 20 rows a transaction. `wide` has ten
columns of ten types. Batches of few rows show from which number of rows arrays are worth it. The record batches of the
typed change stream come first; `--typed` measures only these. Each figure is the least of several runs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from binlog.tidb.table import TableInfo

from bench.report import Report
from bench.rowcodec import SBTEST, WIDE, binlogs, least_us, sbtest_row, wide_row
from drainer.batch.work import SegmentWork
from drainer.changes.decode import VECTOR_ROWS_MIN, ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.schema.history.base import Watched, Written
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.spark.typed.fields import Reading, fields_of
from drainer.spark.typed.rows import Changes
from tests.support.row_case import BEGIN_TS, Step, transaction, view_of

SMALL = (1, 10, 30, 100, 250, 1000)


def wide_binlogs(count: int, rows_each: int) -> list[bytes]:
    """Return transactions of several rows of sbtest."""
    dice = random.Random(2)
    found = []
    for number in range(count // rows_each):
        steps: list[tuple[TableInfo, Step]] = []
        for at in range(rows_each):
            key = number * rows_each + at + 1
            old, new, chance = sbtest_row(key, dice), sbtest_row(key, dice), dice.random()
            kind = "insert" if chance < 0.7 else "update" if chance < 0.9 else "delete"
            steps.append((SBTEST, (kind, old, new)))
        found.append(transaction(steps, commit_ts=BEGIN_TS + number * 1000))
    return found


def fold(decoder: SegmentDecoder, payloads: list[bytes]) -> SegmentWork:
    return decoder.segment(payloads, 0, 1)


def cut(decoder: SegmentDecoder, payloads: list[bytes]) -> list[bytes]:
    builder = SegmentCutter(decoder)
    builder.add_all(payloads)
    return list(builder.cut(4).values())


def both_decoders(info: TableInfo) -> tuple[SegmentDecoder, SegmentDecoder]:
    """As columns, and one by one."""
    columns, rows = (SegmentDecoder(view_of(info), SQL_TEXT, columns_rows_min=least) for least in (0, 1 << 60))
    return columns, rows


def measure(report: Report, name: str, info: TableInfo, payloads: list[bytes], count: int) -> None:
    columns, rows = both_decoders(info)

    def both(what: str, ours: Callable[[], object], other: Callable[[], object]) -> None:
        ours()
        report.add(f"{name} {what}, by columns", least_us(ours, count), "µs/row")
        report.add(f"{name} {what}, one by one", least_us(other, count), "µs/row")
        report.ratio(f"{name} {what}, one by one", f"{name} {what}, by columns")

    scanned = scan_all(payloads)
    decoder = ColumnDecoder(view_of(info))
    report.add(f"{name} scanning", least_us(lambda: scan_all(payloads), count), "µs/row")
    decode = lambda: list(decoder.decode(scanned.rows, whole=False))  # noqa: E731
    report.add(f"{name} decoding", least_us(decode, count), "µs/row")
    both("to net rows", lambda: fold(columns, payloads), lambda: fold(rows, payloads))
    both("to 4 slots", lambda: cut(columns, payloads), lambda: cut(rows, payloads))
    blobs = cut(columns, payloads)
    report.add(f"{name} merging slots", least_us(lambda: [merge_slot([b], SQL_TEXT) for b in blobs], count), "µs/row")


def small(report: Report, info: TableInfo, payloads: list[bytes]) -> None:
    columns, rows = both_decoders(info)
    for count in SMALL:
        some = payloads[:count]
        repeats = max(1, 2000 // count)

        def ours(some: list[bytes] = some, repeats: int = repeats) -> None:
            for _ in range(repeats):
                fold(columns, some)

        def theirs(some: list[bytes] = some, repeats: int = repeats) -> None:
            for _ in range(repeats):
                fold(rows, some)

        report.add(f"{count} rows by columns", least_us(ours, count * repeats) * count, "µs a batch")
        report.add(f"{count} rows one by one", least_us(theirs, count * repeats) * count, "µs a batch")


def typed(report: Report, name: str, info: TableInfo, payloads: list[bytes], count: int) -> None:
    """Measure the conversion of binlogs to record batches of the typed change stream."""
    table_name = ("db", info.name)
    watched = Watched({info.id: (Written(1, table_name, info),)}, {table_name: info}, 1, {})
    reading = Reading(watched, fields_of({table_name: info}), 1)

    def batches(vector_rows_min: int) -> None:
        changes = Changes(reading, vector_rows_min=vector_rows_min)
        for payload in payloads:
            changes.add(payload)
            if changes.is_full:
                changes.batch()
        changes.batch()

    report.add(f"{name} typed, by columns", least_us(lambda: batches(VECTOR_ROWS_MIN), count), "µs/row")
    report.add(f"{name} typed, one by one", least_us(lambda: batches(1 << 40), count), "µs/row")
    report.ratio(f"{name} typed, one by one", f"{name} typed, by columns")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=50_000)
    options.add_argument("--typed", action="store_true", help="only the typed change stream")
    arguments = options.parse_args()
    count = arguments.rows
    single = binlogs(SBTEST, sbtest_row, count)
    inputs = [
        ("sbtest", SBTEST, single, count),
        ("20 rows each", SBTEST, wide_binlogs(count, 20), count),
        ("wide", WIDE, binlogs(WIDE, wide_row, count // 5), count // 5),
    ]
    report = Report(f"record batches of {count:,} rows")
    for name, info, payloads, rows in inputs:
        typed(report, name, info, payloads, rows)
    if arguments.typed:
        return
    report = Report(f"folding {count:,} rows")
    for name, info, payloads, rows in inputs:
        measure(report, name, info, payloads, rows)
    small(report, SBTEST, single)


if __name__ == "__main__":
    main()
