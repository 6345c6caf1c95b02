"""Converts stored datums back to Python values of the types that pumpclient.sdk.values accepts. Pure.

`decoder(FieldType)` makes a function for one column. Encoding its result gives the same datum again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal

from binlog.tidb.datum import Datum
from binlog.tidb.json import BinaryJSON
from binlog.tidb.json_encode import encode_json
from binlog.tidb.time import unpack
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, FieldType, Tp

Decode = Callable[[Datum], object]


def decoder(kind: FieldType) -> Decode:
    """Return the decoder of one column. The caller handles NULL. The type must be one that `encoder` accepts."""
    if kind.tp in STRINGS:
        return _same if kind.is_binary else _text
    if kind.tp is Tp.ENUM:
        return lambda datum: kind.elems[_whole(datum) - 1]
    if kind.tp is Tp.SET:
        return lambda datum: tuple(name for n, name in enumerate(kind.elems) if _whole(datum) >> n & 1)
    return _DECODERS[kind.tp]


def _same(datum: Datum) -> object:
    return datum


def _whole(datum: Datum) -> int:
    assert isinstance(datum, int)
    return int(datum)


def _text(datum: Datum) -> str:
    assert isinstance(datum, bytes)
    return datum.decode()


def _decimal(datum: Datum) -> Decimal:
    assert isinstance(datum, str)
    return Decimal(str(datum))


def _date(datum: Datum) -> date:
    civil = unpack(_whole(datum))
    return date(civil.year, civil.month, civil.day)


def _datetime(datum: Datum) -> datetime:
    return datetime(*unpack(_whole(datum)))


def _duration(datum: Datum) -> timedelta:
    return timedelta(microseconds=_whole(datum) // 1_000)


def _json(datum: Datum) -> object:
    """Return Python values, or a BinaryJSON if it contains what they cannot represent (dates, times, opaque bytes)."""
    assert isinstance(datum, BinaryJSON)
    value = datum.value()
    return value if bytes(encode_json(value)) == bytes(datum) else datum


_DECODERS: dict[Tp, Decode] = {
    **dict.fromkeys((*INTEGERS, Tp.BIT), _whole),
    **dict.fromkeys(FLOATS, _same),
    Tp.NEWDECIMAL: _decimal,
    Tp.DATE: _date,
    Tp.DATETIME: _datetime,
    Tp.TIMESTAMP: _datetime,
    Tp.DURATION: _duration,
    Tp.JSON: _json,
}
