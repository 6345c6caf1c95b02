"""Binary JSON: text, values, sizes, and what damage does to it."""

from __future__ import annotations

import json
import math
import struct

import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import (
    BinaryJSON,
    Code,
    cut_json,
    decode_text,
    decode_value,
    encode_json,
    float_text,
    parse_json,
    quote,
)
from binlog.tidb.time import Civil
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tidb_codecs import json_duration, json_opaque, json_time
from tests.unit.tidb.damage import refuses_every_cut, survives
from tests.unit.tidb.strategies import binary_json, finite, json_values


@given(json_values)
def test_encoded_json_decodes_to_same_value(value: object) -> None:
    data = encode_json(value)
    assert decode_value(b"?" + data + b"?", 1) == (value, 1 + len(data))
    assert encode_json(data.value()) == data


def _as_floats(value: object) -> object:
    if isinstance(value, dict):
        return {key: _as_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_floats(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _zeros_without_sign(value: object) -> object:
    """As TiDB reads the text -0, which is an integer to it."""
    if isinstance(value, dict):
        return {key: _zeros_without_sign(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_zeros_without_sign(inner) for inner in value]
    return value + 0.0 if isinstance(value, float) else value


@given(json_values)
def test_binary_json_text_parses_to_same_value(value: object) -> None:
    data = encode_json(value)
    text = data.text()
    # A float such as 6e16 shows as a whole number, of which only the first 17 digits are its own.
    assert json.loads(text, parse_int=float) == _as_floats(value)
    assert parse_json(text).text() == encode_json(_zeros_without_sign(value)).text()


@given(binary_json)
def test_json_size_is_that_of_its_encoding_and_truncation_raises_decode_error(data: BinaryJSON) -> None:
    assert cut_json(data + b"???") == len(data)
    refuses_every_cut(cut_json, data)
    refuses_every_cut(decode_text, data)


@given(binary_json)
def test_damaged_binary_json_raises_decode_error_only(data: BinaryJSON) -> None:
    survives(decode_text, data, rounds=30)
    survives(decode_value, data, rounds=10)


@given(st.binary(max_size=60), st.sampled_from(Code))
def test_random_bytes_as_binary_json_raise_decode_error_only(data: bytes, code: Code) -> None:
    survives(decode_text, bytes((code,)) + data, rounds=3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (4.0, "4"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (-9.9944e-7, "-9.9944e-7"),
        (1e-10, "1e-10"),
        (5e-324, "5e-324"),
        (0.1, "0.1"),
        (123456789.125, "123456789.125"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_json_float_text_is_as_tidb_shows_it(value: float, text: str) -> None:
    assert float_text(value) == text


@given(finite)
def test_json_float_text_parses_to_same_float(value: float) -> None:
    assert float(float_text(value)) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_in_json_are_refused(value: float) -> None:
    data = bytes((Code.FLOAT64,)) + struct.pack("<d", value)
    with pytest.raises(DecodeError, match="not a JSON number"):
        decode_text(data)
    with pytest.raises(ValueError, match="not a JSON number"):
        encode_json(value)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain", '"plain"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("\n\r\t\b\f\x01\x1f", '"\\n\\r\\t\\u0008\\u000c\\u0001\\u001f"'),
        ("</>&\x7f é 😀", '"</>&\x7f é 😀"'),
        ("\u2028\u2029", '"\\u2028\\u2029"'),
    ],
)
def test_json_string_is_escaped_as_by_tidb(text: str, quoted: str) -> None:
    assert quote(text) == quoted


def test_invalid_utf8_byte_in_json_string_is_shown_as_escaped_replacement_character() -> None:
    """Each of them shows as the six characters, as Go does it; a value made of them can be printed."""
    raw = b"a\xffb\xe2\x80\xed\xa0\x80"
    data = bytes((Code.STRING, len(raw))) + raw
    assert decode_text(data)[0] == '"a\\ufffdb' + "\\ufffd" * 5 + '"'
    value = decode_value(data)[0]
    assert isinstance(value, str)
    assert value.encode().startswith(b"a\xef\xbf\xbdb")


def test_parsed_json_object_has_keys_sorted_by_bytes_and_last_duplicate() -> None:
    assert parse_json('{"b": 1, "aa": 2, "a": 3, "é": 4, "b": 5}').text() == '{"a": 3, "aa": 2, "b": 5, "é": 4}'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1", Code.INT64),
        ("-9223372036854775808", Code.INT64),
        ("9223372036854775808", Code.UINT64),
        ("18446744073709551616", Code.FLOAT64),
        ("-9223372036854775809", Code.FLOAT64),
        ("9" * 400, None),
        ("1.0", Code.FLOAT64),
        ("1e2", Code.FLOAT64),
        ("null", Code.LITERAL),
        ('"x"', Code.STRING),
        ("[]", Code.ARRAY),
        ("{}", Code.OBJECT),
    ],
)
def test_parsed_json_text_has_type_code_of_tidb(text: str, code: Code | None) -> None:
    if code is None:
        with pytest.raises(ValueError, match="number"):
            parse_json(text)
    else:
        assert parse_json(text)[0] == code


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", "NaN", "Infinity", "nul", "'a'", "[" * 200 + "]" * 200, "[" * 100_000]
)
def test_parsing_invalid_or_too_deep_json_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_lone_surrogate_in_json_text_becomes_replacement_character() -> None:
    assert parse_json(r'{"\ud800": "\udc00x"}').text() == '{"\ufffd": "\ufffdx"}'


def test_json_time_duration_and_opaque_values_are_shown_as_text() -> None:
    when = Civil(2022, 3, 31, 3, 20, 20, 1234)
    values = [
        json_time(Code.DATE, when),
        json_time(Code.DATETIME, when),
        json_time(Code.TIMESTAMP, when),
        json_duration(-3_723_000_000_000, 0),
        json_opaque(233, b"9"),
    ]
    stamp = '"2022-03-31 03:20:20.001234"'
    assert encode_json(values).text() == (
        f'["2022-03-31", {stamp}, {stamp}, "-01:02:03.000000", "base64:type233:OQ=="]'
    )


def test_json_deeper_than_100_levels_is_refused() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert parse_json(nested(100)).text() == nested(100)
    with pytest.raises(ValueError, match="deeper than 100"):
        parse_json(nested(101))
    inner = encode_json(parse_json(nested(100)))
    outer = encode_json([inner])
    with pytest.raises(DecodeError, match="deeper than 100"):
        outer.text()


def test_json_with_values_that_share_offsets_raises_decode_error() -> None:
    """Each of 60 arrays names the next one twice: 2^60 values in a few hundred bytes."""
    count = 60
    out = bytearray()
    for level in range(count):
        rest = 18 * (count - level - 1) + 8
        out += struct.pack("<II", 2, 18 + rest) + struct.pack("<BIBI", 3, 18, 3, 18)
    out += struct.pack("<II", 0, 8)
    with pytest.raises(DecodeError, match="overlap"):
        decode_text(b"\x03" + bytes(out))


def test_json_array_count_beyond_its_size_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="4294967295 values"):
        decode_text(b"\x03" + struct.pack("<II", 0xFFFFFFFF, 8))


def test_json_key_longer_than_65535_bytes_is_refused() -> None:
    text = encode_json({"k" * 65_535: 1}).text()
    assert len(text) == 65_535 + 7
    with pytest.raises(ValueError, match="65535 is the limit"):
        encode_json({"k" * 65_536: 1})


def test_encoding_unsupported_python_type_or_key_as_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set cannot be encoded as JSON"):
        encode_json({1})
    with pytest.raises(TypeError, match="not a valid key"):
        encode_json({1: 2})
    with pytest.raises(ValueError, match="64 bits"):
        encode_json(1 << 64)


def test_json_key_outside_its_object_raises_decode_error() -> None:
    data = bytearray(encode_json({"key": 1}))
    data[9:13] = struct.pack("<I", 1000)
    with pytest.raises(DecodeError, match="a key outside its object"):
        decode_text(bytes(data))


def test_json_with_overlapping_keys_raises_decode_error() -> None:
    """Thousands of keys of 64 KiB in one place would be gigabytes of text."""
    data = bytearray(encode_json({chr(n): None for n in range(48, 100)}))
    for entry in range(9, 9 + 6 * 52, 6):
        data[entry : entry + 6] = struct.pack("<IH", 8, 500)
    with pytest.raises(DecodeError, match="overlap"):
        decode_text(bytes(data))
