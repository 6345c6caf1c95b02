"""Messages of upstream's service that hold a binlog, read and written with as few copies as can be.

Protobuf copies a bytes field when it parses and when it serializes. That is nothing for a usual binlog, and a gigabyte
each time for a transaction of a gigabyte; large messages are therefore taken apart and put together here.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlog.envelope import encode_varint
from binlog.errors import DecodeError
from binlog.pb import pump_pb2
from binlog.tidb.varint import decode_uvarint
from google.protobuf.message import DecodeError as ProtobufError

LARGE_BYTES_MIN = 4 << 20

_CLUSTER_ID, _PAYLOAD = 0x08, 0x12


def parse_write(data: bytes) -> tuple[int, bytes]:
    """(cluster id, payload) of a WriteBinlogReq. Of a large one the payload is a view of `data`, which may be used as
    bytes but must not be kept longer than the call."""
    if len(data) > LARGE_BYTES_MIN and data[0] == _CLUSTER_ID:
        cluster_id, at = decode_uvarint(data, 1)
        if data[at] == _PAYLOAD:
            size, at = decode_uvarint(data, at + 1)
            if at + size == len(data):
                return cluster_id, memoryview(data)[at:]  # type: ignore[return-value]
    try:
        request = pump_pb2.WriteBinlogReq.FromString(data)
    except ProtobufError as error:
        raise DecodeError("WriteBinlogReq", offset=0, detail=str(error)) from error
    return request.clusterID, request.payload


def entity(start_ts: int, commit_ts: int, payload: bytes) -> bytes:
    """A PullBinlogResp."""
    found = pump_pb2.Entity(
        pos=pump_pb2.Pos(), payload=payload, meta=pump_pb2.Meta(startTs=start_ts, commitTs=commit_ts)
    )
    encoded: bytes = pump_pb2.PullBinlogResp(entity=found).SerializeToString()
    return encoded


def large_entity(start_ts: int, commit_ts: int, parts: Sequence[bytes]) -> bytes:
    """As `entity`, of a payload in parts: one copy of it is made."""
    meta = pump_pb2.Meta(startTs=start_ts, commitTs=commit_ts).SerializeToString()
    size = sum(map(len, parts))
    before = b"\x0a\x00\x12" + encode_varint(size)  # pos, payload
    after = b"\x22" + encode_varint(len(meta)) + meta
    return b"".join((b"\x0a" + encode_varint(len(before) + size + len(after)) + before, *parts, after))
