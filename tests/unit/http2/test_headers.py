"""Header blocks: what is remembered means what the decoder would say."""

from __future__ import annotations

import pytest
from binlog.http2 import headers
from binlog.http2.frames import ProtocolError
from binlog.http2.headers import VALUES_MAX, HeaderDecoder, Malformed, encode_fields, encode_response, huffman
from binlog.http2.limits import ConnectionLimits
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.http2.peer import REQUEST

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).filter(lambda n: n not in ("te", "connection"))
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=200)


def encoder(*, table: bool = False) -> Encoder:
    found = Encoder()
    if not table:
        found.header_table_size = 0
    return found


def decoder() -> HeaderDecoder:
    return HeaderDecoder(ConnectionLimits(), b"grpc-timeout")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("table", [True, False])
def test_header_blocks_that_differ_in_timeout_only_share_one_head(compressed: bool, table: bool) -> None:
    theirs, ours = encoder(table=table), decoder()
    heads = []
    for number in range(300):
        fields = [*REQUEST, ("content-type", "application/grpc"), ("grpc-timeout", f"{number}m"), ("last", "x")]
        head, varying = ours.request(theirs.encode(fields, huffman=compressed))
        assert varying == f"{number}m".encode()
        assert head.fields == ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"last", b"x"))
        assert head.path == b"/t.T/M"
        heads.append(head)
    if not table:
        assert all(head is heads[1] for head in heads[2:]), "the short way"


def test_field_that_resembles_timeout_is_not_taken_for_it() -> None:
    """Its name may stand in a value, or twice."""
    theirs, ours = encoder(), decoder()
    mark = huffman(b"grpc-timeout")
    looks = (bytes((0x80 | len(mark),)) + mark).decode("latin-1")
    for value in ("1m", "2m", "2m"):
        fields = [*REQUEST, ("x", f"{looks}{value}"), ("grpc-timeout", value)]
        head, varying = ours.request(
            theirs.encode([(n.encode(), v.encode("latin-1")) for n, v in fields], huffman=False)
        )
        assert varying == value.encode()
        assert head.get(b"x") == f"{looks}{value}".encode("latin-1")
    for first, second in (("1m", "2m"), ("3m", "2m"), ("4m", "5m")):
        _, varying = ours.request(theirs.encode([*REQUEST, ("grpc-timeout", first), ("grpc-timeout", second)]))
        assert varying == first.encode()


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.lists(VALUES, min_size=1, max_size=6), st.booleans())
def test_header_decoder_returns_any_encoded_fields_and_timeout(
    fields: list[tuple[str, str]], timeouts: list[str], compressed: bool
) -> None:
    theirs, ours = encoder(), decoder()
    for timeout in [*timeouts, timeouts[0]]:
        sent = [*REQUEST, *fields, ("grpc-timeout", timeout)]
        head, varying = ours.request(theirs.encode(sent, huffman=compressed))
        wanted = [(n.encode(), v.encode()) for n, v in [*REQUEST[4:], *fields] if n != "grpc-timeout"]
        assert head.fields == tuple(wanted)
        assert varying == next(v for n, v in sent if n == "grpc-timeout").encode()


def test_header_decoder_cache_is_bounded() -> None:
    theirs, ours = encoder(), decoder()
    for number in range(VALUES_MAX + 1000):
        ours.request(theirs.encode([*REQUEST, ("x", str(number)), ("grpc-timeout", f"{number}u")]))
    assert len(ours._remembered) <= 64 and 0 < len(headers._values) <= VALUES_MAX
    ours.request(theirs.encode([*REQUEST, ("x", "y" * 5000)]))
    assert all(len(key) < 1024 for key in ours._remembered)


def test_header_decoder_does_not_use_cache_for_peer_with_dynamic_table() -> None:
    """The same bytes mean something else once the table has changed."""
    theirs, ours = encoder(table=True), decoder()
    first = [*REQUEST, ("a", "1")]
    ours.request(theirs.encode(first))
    again = theirs.encode(first)
    assert ours.request(again)[0].get(b"a") == b"1"
    ours.request(theirs.encode([*REQUEST, ("b", "2")]))
    with pytest.raises(Malformed):  # the numbers of its fields have moved
        ours.request(again)


def test_value_that_contains_timeout_bytes_is_decoded_correctly() -> None:
    """The same bytes twice: which of them is the field is for the decoder to say."""
    theirs, ours = encoder(), decoder()
    ours.request(theirs.encode(REQUEST))
    for hidden, real in ((b"5m", b"5m"), (b"7m", b"5m"), (b"5m", b"7m")):
        value = b"\x0cgrpc-timeout\x02" + hidden
        fields = [(n.encode(), v.encode()) for n, v in REQUEST] + [(b"x", value), (b"grpc-timeout", real)]
        head, varying = ours.request(theirs.encode(fields, huffman=False))
        assert (head.get(b"x"), varying) == (value, real)


def test_header_decoder_forgets_table_when_peer_stops_using_it() -> None:
    """What it sent before means nothing any more."""
    theirs, ours = encoder(table=True), decoder()
    fields = [*REQUEST, ("a", "1")]
    theirs.encode(fields)
    ours.request(Encoder().encode(fields))
    block = theirs.encode(fields)
    assert ours.request(block)[0].get(b"a") == b"1"
    ours.request(b"\x20" + encoder().encode(REQUEST).removeprefix(b"\x20"))
    with pytest.raises(ProtocolError, match="COMPRESSION_ERROR"):
        ours.request(block)


def test_malformed_header_block_is_not_cached() -> None:
    theirs, ours = encoder(), decoder()
    block = theirs.encode([*REQUEST, ("connection", "x")]).removeprefix(b"\x20")
    ours.request(encoder().encode(REQUEST))
    for _ in range(3):
        with pytest.raises(Malformed, match="connection"):
            ours.request(block)


@given(st.lists(st.tuples(NAMES, VALUES.map(lambda value: value * 3)), max_size=6), st.integers(200, 599))
def test_encoded_response_headers_are_decodable(fields: list[tuple[str, str]], status: int) -> None:
    sent = [(name.encode(), value.encode()) for name, value in fields]
    found = Decoder().decode(encode_response(status, b"text/plain", sent), raw=True)
    assert [tuple(each) for each in found] == [
        (b":status", str(status).encode()),
        (b"content-type", b"text/plain"),
        *sent,
    ]
    assert [tuple(each) for each in Decoder().decode(encode_fields(sent), raw=True)] == sent


def test_cached_block_fills_dynamic_table_once_there_is_one() -> None:
    """What it puts into the table may be named by the next block."""
    decoder = HeaderDecoder(ConnectionLimits(), b"grpc-timeout")
    static = b"\x83\x86\x44\x01/"  # :method POST, :scheme http, :path / with its place in the table
    known = static + b"\x40\x01a\x01b"
    decoder.request(b"\x20" + known)
    assert decoder.request(known)[0] is decoder.request(known)[0], "it is remembered"
    decoder.request(b"\x3f\xe1\x1f" + static)  # a table of 4096 bytes, before our settings are known
    assert decoder.request(known)[0].fields == ((b"a", b"b"),)
    assert decoder.request(b"\x83\x86\xbf\xbe")[0].fields == ((b"a", b"b"),), "62 and 63 are a and :path"
