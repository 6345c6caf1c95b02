"""Parts that several protocols share: compressed values, short strings in TiDB's JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import decode_text, encode_json
from binlog.tidb.types import FieldType, Tp

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl, Message, compress, decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.registry import Compression, ProtocolOptions, make_decoder, make_encoder
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import text_type

TABLE = make_table("s", "t", [("id", FieldType(Tp.LONG)), ("v", text_type(Tp.VARCHAR, 500))], primary=["id"])


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
        ProtocolOptions("open-protocol"),
        ProtocolOptions("debezium", enable_tidb_extension=True),
        ProtocolOptions("canal-json", enable_tidb_extension=True),
        ProtocolOptions("simple"),
        ProtocolOptions("simple", encoding_format="avro"),
    ],
)
def test_compressed_message_is_decoded_only_with_its_option(options: ProtocolOptions, how: Compression) -> None:
    compressed = replace(options, large_message_handle_compression=how)
    plain_decoder, decoder = make_decoder(options), make_decoder(compressed)
    for plain, message in zip(sent(options), sent(compressed), strict=True):
        assert decoder.decode(message.key, message.value) == plain_decoder.decode(plain.key, plain.value)
        if message.value != plain.value:  # a resolved event of Open Protocol has nothing to compress
            assert len(message.value or b"") < max(len(plain.value), 200)
            with pytest.raises(MessageError):
                plain_decoder.decode(message.key, message.value)


def sent(options: ProtocolOptions) -> list[Message]:
    """A table's schema, a DDL, two rows and a resolved event."""
    encoder = make_encoder(options)
    changes = make_changes(TABLE, Kind.INSERT, new=[(1, b"a" * 500), (2, b"b" * 500)])
    rows = framed_rows(encoder, encoded_rows(encoder.table(TABLE), changes))
    ddl = Ddl(5, 4, "s", "t", "drop table `t`" * 9, 4, TABLE, TABLE)
    return [*encoder.bootstrap(TABLE, 5), *encoder.ddl(ddl), *rows, *encoder.resolved(5)]


def test_tidb_json_string_beyond_its_container_is_refused() -> None:
    data = bytes(encode_json(["abc"]))
    assert decode_text(data) == ('["abc"]', len(data))
    longer = data.replace(b"\x03abc", b"\x04abc")
    for torn in (longer, longer + b"more"):
        with pytest.raises(DecodeError):
            decode_text(torn)
