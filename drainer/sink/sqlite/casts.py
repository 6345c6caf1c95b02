"""Converts stored values as TiDB does when MODIFY COLUMN changes a column's type. Pure.

Upstream converts every row before the job ends, and writes no binlog for them. If it refuses a conversion, there is no
job.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

from binlog.tidb.types import FieldType

from drainer.row.column_type import TypeClass, type_class_of

Value = int | float | str | bytes | None
Convert = Callable[[Value], Value]

_TEXTS = frozenset({TypeClass.TEXT, TypeClass.ENUM, TypeClass.SET, TypeClass.JSON})
_STORED_AS_TEXT = frozenset({TypeClass.DECIMAL, TypeClass.DATE, TypeClass.DATETIME, TypeClass.TIME})
_NUMBERS = frozenset({TypeClass.INT, TypeClass.BIT, TypeClass.DECIMAL, TypeClass.FLOAT})
_DIGITS = Context(prec=400, rounding=ROUND_HALF_UP)  # of every DOUBLE; Python's own context has 28
_SQLITE_INTEGER_MAX = (1 << 63) - 1


class CannotConvert(ValueError):
    """This pair of types is not known here."""


def converter(old: FieldType, new: FieldType) -> Convert | None:
    """How a value changes; None when it stays as it is. Raises CannotConvert."""
    source, target = type_class_of(old), type_class_of(new)
    step = _step(source, target, old, new)
    if step is None:
        return None
    return lambda value: None if value is None else step(value)


def noting(column: str, convert: Convert, unconverted: list[str]) -> Convert:
    """Return `convert`, which adds column, value and reason to `unconverted` when it fails: SQLite's own error has
    none of them."""

    def noted(value: Value) -> Value:
        try:
            return convert(value)
        except Exception as error:
            unconverted.append(f"column {column}: {value!r:.100} cannot be converted: {error!r}")
            raise

    return noted


def _step(source: TypeClass, target: TypeClass, old: FieldType, new: FieldType) -> Convert | None:
    if target in _TEXTS and (source in _TEXTS or source not in (TypeClass.BYTES, TypeClass.BIT)):
        return None if source in _TEXTS or source in _STORED_AS_TEXT else _text
    if target is TypeClass.BYTES:
        return None if source is TypeClass.BYTES else lambda value: str(value).encode()
    if source is TypeClass.BYTES and target in _TEXTS:
        return lambda value: value.decode() if isinstance(value, bytes) else value
    if target in (TypeClass.INT, TypeClass.BIT):
        return None if source in (TypeClass.INT, TypeClass.BIT) else _numeric(source, target, _integer)
    if target is TypeClass.DECIMAL:
        if source is TypeClass.DECIMAL and old.decimal == new.decimal:
            return None
        return _numeric(source, target, lambda value: _scaled(value, max(new.decimal, 0)))
    if target is TypeClass.FLOAT:
        return None if source is TypeClass.FLOAT else _numeric(source, target, lambda value: float(str(value)))
    if target in (TypeClass.DATE, TypeClass.DATETIME) and source in (TypeClass.DATE, TypeClass.DATETIME):
        if source is target and old.fsp == new.fsp:
            return None
        return _date if target is TypeClass.DATE else lambda value: _datetime(str(value), new.fsp)
    if source is target and (target is not TypeClass.TIME or old.fsp == new.fsp):
        return None
    raise CannotConvert(f"{old.mysql_name} to {new.mysql_name}")


def _numeric(source: TypeClass, target: TypeClass, step: Convert) -> Convert:
    if source not in _NUMBERS and source is not TypeClass.TEXT:
        raise CannotConvert(f"{source.value} to {target.value}")
    return step


def _text(value: Value) -> Value:
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def _number(value: Value) -> Decimal:
    try:
        return Decimal(repr(value) if isinstance(value, float) else str(value).strip())
    except InvalidOperation as error:
        raise CannotConvert(f"{value!r} to a number") from error


def _integer(value: Value) -> Value:
    number = int(_number(value).to_integral_value(ROUND_HALF_UP))
    return number if number <= _SQLITE_INTEGER_MAX else str(number)


def _scaled(value: Value, scale: int) -> Value:
    return format(_number(value).quantize(Decimal(1).scaleb(-scale), context=_DIGITS), "f")


def _datetime(text: str, fsp: int) -> str:
    """Another number of digits after the second, rounded."""
    day, _, time = text.partition(" ")
    whole, _, fraction = (time or "00:00:00").partition(".")
    unit = 10 ** (6 - fsp)
    micros = (int(fraction.ljust(6, "0")[:6]) + unit // 2) // unit * unit
    if micros >= 1_000_000:
        up = datetime.fromisoformat(f"{day} {whole}") + timedelta(seconds=1)
        day, whole, micros = up.strftime("%Y-%m-%d"), up.strftime("%H:%M:%S"), 0
    digits = f".{micros:06d}"[: fsp + 1] if fsp else ""
    return f"{day} {whole}{digits}"


def _date(value: Value) -> Value:
    return _datetime(str(value), 0)[:10]
