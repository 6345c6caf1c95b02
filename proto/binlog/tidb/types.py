"""Column types by their numbers in TiDB's schema JSON and row data (the numbers of the MySQL protocol)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Self

UNSPECIFIED = -1  # for a flen or decimal


class OpenEnum(IntEnum):
    """An enum that keeps unlisted numbers as members named `UNKNOWN_n`, because a newer TiDB may send them."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None  # Enum then raises ValueError
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member

    # Pickle by number: early versions of Python 3.11 pickle by name, and an unlisted member's name cannot be looked up.
    def __reduce_ex__(self, protocol: object) -> tuple[type[OpenEnum], tuple[int]]:
        return self.__class__, (int(self),)


class Tp(OpenEnum):
    """MySQL column types. An unlisted number is kept as a member named `UNKNOWN_n`."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11  # TIME
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    VECTOR = 225
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254  # CHAR, BINARY
    GEOMETRY = 255


class SchemaState(OpenEnum):
    """The state of a table, column, index or schema while it is added or removed."""

    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORGANIZATION = 3
    DELETE_REORGANIZATION = 4
    PUBLIC = 5
    REPLICA_ONLY = 6
    GLOBAL_TXN_ONLY = 7


class Flag(IntFlag):
    """Column flags that readers or writers of rows use. Other bits are kept."""

    NOT_NULL = 1
    PRI_KEY = 2
    UNIQUE_KEY = 4
    MULTIPLE_KEY = 8
    BLOB = 16
    UNSIGNED = 32
    ZEROFILL = 64
    BINARY = 128
    ENUM = 256
    AUTO_INCREMENT = 512
    TIMESTAMP = 1024
    SET = 2048
    NO_DEFAULT_VALUE = 4096
    ON_UPDATE_NOW = 8192
    GENERATED_COLUMN = 1 << 23


INTEGERS = frozenset({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG, Tp.YEAR})
FLOATS = frozenset({Tp.FLOAT, Tp.DOUBLE})
TIMES = frozenset({Tp.DATE, Tp.NEWDATE, Tp.DATETIME, Tp.TIMESTAMP})
_BLOB_NAMES = {Tp.TINY_BLOB: "tiny", Tp.MEDIUM_BLOB: "medium", Tp.LONG_BLOB: "long", Tp.BLOB: ""}
BLOBS = frozenset(_BLOB_NAMES)
STRINGS = BLOBS | {Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING, Tp.GEOMETRY}
_NAMES = {
    Tp.TINY: "tinyint",
    Tp.SHORT: "smallint",
    Tp.INT24: "mediumint",
    Tp.LONG: "int",
    Tp.LONGLONG: "bigint",
    Tp.NEWDECIMAL: "decimal",
    Tp.DURATION: "time",
    Tp.NEWDATE: "date",
}


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a column. `flen` and `decimal` are -1 if unspecified. `elems`: the names of an ENUM or SET."""

    tp: Tp
    flag: int = 0
    flen: int = UNSPECIFIED
    decimal: int = UNSPECIFIED
    charset: str = "binary"
    collate: str = "binary"
    elems: tuple[str, ...] = ()
    elems_binary: tuple[bool, ...] = ()
    array: bool = False

    @property
    def is_unsigned(self) -> bool:
        return bool(self.flag & Flag.UNSIGNED)

    @property
    def is_not_null(self) -> bool:
        return bool(self.flag & Flag.NOT_NULL)

    @property
    def is_string(self) -> bool:
        return self.tp in STRINGS

    @property
    def is_binary(self) -> bool:
        """Whether this is a string type that holds bytes, not text."""
        return self.tp in STRINGS and self.charset == "binary"

    @property
    def fsp(self) -> int:
        """Fractional digits of a second, 0 to 6."""
        return min(max(self.decimal, 0), 6)

    @property
    def mysql_name(self) -> str:
        """The name in TiDB-Binlog's own outputs: `varbinary`, `mediumtext`, `int`…"""
        if self.tp in _BLOB_NAMES:
            return _BLOB_NAMES[self.tp] + ("blob" if self.charset == "binary" else "text")
        if self.tp is Tp.STRING:
            return "binary" if self.charset == "binary" else "char"
        if self.tp is Tp.VARCHAR:
            return "varbinary" if self.charset == "binary" else "varchar"
        return _NAMES.get(self.tp, self.tp.name.lower())
