"""Every change, unfolded: what decoding row by row gives, in upstream's order, however it is cut and merged."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from binlog.errors import DecodeError
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment, stream
from drainer.changes.decode import Changes
from drainer.changes.slot_blob import BlobError
from drainer.changes.stream import (
    _HEAD,
    CHANGES_BLOB,
    StreamDecoder,
    divided,
    in_order,
    merge,
    ordered,
    unpack_blob,
    unpack_streams,
)
from drainer.changes.vector import Ints
from drainer.row.codec import Decoder
from drainer.row.transaction import pieces
from drainer.schema.errors import SchemaError, TableUnknown, TableUnverified
from drainer.schema.view import Relocation, SchemaView
from tests.support.examples import FEW
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, in_parts, table, transaction, view_of
from tests.unit.drainer.changes.cases import tables
from tests.unit.drainer.changes.test_segment import histories

FIRST = table([("id", INT), ("v", INT)], handle="id", table_id=100, name="first")
SECOND = table([("id", INT)], table_id=101, name="second")  # without a key
# Rows of FIRST show by their values which table they are of.
RELOCATED = replace(
    view_of(FIRST, SECOND),
    relocations={FIRST.id: (Relocation(9, FIRST, 1 << 62),)},
    relocated_ids={FIRST.id: FIRST.id},
)

Change = tuple[object, ...]


def listed(segment: ChangeSegment) -> list[Change]:
    """The changes in order: table, kind, commit_ts, sequence, old and new decoded values."""
    columns = [
        [None if image is None else [column.to_pylist() for column in image] for image in (one.old, one.new)]
        for one in segment.changes
    ]
    found = []
    for of, row in in_order(segment):
        one = segment.changes[of]
        old, new = (None if image is None else tuple(column[row] for column in image) for image in columns[of])
        found.append((one.shape.table_id, one.kind, int(one.commit_ts[row]), int(one.sequence[row]), old, new))
    return found


def expected(view: SchemaView, payloads: Iterable[bytes]) -> list[Change]:
    """Row by row."""
    found: list[Change] = []
    for row in Decoder(view).rows(payloads, lambda codec: codec.asking_for(range(len(codec.column_types)))):
        old, new = (None if image is None else tuple(image) for image in (row.old, row.new))
        found.append((row.codec.shape.table_id, row.kind, row.commit_ts, row.sequence, old, new))
    return found


def whole(view: SchemaView, payloads: Iterable[bytes]) -> ChangeSegment:
    return StreamDecoder(view).segment([*payloads], 0, 1)


def blob_of(info: TableInfo, payloads: Iterable[bytes]) -> bytes:
    """The changes of all binlogs, in one slot."""
    cutter = StreamDecoder(view_of(info)).cutter(1, by_parity)
    cutter.add_all(payloads)
    (blob,) = cutter.cut().values()
    return blob


def by_parity(changes: Changes, slots: int) -> tuple[Ints]:
    return ((changes.commit_ts.astype(np.int64) + changes.sequence) % slots,)


def by_both_images(changes: Changes, slots: int) -> list[Ints]:
    """Updates belong to two slots, perhaps the same one; inserts and deletes to one."""
    (first,) = by_parity(changes, slots)
    return [first, (first * 7 + 1) % slots] if changes.kind is Kind.UPDATE else [first]


def put(key: int, value: int = 0) -> Step:
    return ("insert", {}, {1: key, 2: value})


@given(data=st.data(), info=tables())
def test_stream_holds_every_change_once_in_order(data: st.DataObject, info: TableInfo) -> None:
    payloads = data.draw(histories(info))
    view = view_of(info)
    wanted = expected(view, payloads)
    twice = [*payloads, *data.draw(st.lists(st.sampled_from(payloads), max_size=3))]
    data.draw(st.randoms()).shuffle(twice)
    found = whole(view, twice)
    assert listed(found) == wanted
    assert (found.change_count, found.commits) == (len(wanted), len({one[2] for one in wanted}))


@given(data=st.data(), info=tables(), parts=st.integers(1, 3), slots=st.integers(1, 3))
def test_slots_of_stream_hold_every_change_once_in_order(
    data: st.DataObject, info: TableInfo, parts: int, slots: int
) -> None:
    """Rules 16 and 19: parts cut anywhere, some transactions in two of them, blobs in any order."""
    payloads = data.draw(histories(info))
    view = view_of(info)
    dice = random.Random(data.draw(st.integers(0, 999)))
    blobs: dict[int, list[bytes]] = {}
    for share in in_parts(payloads, parts, dice):
        cutter = StreamDecoder(view).cutter(slots, by_parity)
        cutter.add_in_order(share, sum(map(len, share)))
        for slot, blob in cutter.cut().items():
            blobs.setdefault(slot, []).append(blob)
    wanted = expected(view, payloads)
    found = {}
    for slot, mine in blobs.items():
        dice.shuffle(mine)
        merged = merge(StreamDecoder(view), mine, 0, 1)
        assert all(bool((np.diff(one.order) > 0).all()) for one in merged.changes)
        found[slot] = listed(merged)
    of = {slot: [one for one in wanted if (one[2] + one[3]) % slots == slot] for slot in range(slots)}  # type: ignore[operator]
    assert found == {slot: some for slot, some in of.items() if some}


@FEW
@given(data=st.data(), info=tables(), slots=st.integers(1, 3), run=st.integers(1, 4))
def test_binlogs_decoded_in_several_runs_give_the_same_slots(
    data: st.DataObject, info: TableInfo, slots: int, run: int
) -> None:
    """Their changes are one stream of each slot, and of a transaction that two runs have one copy is used."""
    payloads = data.draw(histories(info))
    view = view_of(info)
    cutter = StreamDecoder(view).cutter(slots, by_both_images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "FLUSH_BYTES", 1)
        cutter._flush_bytes = 1
        for begin in range(0, len(payloads), run):
            some = payloads[max(0, begin - 1) : begin + run]
            cutter.add_in_order(some, sum(map(len, some)))
            assert not cutter._payloads
    blobs = cutter.cut()
    other = StreamDecoder(view).cutter(slots, by_both_images)
    other.add_all(payloads)
    wanted = {slot: listed(merge(StreamDecoder(view), [blob], 0, 1)) for slot, blob in other.cut().items()}
    assert {slot: listed(merge(StreamDecoder(view), [blob], 0, 1)) for slot, blob in blobs.items()} == wanted
    for blob in blobs.values():
        assert len(unpack_streams_of(blob)) <= len({(one[0], one[1]) for some in wanted.values() for one in some})


def unpack_streams_of(blob: bytes) -> list[memoryview]:
    return unpack_streams(blob, _HEAD, CHANGES_BLOB, lambda one: one)[1]


def test_relocated_rows_of_several_runs_share_blob() -> None:
    payloads = [transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n) for n in range(9)]
    cutter = StreamDecoder(RELOCATED).cutter(2, by_parity)
    for begin in range(0, 9, 3):
        cutter.add_in_order(payloads[begin : begin + 3], stream.FLUSH_BYTES)
        assert not cutter._payloads
    blobs = cutter.cut()
    found = [one for blob in blobs.values() for one in listed(merge(StreamDecoder(RELOCATED), [blob], 0, 1))]
    assert sorted(found, key=lambda one: one[2]) == expected(RELOCATED, payloads)  # type: ignore[arg-type,return-value]


def test_blob_that_ends_before_its_last_run_is_refused() -> None:
    """An end mark where a batch should begin: to Arrow it is a whole stream."""
    cutter = StreamDecoder(view_of(FIRST)).cutter(1, by_parity)
    for n in range(2):
        cutter.add_in_order([transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n)], stream.FLUSH_BYTES)
    (blob,) = cutter.cut().values()
    begins = [at for at in range(len(blob)) if blob.startswith(b"\xff\xff\xff\xff", at)]
    assert len(begins) == 4  # schema, two batches, end
    ended = bytearray(blob)
    ended[begins[2] : begins[2] + 8] = b"\xff\xff\xff\xff\0\0\0\0"
    with pytest.raises(BlobError, match="1 of 2 rows"):
        merge(StreamDecoder(view_of(FIRST)), [bytes(ended)], 0, 1)


def test_run_size_grows_with_number_of_tables() -> None:
    infos = [table([("id", INT)], table_id=100 + n, name=f"t{n}") for n in range(3)]
    cutter = StreamDecoder(view_of(*infos)).cutter(1, by_parity)
    payloads = [
        transaction([(info, ("insert", {}, {1: n}))], commit_ts=BEGIN_TS + n) for n, info in enumerate(infos * 2)
    ]
    cutter.add_in_order(payloads[:3], stream.FLUSH_BYTES)
    assert not cutter._payloads
    cutter.add_in_order(payloads[3:5], 3 * stream.FLUSH_BYTES - 1)
    assert len(cutter._payloads) == 2
    cutter.add_in_order(payloads[5:], 1)
    assert not cutter._payloads
    (blob,) = cutter.cut().values()
    assert merge(StreamDecoder(view_of(*infos)), [blob], 0, 1).change_count == 6


def test_source_bytes_of_several_runs_equal_those_of_one() -> None:
    """Told once, however many slots it has."""
    payloads = [transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n) for n in range(9)]
    runs, together = (StreamDecoder(view_of(FIRST)).cutter(2, by_parity) for _ in range(2))
    for begin in range(0, 9, 4):
        runs.add_in_order(payloads[begin : begin + 4], stream.FLUSH_BYTES)
    together.add_all(payloads)
    named = StreamDecoder(view_of(FIRST)).codec_named
    found, wanted = ([unpack_blob(blob, named)[1] for blob in cutter.cut().values()] for cutter in (runs, together))
    assert len(found) == 2
    assert found == wanted == [sum(map(len, payloads)), 0]


@pytest.mark.parametrize(("count", "most"), [(0, 2 << 20), (1, 2 << 20), (20, 32 << 20)])
def test_run_size_is_bounded(count: int, most: int) -> None:
    """By 32 MiB however many tables there are; and where a run had no rows, by no less than where it had one table."""
    infos = [table([("id", INT)], table_id=100 + n, name=f"t{n}") for n in range(20)]
    cutter = StreamDecoder(view_of(*infos)).cutter(1, by_parity)
    steps: list[tuple[TableInfo, Step]] = [(info, ("insert", {}, {1: 1})) for info in infos[:count]]
    cutter.add_in_order([transaction(steps, commit_ts=BEGIN_TS)], 2 << 20)
    assert not cutter._payloads
    payload = transaction([(infos[0], ("insert", {}, {1: 2}))], commit_ts=BEGIN_TS + 1)
    cutter.add_in_order([payload], most - 1)
    assert cutter._payloads == [payload]
    cutter.add_in_order([], 1)
    assert not cutter._payloads


@FEW
@given(
    count=st.integers(1, 30),
    arrays=st.integers(1, 3),
    slots=st.sampled_from([1, 3, 300, 70_000]),
    seed=st.integers(0, 99),
)
def test_divided_names_every_change_of_every_slot_once(count: int, arrays: int, slots: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    of = [dice.integers(0, slots, count) for _ in range(arrays)]
    rows, ranges = divided(of)
    found = {slot: rows[begin:end].tolist() for slot, begin, end in ranges}
    assert found == {slot: [n for n in range(count) if any(one[n] == slot for one in of)] for slot in np.unique(of)}
    assert [begin for _, begin, _ in ranges] == [0, *(end for _, _, end in ranges[:-1])]
    assert divided([np.zeros(0, np.int64)])[1] == []


def test_divided_handles_slot_numbers_beyond_8_and_16_bits() -> None:
    rows, ranges = divided([np.array([256, 0, 65_536, 256, 1, 0])])
    assert (rows.tolist(), ranges) == ([1, 5, 4, 0, 3, 2], [(0, 0, 2), (1, 2, 3), (256, 3, 5), (65_536, 5, 6)])


@given(data=st.data(), info=tables(), slots=st.integers(1, 4))
def test_change_of_two_slots_is_once_in_each(data: st.DataObject, info: TableInfo, slots: int) -> None:
    payloads = data.draw(histories(info))
    view = view_of(info)
    wanted: dict[int, list[Change]] = {}
    for one in expected(view, payloads):
        first = (one[2] + one[3]) % slots  # type: ignore[operator]
        for slot in {first, (first * 7 + 1) % slots} if one[1] is Kind.UPDATE else {first}:
            wanted.setdefault(slot, []).append(one)
    cutter = StreamDecoder(view).cutter(slots, by_both_images)
    cutter.add_all(payloads)
    blobs = cutter.cut()
    assert {slot: listed(merge(StreamDecoder(view), [blob], 0, 1)) for slot, blob in blobs.items()} == wanted


@pytest.mark.parametrize("rows_min", [1, 1 << 30], ids=["in step", "one by one"])
def test_stored_generated_columns_are_decoded_only_when_wanted(rows_min: int) -> None:
    plain = table([("a", INT), ("virtual", INT), ("stored", INT), ("b", INT)], handle="b")
    columns = list(plain.columns)
    columns[1] = replace(columns[1], generated_expr="a + 1", generated_stored=False)
    columns[2] = replace(columns[2], generated_expr="a + 2", generated_stored=True)
    view = view_of(replace(plain, columns=tuple(columns)))
    info = view.tables[plain.id].current
    values, others = {1: 10, 3: 12, 4: 7}, {1: 20, 3: 22, 4: 7}
    steps: list[Step] = [
        ("insert", {}, values),
        ("update", {**values, 2: 11}, {**others, 2: 21}),
        ("delete", {**others, 2: 21}, {}),
    ]
    payload = transaction([(info, step) for step in steps], commit_ts=BEGIN_TS)
    found = {}
    for wanted in (False, True):
        decoder = StreamDecoder(view, stored_generated=wanted)
        decoder._columns._vector_rows_min = rows_min
        segment = decoder.segment([payload], 0, 1)
        assert [one[4:] for one in listed(segment)] == (
            [(None, (10, 12, 7)), ((10, 12, 7), (20, 22, 7)), ((20, 22, 7), None)]
            if wanted
            else [(None, (10, 7)), ((10, 7), (20, 7)), ((20, 7), None)]
        )
        found[wanted] = segment.changes[0].shape
    assert found[True].columns == ("a", "stored", "b")
    assert found[True].key == (2,)
    assert found[False].key == (1,)


def test_shares_of_slot_are_merged_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SHARE_BYTES_MAX", 40)
    payloads = [transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n) for n in range(20)]
    blob = blob_of(FIRST, payloads)
    segment = merge(StreamDecoder(view_of(FIRST)), [blob], 0, 1)
    assert len(segment.changes) == 8  # 16 bytes each, two or three of which begin in 40
    assert listed(segment) == expected(view_of(FIRST), payloads)


def test_transaction_in_pieces_keeps_order_of_its_changes() -> None:
    steps = [(FIRST, put(n, n)) for n in range(40)] + [(SECOND, ("insert", {}, {1: n})) for n in range(40)]
    payload = transaction(steps, commit_ts=BEGIN_TS)
    view = view_of(FIRST, SECOND)
    piece = StreamDecoder(view).transaction()
    cut = list(pieces(memoryview(payload), 100))
    assert len(cut) > 3
    found = [one for small in cut for one in listed(piece(small, 0, 1))]
    assert found == expected(view, [payload])
    assert [one[3] for one in found] == list(range(80))


def test_relocated_rows_are_decoded_for_their_table() -> None:
    payloads = [transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n) for n in range(3)]
    found = listed(whole(RELOCATED, payloads))
    assert found == expected(RELOCATED, payloads)
    assert len(found) == 3


def test_relocated_and_other_rows_share_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(FIRST, put(n, n)) if n % 2 else (SECOND, ("insert", {}, {1: n})) for n in range(20)]
    payloads = [transaction([step], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)]
    blobs: list[bytes] = []
    for share in (payloads[:12], payloads[8:]):  # some transactions are in both parts
        cutter = StreamDecoder(RELOCATED).cutter(1, by_parity)
        cutter.add_all(share[::-1])
        blobs += cutter.cut().values()
    for limit in (1 << 20, 40):
        monkeypatch.setattr(stream, "SHARE_BYTES_MAX", limit)
        merged = merge(StreamDecoder(RELOCATED), blobs, 0, 1)
        assert listed(merged) == expected(RELOCATED, payloads)
        assert all(bool((np.diff(one.order) > 0).all()) for one in merged.changes)


def test_merged_slot_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n) for n in range(20)]
    blob = blob_of(FIRST, payloads)
    monkeypatch.setattr(StreamDecoder, "named", None)
    assert listed(merge(StreamDecoder(view_of(FIRST)), [blob], 0, 1)) == expected(view_of(FIRST), payloads)


def test_blob_of_another_table_schema_is_refused() -> None:
    blob = blob_of(FIRST, [transaction([(FIRST, put(1))], commit_ts=BEGIN_TS)])
    wider = table([("id", INT), ("v", INT), ("w", INT)], handle="id", table_id=100, name="first")
    with pytest.raises(BlobError, match="rows of table 100 have other columns"):
        merge(StreamDecoder(view_of(wider)), [blob], 0, 1)
    with pytest.raises(TableUnknown):
        merge(StreamDecoder(view_of(SECOND)), [blob], 0, 1)


def test_blob_with_text_offsets_beyond_its_bytes_is_refused() -> None:
    texts = table([("id", INT), ("text", TEXT)], handle="id", table_id=102, name="texts")
    steps: list[Step] = [("insert", {}, {1: n, 2: b"12345678"}) for n in range(2)]
    blob = blob_of(texts, [transaction([(texts, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)])
    offsets = struct.pack("<iii", 0, 8, 16)
    assert blob.count(offsets) == 1
    with pytest.raises(BlobError, match="is damaged"):
        merge(StreamDecoder(view_of(texts)), [blob.replace(offsets, struct.pack("<iii", 0, 8, 1 << 20))], 0, 1)


@given(data=st.data())
def test_blob_with_changed_bytes_raises_only_blob_or_schema_error(data: st.DataObject) -> None:
    steps: list[Step] = [put(1, 7), ("update", {1: 1, 2: 7}, {1: 1, 2: 8}), ("delete", {1: 1, 2: 8}, {})]
    blob = blob_of(FIRST, [transaction([(FIRST, step)], commit_ts=BEGIN_TS + n) for n, step in enumerate(steps)])
    changed = bytearray(blob)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BlobError, SchemaError):
        merge(StreamDecoder(view_of(FIRST)), [bytes(changed)], 0, 1)


@pytest.mark.parametrize("number", [0, 3])
def test_error_is_that_of_first_bad_row(number: int) -> None:
    payloads = [transaction([(FIRST, put(n, n))], commit_ts=BEGIN_TS + n) for n in range(30)]
    for at in (number, 20):
        payloads[at] = transaction([(SECOND, ("insert", {}, {1: at}))], commit_ts=BEGIN_TS + at)
    with pytest.raises(TableUnknown, match=str(BEGIN_TS + number)):
        whole(view_of(FIRST), payloads)
    cutter = StreamDecoder(view_of(FIRST)).cutter(2, by_parity)
    cutter.add_all(payloads)
    with pytest.raises(TableUnknown, match=str(BEGIN_TS + number)):
        cutter.cut()


def test_unverified_table_raises_table_unverified() -> None:
    view = replace(view_of(FIRST), verified={})
    payloads = [transaction([(FIRST, put(1))], commit_ts=BEGIN_TS)]
    with pytest.raises(TableUnverified):
        whole(view, payloads)
    cutter = StreamDecoder(view_of(FIRST)).cutter(1, by_parity)
    cutter.add_all(payloads)
    with pytest.raises(TableUnverified):
        merge(StreamDecoder(view), cutter.cut().values(), 0, 1)


def test_cut_binlog_in_stream_is_refused() -> None:
    payloads = [transaction([(FIRST, put(n))], commit_ts=BEGIN_TS + n) for n in range(3)]
    with pytest.raises(DecodeError):
        whole(view_of(FIRST), [*payloads, payloads[0][:-5]])


def test_blob_cut_at_any_byte_or_of_another_version_is_refused() -> None:
    blob = blob_of(FIRST, [transaction([(FIRST, put(1))], commit_ts=BEGIN_TS)])
    decoder = StreamDecoder(view_of(FIRST))
    assert merge(decoder, [blob], 0, 1).change_count == 1
    end = blob.rindex(b"\xff\xff\xff\xff")  # the end of the stream, which a reader does not need
    for length in range(end):
        with pytest.raises(BlobError):
            merge(decoder, [blob[:length]], 0, 1)
    with pytest.raises(BlobError, match="version"):
        merge(decoder, [bytes([blob[0] + 1]) + blob[1:]], 0, 1)


def test_stream_without_binlogs_is_empty_segment() -> None:
    view = view_of(FIRST)
    assert listed(whole(view, [])) == []
    merged = merge(StreamDecoder(view), [], 5, 9)
    assert (merged.after_ts, merged.until_ts, merged.changes) == (5, 9, ())
    assert (merged.change_count, merged.source_bytes, merged.commits) == (0, 0, 0)
    assert StreamDecoder(view).cutter(3, by_parity).cut() == {}


# Changes that several pumps have are numbered once, in upstream's order.


STAMP = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))  # commit_ts, start_ts, sequence


@given(groups=st.lists(st.lists(STAMP, max_size=6, unique=True), min_size=1, max_size=4))
def test_each_change_of_several_pumps_is_ordered_once(groups: list[list[tuple[int, int, int]]]) -> None:
    """Transactions with one commit_ts are told apart by their start_ts: TiDB's may share it, where they commit
    asynchronously."""
    codec = Decoder(view_of(FIRST)).codec(FIRST.id, 1, 0)
    assert codec is not None
    parts = []
    for group in groups:
        commit_ts, start_ts, sequence = np.array(group, np.int64).reshape(-1, 3).T
        stamps = commit_ts.astype(np.uint64), start_ts.astype(np.uint64), sequence
        parts.append(Changes(codec, Kind.INSERT, *stamps, sequence, None, None))
    found = [one.order for one in ordered(parts)]
    by_number: dict[int, tuple[int, int, int]] = {}
    for group, order in zip(groups, found, strict=True):
        assert len(group) == len(order)
        for stamp, number in zip(group, order.tolist(), strict=True):
            if number >= 0:
                assert number not in by_number
                by_number[number] = stamp
    assert [by_number[number] for number in sorted(by_number)] == sorted({stamp for group in groups for stamp in group})
    assert sorted(by_number) == list(range(len(by_number)))
