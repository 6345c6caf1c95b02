"""Binary JSON as a vector describes it: by type code and text."""

from __future__ import annotations

import base64
import re
import struct

from binlog.tidb import time
from binlog.tidb.json import BinaryJSON, Code
from binlog.tidb.json_encode import JSONDuration, JSONTime, Opaque, encode_json, parse_json


def json_from_text(code: int, text: str, body: bytes) -> BinaryJSON:
    """The value that stands in a text, whose type code may not be the one the text alone would get. Of `body` it takes
    what no text says: how many digits of a TIME's fraction count."""
    plain = text.strip('"')
    if code in (Code.DATE, Code.DATETIME, Code.TIMESTAMP):
        return encode_json(JSONTime(Code(code), time.unpack(time.parse_datetime(plain))))
    if code == Code.DURATION:
        return encode_json(JSONDuration(time.parse_duration(plain), int.from_bytes(body[8:], "little")))
    if code == Code.UINT64:
        return BinaryJSON(bytes((code,)) + struct.pack("<Q", int(text)))  # a text's small number is an INT64
    if code == Code.OPAQUE:
        found = re.fullmatch(r"base64:type(\d+):(.*)", plain)
        assert found
        return encode_json(Opaque(int(found[1]), base64.b64decode(found[2])))
    if code == Code.FLOAT64:
        return encode_json(float(text))
    assert code in (Code.OBJECT, Code.ARRAY, Code.LITERAL, Code.INT64, Code.STRING), f"code {code}"
    return parse_json(text)
