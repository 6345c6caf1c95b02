"""Header blocks (RFC 7541): decodes and validates a peer's blocks, and encodes ours without a table.

We announce a header table of size zero. Some peers do not use it, so it is not enforced. Once a peer does, each of its
blocks has a meaning that does not depend on earlier blocks, and decoded blocks can be cached. A caller's blocks differ
only in the value of one field (the time that the call has left). That field is found in a block by its literal name.
Only blocks that the general decoder has validated are cached; blocks that differ in anything else are decoded by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman

from binlog.http2.frames import Code, ProtocolError
from binlog.http2.limits import ConnectionLimits

REMEMBERED_MAX = 64  # cached blocks of one connection
KEY_BYTES_MAX = 1024  # size of a block that is cached
VALUES_MAX = 8192  # cached values of varying fields, for all connections together
SHORT_MAX = 127  # a string's length is one byte below this

_SIZE_UPDATE_0, _SIZE_UPDATE_END = b"\x20", 0x40
_STATUS_200 = b"\x88"
_STATUS = b"\x08\x03"  # :status, not indexed, three digits
_CONTENT_TYPE = b"\x0f\x10"  # index 31, not indexed
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z")
_OF_CONNECTION = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})


@dataclass(slots=True, eq=False)
class Head:
    """The header fields of a request.

    `fields`: the fields that are not pseudo fields, as received, without the varying field. `note`: free for the upper
    layer, which can cache there what it derives from this head. The same block gives the same object again.
    """

    method: bytes
    scheme: bytes
    path: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    content_length: int | None = None
    note: Any = field(default=None)

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a field, or None."""
        for key, value in self.fields:
            if key == name:
                return value
        return None


class Malformed(Exception):
    """A block that can be decoded, but is not valid for a request (RFC 9113, 8.1.1). Its stream is refused."""


def request_head(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return the head of a request. Raises Malformed with the reason if the fields are not valid for a request."""
    pseudo: dict[bytes, bytes] = {}
    others: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if name[:1] == b":":
            if others or name not in _PSEUDO or name in pseudo:
                raise Malformed(f"pseudo field {name!r} is unknown, repeated, or not at the beginning")
            _check_value(name, value)
            pseudo[name] = value
            continue
        _check_field(name, value)
        others.append((name, value))
    if pseudo.get(b":method") == b"CONNECT":
        if not pseudo.get(b":authority") or b":scheme" in pseudo or b":path" in pseudo:
            raise Malformed("CONNECT has an :authority, and neither :scheme nor :path")
    elif not (pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")):
        raise Malformed(":method, :scheme or :path is missing")
    return Head(
        pseudo[b":method"],
        pseudo.get(b":scheme", b""),
        pseudo.get(b":path", b""),
        tuple(others),
        _content_length(others),
    )


def check_trailers(fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise Malformed if these fields must not follow a request's data."""
    for name, value in fields:
        if name[:1] == b":":
            raise Malformed(f"pseudo field {name!r} in trailers")
        _check_field(name, value)


def _check_value(name: bytes, value: bytes) -> None:
    if _BAD_VALUE.search(value):
        raise Malformed(f"the value of {name!r} has a character that is not allowed there")


def _check_field(name: bytes, value: bytes) -> None:
    _check_value(name, value)
    if not _NAME.fullmatch(name):
        raise Malformed(f"field name {name!r} has a character that is not allowed")
    if name in _OF_CONNECTION or (name == b"te" and value != b"trailers"):
        raise Malformed(f"{name!r} belongs to HTTP/1 connections")


def _content_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return None
    value = found.pop()
    if found or not (value.isdigit() and len(value) < 20):
        raise Malformed(f"content-length is {value!r}")
    return int(value)


def huffman(text: bytes) -> bytes:
    return bytes(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text))


class HeaderDecoder:
    """Decodes the blocks of one connection, in order. `varying`: the field whose value differs between calls."""

    def __init__(self, limits: ConnectionLimits, varying: bytes = b"") -> None:
        self._decoder = Decoder(limits.header_list_bytes_max)
        self._varying = varying
        self._marks = [bytes((0x80 | len(huffman(varying)),)) + huffman(varying), bytes((len(varying),)) + varying]
        if not varying:
            self._marks = []
        # The peer knows our table size: it may continue to use its current table, but must not choose another size.
        self.acknowledged = False
        self._stateless = False
        self._remembered: dict[bytes, Head] = {}
        self._last: tuple[bytes, bytes, Head] | None = None  # the last block, around its varying value

    def remembered(self, block: bytes) -> tuple[Head, bytes | None] | None:
        """Decode a block that differs from a cached one only in the varying value. For others None, no side effect."""
        if not self._stateless:
            return None
        if self._last is not None:
            before, behind, head = self._last
            at = len(before)
            if block[:at] == before and at < len(block):
                end = at + 1 + (block[at] & SHORT_MAX)
                if block[end:] == behind and end <= len(block) and end - at <= SHORT_MAX:
                    value = _string_of(block[at:end])
                    return None if value is None else (head, value)
        key, value = self._split(block)
        known = self._remembered.get(key)
        if known is None:
            return None
        if value is not None:
            at, size = self._varying_at(block)
            self._last = (block[:at], block[at + size :], known)
        return known, value

    def request(self, block: bytes) -> tuple[Head, bytes | None]:
        """Return (head, value of the varying field). Raises Malformed, or ProtocolError if decoding cannot continue."""
        key, value = self._split(block)
        if self._stateless and (head := self._remembered.get(key)) is not None:
            return head, value
        fields = self.fields(block)
        varying = [found for name, found in fields if name == self._varying]
        head = request_head(each for each in fields if each[0] != self._varying)
        found = varying[0] if varying else None
        if self._stateless and found == value and len(varying) < 2 and len(key) < KEY_BYTES_MAX:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[key] = head
        return head, found

    def fields(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return all fields of a block. Raises ProtocolError if the peer's encoder and our decoder no longer match."""
        decoder = self._decoder
        if self.acknowledged and block[:1] > _SIZE_UPDATE_0 and block[0] < _SIZE_UPDATE_END:
            raise ProtocolError(Code.COMPRESSION_ERROR, "a header table larger than we allow")
        try:
            fields: Any = decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"header fields: {error}") from error
        except (HPACKError, ValueError, IndexError) as error:
            raise ProtocolError(Code.COMPRESSION_ERROR, f"a header block: {error}") from error
        self._stateless = decoder.header_table_size == 0  # set by the peer at the start of this or an earlier block
        return [(bytes(name), bytes(value)) for name, value in fields]

    def _split(self, block: bytes) -> tuple[bytes, bytes | None]:
        """Return (block without the varying value, that value); (block, None) unless the field occurs once."""
        at, size = self._varying_at(block)
        if not size:
            return block, None
        end = at + size
        value = _string_of(block[at:end])
        return (block, None) if value is None else (block[:at] + b"\x00" + block[end:], value)

    def _varying_at(self, block: bytes) -> tuple[int, int]:
        """Return (offset, size) of the varying field's literal in `block`, including its length byte.

        The size is 0 if the field is missing, occurs twice, or is too long for a length of one byte.
        """
        for mark in self._marks:
            at = block.find(mark)
            if at <= 0:
                continue
            at += len(mark)
            if at >= len(block) or block.find(mark, at) >= 0:
                break
            size = block[at] & SHORT_MAX
            if size == SHORT_MAX or at + 1 + size > len(block):
                break
            return at, 1 + size
        return 0, 0


_values: dict[bytes, bytes] = {}  # decoded values by their literals


def _string_of(literal: bytes) -> bytes | None:
    """Return the string of a literal that includes its length; None if it is invalid."""
    found = _values.get(literal)
    if found is None:
        found = literal[1:]
        if literal[0] & 0x80:
            try:
                found = bytes(decode_huffman(found))
            except (HPACKError, ValueError):
                return None
        if len(_values) >= VALUES_MAX:
            _values.clear()
        _values[literal] = found
    return found


# Encoding


def _string_literal(text: bytes) -> bytes:
    if len(text) < SHORT_MAX:
        return bytes((len(text),)) + text
    return bytes(encode_integer(len(text), 7)) + text


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode literal fields, neither indexed nor compressed, which any peer can decode in any state."""
    return b"".join(b"\x00" + _string_literal(name) + _string_literal(value) for name, value in fields)


def encode_response(status: int, content_type: bytes, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Encode the first block of a response."""
    assert 100 <= status <= 999
    first = _STATUS_200 if status == 200 else _STATUS + str(status).encode()
    return first + _CONTENT_TYPE + _string_literal(content_type) + encode_fields(fields)
