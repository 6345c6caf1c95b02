"""Rows are found where the general readers find them, whatever else a message holds."""

from __future__ import annotations

import random

import pytest
from binlog import envelope
from binlog.envelope import encode_binlog
from binlog.errors import DecodeError
from binlog.tidb.mutation import PrewriteValue
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes.scan import Scanned, scan_all
from drainer.row.codec import in_order
from drainer.row.transaction import rows, scan
from tests.support.row_case import BEGIN_TS

Row = tuple[int, int, int, int, int, Kind, bytes]


def general(payloads: list[bytes]) -> list[Row]:
    """commit_ts, start_ts, sequence, version, table id, kind, row: one after another. The upper bits of start_ts order
    the rows of a source that gives each row a binlog of its own."""
    found = []
    for one in in_order([scan(payload) for payload in payloads]):
        found += [
            (one.commit_ts, one.start_ts, number + (one.start_ts >> 60), version, table_id, kind, row)
            for number, (version, table_id, kind, row) in enumerate(rows(one))
        ]
    return found


def in_step(scanned: Scanned) -> list[Row]:
    found = scanned.rows
    assert (found.begin[1:] >= found.end[:-1]).all(), "columns are cut from ascending offsets"
    listed = [
        (*of, Kind(kind), found.row(number))
        for number, (*of, kind) in enumerate(
            zip(
                found.commit_ts.tolist(),
                found.start_ts.tolist(),
                found.sequence.tolist(),
                found.version.tolist(),
                found.table_id.tolist(),
                found.kind.tolist(),
                strict=True,
            )
        )
    ]
    by_order = [row for _, row in sorted(zip(found.order.tolist(), listed, strict=True), key=lambda pair: pair[0])]
    assert sorted(found.order.tolist()) == found.order.tolist() or len(listed) > 1
    return by_order  # type: ignore[return-value]


def binlog(value: PrewriteValue | None, commit_ts: int, start_ts: int, key: bytes = b"key") -> bytes:
    body = value.serialize() if value is not None else None
    return encode_binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key, prewrite_value=body)


NUMBERS = st.integers(0, 2**48) | st.integers(0, 300)
ROWS = st.lists(
    st.tuples(st.integers(1, 3) | NUMBERS, st.sampled_from(["insert", "update", "delete"]), st.binary(max_size=300)),
    max_size=5,
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    value = PrewriteValue(draw(NUMBERS))
    for table_id, kind, row in draw(ROWS):
        getattr(value, kind)(table_id, row)
    base = draw(st.sampled_from([BEGIN_TS, BEGIN_TS, 5, 1 << 62]))
    commit_ts = base + draw(st.integers(0, 6))
    start_ts = draw(st.sampled_from([commit_ts - 1, commit_ts - 3, commit_ts]))
    shape = draw(st.integers(0, 8))
    if shape == 0:
        return encode_binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts, ddl_query=b"DROP TABLE t", ddl_job_id=7)
    if shape == 1:
        return binlog(None, commit_ts, start_ts)
    whole = binlog(value, commit_ts, start_ts, draw(st.binary(max_size=200)))
    return whole[2:] + whole[:2] if shape == 2 else whole  # tp may come last


@given(found=st.lists(payloads(), max_size=12), seed=st.integers(0, 99))
def test_scanned_rows_equal_those_of_general_reader(found: list[bytes], seed: int) -> None:
    """In any order, some of them twice."""
    dice = random.Random(seed)
    found = list({transaction_of(payload): payload for payload in found}.values())
    found += dice.sample(found, dice.randint(0, len(found)))
    dice.shuffle(found)
    scanned = scan_all(found)
    assert in_step(scanned) == general(found)
    transactions = in_order([scan(payload) for payload in found])
    assert set(scanned.commit_ts.tolist()) == {one.commit_ts for one in transactions}
    assert scanned.source_bytes == sum(len(one.payload) for one in transactions)


def transaction_of(payload: bytes) -> tuple[int, int]:
    found = envelope.scan(payload)
    return found.commit_ts, found.start_ts


@given(whole=payloads(), at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_damaged_binlog_is_refused_where_general_reader_refuses_it(whole: bytes, at: int, byte: int) -> None:
    value = PrewriteValue(70)
    value.insert(300, b"r" * 20)
    neighbour, index = binlog(value, BEGIN_TS + 1000, BEGIN_TS), at % len(whole)
    for damaged in (whole[:index], whole[:index] + bytes((byte,)) + whole[index + 1 :]):
        among = [neighbour, damaged, neighbour]
        try:
            expected = general(among)
        except DecodeError:
            with pytest.raises(DecodeError):
                scan_all(among)
        else:
            assert in_step(scan_all(among)) == expected


def test_single_row_transaction_is_read_in_place() -> None:
    """The usual transaction costs no call of its own."""
    value = PrewriteValue(70)
    value.insert(300, b"r" * 200)
    found = [binlog(value, BEGIN_TS + n, BEGIN_TS) for n in range(3)]
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr("drainer.changes.scan._Several.add", None)
        assert [row[6] for row in in_step(scan_all(found))] == [b"r" * 200] * 3


def test_repeated_row_of_reorganize_partition_is_left_out() -> None:
    row = b"\x08\x02\x08\x02\x08\x01\x08\x0e"  # a column and the rowid
    value = PrewriteValue(1)
    for _ in range(2):
        value.delete(5, row)
    assert len(scan_all([binlog(value, BEGIN_TS, BEGIN_TS - 1)]).rows) == 1


def test_equal_rows_of_two_tables_are_both_there() -> None:
    """Rowids are counted in each table."""
    row = b"\x08\x02\x08\x02\x08\x01\x08\x0e"
    value = PrewriteValue(1)
    for table_id in (5, 6):
        value.delete(table_id, row)
    payloads = [binlog(value, BEGIN_TS, BEGIN_TS - 1)]
    assert [found[4] for found in general(payloads)] == [found[4] for found in in_step(scan_all(payloads))] == [5, 6]


def test_ddl_binlog_has_no_rows_whatever_value_it_has() -> None:
    value = PrewriteValue(1)
    value.insert(5, b"row")
    body = value.serialize()
    ddl = encode_binlog(tp=1, start_ts=BEGIN_TS, commit_ts=BEGIN_TS + 1, prewrite_value=body, ddl_job_id=7)
    assert general([ddl]) == in_step(scan_all([ddl])) == []


def test_scan_of_no_binlogs_is_empty() -> None:
    scanned = scan_all([])
    assert (len(scanned.rows), scanned.source_bytes) == (0, 0)
