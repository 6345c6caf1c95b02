"""Batches of Open Protocol: how many rows and bytes are in a message, and that none is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.encoder import EncodedColumns, Message, take_rows
from drainer.protocol.open.framing import VERSION, frame, row_key, row_keys, unframe
from tests.support.encoded import EncodedRow, columns_of, each_row

rows_of = st.lists(
    st.builds(EncodedRow, st.binary(max_size=30), st.binary(max_size=60), st.integers(0, 9), st.none()), max_size=30
)


def framed(rows: list[EncodedRow], max_bytes: int, max_rows: int) -> list[Message]:
    return [message for columns in columns_of(rows) for message in frame(columns, max_bytes, max_rows)]


@given(rows_of, st.integers(1, 300), st.integers(1, 5))
def test_messages_hold_every_row_once_within_both_limits(rows: list[EncodedRow], max_bytes: int, max_rows: int) -> None:
    messages = framed(rows, max_bytes, max_rows)
    assert [pair for m in messages for pair in unframe(m.key, m.value)] == [(r.key, r.value) for r in rows]
    at = 0
    for number, message in enumerate(messages):
        mine, at = rows[at : at + message.rows], at + message.rows
        assert 1 <= message.rows <= max_rows
        assert message.length <= max_bytes or message.rows == 1
        assert message.commit_ts == mine[-1].commit_ts
        if number + 1 < len(messages) and message.rows < max_rows:
            first = rows[at]
            assert message.length + len(first.key or b"") + len(first.value or b"") + 16 > max_bytes
    assert at == len(rows)


@given(st.lists(rows_of, min_size=1, max_size=4), st.integers(1, 300), st.integers(1, 5), st.data())
def test_chosen_rows_of_several_columns_are_framed_as_alone(
    parts: list[list[EncodedRow]], max_bytes: int, max_rows: int, data: st.DataObject
) -> None:
    """In any order, and of some of them."""
    rows = [row for part in parts for row in part]
    order = data.draw(st.permutations(range(len(rows))))
    chosen = order[: data.draw(st.integers(min(1, len(rows)), len(rows)))]
    if not chosen:
        return
    some = take_rows([columns for part in parts for columns in columns_of(part)], np.array(chosen, np.int64))
    assert each_row([some]) == [rows[at] for at in chosen]
    found = list(frame(some, max_bytes, max_rows))
    assert found == framed([rows[at] for at in chosen], max_bytes, max_rows)
    assert all(type(one) in (bytes, int) for message in found for one in message)
    assert some.lengths().tolist() == [len(rows[at].key or b"") + len(rows[at].value or b"") + 36 for at in chosen]


def test_slice_of_columns_is_framed_without_the_rest() -> None:
    rows = [EncodedRow(b"k%d" % number, b"v" * number, number) for number in range(9)]
    ((keys, values, stamps, _),) = columns_of(rows)
    part = EncodedColumns(keys.slice(3, 4), values.slice(3, 4), stamps[3:7])
    assert list(frame(part, 1 << 20, 3)) == framed(rows[3:7], 1 << 20, 3)


def test_message_of_exactly_size_limit_is_allowed() -> None:
    rows = [EncodedRow(b"key", b"value", 1)] * 2
    (whole,) = framed(rows, 1 << 20, 16)
    assert whole.length == 36 + 8 + 2 * (3 + 5 + 16)
    assert [message.rows for message in framed(rows, whole.length, 16)] == [2]
    assert [message.rows for message in framed(rows, whole.length - 1, 16)] == [1, 1]


def test_keys_of_rows_are_recognised_only_if_all_of_the_key_is_rows() -> None:
    def framed_keys(*keys: bytes) -> bytes:
        return VERSION + b"".join(len(key).to_bytes(8, "big") + key for key in keys)

    row, other = b'{"ts":5,"scm":"d","tbl":"t","rid":-1,"ptn":2,"t":1}', b'{"ts":6,"scm":"d","tbl":"u","t":1}'
    for keys in ([row], [row, other]):
        whole = framed_keys(*keys)
        assert [one["ts"] for one in row_keys(whole)] == [b"5", b"6"][: len(keys)]
        assert (row_key(whole) is not None) == (len(keys) == 1)
        wrong = [whole[:at] for at in range(len(whole)) if at not in (0, 8 + 8 + len(row))]
        wrong += [whole[:at] + b"\2" + whole[at + 1 :] for at in (0, 7, 8, 15)] + [whole + b"\0", whole + bytes(8)]
        assert not any(row_keys(one) or row_key(one) for one in wrong)
    for part in (b'"t":2}', b'"ohk":true,"t":1}', b'"t":1,"ccl":"x"}'):
        assert not row_keys(framed_keys(row, row.replace(b'"t":1}', part)))
    for name in (b"\\\\", b"\n"):
        assert not any(row_keys(framed_keys(row.replace(b":" + one, b':"%s"' % name))) for one in (b'"d"', b'"t"'))
