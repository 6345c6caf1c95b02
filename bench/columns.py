"""Rows folded by columns beside rows folded one by one, in CPU time of one run: µs a row, and the ratio.

    python -m bench.columns [--rows 50000]

`sbtest` is pumpload's table: 70 % inserts, 20 % updates, 10 % deletes, a row a transaction or 20; `wide` has ten
columns of ten types. Then batches of few rows, which tell from how many on arrays are worth it. Least of several runs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from binlog.tidb.table import TableInfo

from bench.report import Report
from bench.rowcodec import SBTEST, WIDE, binlogs, least_us, sbtest_row, wide_row
from drainer.changes.decode import ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.order.blob import merge_slot as merge_rows
from drainer.order.fold import FoldBuilder
from drainer.row.decode import Decoder
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import BEGIN_TS, Step, transaction, view_of

SMALL = (1, 10, 30, 100, 250, 1000)


def wide_binlogs(count: int, rows_each: int) -> list[bytes]:
    """Transactions of several rows of sbtest."""
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


def small(report: Report, payloads: list[bytes]) -> None:
    columns, rows = (
        SegmentDecoder(view_of(SBTEST), SQL_TEXT, columns_bytes_min=0, columns_rows_min=0),
        Decoder(view_of(SBTEST)),
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=50_000)
    count = options.parse_args().rows
    report = Report(f"folding {count:,} rows")
    single = binlogs(SBTEST, sbtest_row, count)
    measure(report, "sbtest", SBTEST, single, count)
    measure(report, "20 rows each", SBTEST, wide_binlogs(count, 20), count)
    measure(report, "wide", WIDE, binlogs(WIDE, wide_row, count // 5), count // 5)
    small(report, single)


if __name__ == "__main__":
    main()
