"""Binary strings in the format of Go's strconv.Quote, without the quotes, and the reverse, as in strconv.Unquote."""

from __future__ import annotations

import re
from typing import Final

_SHORT: Final = {7: r"\a", 8: r"\b", 9: r"\t", 10: r"\n", 11: r"\v", 12: r"\f", 13: r"\r", 34: r"\""}
# ASCII bytes that are escaped, except for the backslash.
_ASCII: Final = {code: rf"\x{code:02x}" for code in (*range(32), 127)} | _SHORT
_UNTOUCHED: Final = bytes(code for code in range(32, 127) if code not in b'"\\')
_MEANT: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_ESCAPE: Final = re.compile(
    r"""\\(?:(?P<short>[abtnvfr"\\])|x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-7]{3})
    |u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})|(?P<wrong>))""",
    re.VERBOSE,
)
_RAW: Final = re.compile(r'["\n]')


class _Escapes(dict[int, int | str]):
    """A table for str.translate: maps code points above 127 that are not printable to their escapes."""

    def __missing__(self, code: int) -> int | str:
        escape = rf"\u{code:04x}" if code < 0x10000 else rf"\U{code:08x}"
        self[code] = made = code if chr(code).isprintable() else escape
        return made


_ESCAPES: Final = _Escapes()


def quote(value: bytes) -> str:
    """Escape bytes. A byte that is not part of valid UTF-8 becomes `\\xHH`, a code point that is not printable becomes
    `\\uXXXX` or `\\UXXXXXXXX`."""
    special = value.translate(None, _UNTOUCHED)
    if not special:
        return value.decode()
    text = value.replace(b"\\", rb"\\").decode("utf-8", "backslashreplace")
    for code in _ASCII.keys() & set(special):
        text = text.replace(chr(code), _ASCII[code])
    return text if text.isprintable() else text.translate(_ESCAPES)


def unquote(text: str) -> bytes:
    """Unescape text. Raises ValueError for text that Quote never writes and Unquote rejects."""
    if "\\" not in text:
        return _raw(text)
    parts, at = [], 0
    for escape in _ESCAPE.finditer(text):
        parts += [_raw(text[at : escape.start()]), _bytes_of(escape)]
        at = escape.end()
    return b"".join([*parts, _raw(text[at:])])


def _raw(text: str) -> bytes:
    found = _RAW.search(text)
    if found:
        raise ValueError(f"{found[0]!r} is not escaped")
    return text.encode()


def _bytes_of(escape: re.Match[str]) -> bytes:
    kind = escape.lastgroup
    digits = escape[kind] if kind else ""
    if kind == "short":
        return bytes((_MEANT[digits],))
    number = int(digits, 8 if kind == "octal" else 16) if kind != "wrong" else 256
    if kind in ("four", "eight") and number < 0x110000 and not 0xD800 <= number < 0xE000:
        return chr(number).encode()
    if kind in ("hex", "octal") and number < 256:
        return bytes((number,))
    raise ValueError(f"not an escape of Go at character {escape.start()}")
