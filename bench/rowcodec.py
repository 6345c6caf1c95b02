"""Measure the CPU time of one row from the served binlog to the folded row and slot blob, compared with two steps that
cannot be avoided.

    python -m bench.rowcodec [--rows 50000]

`sbtest` is pumpload's table (4 columns, one row a transaction, 70 % inserts, 20 % updates, 10 % deletes); `unique` is
the same with two more unique keys. `wide` has ten columns of ten types. Rows are decoded one by one. *Parsing* is
protobuf's C parser on the same binlogs, without reading the rows. *Formatting* is one `%` of values in memory and one
dictionary entry for each row. Each figure is the least CPU time of several runs, because other programs share the
machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from binlog.pb import binlog_pb2
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.flatten import flatten
from binlog.tidb.json import BinaryJSON, encode_json
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from bench.report import Report
from drainer.batch.work import SegmentWork
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, not_null, table, transaction, view_of

RUNS = 5
CHAR = FieldType(Tp.STRING, Flag.NOT_NULL, 120, 0, "utf8mb4", "utf8mb4_bin")
SBTEST = table([("id", INT), ("k", not_null(INT)), ("c", CHAR), ("pad", CHAR)], handle="id")
UNIQUE = table(
    [("id", INT), ("k", not_null(INT)), ("c", CHAR), ("pad", CHAR)],
    handle="id",
    unique={"uk": ["k"], "uc": ["c"]},
)
WIDE = table(
    [
        ("id", FieldType(Tp.LONGLONG, flen=20, decimal=0)),
        ("price", FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)),
        ("ratio", FieldType(Tp.DOUBLE, flen=22)),
        ("name", TEXT),
        ("day", FieldType(Tp.DATE, flen=10, decimal=0)),
        ("at", FieldType(Tp.TIMESTAMP, flen=26, decimal=6)),
        ("kind", FieldType(Tp.ENUM, charset="utf8mb4", collate="utf8mb4_bin", elems=("a", "b"))),
        ("raw", FieldType(Tp.BLOB, charset="binary", collate="binary")),
        ("doc", FieldType(Tp.JSON)),
        ("note", TEXT),
    ],
    handle="id",
)


def sbtest_row(number: int, dice: random.Random) -> dict[int, Datum]:
    return {
        1: number,
        2: dice.randrange(1_000_000),
        3: b"%0120d" % dice.getrandbits(63),
        4: b"%060d" % dice.getrandbits(63),
    }


def unique_row(number: int, dice: random.Random) -> dict[int, Datum]:
    """Return values that no other row has."""
    return {1: number, 2: number, 3: b"%0120d" % number, 4: b"%060d" % dice.getrandbits(63)}


def wide_row(number: int, dice: random.Random) -> dict[int, Datum]:
    kinds = [c.type for c in WIDE.columns]
    return {
        1: number,
        2: flatten(f"{dice.randrange(100_000)}.{dice.randrange(100):02d}", kinds[1]),
        3: dice.random(),
        4: f"customer {number} Ünal".encode(),
        5: flatten(f"2026-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}", kinds[4]),
        6: flatten(f"2026-11-21 07:{dice.randrange(60):02d}:00.{dice.randrange(1_000_000):06d}", kinds[5]),
        7: Uint(dice.randrange(1, 3)),
        8: dice.randbytes(16),
        9: BinaryJSON(encode_json({"tags": ["a", "b"], "n": number})),
        10: None,
    }


def binlogs(info: TableInfo, row: Callable[[int, random.Random], dict[int, Datum]], count: int) -> list[bytes]:
    dice = random.Random(1)
    found = []
    for number in range(1, count + 1):
        chance = dice.random()
        old, new = row(number, dice), row(number, dice)
        step: Step = (
            ("insert", {}, new) if chance < 0.7 else ("update", old, new) if chance < 0.9 else ("delete", old, {})
        )
        found.append(transaction([(info, step)], commit_ts=BEGIN_TS + number * 1000))
    return found


def least_us(work: Callable[[], object], count: int) -> float:
    """Return the microseconds of CPU for each row."""
    least = float("inf")
    for _ in range(RUNS):
        begin = time.process_time()
        work()
        least = min(least, time.process_time() - begin)
    return least / count * 1e6


def parse(payloads: list[bytes]) -> None:
    for payload in payloads:
        value = binlog_pb2.PrewriteValue.FromString(binlog_pb2.Binlog.FromString(payload).prewrite_value)
        for mutation in value.mutations:
            list(mutation.inserted_rows)


def format_ready(count: int) -> None:
    found = {}
    for number in range(count):
        found[number] = b"(%d,%d,'%b','%b')" % (number, 123_456, b"0" * 120, b"1" * 60)


def fold(decoder: SegmentDecoder, payloads: list[bytes]) -> SegmentWork:
    return decoder.segment(payloads, 0, 1)


def cut(decoder: SegmentDecoder, payloads: list[bytes]) -> dict[int, bytes]:
    builder = SegmentCutter(decoder)
    builder.add_all(payloads)
    return builder.cut(4)


def measure(report: Report, name: str, info: TableInfo, payloads: list[bytes]) -> None:
    count = len(payloads)
    decoder = SegmentDecoder(view_of(info), SQL_TEXT, columns_rows_min=1 << 60)
    report.add(f"{name} parsing alone", least_us(lambda: parse(payloads), count), "µs/row")
    report.add(f"{name} to net rows", least_us(lambda: fold(decoder, payloads), count), "µs/row")
    report.add(f"{name} to blobs of 4 slots", least_us(lambda: cut(decoder, payloads), count), "µs/row")
    blobs = list(cut(decoder, payloads).values())
    report.add(
        f"{name} merging the blobs", least_us(lambda: [merge_slot([b], SQL_TEXT) for b in blobs], count), "µs/row"
    )
    report.ratio(f"{name} to net rows", f"{name} parsing alone")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=50_000)
    count = options.parse_args().rows
    report = Report(f"rows from binlog bytes to SQL text, {count:,} transactions of one row")
    report.add("formatting alone", least_us(lambda: format_ready(count), count), "µs/row")
    measure(report, "sbtest", SBTEST, binlogs(SBTEST, sbtest_row, count))
    report.ratio("sbtest to net rows", "formatting alone")
    measure(report, "unique", UNIQUE, binlogs(UNIQUE, unique_row, count))
    measure(report, "wide", WIDE, binlogs(WIDE, wide_row, count // 5))


if __name__ == "__main__":
    main()
