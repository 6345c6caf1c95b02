"""Bytes that TiDB, TiKV and their documents give for a value: both directions, vector by vector.

`pytest tests/golden --vectors FILE` runs another file of the same form instead. A section, a field or a form of
input that no check here understands is a failure, never a skip.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from binlog.errors import DecodeError
from binlog.tidb import datum, key, row, time, varint
from binlog.tidb.datum import Datum, Duration, Uint
from binlog.tidb.decimal import Decimal, decode_decimal, decode_digits, encode_decimal
from binlog.tidb.job import Job
from binlog.tidb.json import BinaryJSON, cut_json, decode_text, parse_json
from binlog.tidb.row import decode_row_v2
from binlog.tidb.time import Civil
from binlog.tidb.types import FieldType, Flag, Tp

from tests.golden.vector_files import VECTORS, Vector, read, vectors_with
from tests.golden.vector_json import json_from_text
from tests.golden.vector_tables import VectorTable
from tests.support import tidb_codecs
from tests.support.tidb_codecs import encode_row, encode_row_v2

DEFAULT = [VECTORS / "tidb_codec_vectors.json.gz", VECTORS / "edge_tidb_vectors.json.gz"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vector" not in metafunc.fixturenames:
        return
    vectors = vectors_with("section", metafunc.config.getoption("--vectors"), DEFAULT)
    cases = [pytest.param(v, id=f"{v['section']}-{n}-{v['name'][:40]}") for n, v in enumerate(vectors)]
    metafunc.parametrize("vector", cases)


def both(encode: Callable[..., bytes], decode: Callable[[bytes, int], tuple[object, int]]) -> Callable[[Vector], None]:
    """A codec whose input is the value itself."""

    def check(vector: Vector) -> None:
        data = bytes.fromhex(vector["hex"])
        assert encode(vector["input"]) == data
        assert decode(data, 0) == (vector["input"], len(data))
        assert decode(b"?" + data + b"?", 1) == (vector["input"], 1 + len(data))

    return check


def both_bytes(encode: Callable[[bytes], bytes], decode: Callable[[bytes, int], tuple[bytes, int]]):  # type: ignore[no-untyped-def]
    def check(vector: Vector) -> None:
        data, plain = bytes.fromhex(vector["hex"]), bytes.fromhex(only(vector["input"], "bytes_hex"))
        assert encode(plain) == data
        assert decode(data + b"?", 0) == (plain, len(data))

    return check


def fails(decode: Callable[[bytes], object]) -> Callable[[Vector], None]:
    def check(vector: Vector) -> None:
        assert vector["input"] is None
        with pytest.raises(DecodeError) as caught:
            decode(bytes.fromhex(vector["hex"]))
        if vector["error"] != "any":
            assert vector["error"] in str(caught.value)

    return check


def only(given: dict[str, Any], *names: str) -> Any:
    """The fields of an input, which has exactly these."""
    assert set(given) == set(names), f"fields {sorted(given)}, this check reads {sorted(names)}"
    values = [given[name] for name in names]
    return values[0] if len(values) == 1 else values


def check_float(vector: Vector) -> None:
    data, value = bytes.fromhex(vector["hex"]), float(vector["input"])
    decoded, end = datum.decode_float(data)
    assert end == 8
    assert decoded == value
    if vector["input"] != "-0.0":
        assert datum.encode_float(value) == data
        return
    newest = "newest" in vector["name"]
    assert datum.encode_float(value, signed_zero=newest) == data
    assert struct.pack(">d", decoded) == struct.pack(">d", -0.0 if newest else 0.0)


def check_decimal(vector: Vector) -> None:
    value, precision, frac = only(vector["input"], "value", "precision", "frac")
    data = bytes.fromhex(vector["hex"])
    payload = bytes((precision, frac)) + data
    assert encode_decimal(value, precision, frac) == payload
    assert decode_digits(data, 0, precision, frac) == (vector["text"], len(data))
    assert decode_decimal(payload) == (vector["text"], len(payload))


def check_time(vector: Vector) -> None:
    parts, packed = only(vector["input"], "ymdhms_us", "packed_uint")
    when = Civil(*parts)
    assert time.pack(when) == packed
    assert time.unpack(packed) == when
    assert datum.encode_uint(packed).hex() == vector["hex"]
    assert varint.encode_uvarint(packed).hex() == vector["uvarint_hex"]
    assert time.datetime_text(packed, 0) == vector["datetime0"]
    assert time.datetime_text(packed, 6) == vector["datetime6"]
    assert time.date_text(packed) == vector["date"]
    assert time.parse_datetime(vector["datetime6"]) == packed


def check_duration(vector: Vector) -> None:
    ns, fsp0, fsp6 = only(vector["input"], "ns", "text_fsp0", "text_fsp6")
    assert datum.encode_value(ns).hex() == vector["hex"]
    assert datum.encode_key(Duration(ns)).hex() == vector["key_form_hex"]
    decoded, _ = datum.decode_one(bytes.fromhex(vector["key_form_hex"]))
    assert (type(decoded), decoded) == (Duration, ns)
    assert datum.decode_one(bytes.fromhex(vector["hex"]))[0] == ns
    assert time.duration_text(ns, 0) == fsp0
    assert time.duration_text(ns, 6) == fsp6
    assert time.parse_duration(fsp6) == ns


def _datum_of(vector: Vector) -> Datum:
    kind, value = vector["name"].split()[0].lower(), vector["input"]
    if value is None:
        return None
    if isinstance(value, dict):
        return bytes.fromhex(only(value, "bytes_hex"))
    if kind in ("uint", "enum", "set", "bit"):
        return Uint(value)
    if kind in ("int", "year"):
        return int(value)
    if kind in ("float", "double"):
        return float(value)
    if kind in ("date", "datetime", "timestamp"):
        return Uint(time.parse_datetime(value))
    if kind in ("string", "char", "varchar", "text", "bytes"):
        return str(value).encode()
    if kind == "decimal":
        return _decimal(f"{value} {vector['name'].split()[-1]}")
    raise AssertionError(f"no datum this check can read: {vector['name']}")


def check_datum(vector: Vector) -> None:
    value = _datum_of(vector)
    for encode, field in ((datum.encode_value, "hex"), (datum.encode_key, "key_form_hex")):
        data = bytes.fromhex(vector[field])
        assert encode(value) == data
        decoded, end = datum.decode_one(data + b"?")
        assert (type(decoded), decoded, end) == (type(value), value, len(data))


def check_json(vector: Vector) -> None:
    code, text = only(vector["input"], "type_code", "text")
    data = bytes((code,)) + bytes.fromhex(vector["hex"])
    assert decode_text(b"?" + data + b"?", 1) == (text, 1 + len(data))
    assert cut_json(data + b"?") == len(data)
    value, end = datum.decode_one(bytes.fromhex(vector["datum_hex"]))
    assert (type(value), value, end) == (BinaryJSON, data, 1 + len(data))
    assert datum.encode_value(value).hex() == vector["datum_hex"]
    assert json_from_text(code, text, data[1:]) == data


_V2_TYPES = {
    "int": FieldType(Tp.LONGLONG, 0, 20, 0),
    "uint": FieldType(Tp.LONGLONG, int(Flag.UNSIGNED), 20, 0),
    "year": FieldType(Tp.YEAR, 0, 4, 0),
    "float": FieldType(Tp.FLOAT, 0, 12, -1),
    "double": FieldType(Tp.DOUBLE, 0, 22, -1),
    "bytes": FieldType(Tp.BLOB, 0, 65535, 0),
    "string": FieldType(Tp.VARCHAR, 0, 255, 0, "utf8mb4", "utf8mb4_bin"),
    "date": FieldType(Tp.DATE, 0, 10, 0),
    "datetime": FieldType(Tp.DATETIME, 0, 19, 0),
    "timestamp": FieldType(Tp.TIMESTAMP, 0, 19, 0),
    "decimal": FieldType(Tp.NEWDECIMAL, 0, 1, 0),
    "enum": FieldType(Tp.ENUM),
    "set": FieldType(Tp.SET),
    "bit": FieldType(Tp.BIT, 0, 64, 0),
    "json": FieldType(Tp.JSON),
    "time": FieldType(Tp.DURATION, 0, 10, 0),
}


def _decimal(text: str) -> Decimal:
    """`1.5 (2,1)`"""
    found = re.fullmatch(r"(\S+) \((\d+),(\d+)\)", text)
    assert found, text
    return Decimal(found[1], int(found[2]), int(found[3]))


def _v2_value(text: str) -> tuple[FieldType, Datum]:
    kind, _, rest = text.partition(" ")
    kind = {"duration": "time", "varchar": "string", "char": "string", "text": "string", "blob": "bytes"}.get(
        kind, kind
    )
    made: dict[str, Callable[[str], Datum]] = {
        **dict.fromkeys(("int", "year"), int),
        **dict.fromkeys(("uint", "enum", "set", "bit"), Uint),
        **dict.fromkeys(("float", "double"), float),
        **dict.fromkeys(("bytes", "string"), str.encode),
        **dict.fromkeys(("date", "datetime", "timestamp"), lambda given: Uint(time.parse_datetime(given))),
        "decimal": _decimal,
        "json": parse_json,
        "time": time.parse_duration,
    }
    assert kind in made, f"no value this check can read: {text}"
    return _V2_TYPES[kind], made[kind](rest)


def check_row_v2(vector: Vector) -> None:
    columns = {int(n): None if text is None else _v2_value(text) for n, text in only(vector["input"], "cols").items()}
    values = {n: None if found is None else found[1] for n, found in columns.items()}
    types = {n: _V2_TYPES["int"] if found is None else found[0] for n, found in columns.items()}
    data = bytes.fromhex(vector["hex"])
    decoded = decode_row_v2(data, types)
    assert {n: (type(v), v) for n, v in decoded.items()} == {n: (type(v), v) for n, v in values.items()}
    assert encode_row_v2(values) == data


def check_key(vector: Vector) -> None:
    given, data = vector["input"], bytes.fromhex(vector["hex"])
    table_id, handle = given["table_id"], given.get("handle")
    if isinstance(handle, list):
        handle = tuple(part.encode() if isinstance(part, str) else part for part in handle)
    if set(given) == {"table_id"}:
        assert key.table_prefix(table_id) == data
    elif set(given) == {"table_id", "handle"}:
        assert key.record_key(table_id, handle) == data
        assert tidb_codecs.decode_table_key(data) == tidb_codecs.RecordKey(table_id, handle)
    elif set(given) in ({"table_id", "index_id"}, {"table_id", "index_id", "handle"}):
        found = re.search(r"value (-?\w+)", vector["name"])
        assert found, vector["name"]
        is_int = data[len(tidb_codecs.index_key(table_id, given["index_id"], [])) :].startswith(
            b"\x03"
        )  # 7, or a text "7"
        value = int(found[1]) if is_int else found[1].encode()
        assert tidb_codecs.index_key(table_id, given["index_id"], [value], handle) == data
        values: tuple[Datum, ...] = (value,) if handle is None else (value, handle)
        assert tidb_codecs.decode_table_key(data) == tidb_codecs.IndexKey(table_id, given["index_id"], values)
    else:
        raise AssertionError(f"no key this check can read: {given}")


def check_meta_key(vector: Vector) -> None:
    given, data = vector["input"], bytes.fromhex(vector["hex"])
    if "string" in given:
        name = only(given, "string").encode()
        assert tidb_codecs.meta_string_key(name) == data
        assert tidb_codecs.decode_meta_key(data) == tidb_codecs.MetaKey(name)
    else:
        member = next((member for member in _META_FIELDS if member in given), "field")
        name, field = only(given, "hash", member)
        if name == "DDLJobHistory" and isinstance(field, str) and re.fullmatch("[0-9a-f]{16}", field):
            member = "field_hex"
        field = _META_FIELDS[member](field)
        assert key.meta_hash_key(name.encode(), field) == data
        assert tidb_codecs.decode_meta_key(data) == tidb_codecs.MetaKey(name.encode(), field)


def _eight_bytes(job_id: int) -> bytes:
    """A job's field in the hash DDLJobHistory."""
    return struct.pack(">q", job_id)


# Fields of hashes that are no text: as bytes, and of the job history.
_META_FIELDS: dict[str, Callable[[Any], bytes]] = {
    "field_hex": bytes.fromhex,
    "job_id": _eight_bytes,
    "field_job_id": _eight_bytes,
    "field_int": _eight_bytes,
    "field_be64": _eight_bytes,
    "field_u64": _eight_bytes,
    "field": lambda given: _eight_bytes(given) if isinstance(given, int) else str(given).encode(),
}


def check_old_row(vector: Vector) -> None:
    given = only(vector["input"], "cols")
    values = {int(n): value.encode() if isinstance(value, str) else value for n, value in given.items()}
    data = bytes.fromhex(vector["hex"])
    assert row.decode_row(data) == values
    assert encode_row(values) == data


def _rowid(given: Vector) -> dict[int, Datum]:
    return {-1: given["_tidb_rowid"]} if "_tidb_rowid" in given else {}


def _same(left: row.Row, right: row.Row) -> None:
    assert {n: (type(v), v) for n, v in left.items()} == {n: (type(v), v) for n, v in right.items()}


def check_insert(vector: Vector) -> None:
    given, data = vector["input"], bytes.fromhex(vector["hex"])
    assert set(given) <= {"table", "row", "_tidb_rowid"}
    described = VectorTable(given["table"])
    values = described.values(given["row"]) | _rowid(given)
    assert row.encode_insert(described.table, values, new_collation=described.new_collation) == data
    _, decoded = row.decode_insert(described.table, data)
    _same(decoded, {n: v for n, v in values.items() if v is not None})


def check_update(vector: Vector) -> None:
    given, data = vector["input"], bytes.fromhex(vector["hex"])
    assert set(given) <= {"table", "old", "new", "_tidb_rowid"}
    described = VectorTable(given["table"])
    old, new = (described.values(given[side]) | _rowid(given) for side in ("old", "new"))
    assert row.encode_update(described.table, old, new) == data
    decoded = row.decode_update(data)
    _same(decoded[0], old)
    _same(decoded[1], new)


def check_delete(vector: Vector) -> None:
    given, data = vector["input"], bytes.fromhex(vector["hex"])
    assert set(given) <= {"table", "old", "_tidb_rowid"}
    described = VectorTable(given["table"])
    values = described.values(given["old"]) | _rowid(given)
    assert row.encode_delete(described.table, values) == data
    _same(row.decode_delete(described.table, data), values)


# section -> (check, the fields beside section, name, derived, source, input, hex and note that it reads)
CHECKS: dict[str, tuple[Callable[[Vector], None], set[str]]] = {
    "varint": (both(varint.encode_varint, varint.decode_varint), set()),
    "uvarint": (both(varint.encode_uvarint, varint.decode_uvarint), set()),
    "uvarint_error": (fails(varint.decode_uvarint), {"error"}),
    "comparable_int": (both(datum.encode_int, datum.decode_int), set()),
    "comparable_uint": (both(datum.encode_uint, datum.decode_uint), set()),
    "memcomparable_bytes": (both_bytes(datum.encode_bytes, datum.decode_bytes), set()),
    "memcomparable_bytes_desc": (both_bytes(tidb_codecs.encode_bytes_desc, tidb_codecs.decode_bytes_desc), set()),
    "memcomparable_bytes_error": (fails(datum.decode_bytes), {"error"}),
    "compact_bytes": (both_bytes(varint.encode_compact_bytes, varint.decode_compact_bytes), set()),
    "comparable_float": (check_float, set()),
    "decimal_bin": (check_decimal, {"text"}),
    "packed_time": (check_time, {"uvarint_hex", "datetime0", "datetime6", "date"}),
    "duration": (check_duration, {"key_form_hex"}),
    "datum": (check_datum, {"key_form_hex"}),
    "json_binary": (check_json, {"datum_hex"}),
    "row_v2": (check_row_v2, set()),
    "key": (check_key, set()),
    "meta_key": (check_meta_key, set()),
    "old_row": (check_old_row, set()),
    "inserted_row": (check_insert, set()),
    "updated_row": (check_update, set()),
    "deleted_row": (check_delete, set()),
}
_COMMON = {"section", "name", "derived", "source", "input", "hex", "note"}


def test_vector(vector: Vector) -> None:
    assert vector["section"] in CHECKS, f"no check reads section {vector['section']!r}"
    check, fields = CHECKS[vector["section"]]
    unread = set(vector) - _COMMON - fields
    assert not unread, f"no check of {vector['section']} reads {sorted(unread)}"
    check(vector)


@pytest.mark.parametrize(
    "wrong",
    [
        {"section": "new_codec", "name": "?", "input": 1, "hex": "00"},
        {"section": "varint", "name": "?", "input": 0, "hex": "00", "flavour": "?"},
        {"section": "varint", "name": "?", "input": 1, "hex": "00"},
        {"section": "key", "name": "?", "input": {"table_id": 1, "shard": 2}, "hex": "00"},
        {"section": "datum", "name": "vector", "input": 1, "hex": "00", "key_form_hex": "00"},
        {"section": "row_v2", "name": "?", "input": {"cols": {"1": "vector 1"}}, "hex": "00"},
        {"section": "inserted_row", "name": "?", "input": {"table": "create view", "row": []}, "hex": "00"},
    ],
)
def test_vector_without_check_fails(wrong: Vector) -> None:
    with pytest.raises((AssertionError, ValueError)):
        test_vector(wrong)


def test_create_table_job_converts_to_json_and_back_unchanged() -> None:
    """The document of a complete job comes out as it went in, keys in the same order."""
    document = json.loads(read(VECTORS / "ddl_job_create_table.json.gz"))
    job = Job.from_json(document)
    assert job.table_info is not None
    assert (job.id, job.schema_version, job.table_info.name) == (105, 53, "t")
    assert json.dumps(job.to_json()) == json.dumps(document)
    assert Job.from_json(job.dump()) == job
