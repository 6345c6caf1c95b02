"""Parts that several protocols share: columns of JSON strings, compressed values, short strings in TiDB's JSON."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import decode_text
from binlog.tidb.json_encode import encode_json

from drainer.protocol.compression import compress, decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.json_text import json_string, json_strings
from drainer.protocol.options import Compression


@pytest.mark.parametrize("texts", [[], [""], ["\ufdd0"], ["a\ufdd0", 'b"'], ["<", "", "\ufdd0\ufdd0"]])
def test_json_strings_of_column_equal_those_of_each_value(texts: list[str]) -> None:
    assert json_strings(texts) == [json_string(text)[1:-1] for text in texts]


@pytest.mark.parametrize("how", ["snappy", "lz4"])
def test_compressed_value_that_is_cut_or_too_long_is_refused(how: Compression) -> None:
    data = compress(b"0123456789" * 20, how)
    assert decompress(data, how) == b"0123456789" * 20
    for damaged in [data[:end] for end in range(len(data))] + [data + b"\0"]:
        with pytest.raises(MessageError, match=f"cannot be decompressed as {how}"):
            decompress(damaged, how)


def test_tidb_json_string_beyond_its_container_is_refused() -> None:
    data = bytes(encode_json(["abc"]))
    assert decode_text(data) == ('["abc"]', len(data))
    longer = data.replace(b"\x03abc", b"\x04abc")
    for torn in (longer, longer + b"more"):
        with pytest.raises(DecodeError):
            decode_text(torn)
