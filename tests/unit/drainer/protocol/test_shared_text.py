"""Parts that several protocols share: compressed values, short strings in TiDB's JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import decode_text
from binlog.tidb.json_encode import encode_json

from drainer.protocol.compression import compress, decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.event import ResolvedEvent
from drainer.protocol.options import Compression, ProtocolOptions
from drainer.protocol.registry import make_decoder, make_encoder


@pytest.mark.parametrize("how", ["snappy", "lz4"])
def test_compressed_value_that_is_cut_or_too_long_is_refused(how: Compression) -> None:
    data = compress(b"0123456789" * 20, how)
    assert decompress(data, how) == b"0123456789" * 20
    for damaged in [data[:end] for end in range(len(data))] + [data + b"\0"]:
        with pytest.raises(MessageError, match=f"cannot be decompressed as {how}"):
            decompress(damaged, how)


@pytest.mark.parametrize("how", ["snappy", "lz4"])
@pytest.mark.parametrize(
    "options",
    [
        ProtocolOptions("canal-json", enable_tidb_extension=True),
        ProtocolOptions("simple"),
        ProtocolOptions("simple", encoding_format="avro"),
    ],
)
def test_compressed_watermark_is_decoded_only_with_its_option(options: ProtocolOptions, how: Compression) -> None:
    """Compressed rows: test_options_combined.py."""
    compressed = replace(options, large_message_handle_compression=how)
    (message,) = make_encoder(compressed).resolved(5)
    assert make_decoder(compressed).decode(message.key, message.value) == [ResolvedEvent(5)]
    with pytest.raises(MessageError):
        make_decoder(options).decode(message.key, message.value)


def test_tidb_json_string_beyond_its_container_is_refused() -> None:
    data = bytes(encode_json(["abc"]))
    assert decode_text(data) == ('["abc"]', len(data))
    longer = data.replace(b"\x03abc", b"\x04abc")
    for torn in (longer, longer + b"more"):
        with pytest.raises(DecodeError):
            decode_text(torn)
