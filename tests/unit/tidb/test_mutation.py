"""A transaction's rows, walked and built."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.pb import binlog_pb2
from binlog.tidb.mutation import PrewriteValue, parse_prewrite
from binlog.tidb.varint import encode_uvarint
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import survives

changes = st.lists(
    st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, 1, 4]), st.binary(max_size=200)), max_size=12
)


def build(version: int, rows: list[tuple[int, int, bytes]]) -> PrewriteValue:
    value = PrewriteValue(version)
    for table_id, kind, row in rows:
        {0: value.insert, 1: value.update, 4: value.delete}[kind](table_id, row)
    return value


def by_table(rows: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    tables = list(dict.fromkeys(table_id for table_id, _, _ in rows))
    return sorted(rows, key=lambda row: tables.index(row[0]))


@given(st.integers(-(1 << 63), (1 << 63) - 1), changes)
def test_serialized_prewrite_value_parses_to_same_rows_by_table(
    version: int, rows: list[tuple[int, int, bytes]]
) -> None:
    """Order is kept within a table; tables come in the order of their first row."""
    built = build(version, rows)
    assert len(built) == len(rows)
    parsed = parse_prewrite(built.serialize())
    assert parsed.schema_version == version
    assert list(parsed.rows()) == by_table(rows)


@given(st.integers(0, 1 << 40), changes)
def test_prewrite_value_serializes_to_same_bytes_as_protobuf(version: int, rows: list[tuple[int, int, bytes]]) -> None:
    """The proto2 message with every scalar set serializes the same."""
    message = binlog_pb2.PrewriteValue(schema_version=version)
    tables: dict[int, binlog_pb2.TableMutation] = {}
    for table_id, kind, row in rows:
        if table_id not in tables:
            tables[table_id] = message.mutations.add(table_id=table_id)
        table = tables[table_id]
        {0: table.inserted_rows, 1: table.updated_rows, 4: table.deleted_rows}[kind].append(row)
        table.sequence.append(binlog_pb2.MutationType.ValueType(kind))
    assert build(version, rows).serialize() == message.SerializeToString()


def test_prewrite_value_serializes_zero_fields() -> None:
    assert build(0, [(0, 0, b"\x00")]).serialize().hex() == "0800" + "1207" + "0800" + "120100" + "3800"


def packed(sequence: bytes, *fields: bytes) -> bytes:
    body = b"\x08\x07" + b"".join(fields) + b"\x3a" + encode_uvarint(len(sequence)) + sequence
    return b"\x08\x01\x12" + encode_uvarint(len(body)) + body


def test_packed_mutation_sequence_is_read() -> None:
    data = packed(b"\x04\x00\x00", b"\x12\x01a", b"\x12\x01b", b"\x32\x01c")
    assert list(parse_prewrite(data).rows()) == [(7, 4, b"c"), (7, 0, b"a"), (7, 0, b"b")]


@pytest.mark.parametrize(
    ("sequence", "fields", "complaint"),
    [
        (b"\x02", (), "unknown mutation type 2"),
        (b"\x03", (b"\x12\x01a",), "unknown mutation type 3"),
        (b"\x05", (b"\x12\x01a",), "unknown mutation type 5"),
        (b"\x80\x01", (), "unknown mutation type 128"),
        (b"\xff" * 9 + b"\x01", (), "unknown mutation type -1"),
        (b"\x00\x00", (b"\x12\x01a",), "1, 0 and 0 rows"),
        (b"\x00", (b"\x12\x01a", b"\x12\x01a"), "2, 0 and 0 rows"),
        (b"\x00", (b"\x32\x01a",), "0, 0 and 1 rows"),
        (b"", (b"\x1a\x01a",), "0, 1 and 0 rows"),
    ],
)
def test_mutation_sequence_that_contradicts_rows_raises_decode_error(
    sequence: bytes, fields: tuple[bytes, ...], complaint: str
) -> None:
    """A kind that protobuf's closed enum would hide is seen, too: its row would be lost."""
    with pytest.raises(DecodeError, match=complaint) as caught:
        parse_prewrite(packed(sequence, *fields))
    assert caught.value.what == "mutations of table 7"


def test_prewrite_value_with_unknown_or_missing_fields_is_read() -> None:
    assert parse_prewrite(b"") == (0, [])
    assert parse_prewrite(b"\x18\x05").schema_version == 0
    assert list(parse_prewrite(b"\x12\x00").rows()) == []


@given(changes)
def test_damaged_prewrite_value_raises_decode_error_only(rows: list[tuple[int, int, bytes]]) -> None:
    survives(lambda data: list(parse_prewrite(data).rows()), build(5, rows).serialize(), rounds=20)


@given(st.binary(max_size=60))
def test_random_bytes_as_prewrite_value_raise_decode_error_only(data: bytes) -> None:
    survives(lambda damaged: list(parse_prewrite(damaged).rows()), data, rounds=3)
