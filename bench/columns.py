"""Compare rows folded by columns with rows folded one by one, in CPU time of one run: µs a row, and the ratio.

    python -m bench.columns [--rows 50000] [--typed]

`sbtest` is pumpload's table: 70 % inserts, 20 % updates, 10 % deletes, with 1 or 20 rows a transaction. `wide` has ten
columns of ten types. `three keys` has three unique keys besides its primary key: a number, a text, and a number with a
text of a collation that is not computed. Their values are followed (rule 21): inline until it is known that folding
hides no conflict, and spread with the claims of every value, which are then merged. Batches of few rows show from which
number of rows arrays are worth it. The record batches of the typed change stream come first; `--typed` measures only
these. Each figure is the least of several runs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp

from bench.report import Report
from bench.rowcodec import CHAR, SBTEST, WIDE, binlogs, least_us, sbtest_row, unique_row, wide_row
from drainer.changes.claim_slots import merge_claims
from drainer.changes.decode import VECTOR_ROWS_MIN, ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.order.blob import merge_slot as merge_rows
from drainer.order.fold import FoldBuilder, Parts
from drainer.order.probes import Questions
from drainer.order.probes import merge_claims as merge_noted
from drainer.row.decode import Decoder
from drainer.row.transaction import scan
from drainer.schema.table_versions import Watched, Written
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.spark.typed.fields import fields_of
from drainer.spark.typed.reading import Reading
from drainer.spark.typed.rows import Changes
from tests.support.row_case import BEGIN_TS, INT, Step, not_null, table, transaction, view_of

LOOSE = FieldType(Tp.VARCHAR, 0, 80, 0, "utf8mb4", "utf8mb4_general_ci")
KEYED = table(
    [("id", INT), ("k", not_null(INT)), ("c", CHAR), ("pad", CHAR), ("shop", INT), ("email", LOOSE)],
    handle="id",
    unique={"uk": ["k"], "uc": ["c"], "ue": ["shop", "email"]},
    name="keyed",
)
SMALL = (1, 10, 30, 100, 250, 1000)


def keyed_row(number: int, dice: random.Random) -> dict[int, Datum]:
    """Return values that no other row has."""
    return {**unique_row(number, dice), 5: number % 100, 6: b"Customer.%d@Example.com" % number}


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


def three_keys(report: Report, payloads: list[bytes], count: int) -> None:
    """Measure an inline batch of such a table until it is known that folding hides no conflict, and a spread one until
    the questions to the destination are known."""
    columns = SegmentDecoder(view_of(KEYED), SQL_TEXT, columns_bytes_min=0, columns_rows_min=0)
    rows = Decoder(view_of(KEYED))

    def checked(builder: SegmentBuilder | FoldBuilder) -> None:
        builder.finish(0, 1)
        assert not builder.hides_conflict()

    def cut(builder: SegmentBuilder | FoldBuilder) -> Parts:
        return builder.parts(4)

    def merge_columns(blobs: list[bytes]) -> Questions:
        return merge_claims(blobs, SQL_TEXT)

    def merged(merge: Callable[[list[bytes]], Questions], claims: dict[int, bytes]) -> None:
        assert all(not merge([blob]).conflict for blob in claims.values())

    ours, theirs = cut(by_columns(columns, payloads)).claims, cut(by_rows(rows, payloads)).claims
    for what, own, other in (
        ("inline", lambda: checked(by_columns(columns, payloads)), lambda: checked(by_rows(rows, payloads))),
        ("to 4 slots", lambda: cut(by_columns(columns, payloads)), lambda: cut(by_rows(rows, payloads))),
        ("merging claims", lambda: merged(merge_columns, ours), lambda: merged(merge_noted, theirs)),
    ):
        name = f"three keys {what}"
        report.add(f"{name}, by columns", least_us(own, count), "µs/row")
        report.add(f"{name}, one by one", least_us(other, count), "µs/row")
        report.ratio(f"{name}, one by one", f"{name}, by columns")


def small(report: Report, info: TableInfo, payloads: list[bytes]) -> None:
    columns, rows = (
        SegmentDecoder(view_of(info), SQL_TEXT, columns_bytes_min=0, columns_rows_min=0),
        Decoder(view_of(info)),
    )
    name = "three keys, " if info is KEYED else ""
    for count in SMALL:
        some = payloads[:count]
        repeats = max(1, 2000 // count)

        def ours(some: list[bytes] = some, repeats: int = repeats) -> None:
            for _ in range(repeats):
                builder = by_columns(columns, some)
                builder.finish(0, 1)
                builder.hides_conflict()

        def theirs(some: list[bytes] = some, repeats: int = repeats) -> None:
            for _ in range(repeats):
                builder = by_rows(rows, some)
                builder.finish(0, 1)
                builder.hides_conflict()

        report.add(f"{name}{count} rows by columns", least_us(ours, count * repeats) * count, "µs a batch")
        report.add(f"{name}{count} rows one by one", least_us(theirs, count * repeats) * count, "µs a batch")


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
    three_keys(report, binlogs(KEYED, keyed_row, count), count)
    small(report, SBTEST, single)
    small(report, KEYED, binlogs(KEYED, keyed_row, max(SMALL)))


if __name__ == "__main__":
    main()
