"""Protocols that send one row a message: what a message tells of itself beside its bytes."""

from __future__ import annotations

from drainer.protocol.encoder import RECORD_OVERHEAD, EncodedRow, Message
from drainer.protocol.row_messages import frame_rows


def test_frame_rows_makes_one_message_of_each_row() -> None:
    rows = [EncodedRow(b"key", b"value", 7), EncodedRow(None, b"v", 8), EncodedRow(b"k", None, 9)]
    found = [*frame_rows(iter(rows))]
    assert found == [Message(b"key", b"value", 1, 7), Message(None, b"v", 1, 8), Message(b"k", None, 1, 9)]
    assert all(isinstance(message, Message) for message in found)
    assert [message.rows for message in found] == [1, 1, 1]
    assert [message.commit_ts for message in found] == [7, 8, 9]
    assert [message.length - RECORD_OVERHEAD for message in found] == [8, 1, 1]
