"""JSON text as Go's encoding/json writes it, which readers of TiCDC's messages may compare byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

_BETWEEN: Final = "\ufdd0"
_SPECIAL: Final = re.compile("[<>&\u2028\u2029]")
_ESCAPES: Final = [(char, f"\\u{ord(char):04x}") for char in "<>&\u2028\u2029"]


def json_string(text: str) -> str:
    """With quotes. `<`, `>`, `&` and the line separators are escaped, everything else beyond ASCII stays.

    Raises UnicodeEncodeError where the text is encoded later and has lone surrogates."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _escaped(quoted) if _SPECIAL.search(quoted) else quoted


def json_strings(texts: Sequence[str]) -> list[str]:
    """As `json_string` of each, without the quotes. The texts are escaped as one text, between whose parts stands a
    code point that is no character."""
    joined = _BETWEEN.join(texts)
    if joined.count(_BETWEEN) >= max(len(texts), 1):  # a text has it itself
        return [json_string(text)[1:-1] for text in texts]
    return json_string(joined)[1:-1].split(_BETWEEN) if texts else []


def json_document(document: object) -> str:
    """Of dicts, lists, strings, whole numbers, booleans and None: members in their order, nothing between them."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return _escaped(text) if _SPECIAL.search(text) else text


def _escaped(text: str) -> str:
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return text


def json_double(value: float) -> str:
    """Shortest digits that give the same double: plain from 1e-6 to below 1e21, else with an exponent."""
    return json_number(repr(value), abs(value))


def json_number(digits: str, size: float) -> str:
    """The shortest `digits` of a number of this `size`, as Python or Arrow writes them, in Go's notation."""
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
    """Without an exponent."""
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits, point = whole + fraction, len(whole) + power
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"
