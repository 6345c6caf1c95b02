"""Extracts gRPC messages from the bytes of a stream, each in one buffer.

A large message is collected in separately mapped memory. The system provides it page by page as bytes arrive, and frees
it when its last view is gone.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from binlog.rpc.status import RpcError, Status

PREFIX = Struct(">BI")
PREFIX_BYTES = PREFIX.size
MAPPED_BYTES_MIN = 4 << 20
JOIN_BYTES_MAX = 64 << 10  # up to this size, a message is copied to join it with its prefix
COUNT_MAX = 1 << 31  # in effect, no limit on the number of messages
HEAD_BYTES = 64  # bytes kept of a message that is too long
_PIECE_BYTES = 256 << 10
_GZIP_TRAILER_BYTES, _GZIP_BYTES_MIN = 4, 18

Buffer = bytes | memoryview


class Message(NamedTuple):
    """A message. `data`: bytes, or a read-only view if large. `reservation`: what announcing it returned."""

    data: Buffer
    compressed: bool
    reservation: Any = None


def framed(message: bytes | Sequence[bytes]) -> list[bytes]:
    """Return a message with its prefix, as pieces to send in turn; several small messages become one piece."""
    if not isinstance(message, bytes):
        return [b"".join([piece for each in message for piece in (PREFIX.pack(0, len(each)), each)])]
    prefix = PREFIX.pack(0, len(message))
    return [prefix + message] if len(message) <= JOIN_BYTES_MAX else [prefix, message]


class TooLong(Exception):
    """A message above the limit. `head`: its first bytes, which may show what it is."""

    def __init__(self, size: int, head: bytes) -> None:
        super().__init__(f"a message of {size} bytes")
        self.size = size
        self.head = head


def allocate(size: int) -> memoryview:
    """Allocate memory. A large block is mapped without being touched. Raises RpcError if there is no memory."""
    if size < MAPPED_BYTES_MIN:
        return memoryview(bytearray(size))
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, ValueError) as error:
        raise RpcError(Status.UNAVAILABLE, f"no memory for a message of {size} bytes: {error}") from error


def _sealed(buffer: memoryview | bytearray) -> Buffer:
    if isinstance(buffer, memoryview) and len(buffer) >= MAPPED_BYTES_MIN:
        return buffer.toreadonly()
    return bytes(buffer)


@dataclass(slots=True, eq=False)
class Collector:
    """Collects messages from the bytes of a stream.

    `announced` is called with the length of each message as soon as it is known. Its result is stored with the message,
    and it may raise. After an exception, the collector must not be used any more.
    """

    _bytes_max: int
    _announced: Callable[[int], Any]
    _prefix: bytes = b""
    _long: int = 0  # length of a message above `bytes_max`; only its head is kept
    _head: bytes = b""
    _buffer: memoryview | bytearray | None = None  # a bytearray grows as bytes arrive
    _size: int = 0
    _filled: int = 0
    _compressed: bool = False
    _reservation: Any = None
    consumed: int = 0  # bytes consumed by the last call of `feed`

    @property
    def size(self) -> int:
        """The length of the incomplete message; 0 if there is none, or its length is not known yet."""
        return self._size if self._buffer is not None else self._long

    @property
    def is_between(self) -> bool:
        """Whether no message is incomplete."""
        return self._buffer is None and not self._prefix and not self._long

    def feed(self, data: bytes, count_max: int = COUNT_MAX) -> list[Message]:
        """Return the messages that end in `data`, at most `count_max` (at least 1).

        `consumed` is then the number of bytes used; the rest must be fed again. Raises RpcError for an invalid prefix,
        TooLong.
        """
        self.consumed = len(data)
        if self._buffer is None and not self._prefix and not self._long and len(data) >= PREFIX_BYTES:
            flag, size = PREFIX.unpack_from(data)
            if flag <= 1 and size == len(data) - PREFIX_BYTES and size <= self._bytes_max:
                return [Message(data[PREFIX_BYTES:], flag == 1, self._announced(size))]
        found: list[Message] = []
        at = 0
        while at < len(data) or (self._buffer is not None and self._filled == self._size):
            if self._long:
                at = self._peek(data, at)
            elif self._buffer is None:
                at = self._read_prefix(data, at)
            else:
                at = self._fill(self._buffer, data, at)
                if self._filled == self._size:
                    found.append(Message(_sealed(self._buffer), self._compressed, self._reservation))
                    self._buffer = self._reservation = None
                    if len(found) >= count_max:
                        break
        self.consumed = at
        return found

    def forget(self) -> None:
        """Discard the incomplete message and `announced`, which may refer to the owner of this collector. It must not
        be fed any more."""
        self._buffer = self._reservation = None
        del self._announced

    def _read_prefix(self, data: bytes, at: int) -> int:
        end = at + PREFIX_BYTES - len(self._prefix)
        self._prefix += data[at:end]
        if len(self._prefix) == PREFIX_BYTES:
            flag, size = PREFIX.unpack(self._prefix)
            if flag > 1:
                raise RpcError(Status.INTERNAL, f"a message begins with the unknown flags {flag}")
            self._prefix = b""
            if size > self._bytes_max:
                self._long = size
            else:
                self._reservation = self._announced(size)
                self._buffer = allocate(size) if size >= MAPPED_BYTES_MIN else bytearray()
                self._size, self._filled, self._compressed = size, 0, flag == 1
        return min(end, len(data))

    def _peek(self, data: bytes, at: int) -> int:
        self._head += data[at : at + HEAD_BYTES - len(self._head)]
        if len(self._head) >= min(HEAD_BYTES, self._long):
            raise TooLong(self._long, self._head)
        return len(data)

    def _fill(self, buffer: memoryview | bytearray, data: bytes, at: int) -> int:
        size = min(self._size - self._filled, len(data) - at)
        if size:
            buffer[self._filled : self._filled + size] = data[at : at + size]
            self._filled += size
        return at + size


def gzip_size(data: Buffer) -> int:
    """Return the uncompressed size that a gzip stream states. Raises RpcError if it cannot be gzip."""
    if len(data) < _GZIP_BYTES_MIN:
        raise RpcError(Status.INTERNAL, "a compressed message is not gzip")
    return int.from_bytes(data[len(data) - _GZIP_TRAILER_BYTES :], "little")


def gunzip(data: Buffer, size: int) -> Buffer:
    """Uncompress a message to the length from `gzip_size`. Raises RpcError if it is not gzip or has another length."""
    buffer, filled = allocate(size), 0
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        rest: Buffer = b""
        at = 0
        while not stream.eof:
            if not rest:
                if at >= len(data):
                    raise RpcError(Status.INTERNAL, "a compressed message ends too early")
                rest = data[at : at + _PIECE_BYTES]
                at += _PIECE_BYTES
            piece = stream.decompress(rest, min(_PIECE_BYTES, size - filled) + 1)
            rest = stream.unconsumed_tail
            if len(piece) > size - filled:
                raise RpcError(Status.INTERNAL, "a compressed message is longer than it says")
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
    except zlib.error as error:
        raise RpcError(Status.INTERNAL, f"a compressed message: {error}") from error
    if filled != size or rest or stream.unused_data or at < len(data):
        raise RpcError(Status.INTERNAL, "a compressed message is not as long as it says")
    return _sealed(buffer)
