"""Records, footers and pointers of the value log: bytes in, values out. See FORMAT.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend
from google_crc32c import value as crc32c

from pump.errors import DamagedRecord

RECORD_MAGIC = 0x823A56E8
END_MAGIC = 0x123AB922
MAGIC_BYTES = RECORD_MAGIC.to_bytes(4, "little")
HEADER_BYTES = 16
FOOTER_BYTES = 12
POINTER_BYTES = 12
CHECKSUM_PIECE_BYTES = 1 << 20
WINDOW_BYTES = 4 << 20  # that a scan reads together

_HEADER = Struct("<IQI")
_FOOTER = Struct("<qI")
_POINTER = Struct("<Iq")

# For loops in which every nanosecond counts.
unpack_header = _HEADER.unpack_from  # (magic, length, crc)
pack_header = _HEADER.pack
pack_pointer = _POINTER.pack


class Pointer(NamedTuple):
    """The position at which a record begins (`P-ST-06`): file number and offset. Pointers sort in the order of the
    log."""

    fid: int
    offset: int

    def encode(self) -> bytes:
        return _POINTER.pack(self.fid, self.offset)

    @classmethod
    def decode(cls, data: bytes) -> Pointer:
        """Decode a pointer. Raises ValueError unless there are 12 bytes."""
        if len(data) != POINTER_BYTES:
            raise ValueError(f"a pointer has {POINTER_BYTES} bytes, not {len(data)}")
        return cls(*_POINTER.unpack(data))


def encode_header(payload: bytes) -> bytes:
    """Return the 16 bytes before a payload (`P-ST-01`)."""
    return _HEADER.pack(RECORD_MAGIC, len(payload), _checksum(payload))


def _checksum(payload: bytes) -> int:
    """Return the CRC-32C of a payload. A view is processed piece by piece, because the library accepts only bytes."""
    found: int = 0
    if isinstance(payload, bytes):
        found = crc32c(payload)
        return found
    for at in range(0, len(payload), CHECKSUM_PIECE_BYTES):
        found = extend(found, bytes(payload[at : at + CHECKSUM_PIECE_BYTES]))
    return found


def encode_footer(max_ts: int) -> bytes:
    """Return the footer that closes a file for good (`P-ST-02`)."""
    return _FOOTER.pack(max_ts, END_MAGIC)


def decode_footer(tail: bytes) -> int | None:
    """Return max_ts if the last bytes of a file look like a footer, else None."""
    if len(tail) < FOOTER_BYTES:
        return None
    max_ts, magic = _FOOTER.unpack(tail[-FOOTER_BYTES:])
    return max_ts if magic == END_MAGIC else None


def check_record(data: bytes | memoryview, at: int, *, length: int, place: str, offset: int) -> bytes:
    """Check the record at `data[at:]` and return its payload, which has `length` bytes according to the index.

    Raises DamagedRecord with `place` (the file) and `offset` (in it) if magic, length or CRC do not match.
    """
    begin = at + HEADER_BYTES
    payload = bytes(data[begin : begin + length])
    if len(data) < begin + length:
        raise DamagedRecord(place, offset, "the file ends inside it")
    magic, found, crc = _HEADER.unpack_from(data, at)
    if magic != RECORD_MAGIC:
        raise DamagedRecord(place, offset, "wrong magic")
    if found != length:
        raise DamagedRecord(place, offset, f"length {found}, the index says {length}")
    if crc32c(payload) != crc:
        raise DamagedRecord(place, offset, "checksum mismatch")
    return payload


class Scanned(NamedTuple):
    """One step of a scan: a record with its payload, or (`payload` None) bytes up to `end` that are not a record."""

    offset: int
    end: int
    payload: bytes | None
    reason: str = ""


@dataclass(slots=True)
class Scan:
    """Iterates over the records between two offsets of a file, in order, and continues after damage.

    After a broken record whose header is whole, it continues where that record was to end: the bytes of a payload are a
    writer's, and a row may hold bytes that look like records. A length that passes the end of the file is an append
    that was cut off at or after `torn_from`, and the scan ends there; before, the length itself is damaged. A broken
    record at or after `last_from` is the last one: nothing after it counts.

    `read(offset, size)` may return fewer bytes only at the end of the file. Iteration yields `Scanned`; a last item
    without payload that reaches `end` is a torn tail or damage at the end: the caller knows which file it reads.
    """

    _read: Callable[[int, int], bytes]
    _begin: int
    _end: int
    torn_from: int | None = None
    last_from: int | None = None
    _window: bytes = b""
    _base: int = 0

    def __iter__(self) -> Iterator[Scanned]:
        at = self._begin
        while at < self._end:
            payload, reason = self._record(at)
            if payload is not None:
                end = at + HEADER_BYTES + len(payload)
            else:
                end = self._next_record(self._announced_end(at))
            yield Scanned(at, end, payload, reason)
            at = end

    def _announced_end(self, at: int) -> int:
        """Return where the broken record at `at` was to end; the next offset if its header does not say that; the
        scan's end if the record is the last one."""
        if self.last_from is not None and at >= self.last_from:
            return self._end
        header = self._bytes(at, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return at + 1
        magic, length, _ = _HEADER.unpack(header)
        end: int = at + HEADER_BYTES + length
        is_torn = self.torn_from is not None and at >= self.torn_from
        return end if magic == RECORD_MAGIC and (end <= self._end or is_torn) else at + 1

    def _bytes(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes at `at`, never past the end. They are taken from the window if it covers them."""
        size = min(size, self._end - at)
        begin = at - self._base
        if begin < 0 or begin + size > len(self._window):
            self._window = self._read(at, min(max(size, WINDOW_BYTES), self._end - at))
            self._base = at
            begin = 0
        return self._window[begin : begin + size]

    def _record(self, at: int) -> tuple[bytes | None, str]:
        """Return the payload of a complete record at `at` and "", or None and what is wrong."""
        header = self._bytes(at, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None, "unexpected EOF in a header"
        magic, length, crc = _HEADER.unpack(header)
        if magic != RECORD_MAGIC:
            return None, "wrong magic"
        if length > self._end - at - HEADER_BYTES:
            return None, f"length {length} passes the end of the file"
        payload = self._bytes(at + HEADER_BYTES, length)
        if len(payload) < length:
            return None, "unexpected EOF in a payload"
        if crc32c(payload) != crc:
            return None, "checksum mismatch"
        return payload, ""

    def _next_record(self, at: int) -> int:
        """Return the offset at or after `at` at which the next complete record begins, or the end."""
        while at < self._end:
            chunk = self._bytes(at, WINDOW_BYTES)
            found = chunk.find(MAGIC_BYTES)
            while found >= 0:
                if self._record(at + found)[0] is not None:
                    return at + found
                found = chunk.find(MAGIC_BYTES, found + 1)
            # The last three bytes may be the beginning of a magic whose end is in the next chunk.
            at += max(1, len(chunk) - len(MAGIC_BYTES) + 1)
        return self._end
