"""Cases of folding by columns that random tables meet too seldom, each against folding row by row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from binlog.tidb.datum import Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import SegmentWork
from drainer.changes.decode import ColumnDecoder
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import last_change, merge_slot
from drainer.row.layout import identity
from drainer.schema.view import SchemaView
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, not_null, table, transaction, view_of
from tests.unit.drainer.changes.test_segment import listed, merged, one_by_one

VARBINARY = FieldType(Tp.VARCHAR, Flag.BINARY, 20, 0, "binary", "binary")


def in_step(view: SchemaView, rows_min: int = 0) -> SegmentDecoder:
    """Columns however few rows there are, and never the general decoder without need."""
    decoder = SegmentDecoder(view, SQL_TEXT, columns_rows_min=rows_min)
    decoder.columns = ColumnDecoder(view, vector_rows_min=1, decoder=decoder.rows)
    return decoder


def folded(view: SchemaView, payloads: Sequence[bytes]) -> SegmentWork:
    return in_step(view).segment(payloads, 0, 1)


def pieced(view: SchemaView, payloads: Sequence[bytes], rows_min: Sequence[int] = (0,)) -> SegmentWork:
    """Every transaction a part of its own, merged from the last to the first. `rows_min`: of each part, in turn."""
    blobs = []
    for number, payload in enumerate(payloads):
        builder = SegmentCutter(in_step(view, rows_min[number % len(rows_min)]))
        builder.add_all([payload])
        blobs += builder.cut(1).values()
    return merge_slot(blobs[::-1], SQL_TEXT)


def holds(info: TableInfo, transactions: Sequence[Sequence[Step]]) -> SegmentWork:
    """Every way gives what going row by row gives: that."""
    view = view_of(info)
    payloads = [
        transaction([(info, step) for step in steps], commit_ts=BEGIN_TS + n) for n, steps in enumerate(transactions)
    ]
    expected = one_by_one(view, payloads)
    assert listed(folded(view, payloads)) == listed(expected)
    for rows_min in ((0,), (0, 1 << 40), (1 << 40, 0)):
        assert merged(pieced(view, payloads, rows_min))[0] == merged(expected)[0]
    return expected


def insert(*values: object) -> Step:
    return "insert", {}, dict(enumerate(values, 1))  # type: ignore[arg-type]


def update(old: Sequence[object], new: Sequence[object]) -> Step:
    return "update", dict(enumerate(old, 1)), dict(enumerate(new, 1))  # type: ignore[arg-type]


def delete(*values: object) -> Step:
    return "delete", dict(enumerate(values, 1)), {}  # type: ignore[arg-type]


def test_keys_moving_along_chain_fold_as_row_by_row() -> None:
    info = table([("id", INT), ("v", INT)], handle="id")
    chain = [update((n, 0), (n + 1, 0)) for n in range(5)]
    back = [update((5, 0), (0, 7)), update((0, 7), (3, 8))]
    for steps in ([chain], [[step] for step in chain], [chain, back], [chain[::-1]], [[*chain, delete(5, 0)], back]):
        holds(info, steps)


@pytest.mark.parametrize("unique", ["PRIMARY", "u"])
def test_every_old_spelling_of_key_is_deleted_except_last(unique: str) -> None:
    """Rule 10: one key under a collation that ignores trailing spaces, written in several ways."""
    info = table([("k", not_null(TEXT)), ("v", INT)], unique={unique: ["k"]})
    work = holds(
        info,
        [
            [insert(b"a", 1)],
            [update((b"a", 1), (b"a ", 2)), insert(b"b", 1)],
            [update((b"a  ", 2), (b"a   ", 3)), delete(b"b ", 1)],
            [update((b"c  ", 1), (b"c", 1)), update((b"d ", 1), (b"e", 1))],
            [delete(b"a    ", 3), insert(b"f ", 1)],
            [delete(b"f ", 1), insert(b"f", 2)],
        ],
    )
    gone = {row.identity: row.stale for row in work.folded[0].rows}
    assert gone[b"a"] == (b"('a    ')", b"('a   ')", b"('a  ')", b"('a ')", b"('a')")
    assert gone[b"c"] == (b"('c  ')",)
    assert gone[b"d"] == (b"('d ')",)
    assert gone[b"e"] == ()
    assert gone[b"f"] == (b"('f ')",)


def test_first_and_last_change_of_key_are_found_across_parts() -> None:
    """By commit_ts, and only then by the sequence in the transaction."""
    info = table([("id", INT), ("v", INT)], handle="id")
    other = [insert(n, 0) for n in range(10, 15)]
    work = holds(
        info,
        [
            [*other, delete(1, 0), insert(2, 0)],
            [insert(1, 1), update((2, 0), (2, 5))],
            [*other, update((1, 1), (1, 2)), delete(2, 5)],
            [delete(10, 0), insert(2, 9)],
        ],
    )
    assert [row.row for row in work.folded[0].rows[:3]] == [b"(1,2)", b"(2,9)", None]
    holds(info, [[insert(1, 1)], [*other, delete(1, 1)], [insert(1, 2)], [*other, insert(1, 3)]])


def test_first_change_of_key_is_found_in_overlapping_parts() -> None:
    """The part whose last change is the earlier one is not the part that began first."""
    info = table([("id", INT), ("v", INT)], handle="id")
    steps = [delete(1, 0), insert(1, 1), update((1, 1), (1, 2))]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    blobs = []
    for part in (payloads[::2], payloads[1:2]):
        builder = SegmentCutter(in_step(view_of(info)))
        builder.add_all(part)
        blobs += builder.cut(1).values()
    assert merged(merge_slot(blobs, SQL_TEXT)) == merged(one_by_one(view_of(info), payloads))


def test_last_change_of_a_key_is_that_of_its_table() -> None:
    tables = [table([("id", INT), ("v", INT)], handle="id", table_id=number) for number in (7, 8)]
    payloads = [transaction([(info, insert(1, 1))], commit_ts=BEGIN_TS + n) for n, info in enumerate(tables)]
    cutter = SegmentCutter(in_step(view_of(*tables)))
    cutter.add_all(payloads)
    blobs = list(cutter.cut(1).values())
    assert [last_change(blobs, number, identity(1)) for number in (7, 8, 9)] == [BEGIN_TS, BEGIN_TS + 1, 0]


def test_key_deleted_and_inserted_again_is_not_deleted() -> None:
    info = table([("id", INT), ("v", INT)], handle="id")
    work = holds(info, [[delete(1, 0), delete(2, 0)], [insert(1, 1)]])
    assert [row.stale for row in work.folded[0].rows] == [(), (b"(2)",)]


def test_only_trailing_spaces_of_padded_key_are_ignored() -> None:
    info = table([("k", not_null(TEXT)), ("v", INT)], unique={"PRIMARY": ["k"]})
    keys = [b"a", b" a", b"a ", b"a\t", b"a\t ", b"a\n", b" ", b"", b"  a b  "]
    work = holds(info, [[insert(key, n)] for n, key in enumerate(keys)])
    assert [row.identity for row in work.folded[0].rows] == [b"", b"  a b", b" a", b"a", b"a\t", b"a\n"]


def test_composite_key_parts_are_kept_apart() -> None:
    info = table([("a", not_null(TEXT)), ("b", not_null(TEXT)), ("v", INT)], unique={"PRIMARY": ["a", "b"]})
    keys = [
        (b"a\0", b"b"),
        (b"a", b"\0b"),
        (b"a\0\0", b""),
        (b"a", b"\0\0"),
        (b"a\0\xff", b"b"),
        (b"", b"ab"),
        (b"ab", b""),
    ]
    work = holds(info, [[insert(*key, n)] for n, key in enumerate(keys)])
    assert len(work.folded[0].rows) == len(keys)


STRINGS = [
    b"it's", b"\\", b"\\'", b"'\\", b"''", b"\\\\'", b"\0\x1a\n", "é😀".encode(), b"", b" ", b"%b", b"),(",
]  # fmt: skip
NO_UTF8 = [b"\xff'", b"\xc3", b"\xa9", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff\\"]


@pytest.mark.parametrize("strings", [STRINGS, [*STRINGS, *NO_UTF8], NO_UTF8[1:3], [b"\\"], [b"'"], ["é'".encode()]])
def test_string_literals_from_columns_equal_those_row_by_row(strings: list[bytes]) -> None:
    """One that is no UTF-8 among others, also where two beside one another would be; an escape is not escaped."""
    info = table([("id", INT), ("v", TEXT), ("b", VARBINARY)], handle="id")
    steps = [insert(n, text, text) for n, text in enumerate(strings)]
    holds(info, [steps])
    holds(info, [[step] for step in [*steps, insert(99, None, None)]])


def test_negative_zero_decimal_is_written_without_sign() -> None:
    """The binary form can say minus zero; minus a fraction keeps its sign."""
    kind = FieldType(Tp.NEWDECIMAL, 0, 10, 2)
    info = table([("id", INT), ("d", kind)], handle="id")
    view = view_of(info)
    texts = ["0.00", "-0.05", "-5.00", "-12345678.90"]
    payloads = [
        transaction([(info, insert(n, Decimal(text, 10, 2)))], commit_ts=BEGIN_TS + n) for n, text in enumerate(texts)
    ]
    zero = b"\x06\x0a\x02\x80\x00\x00\x00\x00"
    assert payloads[0].count(zero) == 1
    payloads[0] = payloads[0].replace(zero, b"\x06\x0a\x02\x7f\xff\xff\xff\xff")
    expected = one_by_one(view, payloads)
    assert [row.row for row in expected.folded[0].rows] == [b"(%d,%b)" % (n, t.encode()) for n, t in enumerate(texts)]
    assert listed(folded(view, payloads)) == listed(expected)


@pytest.mark.parametrize("indexes", [{0}, {3}, {7}, {0, 1, 2}, {6, 7}, set(range(8)), {1, 3, 5, 7}, set(range(1, 8))])
def test_null_in_any_column_is_written(indexes: set[int]) -> None:
    kinds = [TEXT, VARBINARY, INT, FieldType(Tp.DATETIME, 128, 19, 0), FieldType(Tp.DURATION, 128, 10, 0)]
    kinds += [FieldType(Tp.NEWDECIMAL, 0, 10, 2), FieldType(Tp.DOUBLE, 0, 22, -1)]
    info = table([("id", INT), *((f"c{n}", kind) for n, kind in enumerate(kinds))], handle="id")
    there = (b"x'", b"\xff", 5, Uint(0), -1_000_000_000, Decimal("1.50", 10, 2), 1.5)
    nothing = (None,) * len(there)
    rows = [(n, *(nothing if n in indexes else there)) for n in range(8)]
    holds(info, [[update((n, *nothing), row) for n, row in enumerate(rows)]])  # updates say NULL, inserts leave it out
    holds(info, [[insert(*row)] for row in rows])
