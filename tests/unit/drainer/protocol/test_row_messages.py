"""Messages of one row each, as columns: the same messages as of rows, in chunks that are bounded and whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.canal import CanalEncoder
from drainer.protocol.encoder import RECORD_OVERHEAD, EncodedColumns, Message, RowMessages
from drainer.protocol.registry import ProtocolOptions
from tests.support.encoded import EncodedRow, framed_rows

BYTES = st.none() | st.binary(max_size=60)
ROWS = st.lists(st.builds(EncodedRow, BYTES, BYTES, st.integers(0, 9), st.none()), min_size=1, max_size=12)
KEYLESS = st.lists(st.builds(EncodedRow, st.none(), BYTES, st.integers(0, 9), st.none()), min_size=1, max_size=12)


def columns_of(rows: list[EncodedRow]) -> EncodedColumns:
    """A slice of longer arrays."""
    keys, values = (
        pa.array([b"before", *(row[part] for row in rows), b"behind"], pa.large_binary()) for part in (0, 1)
    )
    stamps = np.array([row.commit_ts for row in rows], np.uint64)
    return EncodedColumns(keys.slice(1, len(rows)), values.slice(1, len(rows)), stamps)


@given(st.lists(ROWS | KEYLESS, min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 400), st.data())
def test_messages_from_columns_equal_those_of_rows(
    parts: list[list[EncodedRow]], most: int, size: int, data: st.DataObject
) -> None:
    """In any order, and of some of them, as often as they are asked for."""
    rows = [row for part in parts for row in part]
    order = data.draw(st.permutations(range(len(rows))))
    if data.draw(st.booleans()):
        order = sorted(order, key=lambda at: rows[at].commit_ts)
    chosen = order[: data.draw(st.integers(1, len(rows)))]
    found = RowMessages([columns_of(part) for part in parts], np.array(chosen, np.int64))
    expected = list(framed_rows(CanalEncoder(ProtocolOptions("canal-json")), (rows[at] for at in chosen)))
    assert len(found) == len(chosen)
    assert list(found) == list(found) == expected
    assert all(isinstance(message, Message) and type(message.commit_ts) is int for message in found)
    at = 0
    for keys, values, size_of in found.chunks(most, size):
        mine, at = expected[at : at + len(values)], at + len(values)
        assert values == [message.value for message in mine]
        assert (keys or [None] * len(mine)) == [message.key for message in mine]
        assert (keys is None) == all(message.key is None for message in mine)
        assert size_of == sum(message.length for message in mine)
        assert 1 <= len(mine) <= most
        assert size_of - mine[-1].length < size
        assert at == len(expected) or len(mine) == most or size_of >= size
    assert at == len(expected)


# Protocols that send one row a message: what a message tells of itself beside its bytes.


def test_frame_makes_one_message_of_each_row() -> None:
    rows = [EncodedRow(b"key", b"value", 7), EncodedRow(None, b"v", 8), EncodedRow(b"k", None, 9)]
    found = [*framed_rows(CanalEncoder(ProtocolOptions("canal-json")), iter(rows))]
    assert found == [Message(b"key", b"value", 1, 7), Message(None, b"v", 1, 8), Message(b"k", None, 1, 9)]
    assert all(isinstance(message, Message) for message in found)
    assert [message.rows for message in found] == [1, 1, 1]
    assert [message.commit_ts for message in found] == [7, 8, 9]
    assert [message.length - RECORD_OVERHEAD for message in found] == [8, 1, 1]
