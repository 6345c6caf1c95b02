"""Simple: what is written is read back, for every type; damaged messages raise MessageError and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.encoder import Decoder
from drainer.protocol.errors import MessageError
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_decoder, make_encoder
from tests.support.examples import FEW
from tests.support.round_trip import TABLE, Row, changes_of_each_kind, check_row, empty_row, values
from tests.support.row_changes import make_changes
from tests.support.typed_columns import read_row, typed_rows

ZONE = ZoneInfo("Asia/Tokyo")
OPTIONS = ProtocolOptions("simple", time_zone="Asia/Tokyo")
AVRO = replace(OPTIONS, encoding_format="avro")
ENCODER = make_encoder(OPTIONS)


def informed(options: ProtocolOptions = OPTIONS) -> Decoder:
    """One that has the table's schema."""
    decoder = make_decoder(options)
    for message in make_encoder(options).bootstrap(TABLE, 5):
        decoder.decode(message.key, message.value)
    return decoder


@FEW
@given(st.lists(st.tuples(typed_rows(), typed_rows()), min_size=1, max_size=4), st.integers(1, (1 << 63) - 1))
def test_rows_of_every_type_read_back_equal_in_json_and_avro(pairs: list[tuple[Row, Row]], commit_ts: int) -> None:
    """In JSON and in Avro."""
    for options, changes in product((OPTIONS, AVRO), changes_of_each_kind(pairs, commit_ts)):
        decoder = informed(options)
        rows = make_encoder(options).table(TABLE).encode(changes)
        for row, pair in zip(rows, pairs, strict=True):
            events = decoder.decode(row.key, row.value)
            event = check_row(events, changes.kind, commit_ts, pair, lambda row: read_row(TABLE.columns, row, ZONE))
            assert list(values(event.new)) == sorted(values(event.new))


@cache
def samples() -> tuple[bytes, bytes]:
    """A row and a schema."""
    (row,) = ENCODER.table(TABLE).encode(make_changes(TABLE, Kind.INSERT, new=[empty_row()]))
    (schema,) = ENCODER.bootstrap(TABLE, 5)
    return row.value or b"", schema.value or b""


def test_message_cut_at_any_byte_is_refused() -> None:
    decoder = informed()
    for whole in samples():
        for end in range(len(whole)):
            with pytest.raises(MessageError):
                decoder.decode(None, whole[:end])


@given(st.data())
def test_damaged_message_raises_only_message_error(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(samples())))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        informed().decode(None, bytes(whole))
    except MessageError as error:
        assert "Simple message" in str(error)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": 2}, "version is 2"),
        ({"version": None}, "version is None"),
        ({"type": "SELECT"}, "type 'SELECT'"),
        ({"type": 7}, "type is 7"),
        ({"commitTs": -1}, "commitTs is -1"),
        ({"data": None}, "data"),
        ({"data": {"id": 1}}, r"data: id is 1"),
        ({"data": {"id": "x"}}, r"data: id is 'x'.*bigint"),
        ({"data": {"none": "1"}}, r"data: none is not in the table's schema"),
        ({"data": {"blob": "%"}}, r"data: blob is '%'"),
        ({"data": {"stamp": "2024-01-01 00:00:00"}}, r"data: stamp is"),
        ({"data": {"stamp": {"location": "UTC"}}}, r"data.stamp: no member 'value'"),
        ({"type": "BOOTSTRAP"}, "tableSchema"),
        ({"type": "CREATE"}, "sql"),
        ({"type": "CREATE", "sql": "x", "tableSchema": {"columns": [{"name": "a"}]}}, r"columns\[0\].*dataType"),
        ({"type": "CREATE", "sql": "x", "tableSchema": {"columns": [1]}}, r"columns\[0\]: not an object"),
        ({"type": "UPDATE"}, "old"),
    ],
)
def test_wrong_message_member_is_named_in_error(change: dict[str, object], place: str) -> None:
    good = json.loads(samples()[0])
    with pytest.raises(MessageError, match=place):
        informed().decode(None, json.dumps(good | change).encode())


@pytest.mark.parametrize("value", [None, b"", b"[]", b"\xff", b"[" * 100_000])
def test_value_that_is_not_json_object_is_refused(value: bytes | None) -> None:
    with pytest.raises(MessageError):
        informed().decode(None, value)
