"""Binary JSON as a vector describes it: by type code and text, of documents by the codes of their parts and text."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator

from binlog.tidb import time
from binlog.tidb.json import BinaryJSON, Code, encode_json

from tests.support.tidb_codecs import json_duration, json_opaque, json_time

_INTEGERS = {Code.INT64: "<q", Code.UINT64: "<Q"}


class _Number(str):
    """A number as the text has it."""


def json_from_text(code: int, text: str, body: bytes) -> BinaryJSON:
    """The value that stands in a text, whose type code may not be the one the text alone would get. Of `body` it takes
    what no text says: the codes of a document's parts, and how many digits of a TIME's fraction count."""
    return _made(code, json.loads(text, parse_int=_Number, parse_float=_Number), body)


def _made(code: int, given: object, body: bytes) -> BinaryJSON:
    if code == Code.OBJECT:
        assert isinstance(given, dict)
        parts = zip(given.items(), _parts(body, 6), strict=True)
        return encode_json({name: _made(part[0], value, part[1]) for (name, value), part in parts})
    if code == Code.ARRAY:
        assert isinstance(given, list)
        return encode_json([_made(part[0], value, part[1]) for value, part in zip(given, _parts(body, 0), strict=True)])
    if isinstance(given, _Number):
        if code == Code.FLOAT64:
            return encode_json(float(given))
        assert code in _INTEGERS, f"code {code} of the number {given}"
        return BinaryJSON(bytes((code,)) + struct.pack(_INTEGERS[Code(code)], int(given)))
    if not isinstance(given, str):
        assert code == Code.LITERAL, f"code {code} of {given}"
        return encode_json(given)
    if code in (Code.DATE, Code.DATETIME, Code.TIMESTAMP):
        return json_time(code, time.unpack(time.parse_datetime(given)))
    if code == Code.DURATION:
        return json_duration(time.parse_duration(given), int.from_bytes(body[8:12], "little"))
    if code == Code.OPAQUE:
        found = re.fullmatch(r"base64:type(\d+):(.*)", given)
        assert found
        return json_opaque(int(found[1]), base64.b64decode(found[2]))
    assert code == Code.STRING, f"code {code} of {given!r}"
    return encode_json(given)


def _parts(body: bytes, key_entry: int) -> Iterator[tuple[int, bytes]]:
    """(code, bytes from its value on) of each of a container's values."""
    count = int.from_bytes(body[:4], "little")
    for n in range(count):
        code, offset = struct.unpack_from("<BI", body, 8 + key_entry * count + 5 * n)
        yield code, body[offset:]
