"""Requests that hold binlogs, read by hand as protobuf reads them."""

from __future__ import annotations

from typing import Any

import pytest
from binlog.envelope import WRITER_BYTES, encode_binlog, scan, writer_of
from binlog.errors import DecodeError
from binlog.extension import PAYLOADS_MAX
from binlog.pb import pump_ext_pb2, pump_pb2
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import MessageTooLarge, TooLarge, TooManyItems
from pump.pull import BinlogPart
from pump.rpc.messages import (
    LARGE_BYTES_MIN,
    head_of_write,
    last_ts_field,
    parse_batch,
    payload_fields,
    pulled_part,
)
from pump.rpc.methods import MessageLimits
from tests.unit.pump.build import prewrite

LARGE = bytes(LARGE_BYTES_MIN + 1)
U64 = st.integers(0, 2**64 - 1)


@given(U64, st.integers(-(2**63), 2**63 - 1), st.lists(st.sampled_from([b"", b"small", b"x" * 300, LARGE]), max_size=5))
def test_parse_batch_reads_any_batch_as_protobuf_does(cluster_id: int, batch_id: int, payloads: list[bytes]) -> None:
    request: Any = pump_ext_pb2.WriteBatchReq(cluster_id=cluster_id, batch_id=batch_id % 2**63, payloads=payloads)
    data = request.SerializeToString()
    for given_as in (data, memoryview(data)):
        found = parse_batch(given_as)
        assert (*found[:2], [bytes(payload) for payload in found[2]]) == (
            request.cluster_id,
            request.batch_id,
            list(request.payloads),
        )
        assert all(len(payload) > LARGE_BYTES_MIN for payload in found[2] if isinstance(payload, memoryview))


@pytest.mark.parametrize("first", [b"", LARGE])
def test_parse_batch_refuses_more_than_payloads_max(first: bytes) -> None:
    payloads = [first, *[b""] * (PAYLOADS_MAX - 1)]
    assert len(parse_batch(pump_ext_pb2.WriteBatchReq(payloads=payloads).SerializeToString())[2]) == PAYLOADS_MAX
    with pytest.raises(TooManyItems, match="more than 2048 payloads"):
        parse_batch(pump_ext_pb2.WriteBatchReq(payloads=[*payloads, b""]).SerializeToString())


@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_parse_batch_raises_decode_error_for_cut_message(size: int) -> None:
    data = pump_ext_pb2.WriteBatchReq(cluster_id=7, batch_id=300, payloads=[bytes(size)]).SerializeToString()
    for cut in (1, 3, 5, 6, 8, len(data) - 1):
        if len(data) - cut in (0, 2, 5):  # between two fields
            continue
        torn = data[: len(data) - cut]
        if size == 10 or len(torn) > LARGE_BYTES_MIN:
            with pytest.raises(DecodeError, match="WriteBatchReq"):
                parse_batch(torn)


@given(U64, st.integers(1, 2**62), st.integers(100, 5000))
def test_head_of_write_returns_start_ts_and_size_of_cut_request(cluster_id: int, start_ts: int, size: int) -> None:
    payload = encode_binlog(tp=0, start_ts=start_ts, prewrite_key=b"k", prewrite_value=bytes(size))
    data = pump_pb2.WriteBinlogReq(clusterID=cluster_id or 1, payload=payload).SerializeToString()
    assert head_of_write(data[:64]) == (start_ts, len(payload))


@given(st.binary(max_size=64))
def test_head_of_write_accepts_any_bytes(head: bytes) -> None:
    head_of_write(head)
    head_of_write(b"\x08" + head)
    head_of_write(b"\x08\x07\x12\x05\x08\x00\x10" + head)


def test_too_long_message_error_names_transaction_or_message_limit() -> None:
    limits = MessageLimits(transaction_bytes_max=1000)
    payload = encode_binlog(tp=0, start_ts=5, prewrite_key=b"k", prewrite_value=bytes(2000))
    data = pump_pb2.WriteBinlogReq(clusterID=7, payload=payload).SerializeToString()
    found = limits.too_long(len(data), data[:64], limits.single)
    assert isinstance(found, TooLarge) and f"start_ts 5 has {len(payload)} bytes" in str(found)
    assert isinstance(limits.too_long(len(data), b"gzip", limits.single), MessageTooLarge)
    for each in (MessageLimits(1000, 500), MessageLimits(10_000, 500)):
        assert (each.single, each.batch) == (500, 500)
        found = each.too_long(len(data), data[:64], each.single)
        assert isinstance(found, MessageTooLarge) and "max-message-size" in str(found)


def test_message_limits_admit_every_binlog_within_transaction_limit() -> None:
    """No binlog that may be written is refused for what the message has beside it."""
    limits = MessageLimits(transaction_bytes_max=1000)
    for cluster_id in (1, 2**64 - 1):
        data = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=bytes(1000)).SerializeToString()
        assert len(data) <= limits.single
        data = pump_ext_pb2.WriteBatchReq(
            cluster_id=cluster_id, batch_id=2**63 - 1, payloads=[bytes(64 << 20)]
        ).SerializeToString()
        assert len(data) <= limits.batch


def test_writer_of_large_binlog_is_a_copy_and_no_view() -> None:
    """A writer's id in the pending set would hold its whole transaction."""
    payload = memoryview(prewrite(10, writer=bytes(range(WRITER_BYTES))))
    found = writer_of(payload, scan(payload))  # type: ignore[arg-type]
    assert type(found) is bytes and found == bytes(range(WRITER_BYTES))


@given(
    st.lists(
        st.one_of(st.binary(max_size=300), st.sampled_from([b"", bytes(127), bytes(128), bytes(20_000)])), max_size=9
    ),
    st.integers(1, 2**63 - 1),
)
def test_pull_message_encodes_as_protobuf_does(payloads: list[bytes], last_ts: int) -> None:
    found = payload_fields(payloads) + last_ts_field(last_ts)
    assert found == pump_ext_pb2.PullRangeResp(payloads=payloads, last_ts=last_ts).SerializeToString()


@given(st.binary(min_size=1, max_size=300), st.integers(1, 2**63 - 1), st.integers(0, 2**40), st.integers(1, 2**40))
def test_pull_part_encodes_as_protobuf_does(data: bytes, commit_ts: int, offset: int, whole: int) -> None:
    found = pulled_part(BinlogPart(commit_ts, 1, data, offset, whole))
    wanted = pump_ext_pb2.PullRangeResp(payloads=[data], last_ts=commit_ts, whole_bytes=whole, part_offset=offset)
    assert found.data == wanted.SerializeToString()
    assert (found.binlogs, found.size) == (int(offset == 0), len(data))
