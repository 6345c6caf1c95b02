"""Default values of columns: as TableInfo keeps them, as SQL writes them, and as a row without the column gets them.

Pure, but for the moment given to `NOW`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from binlog.tidb.datum import Datum
from binlog.tidb.types import FLOATS, INTEGERS, STRINGS, FieldType, Tp
from binlog.tidb.unflatten import to_text

from pumpclient.sdk.errors import BadDeclaration, ValueRejected
from pumpclient.sdk.table import NO_DEFAULT, NOW, Column
from pumpclient.sdk.values import encoder

CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"
_NO_LITERAL = frozenset({Tp.JSON, Tp.BLOB, Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB})


@dataclass(frozen=True, slots=True)
class DefaultInfo:
    """`text` and `bit` as ColumnInfo keeps them; `sql` what follows DEFAULT, None without one."""

    text: str | None = None
    bit: bytes | None = None
    sql: str | None = None

    @property
    def is_now(self) -> bool:
        return self.text == CURRENT_TIMESTAMP and self.sql != f"_UTF8MB4'{CURRENT_TIMESTAMP}'"


def default_info(table: str, column: Column) -> DefaultInfo:
    """BadDeclaration for a default the type cannot have, ValueRejected for a value it cannot hold."""
    kind, value = column.type, column.default
    if value is NO_DEFAULT or value is None:
        return DefaultInfo()
    if kind.tp in _NO_LITERAL:
        raise BadDeclaration(f"{table}.{column.name}: {kind.mysql_name} can have no default but NULL")
    if value is NOW:
        if kind.tp not in (Tp.TIMESTAMP, Tp.DATETIME):
            raise BadDeclaration(f"{table}.{column.name}: only TIMESTAMP and DATETIME can default to the current time")
        return DefaultInfo(CURRENT_TIMESTAMP, sql=f"{CURRENT_TIMESTAMP}({kind.fsp or ''})")
    try:
        datum = encoder(kind)(value)
    except ValueError as error:
        raise ValueRejected(table, column.name, value, f"as default: {error}") from None
    return literal_info(kind, datum)


def literal_info(kind: FieldType, datum: Datum) -> DefaultInfo:
    """Of a value that is no NULL."""
    if kind.tp is Tp.BIT:
        assert isinstance(datum, int)
        data = datum.to_bytes((kind.flen + 7) // 8, "big")
        return DefaultInfo(data.decode("utf-8", errors="replace"), bit=data, sql=f"b'{datum:b}'")
    canonical = to_text(datum, kind)
    if isinstance(canonical, bytes):
        try:
            return DefaultInfo(canonical.decode(), sql=_bytes_literal(canonical))
        except UnicodeDecodeError:  # JSON has no such text: the bytes go where those of a BIT go
            text = canonical.decode("utf-8", errors="replace")
            return DefaultInfo(text, bit=canonical, sql=_bytes_literal(canonical))
    assert canonical is not None
    if kind.tp in INTEGERS or kind.tp in FLOATS or kind.tp is Tp.NEWDECIMAL:
        return DefaultInfo(canonical, sql=canonical)
    return DefaultInfo(canonical, sql=string_literal(canonical))


def string_literal(text: str) -> str:
    """As TiDB restores a string default (X-04)."""
    return "_UTF8MB4" + quoted(text)


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _bytes_literal(data: bytes) -> str:
    try:
        text = data.rstrip(b"\x00").decode("ascii")
    except UnicodeDecodeError:
        return f"x'{data.hex()}'"
    return string_literal(text) if text.isprintable() else f"x'{data.hex()}'"


def now_datum(kind: FieldType, moment: datetime) -> Datum:
    """CURRENT_TIMESTAMP with the column's precision, cut."""
    step = 10 ** (6 - kind.fsp)
    moment = moment.astimezone(UTC).replace(tzinfo=None)
    return encoder(kind)(moment.replace(microsecond=moment.microsecond // step * step))


def stored_default(kind: FieldType, text: object, bit: bytes | None) -> Datum:
    """The datum of a literal default as a TableInfo keeps it. ValueError when it is not one of the type."""
    assert isinstance(text, str)
    if kind.tp is Tp.BIT:
        return encoder(kind)(bit if bit is not None else text.encode())
    if kind.tp in INTEGERS:
        return encoder(kind)(int(text))
    if kind.tp in FLOATS:
        return encoder(kind)(float(text))
    if kind.tp in STRINGS and kind.is_binary:
        return encoder(kind)(bit if bit is not None else text.encode("utf-8", errors="surrogateescape"))
    return encoder(kind)(text)
