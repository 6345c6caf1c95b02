"""Python source for reading one column's bytes in place: `b` is the payload, `p` the position in it. Pure.

The emitted lines read the usual encoding only, and `return None` (or raise IndexError, ValueError or DecodeError, which
their caller takes for the same) at anything else: the general decoder then judges the row. They may read beyond the
row's end, since the program accepts a row only if `p` is exactly its end afterwards, and `p` never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from binlog.tidb.decimal import BYTES_OF_DIGITS, DIGITS
from binlog.tidb.types import FieldType, Tp

from drainer.row.family import Family, is_signed
from drainer.row.form import Dialect
from drainer.row.scalar import TimeStrings, TimeTexts, double_text, enum_name, float_text, set_names, small_int


@dataclass
class Source:
    """Lines under construction, and the objects their names stand for."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, object] = field(default_factory=dict)
    depth: int = 1

    def add(self, text: str) -> None:
        self.lines += ["    " * self.depth + line for line in text.splitlines()]

    def bind(self, prefix: str, value: object) -> str:
        """A name for `value`, the same for the same object."""
        for name, known in self.names.items():
            if known is value and name.startswith(prefix):
                return name
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name


# Up to 4 bytes in line (numbers below 2^28 before zigzag), more by a call.
_VARINT = """\
{v} = b[p]
if {v} < 128:
    p += 1
else:
    d = b[p + 1]
    if d < 128:
        {v} += (d << 7) - 128
        p += 2
    else:
        e = b[p + 2]
        if e < 128:
            {v} += (d << 7) + (e << 14) - 16512
            p += 3
        else:
            f = b[p + 3]
            if f < 128:
                {v} += (d << 7) + (e << 14) + (f << 21) - 2113664
                p += 4
            else:
                {v}, p = uvarint(b, p)"""

_SKIP_VARINT = """\
while b[p] > 127:
    p += 1
p += 1"""

_LENGTH = """\
n = b[p]
if n < 128:
    p += 1
else:
    d = b[p + 1]
    if d < 128:
        n += (d << 7) - 128
        p += 2
    else:
        n, p = uvarint(b, p)
if n & 1:
    return None
q = p + (n >> 1)"""

_FLOAT = """\
u = from_bytes(b[p:p + 8], "big")
p += 8
{v} = double(pack8(u ^ 0x8000000000000000 if u & 0x8000000000000000 else u ^ 0xFFFFFFFFFFFFFFFF))[0]"""


def read_value(source: Source, v: str, kind: FieldType, family: Family, dialect: Dialect) -> None:
    """Lines that read a payload at `p` (its flag is behind) into the cell `v`."""
    add = source.add
    mysql = dialect == "mysql"
    if family is Family.INT and is_signed(kind, family):
        read_signed(source, v)
    elif family is Family.INT:
        add(_VARINT.format(v=v))
        if not mysql and kind.tp is Tp.LONGLONG:
            add(f"{v} = {source.bind('small', small_int)}({v})")
    elif family is Family.TEXT:
        add(_LENGTH)
        add(f"{v} = b[p:q]" if mysql else f"{v} = b[p:q].decode()")
        add("p = q")
    elif family is Family.BYTES:
        add(_LENGTH)
        add(f"{v} = hexlify(b[p:q])" if mysql else f"{v} = b[p:q]")
        add("p = q")
    elif family in (Family.DATE, Family.DATETIME):
        _read_time(source, v, kind, family, dialect)
    elif family is Family.TIME:
        add(f"{v}, p = varint(b, p)")
        add(f"{v} = duration_text({v}, {kind.fsp})" + (".encode()" if mysql else ""))
    elif family is Family.DECIMAL:
        _read_decimal(source, v, kind, dialect)
    elif family is Family.FLOAT:
        add(_FLOAT.format(v=v))
        text = source.bind("text", float_text if kind.tp is Tp.FLOAT else double_text)
        add(f"{v} = {text}({v}).encode()" if mysql else f"{v} = float({text}({v}))")
    elif family is Family.JSON:
        add(f"{v}, p = json_text(b, p)")
        if mysql:
            add(f"{v} = {v}.encode()")
    else:
        _read_bits(source, v, kind, family, dialect)


def read_signed(source: Source, v: str) -> None:
    source.add(_VARINT.format(v=v))
    source.add(f"{v} = ~({v} >> 1) if {v} & 1 else {v} >> 1")


def _read_time(source: Source, v: str, kind: FieldType, family: Family, dialect: Dialect) -> None:
    fsp = None if family is Family.DATE else kind.fsp
    texts: TimeTexts | TimeStrings = TimeTexts(fsp) if dialect == "mysql" else TimeStrings(fsp)
    zero = "0000-00-00" + ("" if fsp is None else " 00:00:00" + ("." + "0" * fsp if fsp else ""))
    name = source.bind("times", texts)
    source.add(
        f"if b[p]:\n    {v} = {name}[b[p:p + 9]]\n    p += 9\n"
        f"else:\n    {v} = {zero.encode() if dialect == 'mysql' else zero!r}\n    p += 1"
    )


def decimal_prefix(kind: FieldType) -> bytes:
    """Precision and frac as a row of this column carries them; empty when the type does not say."""
    if kind.flen <= 0 or kind.decimal < 0:
        return b""
    return bytes((kind.flen, kind.decimal))


def _read_decimal(source: Source, v: str, kind: FieldType, dialect: Dialect) -> None:
    """At most nine digits before the point and nine after it: two groups read at once. Others by a call."""
    head, tail = kind.flen - kind.decimal, kind.decimal
    encode = ".encode()" if dialect == "mysql" else ""
    general = f"{v}, p = digits(b, p, {kind.flen}, {tail})" + (f"\n{v} = {v}.encode()" if encode else "")
    if not decimal_prefix(kind):
        source.add(f"{v}, p = decimal_text(b, p)" + (f"\n{v} = {v}.encode()" if encode else ""))
        return
    size = BYTES_OF_DIGITS[min(head, 9)] + BYTES_OF_DIGITS[min(tail, 9)]
    if not 0 < head <= DIGITS or tail > DIGITS or not size:
        source.add(general)
        return
    shift, top = 8 * BYTES_OF_DIGITS[tail], 1 << (8 * size - 1)
    shape = f"%d.%0{tail}d" if tail else "%d"
    shown = f"{('b' if encode else '')}{shape!r}"
    parts = f"(u >> {shift}, u & {(1 << shift) - 1})" if tail else "u"
    check = f" and u >> {shift} < {10**head}" + (f" and u & {(1 << shift) - 1} < {10**tail}" if tail else "")
    source.add(
        f"u = from_bytes(b[p:p + {size}], 'big') ^ {top}\n"
        f"if u < {top}{check}:\n    {v} = {shown} % {parts}\n    p += {size}\n"
        "else:\n" + "\n".join("    " + line for line in general.splitlines())
    )


def _read_bits(source: Source, v: str, kind: FieldType, family: Family, dialect: Dialect) -> None:
    count = len(kind.elems)
    source.add(_VARINT.format(v=v))
    if family is Family.BIT:
        source.add(f"if {v} >> {max(kind.flen, 1)}:\n    return None")
        if dialect == "sqlite" and kind.flen >= 64:
            source.add(f"{v} = {source.bind('small', small_int)}({v})")
    elif dialect == "sqlite":
        show = source.bind("names", enum_name if family is Family.ENUM else set_names)
        source.add(f"{v} = {show}({v}, {source.bind('elems', kind.elems)})")
    elif family is Family.ENUM:
        source.add(f"if {v} > {count}:\n    {v} = 0")
    else:
        source.add(f"if {v} >> {count}:\n    return None")


def skip_value(source: Source, kind: FieldType, family: Family) -> None:
    """Lines that step over a payload whose value nobody wants."""
    if family in (Family.TEXT, Family.BYTES):
        source.add(_LENGTH + "\np = q")
    elif family is Family.FLOAT:
        source.add("p += 8")
    elif family is Family.JSON:
        source.add("p = cut_json(b, p)")
    elif family is Family.DECIMAL and decimal_prefix(kind):
        source.add(f"p += {decimal_bytes(kind)}")
    elif family is Family.DECIMAL:
        source.add("p = cut_decimal(b, p)")
    else:
        source.add(_SKIP_VARINT)


def decimal_bytes(kind: FieldType) -> int:
    """Bytes of the digits of DECIMAL(flen, decimal)."""
    whole, lead = divmod(kind.flen - kind.decimal, DIGITS)
    full, tail = divmod(kind.decimal, DIGITS)
    return 4 * (whole + full) + BYTES_OF_DIGITS[lead] + BYTES_OF_DIGITS[tail]
