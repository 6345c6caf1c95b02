"""Functions from a row's bytes to a destination's row, generated for one layout as plain Python source.

Every function takes `(b, p, end)`: a payload and where the row lies in it. They read the usual encoding (columns in
table order, the usual flags) and return None, or raise one of UNUSUAL, for every other row; `Codec` then asks the
general decoder. What they return:

    insert(b, p, end) -> (key, image, row)          fold tables
    update(b, p, end) -> (old key, old image, key, image, row)
    delete(b, p, end) -> (key, image)
    insert_cells, update_cells, delete_cells -> cells (update: old cells, new cells)

`key` is what the fold compares: a cell, or a tuple of cells; `image` is the tuple of the key's cells as written where
that can differ from the key, else None.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from binlog.errors import DecodeError
from binlog.tidb.decimal import cut_decimal, decode_decimal_text, decode_digits
from binlog.tidb.json import cut_json
from binlog.tidb.json import decode_text as json_text
from binlog.tidb.time import duration_text
from binlog.tidb.types import FieldType
from binlog.tidb.varint import decode_uvarint, decode_varint, encode_varint

from drainer.batch.work import Row
from drainer.row.family import Family, flag_of
from drainer.row.form import Cell
from drainer.row.key import Same, trim_fraction, trim_fraction_text
from drainer.row.layout import HandlePart, Layout, Stored
from drainer.row.scalar import is_utf8
from drainer.row.source import Source, decimal_prefix, read_signed, read_value, skip_value
from drainer.row.text import Templates

UNUSUAL = (IndexError, ValueError, DecodeError)
Images: TypeAlias = "tuple[object, ...] | None"
Inserted: TypeAlias = "tuple[object, Images, Row]"
Updated: TypeAlias = "tuple[object, Images, object, Images, Row]"
Deleted: TypeAlias = "tuple[object, Images]"
Cells: TypeAlias = "tuple[Cell, ...]"


class FoldPrograms(NamedTuple):
    insert: Callable[[bytes, int, int], Inserted | None]
    update: Callable[[bytes, int, int], Updated | None]
    delete: Callable[[bytes, int, int], Deleted | None]


class CellPrograms(NamedTuple):
    insert: Callable[[bytes, int, int], Cells | None]
    update: Callable[[bytes, int, int], tuple[Cells, Cells] | None]
    delete: Callable[[bytes, int, int], Cells | None]


_NAMES: dict[str, object] = {
    "uvarint": decode_uvarint,
    "varint": decode_varint,
    "from_bytes": int.from_bytes,
    "double": struct.Struct(">d").unpack,
    "pack8": struct.Struct(">Q").pack,
    "duration_text": duration_text,
    "json_text": json_text,
    "digits": decode_digits,
    "decimal_text": decode_decimal_text,
    "hexlify": hexlify,
    "cut_json": cut_json,
    "cut_decimal": cut_decimal,
    "is_utf8": is_utf8,
    "trim": trim_fraction,
    "trim_text": trim_fraction_text,
}
NULL = b"\0"
# A row without columns is one 00. Nothing after a row in its payload looks like a column.
_EMPTY = "if p + 1 >= end:\n    if p + 1 > end or b[p]:\n        return None\n    p = end"
_ROWID = b"\x08\x01"
_SKIP_ROWID = f"if b[p:p + 2] == {_ROWID!r}:\n    p += 3\n    while b[p] > 127:\n        p += 1\n    p += 1"


class Writer:
    """Writes the source of one function. `fold`: rows for folding (text for the MySQL family, where `m` is a bit mask
    of NULLs), which know their key; else plain cells of every column."""

    def __init__(self, layout: Layout, *, fold: bool) -> None:
        self.layout = layout
        self.fold = fold
        self.text = fold and layout.dialect == "mysql"
        self.source = Source()
        self.key = frozenset(layout.key.columns) if fold else frozenset()
        # What is read of old rows.
        self.needed: Sequence[int] = layout.key.columns if fold else range(len(layout.targets))
        if self.text:
            self.source.add("m = 0")

    def insert(self) -> None:
        """The whole of an inserted row."""
        handle = self._handle()
        self.source.add(_EMPTY)
        self._half("c", range(len(self.layout.targets)), insert=True, handle=handle)
        self._end()

    def update(self) -> None:
        """Old into `o`, as far as it is needed, new into `c`."""
        self._half("o", self.needed, insert=True, strict=True)
        self._half("c", range(len(self.layout.targets)), insert=True, strict=True)
        self._end()

    def delete(self) -> None:
        """The key's columns, or all of them, of the old row into `c`."""
        self.source.add(_EMPTY)
        self._half("c", self.needed, insert=False, strict=True)
        self._end()

    def _end(self) -> None:
        self.source.add("if p != end:\n    return None")

    def _half(
        self,
        prefix: str,
        wanted: Sequence[int],
        *,
        insert: bool,
        handle: Mapping[int, str] = MappingProxyType({}),
        strict: bool = False,
    ) -> None:
        """All columns of one ROW, the wanted ones into `prefix` + target. `strict`: they must all be there."""
        carried = [s for s in self.layout.stored if s.in_insert or not insert]
        for stored in carried:
            v = f"{prefix}{stored.target}" if stored.target in wanted else None
            if v is None or handle.get(stored.target) == v:
                self._column(stored, None, "")
            elif strict:
                self._column(stored, v, "return None")
            elif stored.target in handle:
                self._column(stored, v, f"{v} = {handle[stored.target]}")
            else:
                self._column(stored, v, self._default(v, stored.target))
        for target in sorted(set(wanted) - {s.target for s in carried}):
            self.source.add(self._default(f"{prefix}{target}", target))
        if self.layout.has_rowid:
            self.source.add(_SKIP_ROWID)

    def _column(self, stored: Stored, v: str | None, missing: str) -> None:
        """One column: there, NULL, or not there (`missing` says what then). `v` None: only stepped over."""
        add = self.source.add
        name = b"\x08" + encode_varint(stored.id)
        prefix = name + _value_prefix(stored.kind, stored.family)
        add(f"if b[p:p + {len(prefix)}] == {prefix!r}:\n    p += {len(prefix)}")
        self.source.depth += 1
        if v is None:
            skip_value(self.source, stored.kind, stored.family)
        else:
            read_value(self.source, v, stored.kind, stored.family, self.layout.dialect)
        self.source.depth -= 1
        # A NULL where none may be is left standing, so the row does not end where it should.
        if v is None or not (stored.not_null or stored.target in self.key):
            add(f"elif b[p:p + {len(name) + 1}] == {name + NULL!r}:\n    p += {len(name) + 1}")
            if v is not None:
                add("    " + self._null(v, stored.target))
        if missing:
            add(f"else:\n    {missing}")

    def _null(self, v: str, target: int) -> str:
        return f'{v} = b""; m |= {1 << target}' if self.text else f"{v} = None"

    def _default(self, v: str, target: int) -> str:
        """For a column that an older row lacks."""
        cell = self.layout.targets[target].default
        if cell is None and target in self.key:
            return "return None"  # a NULL names no row
        return self._null(v, target) if cell is None else f"{v} = {self.source.bind('default', cell)}"

    def _handle(self) -> dict[int, str]:
        """The datums before an inserted row; for a target, what fills it if the row lacks the column."""
        found: dict[int, str] = {}
        for n, part in enumerate(self.layout.handle):
            v = f"h{n}"
            if part.kind is None:
                # A whole number is the column itself, whatever the row says (D-TR-01).
                v = f"c{part.target}" if part.target >= 0 else v
                self._int_handle(part, v)
            else:
                self._key_part(part, part.kind, v)
            if part.target >= 0:
                late = part.family is Family.TEXT and self.layout.dialect == "sqlite"
                found[part.target] = f"{v}.decode()" if late else v
        return found

    def _int_handle(self, part: HandlePart, v: str) -> None:
        """Always signed, even of an unsigned column."""
        self.source.add("if b[p] != 8:\n    return None\np += 1")
        read_signed(self.source, v)
        if part.unsigned:
            show = f"str({v} + {1 << 64})" if self.layout.dialect == "sqlite" else f"{v} + {1 << 64}"
            self.source.add(f"if {v} < 0:\n    {v} = {show}")

    def _key_part(self, part: HandlePart, kind: FieldType, v: str) -> None:
        add = self.source.add
        if part.family is Family.TIME:  # the one place of the duration flag: 8 bytes
            shown = f"duration_text(from_bytes(b[p + 1:p + 9], 'big') - {1 << 63}, {kind.fsp})"
            shown += ".encode()" if self.layout.dialect == "mysql" else ""
            add(f"if b[p] != 7:\n    return None\n{v} = {shown}\np += 9")
            return
        prefix = _value_prefix(kind, part.family)
        add(f"if b[p:p + {len(prefix)}] != {prefix!r}:\n    return None\np += {len(prefix)}")
        if part.target < 0:
            skip_value(self.source, kind, part.family)
        else:
            # Text may be a collation's sort key, which is no UTF-8: bytes until the row is known to lack the column.
            dialect = "mysql" if part.family is Family.TEXT else self.layout.dialect
            read_value(self.source, v, kind, part.family, dialect)

    def key_of(self, prefix: str) -> tuple[str, str]:
        """Expressions of (key, image)."""
        key = self.layout.key
        cells = [f"{prefix}{n}" for n in key.columns]
        compared = [self._compared(c, same) for c, same in zip(cells, key.same, strict=True)]
        whole = compared[0] if len(compared) == 1 else f"({', '.join(compared)})"
        return whole, f"({', '.join(cells)},)" if key.imaged else "None"

    def _compared(self, cell: str, same: Same) -> str:
        mysql = self.layout.dialect == "mysql"
        if same is Same.PADDED:
            return f"{cell}.rstrip({b' ' if mysql else ' '!r})"
        if same is Same.TRIMMED:
            return f"{'trim' if mysql else 'trim_text'}({cell})"
        return cell

    def cells(self, prefix: str) -> str:
        return "(" + "".join(f"{prefix}{n}, " for n in range(len(self.layout.targets))) + ")"

    def row(self) -> None:
        """Lines that leave the finished row in `row`."""
        cells, add = self.cells("c"), self.source.add
        if not self.text:
            add(f"row = {cells}")
            return
        templates = Templates(tuple(t.form for t in self.layout.targets))
        self.source.names |= {"T": templates, "T0": templates[0][0], "careful": templates.careful}
        add(f"if m:\n    t, n = T[m]\n    row = t % {cells}\nelse:\n    n = {templates[0][1]}\n    row = T0 % {cells}")
        if templates.needs_check:
            add('if row.count(b"\'") != n or b"\\\\" in row or not (row.isascii() or is_utf8(row)):')
            add(f"    row = careful({cells}, m)")

    def compile(self, name: str) -> Any:
        """The function whose lines were written."""
        text = f"def {name}(b, p, end):\n" + "\n".join(self.source.lines) + "\n"
        scope: dict[str, object] = {**_NAMES, **self.source.names}
        code = compile(text, f"<{name} of table {self.layout.table_id}>", "exec")
        exec(code, scope)  # noqa: S102  the source is made here, of column ids, flags and layouts alone
        return scope[name]


def _value_prefix(kind: FieldType, family: Family) -> bytes:
    """What stands before the part of a value that differs from row to row."""
    flag = bytes((flag_of(kind, family),))
    return flag + decimal_prefix(kind) if family is Family.DECIMAL else flag


def fold_programs(layout: Layout) -> FoldPrograms:
    """For a table that folds."""
    insert = Writer(layout, fold=True)
    insert.insert()
    insert.row()
    insert.source.add("return {}, {}, row".format(*insert.key_of("c")))
    update = Writer(layout, fold=True)
    update.update()
    update.row()
    update.source.add("return {}, {}, {}, {}, row".format(*update.key_of("o"), *update.key_of("c")))
    delete = Writer(layout, fold=True)
    delete.delete()
    delete.source.add("return {}, {}".format(*delete.key_of("c")))
    return FoldPrograms(insert.compile("insert"), update.compile("update"), delete.compile("delete"))


def cell_programs(layout: Layout) -> CellPrograms:
    """For whole rows."""
    insert, update, delete = (Writer(layout, fold=False) for _ in range(3))
    insert.insert()
    insert.source.add(f"return {insert.cells('c')}")
    update.update()
    update.source.add(f"return {update.cells('o')}, {update.cells('c')}")
    delete.delete()
    delete.source.add(f"return {delete.cells('c')}")
    return CellPrograms(insert.compile("insert"), update.compile("update"), delete.compile("delete"))
