"""Compare rows folded by columns with rows folded one by one, in CPU time of one run: µs a row, and the ratio.

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
from drainer.changes.decode import VECTOR_ROWS_MIN, ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.order.blob import merge_slot as merge_rows
from drainer.order.fold import FoldBuilder
from drainer.row.decode import Decoder
from drainer.row.transaction import scan
from drainer.schema.table_versions import Watched, Written
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.spark.typed.fields import fields_of
from drainer.spark.typed.reading import Reading
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


def by_columns(decoder: SegmentDecoder, payloads: list[bytes]) -> SegmentBuilder:
    builder = SegmentBuilder(decoder)
    builder.add_all(payloads)
    return builder


def by_rows(decoder: Decoder, payloads: list[bytes]) -> FoldBuilder:
    builder = FoldBuilder(decoder, SQL_TEXT)
    builder.add_all(payloads)
    return builder


def measure(report: Report, name: str, info: TableInfo, payloads: list[bytes], count: int) -> None:
    columns, rows = (
        SegmentDecoder(view_of(info), SQL_TEXT, columns_bytes_min=0, columns_rows_min=0),
        Decoder(view_of(info)),
    )

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
    both(
        "to net rows", lambda: by_columns(columns, payloads).finish(0, 1), lambda: by_rows(rows, payloads).finish(0, 1)
    )
    both("to 4 slots", lambda: by_columns(columns, payloads).slots(4), lambda: by_rows(rows, payloads).slots(4))
    ours, theirs = by_columns(columns, payloads).slots(4).values(), by_rows(rows, payloads).slots(4).values()
    both("merging slots", lambda: [merge_slot([b], SQL_TEXT) for b in ours], lambda: [merge_rows([b]) for b in theirs])


def small(report: Report, info: TableInfo, payloads: list[bytes]) -> None:
    columns, rows = (
        SegmentDecoder(view_of(info), SQL_TEXT, columns_bytes_min=0, columns_rows_min=0),
        Decoder(view_of(info)),
    )
    for count in SMALL:
        some = payloads[:count]
        repeats = max(1, 2000 // count)

        def ours(some: list[bytes] = some, repeats: int = repeats) -> None:
            for _ in range(repeats):
                by_columns(columns, some).finish(0, 1)

        def theirs(some: list[bytes] = some, repeats: int = repeats) -> None:
            for _ in range(repeats):
                by_rows(rows, some).finish(0, 1)

        report.add(f"{count} rows by columns", least_us(ours, count * repeats) * count, "µs a batch")
        report.add(f"{count} rows one by one", least_us(theirs, count * repeats) * count, "µs a batch")


def typed(report: Report, name: str, info: TableInfo, payloads: list[bytes], count: int) -> None:
    """Measure the conversion of scanned binlogs to record batches of the typed change stream."""
    table_name = ("db", info.name)
    watched = Watched({info.id: (Written(1, table_name, info),)}, {table_name: info}, 1, {})
    reading = Reading(watched, fields_of({table_name: info}), 1)
    scanned = [scan(payload) for payload in payloads]

    def batches(vector_rows_min: int) -> None:
        changes = Changes(reading, vector_rows_min=vector_rows_min)
        for one in scanned:
            changes.add(one)
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
