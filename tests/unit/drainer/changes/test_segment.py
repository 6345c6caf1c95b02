"""Folding by columns gives what folding one change after another gives, byte for byte, however it is cut and merged."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import flatten
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import NetRow, SegmentWork
from drainer.changes.decode import Changes
from drainer.changes.net import KeyEvents, columns_of
from drainer.changes.segment import FLUSH_BYTES, SegmentCutter, SegmentDecoder, events_of
from drainer.changes.slot_blob import BlobError
from drainer.changes.slots import merge_slot
from drainer.row.codec import Format
from drainer.row.layout import choose_key
from drainer.schema.errors import TableUnknown, TableUnverified
from drainer.schema.view import Relocation, SchemaView
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.sqlite.format import SQLITE_VALUES
from tests.support.fold_model import folded_by_rule, work_of
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, altered, in_parts, not_null, table, transaction, view_of
from tests.support.slot_of import slot_of
from tests.unit.drainer.changes.cases import KINDS, Values, tables, values_of

ALWAYS, NEVER = 0, 1 << 60


def one_by_one(view: SchemaView, payloads: list[bytes]) -> SegmentWork:
    """From rows that are decoded one by one, compared with the fold by its rule."""
    work = work_of(view, payloads, rows_min=NEVER)
    assert listed(work) == listed(folded_by_rule(view, payloads, SQL_TEXT))
    return work


def by_columns(view: SchemaView, payloads: list[bytes]) -> SegmentWork:
    return work_of(view, payloads, rows_min=ALWAYS)


def listed(work: SegmentWork) -> tuple[object, ...]:
    folded = [(one.shape, [tuple(row) for row in one.rows]) for one in work.folded]
    return folded, work.ordered, work.change_count, work.source_bytes, work.commits


def merged(work: SegmentWork) -> tuple[object, ...]:
    """What is left of it behind a shuffle: which slot a key is in is the only order there is."""
    return listed(work)[:3]


def cut(
    view: SchemaView,
    parts: list[list[bytes]],
    slots: int,
    *,
    in_order: bool,
    rows_min: int = ALWAYS,
    flush_bytes: int = FLUSH_BYTES,
) -> dict[int, list[bytes]]:
    blobs: dict[int, list[bytes]] = {}
    for part in parts:
        builder = SegmentCutter(SegmentDecoder(view, SQL_TEXT, columns_rows_min=rows_min), flush_bytes=flush_bytes)
        if in_order:
            for at in range(0, len(part), 3):
                builder.add_in_order(part[at : at + 3], sum(map(len, part[at : at + 3])))
        else:
            builder.add_all(part)
        for slot, blob in builder.cut(slots).items():
            blobs.setdefault(slot, []).append(blob)
    return blobs


@st.composite
def histories(draw: st.DrawFn, info: TableInfo) -> list[bytes]:
    """Transactions on few keys, so that changes meet; in truth old values would be what stands there."""
    key = {c.id for index in info.unique_indexes() for c in info.index_columns(index)}
    key |= {info.handle_column.id} if info.handle_column is not None else set()
    pool = draw(st.lists(values_of(info), min_size=2, max_size=5))
    payloads = []
    for number in range(draw(st.integers(1, 8))):
        steps: list[tuple[TableInfo, Step]] = []
        for _ in range(draw(st.integers(1, 3))):
            old, new = dict(draw(st.sampled_from(pool))), dict(draw(st.sampled_from(pool)))
            if draw(st.booleans()):
                new = {n: (old if n in key else new)[n] for n in new}
            kind = draw(st.sampled_from(["insert", "update", "update", "delete"]))
            steps.append((info, (kind, _padded(draw, info, old), _padded(draw, info, new))))
        payloads.append(transaction(steps, commit_ts=BEGIN_TS + number))
    return payloads


def _padded(draw: st.DrawFn, info: TableInfo, values: Values) -> Values:
    """The same key in another spelling, where a collation ignores trailing spaces."""
    return {
        c.id: values[c.id] + draw(st.sampled_from([b"", b" ", b"  "]))  # type: ignore[operator]
        if isinstance(values[c.id], bytes) and c.type.collate.endswith("_bin") and c.type.tp is Tp.VARCHAR
        else values[c.id]
        for c in info.columns
    }


@given(data=st.data(), info=tables())
def test_columns_fold_to_the_same_rows_as_row_by_row(data: st.DataObject, info: TableInfo) -> None:
    payloads = data.draw(histories(info))
    view = view_of(info)
    expected = one_by_one(view, payloads)
    assert listed(by_columns(view, payloads)) == listed(expected)
    data.draw(st.randoms()).shuffle(payloads)
    assert listed(by_columns(view, payloads)) == listed(expected)


@given(
    data=st.data(), info=tables(), parts=st.integers(1, 3), slots=st.integers(1, 3), in_order=st.booleans(),
    flush=st.booleans(), rows_min=st.integers(0, 9),
)  # fmt: skip
def test_folded_column_parts_merge_to_the_same_rows(
    data: st.DataObject, info: TableInfo, parts: int, slots: int, in_order: bool, flush: bool, rows_min: int
) -> None:
    """Rules 16 and 19: parts cut anywhere, some transactions in two of them, some parts with too few rows for columns,
    binlogs that are not added in order and blobs in any order, each key in its slot."""
    payloads = data.draw(histories(info))
    view = view_of(info)
    dice = random.Random(data.draw(st.integers(0, 999)))
    flush_bytes = 1 if flush else FLUSH_BYTES
    shares = in_parts(payloads, parts, dice)
    for share in () if in_order else shares:
        dice.shuffle(share)
    blobs = cut(view, shares, slots, in_order=in_order, rows_min=rows_min, flush_bytes=flush_bytes)
    rows: list[NetRow] = []
    for slot, found in blobs.items():
        work = merge_slot(dice.sample(found, len(found)), SQL_TEXT)
        for folded in work.folded:
            assert {slot_of(folded.shape.table_id, row.identity, slots) for row in folded.rows} == {slot}
            assert [row.identity for row in folded.rows] == sorted(row.identity for row in folded.rows)
            rows += folded.rows
    expected = one_by_one(view, payloads)
    assert sorted(rows) == [row for folded in expected.folded for row in folded.rows]


def test_key_column_changing_type_within_segment_folds_as_one_key() -> None:
    """A key's column that becomes unsigned, or wider, between two rows of one segment: 1.5 and 1.500 are one key."""
    for before, after, values in (
        (FieldType(Tp.LONG, 0, 11, 0), FieldType(Tp.LONG, Flag.UNSIGNED, 10, 0), [5, 7, 5]),
        (FieldType(Tp.NEWDECIMAL, 0, 5, 1), FieldType(Tp.NEWDECIMAL, 0, 10, 3), ["1.5", "2.5", "1.500"]),
    ):
        old, new = (table([("k", not_null(kind)), ("v", INT)], unique={"PRIMARY": ["k"]}) for kind in (before, after))
        steps = [(old, values[0]), (old, values[1]), (new, values[2])]
        payloads = [
            transaction(
                [(info, ("insert", {}, {1: flatten(value, info.columns[0].type), 2: number}))],
                commit_ts=BEGIN_TS + number,
                version=1 if info is old else 2,
            )
            for number, (info, value) in enumerate(steps)
        ]
        view = altered(old, new)
        found = by_columns(view, payloads)
        assert listed(found) == listed(one_by_one(view, payloads))
        assert len(found.folded[0].rows) == 2


def test_decimal_with_fewer_fraction_digits_than_its_column_keeps_its_value() -> None:
    """A row says itself how many digits it has: 100 of no fraction is not 1, and is 100.00."""
    kind = FieldType(Tp.NEWDECIMAL, 0, 10, 2)
    info = table([("k", not_null(kind)), ("v", INT)], unique={"PRIMARY": ["k"]})
    stored = [Decimal("100", 3, 0), Decimal("1.00", 10, 2), Decimal("100.00", 10, 2), Decimal("0", 1, 0)]
    payloads = [
        transaction([(info, ("insert", {}, {1: value, 2: n}))], commit_ts=BEGIN_TS + n)
        for n, value in enumerate(stored)
    ]
    expected = one_by_one(view_of(info), payloads)
    assert [row.identity for row in expected.folded[0].rows] == [b"0", b"1", b"100"]
    assert listed(by_columns(view_of(info), payloads)) == listed(expected)
    whole = table([("k", not_null(FieldType(Tp.NEWDECIMAL, 0, 10, 0))), ("v", INT)], unique={"PRIMARY": ["k"]})
    for some in (payloads[1:3], payloads):  # all with a point, or some
        expected = one_by_one(altered(whole, info), some)
        assert listed(by_columns(altered(whole, info), some)) == listed(expected)


@pytest.mark.parametrize("flush", [1, 4 << 20])
def test_rows_that_do_not_fit_columns_are_folded_one_by_one(flush: int) -> None:
    """What a batch becomes must not depend on how large it is: a negative number in an unsigned column, and an old
    value that nobody asks for."""
    unsigned = table([("id", INT), ("v", FieldType(Tp.LONG, Flag.UNSIGNED, 10, 0))], handle="id", table_id=1)
    flags = FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("x", "y"))
    other = table([("id", INT), ("f", flags)], handle="id", table_id=2, name="t2")
    payloads = []
    for n in range(40):
        old: Values = {1: n % 7, 2: Uint(1 << 9 if n == 25 else 1)}
        value = -5 if n == 20 else Uint(n)
        steps: list[tuple[TableInfo, Step]] = [
            (unsigned, ("insert", {}, {1: n % 9, 2: value})),
            (other, ("update", old, {1: n % 7, 2: Uint(n % 4)})),
        ]
        payloads.append(transaction(steps, commit_ts=BEGIN_TS + n))
    view = view_of(unsigned, other)
    for some in (payloads, payloads[:20], payloads[21:]):
        expected = one_by_one(view, some)
        assert listed(by_columns(view, some)) == listed(expected)
        for in_order in (False, True):
            blobs = cut(view, [some[:15], some[15:]], 1, in_order=in_order, flush_bytes=flush)[0]
            work = merge_slot(blobs, SQL_TEXT)
            assert merged(work) == merged(expected)
            assert work.source_bytes == expected.source_bytes


@pytest.mark.parametrize("rows_min", [ALWAYS, NEVER])
def test_segment_cutter_is_freed_without_garbage_collection(rows_min: int) -> None:
    """It holds a batch's binlogs, and the collector may run long after."""
    info = table([("k", not_null(INT)), ("v", INT)], unique={"PRIMARY": ["k"]})
    payloads = [transaction([(info, ("insert", {}, {1: n, 2: n}))], commit_ts=BEGIN_TS + n) for n in range(9)]
    decoder = SegmentDecoder(view_of(info), SQL_TEXT, columns_rows_min=rows_min)
    gc.collect()
    gc.disable()
    try:
        cutter = SegmentCutter(decoder)
        cutter.add_in_order(payloads, len(payloads))
        assert cutter.cut(2)
        found = weakref.ref(cutter)
        del cutter
        assert found() is None
    finally:
        gc.enable()


def test_rows_beyond_arrow_capacity_are_folded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own refusal is no reason to stop."""

    def refuse(*_: object) -> None:
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    info = table([("id", INT), ("v", TEXT)], handle="id")
    payloads = [transaction([(info, ("insert", {}, {1: n % 9, 2: b"x"}))], commit_ts=BEGIN_TS + n) for n in range(30)]
    expected = one_by_one(view_of(info), payloads)
    monkeypatch.setattr("drainer.changes.segment.events_of", refuse)
    assert listed(by_columns(view_of(info), payloads)) == listed(expected)


def test_row_with_null_key_is_refused_by_both_folds() -> None:
    """TiDB leaves a NULL out of an insert; under an old TableInfo a primary key's column may lack NOT NULL."""
    info = table([("a", INT), ("k", TEXT), ("v", INT)], unique={"PRIMARY": ["k"]})
    payloads = [
        transaction([(info, ("insert", {}, {1: n, 2: b"k" if n else None, 3: 1}))], commit_ts=BEGIN_TS + n)
        for n in range(20)
    ]
    for way in (one_by_one, by_columns):
        with pytest.raises(DecodeError, match=rf"commit_ts {BEGIN_TS}\): key: PRIMARY has a NULL"):
            way(view_of(info), payloads)


def test_negative_and_large_unsigned_keys_keep_their_order() -> None:
    for kind, values in (
        (FieldType(Tp.LONGLONG, 0, 20, 0), [0, -1, 5, -(2**63), 2**63 - 1]),
        (FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0), [0, 1, 2**63, 2**64 - 1, 2**63 - 1]),
    ):
        info = table([("k", not_null(kind))], unique={"PRIMARY": ["k"]})
        wrap = Uint if kind.is_unsigned else int
        payloads = [
            transaction([(info, ("insert", {}, {1: wrap(value)}))], commit_ts=BEGIN_TS + n)
            for n, value in enumerate(values)
        ]
        view = view_of(info)
        expected = one_by_one(view, payloads)
        assert listed(by_columns(view, payloads)) == listed(expected)
        blobs = cut(view, [payloads[:2], payloads[2:]], 1, in_order=False)
        assert merged(merge_slot(blobs[0], SQL_TEXT)) == merged(expected)


def test_keyless_table_is_folded_one_by_one_beside_keyed_tables() -> None:
    shop = table([("id", INT), ("u", INT)], handle="id", unique={"u": ["u"]}, table_id=1, name="shop")
    bare = table([("v", TEXT)], table_id=2, name="bare")
    plain = table([("id", INT), ("v", TEXT)], handle="id", table_id=3, name="plain")
    payloads = []
    for n in range(30):
        steps: list[tuple[TableInfo, Step]] = [
            (shop, ("insert", {}, {1: n, 2: n})),
            (bare, ("insert", {}, {1: b"x"})),
            (plain, ("insert", {}, {1: n % 7, 2: b"it's %d" % n})),
        ]
        payloads.append(transaction(steps[n % 3 :], commit_ts=BEGIN_TS + n))
    view = view_of(shop, bare, plain)
    expected = one_by_one(view, payloads)
    work = by_columns(view, payloads)
    assert listed(work) == listed(expected)
    assert len(work.folded) == 2 and len(work.ordered.changes) > 0
    for in_order in (False, True):
        work = merge_slot(cut(view, [payloads[:9], payloads[9:]], 1, in_order=in_order)[0], SQL_TEXT)
        assert merged(work) == merged(expected)
        assert work.source_bytes == expected.source_bytes


def test_counts_of_part_are_in_one_of_its_blobs() -> None:
    info = table([("id", INT), ("v", TEXT)], handle="id")
    payloads = [transaction([(info, ("insert", {}, {1: n, 2: b"x"}))], commit_ts=BEGIN_TS + n) for n in range(30)]
    expected = one_by_one(view_of(info), payloads)
    blobs = cut(view_of(info), [payloads[:20], payloads[20:]], 3, in_order=False)
    works = [merge_slot(found, SQL_TEXT) for found in blobs.values()]
    assert len(works) == 3
    assert sum(work.change_count for work in works) == expected.change_count == 30
    assert sum(work.source_bytes for work in works) == expected.source_bytes


def test_table_of_few_rows_is_decoded_one_by_one_beside_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a thousand small tables must not cost a thousand times the arrays."""
    many, few = (table([("id", INT), ("v", TEXT)], handle="id", table_id=n, name=f"t{n}") for n in (1, 2))
    payloads = [
        transaction([(few if n % 20 == 0 else many, ("insert", {}, {1: n, 2: b"x"}))], commit_ts=BEGIN_TS + n)
        for n in range(100)
    ]
    view = view_of(many, few)
    expected = one_by_one(view, payloads)
    in_columns: list[tuple[int, int]] = []

    def recorded(changes: Changes, format_: Format) -> list[KeyEvents]:
        in_columns.append((changes.shape.table_id, len(changes)))
        return events_of(changes, format_)

    monkeypatch.setattr("drainer.changes.segment.events_of", recorded)
    assert listed(work_of(view, payloads, rows_min=50)) == listed(expected)
    assert in_columns == [(1, 95)]


def test_rows_of_relocated_partition_fold_beside_those_of_other_tables() -> None:
    """No row counts twice."""
    infos = [table([("id", INT), ("v", TEXT)], handle="id", table_id=n, name=f"t{n}") for n in (1, 2, 3)]
    stray, _, plain = infos
    view = replace(view_of(*infos), relocations={1: (Relocation(9, stray, 1 << 62),)}, relocated_ids={77: 2})
    payloads = [
        transaction([(info, ("insert", {}, {1: n, 2: b"x"})) for info in infos], commit_ts=BEGIN_TS + n)
        for n in range(5)
    ] + [transaction([(plain, ("insert", {}, {1: 9, 2: b"y"}))], commit_ts=BEGIN_TS + 9)]
    expected = one_by_one(view, payloads)
    assert listed(by_columns(view, payloads)) == listed(expected)
    for in_order in (False, True):
        work = merge_slot(cut(view, [payloads[:3], payloads[3:]], 1, in_order=in_order)[0], SQL_TEXT)
        assert merged(work) == merged(expected)


def test_error_is_that_of_first_bad_row() -> None:
    """Whatever column or table is read first (rule 21)."""
    info = table([("id", INT), ("d", FieldType(Tp.DATETIME, 128, 19, 0))], handle="id", table_id=1)
    bad_time = Uint((1 << 64) - 1)
    good: Values = {1: 0, 2: Uint(0)}
    payloads = [transaction([(info, ("insert", {}, {**good, 1: n}))], commit_ts=BEGIN_TS + n) for n in range(60)]
    payloads[40] = transaction([(info, ("insert", {}, {1: 1, 2: bad_time}))], commit_ts=BEGIN_TS + 40)
    unknown = replace(info, id=9)
    payloads[50] = transaction([(unknown, ("insert", {}, good))], commit_ts=BEGIN_TS + 50)
    for rows, kind in ((payloads, DecodeError), (payloads[41:], TableUnknown)):
        with pytest.raises(kind) as expected:
            one_by_one(view_of(info), rows)
        with pytest.raises(kind) as found:
            by_columns(view_of(info), rows)
        assert str(found.value) == str(expected.value)


def test_first_error_by_commit_ts_is_raised_from_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Binlogs come in any order, and a later share may hold the earlier one."""
    monkeypatch.setattr("drainer.changes.segment.SHARE_BYTES_MAX", 400)
    info = table([("id", INT), ("d", FieldType(Tp.DATETIME, 128, 19, 0))], handle="id")
    payloads = [
        transaction(
            [(info, ("insert", {}, {1: n, 2: Uint((1 << 64) - 1 if n in (3, 30) else 0)}))], commit_ts=BEGIN_TS + n
        )
        for n in range(40)
    ]
    with pytest.raises(DecodeError, match=f"commit_ts {BEGIN_TS + 3}") as expected:
        one_by_one(view_of(info), payloads)
    with pytest.raises(DecodeError) as found:
        by_columns(view_of(info), payloads[::-1])
    assert str(found.value) == str(expected.value)


def test_error_of_replaced_row_comes_before_later_error_of_keyless_table() -> None:
    info = table([("id", INT), ("d", FieldType(Tp.DATETIME, 128, 19, 0))], handle="id")
    bare = table([("d", FieldType(Tp.DATETIME, 128, 19, 0))], table_id=2, name="bare")
    bad, good = Uint((1 << 64) - 1), Uint(0)
    steps: list[tuple[TableInfo, Step]] = [
        (info, ("insert", {}, {1: 1, 2: bad})),
        (info, ("insert", {}, {1: 1, 2: good})),
        (bare, ("insert", {}, {1: bad})),
    ]
    payloads = [transaction([step], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    for way in (one_by_one, by_columns):
        with pytest.raises(DecodeError, match=f"commit_ts {BEGIN_TS}\\)"):
            way(view_of(info, bare), payloads)


def test_unverified_tables_are_all_named_in_one_error() -> None:
    one = table([("id", INT)], handle="id", table_id=1)
    two = table([("id", INT), ("u", INT)], handle="id", unique={"u": ["u"]}, table_id=2)
    view = replace(view_of(one, two), verified={})
    payloads = [
        transaction([(one, ("insert", {}, {1: 1})), (two, ("insert", {}, {1: 1, 2: 2}))], commit_ts=BEGIN_TS, version=3)
    ]
    with pytest.raises(TableUnverified) as error:
        by_columns(view, payloads)
    assert error.value.table_ids == (1, 2)


def test_binlogs_beyond_one_buffer_are_folded_in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    info = table([("id", INT), ("v", TEXT)], handle="id")
    bare = table([("v", TEXT)], table_id=2, name="bare")
    payloads = []
    for n in range(40):
        steps: list[tuple[TableInfo, Step]] = [(info, ("insert", {}, {1: n % 9, 2: b"v%d" % n}))]
        steps += [(bare, ("insert", {}, {1: b"x"}))] if n % 5 == 0 else []
        payloads.append(transaction(steps, commit_ts=BEGIN_TS + n))
    expected = one_by_one(view_of(info, bare), payloads)
    monkeypatch.setattr("drainer.changes.segment.SHARE_BYTES_MAX", 400)
    assert listed(by_columns(view_of(info, bare), payloads[::-1])) == listed(expected)
    assert merged(merge_slot(cut(view_of(info, bare), [payloads], 1, in_order=False)[0], SQL_TEXT)) == merged(expected)


def test_invalid_value_that_is_replaced_is_not_refused() -> None:
    """Only what is there at the end is written, whichever way rows go, and nothing else is looked at."""
    info = table([("id", INT), ("d", FieldType(Tp.DATETIME, 128, 19, 0))], handle="id")
    values = [Uint((1 << 64) - 1), Uint(0)]
    payloads = [
        transaction([(info, ("insert", {}, {1: 1, 2: value}))], commit_ts=BEGIN_TS + n)
        for n, value in enumerate(values)
    ]
    expected = one_by_one(view_of(info), payloads)
    assert [row.row for row in expected.folded[0].rows] == [b"(1,'0000-00-00 00:00:00')"]
    assert listed(by_columns(view_of(info), payloads)) == listed(expected)
    for way in (one_by_one, by_columns):
        with pytest.raises(DecodeError, match=rf"commit_ts {BEGIN_TS}\): column d \(id 2\)"):
            way(view_of(info), payloads[:1])


@pytest.mark.parametrize("rows_min", [ALWAYS, NEVER])
def test_rows_for_sqlite_fold_equally_as_columns_and_one_by_one(rows_min: int) -> None:
    """Values, keys that can be written in several ways, deletes."""
    info = table(
        [("k", not_null(TEXT)), ("v", FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0))], unique={"PRIMARY": ["k"]}
    )
    steps: list[Step] = [
        ("insert", {}, {1: b"a", 2: Uint(1)}),
        ("update", {1: b"a", 2: Uint(1)}, {1: b"a ", 2: Uint((1 << 64) - 1)}),
        ("insert", {}, {1: b"\xff", 2: None}),
        ("delete", {1: b"c  ", 2: None}, {}),
    ]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    (folded,) = work_of(view_of(info), payloads, SQLITE_VALUES, rows_min).folded
    assert {row.identity: (row.row, row.stale) for row in folded.rows} == {
        b"a": (("a ", str((1 << 64) - 1)), (("a",),)),
        b"c": (None, (("c  ",),)),
        b"\xff": ((b"\xff", None), ()),
    }


def test_add_in_order_refuses_binlogs_before_last() -> None:
    info = table([("id", INT)], handle="id")
    payloads = [transaction([(info, ("insert", {}, {1: n}))], commit_ts=BEGIN_TS + n) for n in range(4)]
    builder = SegmentCutter(SegmentDecoder(view_of(info), SQL_TEXT), flush_bytes=1)
    builder.add_in_order(payloads[1:], sum(map(len, payloads[1:])))
    with pytest.raises(ValueError, match="after that of"):
        builder.add_in_order(payloads[:1], len(payloads[0]))


def test_damaged_column_blob_is_refused() -> None:
    info = table([("id", INT), ("v", TEXT)], handle="id")
    payloads = [transaction([(info, ("insert", {}, {1: n, 2: b"x"}))], commit_ts=BEGIN_TS + n) for n in range(4)]
    (blob,) = cut(view_of(info), [payloads], 1, in_order=False)[0]
    assert len(merge_slot([blob], SQL_TEXT).folded[0].rows) == 4
    for size in range(len(blob)):
        with pytest.raises(BlobError):
            merge_slot([blob[:size]], SQL_TEXT)
    with pytest.raises(BlobError, match="version 63"):
        merge_slot([b"\x63" + blob[1:]], SQL_TEXT)
    with pytest.raises(BlobError):
        merge_slot([blob + b"\0"], SQL_TEXT)


def test_net_columns_behave_as_sequence_of_rows() -> None:
    info = table([("id", INT), ("v", TEXT)], handle="id")
    steps: list[Step] = [("insert", {}, {1: n, 2: b"it's"}) for n in range(5)] + [("delete", {1: 2, 2: b""}, {})]
    payloads = [transaction([(info, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    (folded,) = by_columns(view_of(info), payloads).folded
    (expected,) = folded_by_rule(view_of(info), payloads, SQL_TEXT).folded
    assert folded.rows == expected.rows
    assert folded.rows[1:3] == expected.rows[1:3]
    assert folded.rows[-1] == expected.rows[-1]
    columns, alive = columns_of(folded), [row.row for row in expected.rows if isinstance(row.row, bytes)]
    live = columns.live()
    assert list(live) == alive
    assert live[1:3].joined() == b",".join(alive[1:3])
    assert list(columns[2:4].live()) == alive[2:3]
    assert columns.stale() == [b"(2)"]
    assert columns[3:].stale() == []


def test_key_of_every_type_but_five_folds() -> None:
    """So that the test above of random tables meets keys of every type."""
    infos = [table([("k", not_null(kind))], unique={"PRIMARY": ["k"]}) for kind in KINDS]
    folds = sum(bool(choose_key(info).columns) for info in infos)
    assert folds == len(KINDS) - 5  # FLOAT, DOUBLE, JSON, and two of a collation whose weights are not computed
