"""JSON text in the exact form of Go's encoding/json. Readers of TiCDC's messages may compare it byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

_BETWEEN: Final = "\ufdd0"
_SPECIAL: Final = re.compile("[<>&\u2028\u2029]")
_ESCAPES: Final = [(char, f"\\u{ord(char):04x}") for char in "<>&\u2028\u2029"]


def json_string(text: str) -> str:
    """Return the text as a JSON string with quotes. `<`, `>`, `&`, U+2028 and U+2029 are escaped; other characters
    beyond ASCII are not.

    A text with lone surrogates is not refused here. Encoding the result then raises UnicodeEncodeError.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return _escaped(quoted) if _SPECIAL.search(quoted) else quoted


def json_strings(texts: Sequence[str]) -> list[str]:
    """Return what `json_string` returns for each text, without the quotes. For speed, the texts are joined and escaped
    in one call. The separator is a code point that is not a character."""
    joined = _BETWEEN.join(texts)
    if joined.count(_BETWEEN) >= max(len(texts), 1):  # a text contains the separator
        return [json_string(text)[1:-1] for text in texts]
    return json_string(joined)[1:-1].split(_BETWEEN) if texts else []


def json_document(document: object) -> str:
    """Return a document of dicts, lists, strings, integers, booleans and None as JSON. Members keep their order, and no
    spaces are added."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return _escaped(text) if _SPECIAL.search(text) else text


def _escaped(text: str) -> str:
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return text


def json_double(value: float) -> str:
    """Return the shortest digits that identify a double: without an exponent from 1e-6 to below 1e21, else with one."""
    return json_number(repr(value), abs(value))


def json_number(digits: str, size: float) -> str:
    """Convert the shortest digits of a number from Python's or Arrow's notation to Go's. `size`: its absolute value."""
    if digits.endswith(".0"):
        digits = digits[:-2]
    mantissa, _, exponent = digits.partition("e")
    if size == 0 or 1e-6 <= size < 1e21:
        return _plain(mantissa, int(exponent)) if exponent else digits
    if not exponent:
        return digits
    power = int(exponent)
    return f"{mantissa.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power)}"


def _plain(mantissa: str, power: int) -> str:
    """Return the number without an exponent."""
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits, point = whole + fraction, len(whole) + power
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"
