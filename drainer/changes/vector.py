"""Read words and varints, and compare bytes, at many positions of one buffer together. Pure.

These functions raise no error. A value that cannot be read has size 0; its row then does not end where it should and is
left to the general decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = "npt.NDArray[np.int64]"
Words: TypeAlias = "npt.NDArray[np.uint64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

# Padding after the last row: the longest decimal (nine groups, the last read as a complete word) may begin one byte
# after it.
PAD = bytes((0xFF,)) + bytes(63)

_U64 = np.uint64
_ONE = _U64(1)
_HIGH = _U64(0x80)
_MORE = _U64(0x8080808080808080)
_LOW7 = _U64(0x7F7F7F7F7F7F7F7F)
_STEPS = (
    (_U64(0x007F007F007F007F), _U64(0x7F007F007F007F00), _ONE),
    (_U64(0x00003FFF00003FFF), _U64(0x3FFF00003FFF0000), _U64(2)),
    (_U64(0x000000000FFFFFFF), _U64(0x0FFFFFFF00000000), _U64(4)),
)


def packed_groups(words: Words) -> Words:
    """Join eight 7-bit groups, whose bytes have high bits of 0, into 56 bits."""
    for low, high, shift in _STEPS:
        words = (words & low) | ((words & high) >> shift)
    return words


class Buffer:
    """Bytes of many rows, followed by PAD. Positions are clipped to `limit`, one byte after the last row's end."""

    def __init__(self, parts: Sequence[bytes], between: bytes = b"") -> None:
        self.data = between.join([*parts, PAD])
        self.limit = len(self.data) - len(PAD) + 1
        self.octets = np.frombuffer(self.data, np.uint8)
        self._words: Words = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))

    def words(self, at: Ints) -> Words:
        """Return the eight bytes at each position, little-endian."""
        found: Words = self._words[at]
        return found

    def clip(self, at: Ints) -> Ints:
        return np.minimum(at, self.limit)

    def starts_with(self, at: Ints, prefix: bytes) -> Mask:
        """Return whether these bytes, at most eight, are at each position."""
        bits = _U64((1 << 8 * len(prefix)) - 1)
        found: Mask = (self._words[at] & bits) == _U64(int.from_bytes(prefix, "little"))
        return found

    def uvarint(self, at: Ints) -> tuple[Words, Ints]:
        """Return (value, size in bytes); size 0 for a varint that is truncated or has more than 64 bits."""
        word = self._words[at]
        more = word & _HIGH
        if not np.bitwise_or.reduce(more):  # one byte each, as for most ids and flags
            return word & _U64(0x7F), np.ones(len(word), np.int64)
        if not np.bitwise_or.reduce((word >> _U64(8)) & more):  # at most two, as for most lengths
            value = (word & _U64(0x7F)) | ((word >> _U64(1)) & (more * _U64(0x7F)))
            return value, (more >> _U64(7)).view(np.int64) + 1
        stop = ~word & _MORE
        stop &= ~stop + _ONE  # the lowest
        below = stop - _ONE
        size = ((np.bitwise_count(below).astype(np.int64)) + 1) >> 3
        value = packed_groups(word & (stop | below) & _LOW7)
        long = np.flatnonzero(stop == 0)
        if long.size:
            value[long], size[long] = self._long(at[long], word[long])
        return value, size

    def _long(self, at: Ints, word: Words) -> tuple[Words, Ints]:
        """Read the varints whose first eight bytes all have a continuation bit."""
        ninth, tenth = self.octets[at + 8].astype(_U64), self.octets[at + 9].astype(_U64)
        value = packed_groups(word & _LOW7) | (ninth & _U64(0x7F)) << _U64(56)
        nine = ninth < _U64(128)
        ten = ~nine & (tenth < _U64(2))
        value |= np.where(ten, tenth, _U64(0)) << _U64(63)
        return value, np.where(nine, 9, np.where(ten, 10, 0)).astype(np.int64)

    def varint(self, at: Ints) -> tuple[Ints, Ints]:
        """Return what `uvarint` returns, for signed numbers (zigzag)."""
        raw, size = self.uvarint(at)
        return zigzag(raw), size

    def big_endian(self, at: Ints, size: int) -> Words:
        """Return the number of 1 to 8 bytes at each position, big-endian."""
        found: Words = self._words[at].byteswap() >> _U64(64 - 8 * size)
        return found


def zigzag(raw: Words) -> Ints:
    """Return a signed number from its unsigned form."""
    return ((raw >> _ONE) ^ (~(raw & _ONE) + _ONE)).view(np.int64)
