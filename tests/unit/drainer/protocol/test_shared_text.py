"""Parts that several protocols share: compressed values, short strings in TiDB's JSON."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import decode_text
from binlog.tidb.json_encode import encode_json

from drainer.protocol.compression import compress, decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.options import Compression


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
