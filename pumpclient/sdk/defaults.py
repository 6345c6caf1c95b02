"""Default values of columns: as stored in TableInfo, as SQL text, and as the value of a row that leaves the column out.

Pure, except that the current time is passed in for `NOW`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from binlog.tidb.datum import Datum
from binlog.tidb.flatten import to_text
from binlog.tidb.types import BLOBS, FLOATS, INTEGERS, STRINGS, FieldType, Tp

from pumpclient.sdk.errors import BadDeclaration, ValueRejected
from pumpclient.sdk.table import NO_DEFAULT, NOW, Column
from pumpclient.sdk.values import encoder

CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"
_NO_LITERAL = BLOBS | {Tp.JSON}


@dataclass(frozen=True, slots=True)
class DefaultInfo:
    """A default. `text` and `bit`: as ColumnInfo stores it. `sql`: the text after DEFAULT, or None."""

    text: str | None = None
    bit: bytes | None = None
    sql: str | None = None

    @property
    def is_now(self) -> bool:
        return self.text == CURRENT_TIMESTAMP and self.sql != f"_UTF8MB4'{CURRENT_TIMESTAMP}'"


def default_info(table: str, column: Column) -> DefaultInfo:
    """Return a column's default. Raises BadDeclaration for a default that the type cannot have, ValueRejected for a bad
    value.
    """
    kind, value = column.type, column.default
    if value is NO_DEFAULT or value is None:
        return DefaultInfo()
    if kind.tp in _NO_LITERAL:
        raise BadDeclaration(f"{table}.{column.name}: {kind.mysql_name} can only have the default NULL")
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
    """Return the default for a datum other than NULL."""
    if kind.tp is Tp.BIT:
        assert isinstance(datum, int)
        data = datum.to_bytes((kind.flen + 7) // 8, "big")
        return DefaultInfo(data.decode("utf-8", errors="replace"), bit=data, sql=f"b'{datum:b}'")
    canonical = to_text(datum, kind)
    if isinstance(canonical, bytes):
        try:
            return DefaultInfo(canonical.decode(), sql=_bytes_literal(canonical))
        except UnicodeDecodeError:  # JSON cannot hold such text: the bytes are stored in the field of BIT defaults
            text = canonical.decode("utf-8", errors="replace")
            return DefaultInfo(text, bit=canonical, sql=_bytes_literal(canonical))
    assert canonical is not None
    if kind.tp in INTEGERS or kind.tp in FLOATS or kind.tp is Tp.NEWDECIMAL:
        return DefaultInfo(canonical, sql=canonical)
    return DefaultInfo(canonical, sql=string_literal(canonical))


def string_literal(text: str) -> str:
    """Return a string default in the form in which TiDB restores it (X-04)."""
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
    """Return CURRENT_TIMESTAMP, truncated to the column's precision."""
    step = 10 ** (6 - kind.fsp)
    moment = moment.astimezone(UTC).replace(tzinfo=None)
    return encoder(kind)(moment.replace(microsecond=moment.microsecond // step * step))


def stored_default(kind: FieldType, text: object, bit: bytes | None) -> Datum:
    """Return the datum of a literal default from a TableInfo. Raises ValueError if the type cannot hold it."""
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
