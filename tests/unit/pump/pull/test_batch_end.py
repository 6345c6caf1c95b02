"""Where a batch ends: bounds, DDL, schema versions, splits; and the values of the index it reads."""

from __future__ import annotations

from binlog.pb.pump_ext_pb2 import WatermarkReq, WatermarkResp
from hypothesis import given
from hypothesis import strategies as st

from pump.index.keys import (
    FLAG_DDL,
    Complete,
    complete_key,
    decode_complete,
    decode_head,
    encode_complete,
    encode_head,
    key_ts,
    outcome_key,
    ts_key,
)
from pump.log.record import Pointer
from pump.log.value_log import Head
from pump.pull import plan_batch

numbers = st.integers(0, 2**62)


def entry(commit_ts: int, size: int = 100, *, flags: int = 0, version: int = 5) -> tuple[bytes, bytes]:
    complete = Complete(commit_ts - 1, 0, 0, size, 10, version, 77 if flags & FLAG_DDL else 0, flags, b"h" * 10)
    return complete_key(commit_ts), encode_complete(complete)


def test_index_keys_have_prefix_and_big_endian_ts_of_original() -> None:
    """P-ST-07: prefix and big endian."""
    assert ts_key(0x0102030405060708) == b"ts:\x01\x02\x03\x04\x05\x06\x07\x08"
    assert key_ts(ts_key(99)) == key_ts(complete_key(99)) == key_ts(outcome_key(99)) == 99


@given(numbers, numbers)
def test_complete_keys_sort_by_ts(a: int, b: int) -> None:
    assert (complete_key(a) < complete_key(b)) == (a < b)


@given(numbers, st.integers(0, 2**32 - 1), numbers, numbers, st.binary(max_size=40))
def test_index_values_decode_to_what_was_encoded(start: int, fid: int, offset: int, version: int, head: bytes) -> None:
    complete = Complete(start, fid, offset, 7, 3, version, 1, FLAG_DDL, head)
    assert decode_complete(encode_complete(complete)) == complete
    assert complete.served_bytes == len(head) + 4
    own = Head(Pointer(fid, offset), offset + 1, version)
    assert decode_head(encode_head(own)) == own


def test_plan_batch_ends_at_byte_limit_after_at_least_one_binlog() -> None:
    """Bytes are those of the served binlogs. The first always fits: a batch gets on."""
    entries = [entry(10), entry(20), entry(30)]
    plan = plan_batch(entries, 99, WatermarkReq(batch_bytes_max=200))
    assert (plan.batch_end_ts, plan.stop, plan.stop_ts, plan.batch_bytes) == (20, WatermarkResp.LIMIT, 30, 200)
    plan = plan_batch(entries, 99, WatermarkReq(batch_bytes_max=1))
    assert (plan.batch_end_ts, plan.stop, plan.batch_count) == (10, WatermarkResp.LIMIT, 1)


def test_plan_batch_stops_before_ddl_if_asked_to() -> None:
    """Only where asked for; the position just below it lets the DDL begin the next batch."""
    entries = [entry(10), entry(20, flags=FLAG_DDL), entry(30)]
    plan = plan_batch(entries, 99, WatermarkReq(batch_bytes_max=10_000, stop_at_schema=True, schema_version=9))
    assert (plan.batch_end_ts, plan.stop, plan.stop_ts, plan.batch_count) == (19, WatermarkResp.DDL, 20, 1)
    plan = plan_batch(entries[1:], 99, WatermarkReq(batch_bytes_max=10_000, stop_at_schema=True, schema_version=9))
    assert (plan.batch_end_ts, plan.stop, plan.batch_count) == (19, WatermarkResp.DDL, 0)
    assert plan_batch(entries, 99, WatermarkReq(batch_bytes_max=10_000)).batch_count == 3


def test_plan_batch_stops_before_row_with_newer_schema_version() -> None:
    """X-08: a row may carry a version whose DDL comes after it."""
    entries = [entry(10, version=9), entry(20, version=10)]
    plan = plan_batch(entries, 99, WatermarkReq(batch_bytes_max=10_000, stop_at_schema=True, schema_version=9))
    assert (plan.batch_end_ts, plan.stop, plan.stop_ts, plan.stop_schema_version) == (19, WatermarkResp.SCHEMA, 20, 10)


def test_plan_batch_splits_divide_bytes_about_evenly() -> None:
    entries = [entry(ts, 10_000) for ts in range(1, 401)]
    plan = plan_batch(entries, 999, WatermarkReq(batch_bytes_max=64 << 20))
    for wanted, found in zip((100, 200, 300), plan.split_ts, strict=True):
        assert abs(found - wanted) < 10
    assert plan_batch([entry(10)], 99, WatermarkReq(batch_bytes_max=64 << 20)).split_ts == []
