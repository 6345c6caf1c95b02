"""Column types by their SQL names. Each function returns a `FieldType` with the lengths that TiDB gives the type.

The names are those of SQL, hence the capitals. `collate` of a string type must belong to utf8mb4, utf8 or ascii. An
argument out of range raises BadDeclaration.

`retype` decides which changes of a column's type keep every value exactly. The SDK reads no rows, so it cannot check
whether existing rows fit another type. Rows written with an older table handle also arrive after the ALTER. So a type
may only change to one that can hold every value of the old type.
"""

from __future__ import annotations

from enum import Enum as PythonEnum

from binlog.tidb.types import INTEGERS, STRINGS, FieldType, Flag, Tp

from pumpclient.sdk.errors import BadDeclaration

_INT_FLEN = {Tp.TINY: (4, 3), Tp.SHORT: (6, 5), Tp.INT24: (9, 8), Tp.LONG: (11, 10), Tp.LONGLONG: (20, 20)}
CHARSETS = ("utf8mb4", "utf8", "ascii", "binary")
TEXT_BYTES = {Tp.TINY_BLOB: 255, Tp.BLOB: 65_535, Tp.MEDIUM_BLOB: 16_777_215, Tp.LONG_BLOB: 4_294_967_295}
VARCHAR_CHARACTERS_MAX = 16_383  # 65,535 bytes of four each
VARBINARY_BYTES_MAX = 65_535


def _bounded(what: str, value: int, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadDeclaration(f"{what} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _integer(tp: Tp, unsigned: bool) -> FieldType:
    return FieldType(tp, flag=int(Flag.UNSIGNED) if unsigned else 0, flen=_INT_FLEN[tp][unsigned], decimal=0)


def TinyInt(*, unsigned: bool = False) -> FieldType:
    """TINYINT: an int from -128 to 127, or 0 to 255 if unsigned."""
    return _integer(Tp.TINY, unsigned)


def SmallInt(*, unsigned: bool = False) -> FieldType:
    """SMALLINT: an int of two bytes."""
    return _integer(Tp.SHORT, unsigned)


def MediumInt(*, unsigned: bool = False) -> FieldType:
    """MEDIUMINT: an int of three bytes."""
    return _integer(Tp.INT24, unsigned)


def Int(*, unsigned: bool = False) -> FieldType:
    """INT: an int of four bytes."""
    return _integer(Tp.LONG, unsigned)


def BigInt(*, unsigned: bool = False) -> FieldType:
    """BIGINT: an int of eight bytes."""
    return _integer(Tp.LONGLONG, unsigned)


def Bool() -> FieldType:
    """BOOL, which MySQL stores as TINYINT(1)."""
    return FieldType(Tp.TINY, flen=1, decimal=0)


def Float(*, unsigned: bool = False) -> FieldType:
    """FLOAT: a float or int, stored in four bytes (about seven digits)."""
    return FieldType(Tp.FLOAT, flag=int(Flag.UNSIGNED) if unsigned else 0, flen=12)


def Double(*, unsigned: bool = False) -> FieldType:
    """DOUBLE: a float or int, stored in eight bytes."""
    return FieldType(Tp.DOUBLE, flag=int(Flag.UNSIGNED) if unsigned else 0, flen=22)


def NumericType(precision: int = 10, scale: int = 0, *, unsigned: bool = False) -> FieldType:
    """DECIMAL(precision, scale): `precision` digits in total, `scale` of them after the decimal point."""
    _bounded("the precision of DECIMAL", precision, 1, 65)
    _bounded("the scale of DECIMAL", scale, 0, min(30, precision))
    return FieldType(Tp.NEWDECIMAL, flag=int(Flag.UNSIGNED) if unsigned else 0, flen=precision, decimal=scale)


def Bit(width: int = 1) -> FieldType:
    """BIT(width): an int, or bytes in big-endian order. `width`: 1 to 64 bits."""
    return FieldType(Tp.BIT, flag=int(Flag.UNSIGNED), flen=_bounded("the width of BIT", width, 1, 64), decimal=0)


def Year() -> FieldType:
    """YEAR: an int, 0 or 1901 to 2155."""
    return FieldType(Tp.YEAR, flag=int(Flag.UNSIGNED | Flag.ZEROFILL), flen=4, decimal=0)


def Date() -> FieldType:
    """DATE: a date, or a str such as `2026-11-22`."""
    return FieldType(Tp.DATE, flag=int(Flag.BINARY), flen=10, decimal=0)


def _with_fraction(tp: Tp, flen: int, fsp: int) -> FieldType:
    _bounded("fractional digits of a second", fsp, 0, 6)
    return FieldType(tp, flag=int(Flag.BINARY), flen=flen + (fsp + 1 if fsp else 0), decimal=fsp)


def Time(fsp: int = 0) -> FieldType:
    """TIME(fsp): a timedelta, a time without zone, or a str such as `-12:30:00.5`. `fsp`: fractional digits, 0 to 6."""
    return _with_fraction(Tp.DURATION, 10, fsp)


def DateTime(fsp: int = 0) -> FieldType:
    """DATETIME(fsp): a datetime without zone, a date, or a str. `fsp`: fractional digits of the second, 0 to 6."""
    return _with_fraction(Tp.DATETIME, 19, fsp)


def Timestamp(fsp: int = 0) -> FieldType:
    """TIMESTAMP(fsp): an instant, as a datetime with zone, or without zone in UTC. `fsp`: fractional digits, 0 to 6."""
    return _with_fraction(Tp.TIMESTAMP, 19, fsp)


def _text(tp: Tp, flen: int, collate: str) -> FieldType:
    charset = collate.split("_", 1)[0] if isinstance(collate, str) else None
    if charset not in CHARSETS or charset == "binary":
        raise BadDeclaration(f"collation {collate!r} belongs to none of {', '.join(CHARSETS[:3])}")
    return FieldType(tp, flen=flen, decimal=0, charset=charset, collate=collate)


def _bytes(tp: Tp, flen: int) -> FieldType:
    return FieldType(tp, flag=int(Flag.BINARY), flen=flen, decimal=0)


def Char(length: int = 1, *, collate: str = "utf8mb4_bin") -> FieldType:
    """CHAR(length): a str of at most `length` characters. Trailing spaces are removed, as in MySQL."""
    return _text(Tp.STRING, _bounded("the length of CHAR", length, 0, 255), collate)


def VarChar(length: int, *, collate: str = "utf8mb4_bin") -> FieldType:
    """VARCHAR(length): a str of at most `length` characters."""
    return _text(Tp.VARCHAR, _bounded("the length of VARCHAR", length, 0, VARCHAR_CHARACTERS_MAX), collate)


def Binary(length: int = 1) -> FieldType:
    """BINARY(length): at most `length` bytes, padded with zero bytes."""
    return _bytes(Tp.STRING, _bounded("the length of BINARY", length, 0, 255))


def VarBinary(length: int) -> FieldType:
    """VARBINARY(length): at most `length` bytes, as bytes, bytearray or memoryview."""
    return _bytes(Tp.VARCHAR, _bounded("the length of VARBINARY", length, 0, VARBINARY_BYTES_MAX))


def TinyText(*, collate: str = "utf8mb4_bin") -> FieldType:
    """TINYTEXT: a str of at most 255 bytes."""
    return _text(Tp.TINY_BLOB, TEXT_BYTES[Tp.TINY_BLOB], collate)


def Text(*, collate: str = "utf8mb4_bin") -> FieldType:
    """TEXT: a str of at most 65,535 bytes."""
    return _text(Tp.BLOB, TEXT_BYTES[Tp.BLOB], collate)


def MediumText(*, collate: str = "utf8mb4_bin") -> FieldType:
    """MEDIUMTEXT: a str of at most 16 MiB."""
    return _text(Tp.MEDIUM_BLOB, TEXT_BYTES[Tp.MEDIUM_BLOB], collate)


def LongText(*, collate: str = "utf8mb4_bin") -> FieldType:
    """LONGTEXT: a str. The size limit of a binlog is far below the type's 4 GiB."""
    return _text(Tp.LONG_BLOB, TEXT_BYTES[Tp.LONG_BLOB], collate)


def TinyBlob() -> FieldType:
    """TINYBLOB: bytes, bytearray or memoryview of at most 255 bytes."""
    return _bytes(Tp.TINY_BLOB, TEXT_BYTES[Tp.TINY_BLOB])


def Blob() -> FieldType:
    """BLOB: bytes, bytearray or memoryview of at most 65,535 bytes."""
    return _bytes(Tp.BLOB, TEXT_BYTES[Tp.BLOB])


def MediumBlob() -> FieldType:
    """MEDIUMBLOB: bytes, bytearray or memoryview of at most 16 MiB."""
    return _bytes(Tp.MEDIUM_BLOB, TEXT_BYTES[Tp.MEDIUM_BLOB])


def LongBlob() -> FieldType:
    """LONGBLOB: bytes, bytearray or memoryview. The size limit of a binlog is far below the type's 4 GiB."""
    return _bytes(Tp.LONG_BLOB, TEXT_BYTES[Tp.LONG_BLOB])


def _names(kind: str, names: tuple[str, ...], most: int) -> tuple[str, ...]:
    if not names or len(names) > most:
        raise BadDeclaration(f"{kind} needs 1 to {most} names, not {len(names)}")
    for name in names:
        if not isinstance(name, str):
            raise BadDeclaration(f"{kind} needs the names as separate arguments, not {name!r}")
    folded = [name.rstrip(" ").casefold() for name in names]
    if len(set(folded)) != len(folded):
        raise BadDeclaration(f"{kind}{names!r} contains the same name twice")
    return names


def Enum(*names: str, collate: str = "utf8mb4_bin") -> FieldType:
    """ENUM(names…): one of the names, as a str."""
    elems = _names("ENUM", names, 65_535)
    kind = _text(Tp.ENUM, max(len(name.encode()) for name in elems), collate)
    return FieldType(kind.tp, 0, kind.flen, 0, kind.charset, kind.collate, elems)


def Set(*names: str, collate: str = "utf8mb4_bin") -> FieldType:
    """SET(names…): some of the names, as an iterable of str or as one str with commas."""
    elems = _names("SET", names, 64)
    for name in elems:
        if "," in name:
            raise BadDeclaration(f"SET{names!r}: a name must not contain a comma")
    kind = _text(Tp.SET, sum(len(name.encode()) for name in elems) + len(elems) - 1, collate)
    return FieldType(kind.tp, 0, kind.flen, 0, kind.charset, kind.collate, elems)


def JSON() -> FieldType:
    """JSON: any value that json.dumps accepts (dict, list, str, int, float, bool, None), or a BinaryJSON."""
    return FieldType(Tp.JSON, flag=int(Flag.BINARY), flen=4_294_967_295, decimal=0)


_BYTES = {Tp.TINY: 1, Tp.SHORT: 2, Tp.INT24: 3, Tp.LONG: 4, Tp.LONGLONG: 8}
_TIMES = frozenset({Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION})
_WIDE_CHARSETS = {"ascii": {"utf8", "utf8mb4"}, "utf8": {"utf8mb4"}}


class Retype(PythonEnum):
    """SAME: both types have the same encoding; the column keeps its id. CAST: the column gets a new id, as in TiDB."""

    SAME = "same"
    CAST = "cast"


def retype(old: FieldType, new: FieldType) -> Retype | None:
    """Return how to change type `old` to `new`; None if a value may not fit or would change."""
    if old.tp in _BYTES and new.tp in _BYTES:
        return _integers(old, new)
    if old.tp in _BYTES:
        return Retype.CAST if _integer_fits(old, new) else None
    if old.tp is Tp.NEWDECIMAL and new.tp is Tp.NEWDECIMAL:
        return _decimals(old, new)
    if old.tp in STRINGS and new.tp in STRINGS:
        return _strings(old, new)
    if old.tp in (Tp.ENUM, Tp.SET) and new.tp is old.tp:
        return Retype.SAME if new.elems[: len(old.elems)] == old.elems and new.charset == old.charset else None
    if old.tp is Tp.BIT and new.tp is Tp.BIT:
        return Retype.SAME if new.flen >= old.flen else None
    if old.tp is Tp.DATE and new.tp is Tp.DATETIME:
        return Retype.CAST
    if old.tp in _TIMES and new.tp is old.tp:
        return None if new.fsp < old.fsp else Retype.SAME if new.fsp == old.fsp else Retype.CAST
    shape = (old.tp, old.flen, old.decimal, old.is_unsigned)
    return Retype.SAME if shape == (new.tp, new.flen, new.decimal, new.is_unsigned) else None


def _integers(old: FieldType, new: FieldType) -> Retype | None:
    wider = _BYTES[new.tp] - _BYTES[old.tp]
    if old.is_unsigned == new.is_unsigned:
        return Retype.SAME if wider >= 0 else None
    return Retype.CAST if old.is_unsigned and wider > 0 else None


def _integer_fits(old: FieldType, new: FieldType) -> bool:
    greatest = (1 << 8 * _BYTES[old.tp] - (not old.is_unsigned)) - 1
    digits = len(str(greatest))
    if new.tp is Tp.NEWDECIMAL:
        return new.flen - max(new.decimal, 0) >= digits and (old.is_unsigned or not new.is_unsigned)
    if new.tp is Tp.DOUBLE:
        return greatest < 1 << 53 and new.decimal < 0 and (old.is_unsigned or not new.is_unsigned)
    if new.tp in STRINGS and not new.is_binary:
        return _length_max(new) >= digits + (not old.is_unsigned)
    return False


def _decimals(old: FieldType, new: FieldType) -> Retype | None:
    if new.is_unsigned and not old.is_unsigned:
        return None
    shape = (old.flen, old.decimal, old.is_unsigned)
    if shape == (new.flen, new.decimal, new.is_unsigned):
        return Retype.SAME
    fits = new.decimal >= old.decimal and new.flen - new.decimal >= old.flen - old.decimal
    return Retype.CAST if fits else None


def _length_max(kind: FieldType) -> int:
    """Maximum length: characters of a CHAR or VARCHAR, bytes of the other types."""
    return TEXT_BYTES.get(kind.tp, kind.flen)


def _strings(old: FieldType, new: FieldType) -> Retype | None:
    if old.is_binary != new.is_binary:
        return None
    if not old.is_binary and new.charset != old.charset and new.charset not in _WIDE_CHARSETS.get(old.charset, ()):
        return None
    if old.tp is new.tp:
        padded = old.tp is Tp.STRING and old.is_binary  # a longer BINARY pads its values with more bytes
        fits = new.flen == old.flen if padded else _length_max(new) >= _length_max(old)
        return Retype.SAME if fits else None
    if new.tp is Tp.STRING:
        return None  # CHAR drops spaces at the end, BINARY adds zero bytes
    to_bytes = not old.is_binary and old.tp not in TEXT_BYTES and new.tp in TEXT_BYTES
    if _length_max(new) < _length_max(old) * (4 if to_bytes else 1):
        return None
    return Retype.SAME if old.tp in TEXT_BYTES and new.tp in TEXT_BYTES else Retype.CAST


assert _BYTES.keys() == INTEGERS - {Tp.YEAR}
