"""DECIMAL in MySQL's binary form, to and from text, without the decimal module.

A payload is one byte precision, one byte frac, and the digits. The integer part is split from the right and the
fraction from the left into groups of nine digits. Each group is a big-endian number in as few bytes as its digits need.
The first bit is flipped, and for a negative number every byte is complemented.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from binlog.errors import DecodeError

DIGITS = 9  # in a full group of 4 bytes
BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
PRECISION_MAX = 81  # nine groups; columns go to 65
FRAC_MAX = 30
_PLAIN = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")


class Decimal(str):
    """Canonical text ("5.00", "-0.5": exactly `frac` fraction digits) that remembers how it was stored.

    The encoder writes `precision` and `frac`, which are the column's flen and decimal. Precision 0 means the digits of
    the text.
    """

    __slots__ = ("frac", "precision")

    precision: int
    frac: int

    def __new__(cls, text: str, precision: int = 0, frac: int = 0) -> Decimal:
        self = super().__new__(cls, text)
        self.precision = precision
        self.frac = frac
        return self

    def __reduce__(self) -> tuple[type[Decimal], tuple[str, int, int]]:
        return Decimal, (str(self), self.precision, self.frac)


class _Layout(NamedTuple):
    """The digit groups for one (precision, frac), each as (shift, mask, largest value, power of ten of its digits)."""

    size: int
    top: int  # the flipped bit
    ones: int
    integer: tuple[tuple[int, int, int, int], ...]
    fraction: tuple[tuple[int, int, int, int], ...]


@lru_cache(maxsize=1024)
def _layout(precision: int, frac: int) -> _Layout:
    whole, lead = divmod(precision - frac, DIGITS)
    full, tail = divmod(frac, DIGITS)
    integer_digits = ([lead] if lead else []) + [DIGITS] * whole
    fraction_digits = [DIGITS] * full + ([tail] if tail else [])
    sizes = [BYTES_OF_DIGITS[d] for d in integer_digits + fraction_digits]
    size = sum(sizes)
    groups: list[tuple[int, int, int, int]] = []
    at = size
    for index, digits in enumerate(integer_digits + fraction_digits):
        at -= sizes[index]
        # TiDB accepts one digit too many in the leading group; every other group is exact.
        slack = 1 if index == 0 and lead and digits < DIGITS else 0
        groups.append((8 * at, (1 << 8 * sizes[index]) - 1, 10 ** (digits + slack) - 1, 10**digits))
    split = len(integer_digits)
    top = 1 << (8 * size - 1) if size else 0
    return _Layout(size, top, (1 << 8 * size) - 1, tuple(groups[:split]), tuple(groups[split:]))


def _header(buf: bytes, pos: int) -> tuple[int, int]:
    if len(buf) - pos < 3:
        raise DecodeError("decimal", offset=pos, detail="insufficient bytes to decode value")
    precision, frac = buf[pos], buf[pos + 1]
    if not 0 < precision <= PRECISION_MAX or frac > precision or frac > FRAC_MAX:
        raise DecodeError("decimal", offset=pos, detail=f"bad precision {precision} and fraction {frac}")
    return precision, frac


def decode_decimal(buf: bytes, pos: int = 0) -> tuple[Decimal, int]:
    """Decode a payload with its precision and frac. Raises DecodeError if it is truncated or invalid."""
    precision, frac = _header(buf, pos)
    text, end = decode_digits(buf, pos + 2, precision, frac)
    return Decimal(text, precision, frac), end


def decode_decimal_text(buf: bytes, pos: int = 0) -> tuple[str, int]:
    """Decode a payload to plain text only, which is faster. Raises as `decode_decimal` does."""
    precision, frac = _header(buf, pos)
    return decode_digits(buf, pos + 2, precision, frac)


def decode_digits(buf: bytes, pos: int, precision: int, frac: int) -> tuple[str, int]:
    """Decode the digits to text. Raises DecodeError if bytes are missing or a group exceeds its digits."""
    size, top, ones, integer, fraction = _layout(precision, frac)
    end = pos + size
    if end > len(buf):
        raise DecodeError("decimal", offset=pos, detail="insufficient bytes to decode value")
    bits = int.from_bytes(buf[pos:end], "big") ^ top
    sign = ""
    if bits & top:
        bits ^= ones
        if bits:
            sign = "-"
    head = tail = 0
    for shift, mask, most, scale in integer:
        group = bits >> shift & mask
        if group > most:
            raise DecodeError("decimal", offset=pos, detail=f"bad number: a group holds {group}")
        head = head * scale + group
    if not frac:
        return f"{sign}{head}", end
    for shift, mask, most, scale in fraction:
        group = bits >> shift & mask
        if group > most:
            raise DecodeError("decimal", offset=pos, detail=f"bad number: a group holds {group}")
        tail = tail * scale + group
    return f"{sign}{head}.{str(tail).zfill(frac)}", end


def encode_decimal(text: str, precision: int = 0, frac: int = 0) -> bytes:
    """Encode a payload: precision, frac, digits. With precision 0, the value's own digits are used.

    Fraction digits beyond `frac` are truncated, not rounded: the writer has already rounded to the column. Raises
    ValueError if the text is not a number or has too many integer digits.
    """
    found = _PLAIN.fullmatch(text)
    if not found or not (found[2] or found[3]):
        raise ValueError(f"{text!r} is not a decimal number")
    head, tail = found[2].lstrip("0"), found[3] or ""
    if precision == 0:
        frac = min(len(tail), FRAC_MAX)
        precision = max(len(head) + frac, 1)
    if not 0 < precision <= PRECISION_MAX or not 0 <= frac <= min(precision, FRAC_MAX):
        raise ValueError(f"DECIMAL({precision},{frac}) does not exist")
    if len(head) > precision - frac:
        raise ValueError(f"{text} does not fit DECIMAL({precision},{frac})")
    digits = head.rjust(precision - frac, "0") + tail[:frac].ljust(frac, "0")
    size, top, ones, integer, fraction = _layout(precision, frac)
    bits = at = 0
    for shift, _, _, scale in integer + fraction:
        width = len(str(scale)) - 1
        bits |= int(digits[at : at + width]) << shift
        at += width
    if found[1] == "-" and bits:
        bits ^= ones
    return bytes((precision, frac)) + (bits ^ top).to_bytes(size, "big")
