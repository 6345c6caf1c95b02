"""A large transaction cut into small binlogs: the same rows in the same order, whatever its shape."""

from __future__ import annotations

import tracemalloc

import pytest
from binlog import envelope
from binlog.errors import DecodeError
from binlog.tidb.mutation import PrewriteValue, parse_prewrite
from binlog.tidb.varint import encode_uvarint
from hypothesis import given
from hypothesis import strategies as st

from drainer.row.transaction import pieces, rows, scan
from tests.unit.tidb.damage import survives

Row = tuple[int, int, bytes]
changes = st.lists(
    st.tuples(st.sampled_from([-3, 1, 300, 1 << 40]), st.sampled_from([0, 1, 4]), st.binary(max_size=300)), max_size=30
)


def binlog(value: bytes, **fields: int) -> memoryview:
    made = envelope.encode_binlog(
        tp=1, start_ts=1 << 60, commit_ts=(1 << 60) + 1, prewrite_key=b"key", prewrite_value=value, **fields
    )
    return memoryview(made)


def build(found: list[Row], version: int = 7) -> bytes:
    value = PrewriteValue(version)
    for table_id, kind, row in found:
        {0: value.insert, 1: value.update, 4: value.delete}[kind](table_id, row)
    return value.serialize()


def read(parts: list[bytes]) -> list[tuple[int, int, int, bytes]]:
    """(schema version, table id, kind, row) of all pieces in turn, without the rule about doubled rows."""
    found = []
    for part in parts:
        scanned = envelope.scan(part)
        assert (scanned.tp, scanned.start_ts, scanned.commit_ts) == (1, 1 << 60, (1 << 60) + 1)
        prewrite = parse_prewrite(part[scanned.value_at : scanned.value_end])
        found += [(prewrite.schema_version, *row) for row in prewrite.rows()]
    return found


@given(changes, st.integers(1, 2000), st.integers(0, 1 << 40))
def test_pieces_of_transaction_hold_its_rows_in_order(found: list[Row], bytes_max: int, version: int) -> None:
    value = build(found, version)
    cut = list(pieces(binlog(value), bytes_max))
    assert read(cut) == read([bytes(binlog(value))])
    for part in cut:
        assert len(part) < bytes_max + 2 * 400 + 100


@given(st.permutations(range(9)))
def test_pieces_are_equal_for_any_order_of_protobuf_fields(order: list[int]) -> None:
    """Protobuf allows it. Rows of one kind keep the order in which they come, and `sequence` may be packed."""
    fields = [
        b"\x08\x09", b"\x12\x02i1", b"\x12\x02i2", b"\x1a\x02u1", b"\x32\x02d1", b"\x3a\x03\x00\x01\x04", b"\x38\x00",
        b"\x20\x05", b"\x2a\x02pk",
    ]  # fmt: skip
    body = b"".join(fields[n] for n in order)
    value = b"\x12" + encode_uvarint(len(body)) + body + b"\x08\x05"  # the version behind the rows
    assert read(list(pieces(binlog(value), 3))) == read([bytes(binlog(value))])


def test_pieces_are_not_cut_between_equal_changes() -> None:
    """While REORGANIZE PARTITION runs TiDB tells of a row twice in turn; what drops the second must see both."""
    row = b"r" * 96 + b"\x08\x01\x08\x05"
    value = build([(1, 0, b"a" * 300), (1, 1, row), (1, 1, row), (1, 1, row), (1, 4, row), (1, 4, row), (1, 0, b"b")])
    cut = list(pieces(binlog(value), 300))
    assert [len(read([part])) for part in cut] == [1, 5, 1]
    kept = [row for part in cut for row in rows(scan(part))]
    assert len(kept) == len(list(rows(scan(bytes(binlog(value)))))) == 3
    alike = build([(1, 0, b"same" * 100)] * 100)
    assert max(map(len, pieces(binlog(alike), 1000))) < 3000  # but a piece has an end


def test_transaction_without_rows_has_no_pieces() -> None:
    assert list(pieces(binlog(b"\x08\x05"))) == []
    assert list(pieces(binlog(b"\x08\x05\x12\x02\x08\x01"))) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\x08\x01\x12\x01r\x38\x03", "unknown mutation type 3"),
        (b"\x08\x01\x12\x01r\x38\x01", "the sequence says"),
        (b"\x08\x01\x12\x01r", "the sequence says"),
        (b"\x08\x01\x12\x09r\x38\x00", "EOF"),
        (b"\x08\x01\x13", "wire type 3"),
    ],
)
def test_damaged_transaction_is_refused_with_its_commit_ts(body: bytes, text: str) -> None:
    value = b"\x08\x05\x12" + encode_uvarint(len(body)) + body
    with pytest.raises(DecodeError, match=f"commit_ts {(1 << 60) + 1}.*{text}"):
        list(pieces(binlog(value)))


def test_pieces_of_randomly_damaged_transaction_raise_only_decode_error() -> None:
    value = build([(n % 3, (0, 1, 4)[n % 3], bytes([n]) * n) for n in range(40)])
    survives(lambda data: list(pieces(memoryview(data), 50)), bytes(binlog(value)), rounds=2000)


@pytest.mark.slow
def test_memory_of_pieces_is_bounded_by_one_piece() -> None:
    """Of 32 MiB in pieces of 1 MiB."""
    view = binlog(build([(1, 0, n.to_bytes(200)) for n in range(160_000)]))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    count = sum(1 for _ in pieces(view, 1 << 20))
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert count >= 30
    assert peak < 8 << 20
