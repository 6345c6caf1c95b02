"""The messages of a pump's topic (docs/formats.md). Pure.

A message says: with it, everything in (after_ts, until_ts] is complete. Its body is a PullRangeResp as a pull returns
it: some binlogs, one part of a large binlog, or nothing, which only moves the position. Only the last part of a binlog
has an until_ts above its after_ts. So the last message of a topic says where its pump goes on.

A writer begins with a message of a higher epoch. Messages of a lower one that follow it were sent before, by a
process that has ended; a reader skips them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

import google_crc32c

from binlog.errors import DecodeError, PumpUnavailable
from binlog.pb import pump_ext_pb2 as ext

_MAGIC = b"PBT1"
_HEAD = Struct("<4sIIQQ")  # magic, crc32c of everything behind it, epoch, after_ts, until_ts
_CHECKED_FROM = 8
OVERHEAD_BYTES = 256  # of the head, and of the fields around a part, at most


class TopicError(PumpUnavailable):
    """Brokers do not answer, or refuse. The text names the topic and the reason."""


class TopicMessage(NamedTuple):
    """One message; `body`: bytes of a PullRangeResp."""

    epoch: int
    after_ts: int
    until_ts: int
    body: bytes = b""


class Outgoing(NamedTuple):
    """A message to send; `ts`: the TSO whose time becomes the message's timestamp."""

    ts: int
    value: bytes


def encode(message: TopicMessage) -> bytes:
    """Return the value of a message."""
    head = _HEAD.pack(_MAGIC, 0, message.epoch, message.after_ts, message.until_ts)
    crc = google_crc32c.extend(google_crc32c.value(head[_CHECKED_FROM:]), message.body)
    return b"".join((_MAGIC, crc.to_bytes(4, "little"), head[_CHECKED_FROM:], message.body))


def decode(value: bytes, where: str) -> TopicMessage:
    """Raises DecodeError, which begins with `where`, for bytes that are not a whole message."""
    if len(value) < _HEAD.size or value[:4] != _MAGIC:
        raise DecodeError(where, offset=0, detail="not a message of a pump")
    _, crc, epoch, after_ts, until_ts = _HEAD.unpack_from(value)
    if crc != google_crc32c.value(value[_CHECKED_FROM:]):
        raise DecodeError(where, offset=4, detail="checksum mismatch")
    return TopicMessage(epoch, after_ts, until_ts, value[_HEAD.size :])


def body_of(payloads: Sequence[bytes], last_ts: int, *, whole_bytes: int = 0, part_offset: int = 0) -> bytes:
    """Return the body for binlogs, or for one part of one; as the fields of PullRangeResp."""
    message: Any = ext.PullRangeResp(
        payloads=payloads, last_ts=last_ts, whole_bytes=whole_bytes, part_offset=part_offset
    )
    found: bytes = message.SerializeToString()
    return found


def topic_name(prefix: str, cluster_id: int, node_id: str) -> str:
    """Return the topic of a pump. Characters that Kafka does not allow, and `_`, become `_` and their code in hex."""
    plain = re.sub(r"[^A-Za-z0-9.-]", lambda found: f"_{ord(found[0]):02x}", node_id)
    return f"{prefix}-{cluster_id}-{plain}"
