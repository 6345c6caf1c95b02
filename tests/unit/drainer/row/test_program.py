"""The quick way and the general way read the same rows, whatever the table; what they write is what the row says."""

from __future__ import annotations

import json

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import flatten
from binlog.tidb.json import BinaryJSON
from binlog.tidb.json_encode import encode_json
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.row.codec import Codec
from drainer.row.form import Dialect
from drainer.row.program import UNUSUAL
from tests.support.row_case import codec_of, not_null, table

KINDS = (
    FieldType(Tp.LONG, flen=11, decimal=0),
    FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0),
    FieldType(Tp.NEWDECIMAL, 0, 10, 2),
    FieldType(Tp.NEWDECIMAL, 0, 30, 10),
    FieldType(Tp.NEWDECIMAL, 0, 9, 0),
    FieldType(Tp.NEWDECIMAL, 0, 9, 9),
    FieldType(Tp.FLOAT, 0, 12, -1),
    FieldType(Tp.DOUBLE, 0, 22, -1),
    FieldType(Tp.VARCHAR, 0, 100, 0, "utf8mb4", "utf8mb4_bin"),
    FieldType(Tp.STRING, 0, 100, 0, "utf8mb4", "utf8mb4_general_ci"),
    FieldType(Tp.BLOB, Flag.BINARY, 65535, 0, "binary", "binary"),
    FieldType(Tp.DATE, 128, 10, 0),
    FieldType(Tp.DATETIME, 128, 19, 0),
    FieldType(Tp.TIMESTAMP, 128, 26, 6),
    FieldType(Tp.DURATION, 128, 10, 0),
    FieldType(Tp.DURATION, 128, 14, 3),
    FieldType(Tp.YEAR, Flag.UNSIGNED | Flag.ZEROFILL, 4, 0),
    FieldType(Tp.ENUM, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("a", "it's", "\\")),
    FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("x", "y'", "z")),
    FieldType(Tp.BIT, Flag.UNSIGNED, 20, 0),
    FieldType(Tp.BIT, Flag.UNSIGNED, 64, 0),
    FieldType(Tp.JSON, 128, -1, 0),
)
_NUMBER = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
_BYTES = st.binary(max_size=200) | st.text(st.sampled_from("a'\\\0\n é你😀"), max_size=80).map(str.encode)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def datums(kind: FieldType) -> st.SearchStrategy[Datum]:
    """Values of a column, NULL left out."""
    if kind.tp is Tp.NEWDECIMAL:
        most = 10**kind.flen - 1
        whole = st.integers(-most, most).map(lambda n: _decimal(n, kind))
        return whole
    if kind.tp in (Tp.FLOAT, Tp.DOUBLE):
        width = 32 if kind.tp is Tp.FLOAT else 64
        return st.floats(allow_nan=False, allow_infinity=False, width=width)
    if kind.is_string:
        return _BYTES
    if kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP):
        stamps = st.datetimes().map(lambda d: d.isoformat(" ", "microseconds")) | st.just("0000-00-00 00:00:00")
        return stamps.map(lambda text: flatten(text[:10] if kind.tp is Tp.DATE else text, kind))
    if kind.tp is Tp.DURATION:
        unit = 1_000_000 if kind.decimal else 1_000_000_000
        return st.integers(-3_020_399, 3_020_399).map(lambda n: n * unit)
    if kind.tp is Tp.YEAR:
        return st.sampled_from([0, 1901, 2000, 2155])
    if kind.tp is Tp.ENUM:
        return st.integers(0, 3).map(Uint)
    if kind.tp is Tp.SET:
        return st.integers(0, 7).map(Uint)
    if kind.tp is Tp.BIT:
        return st.integers(0, 2**kind.flen - 1).map(Uint)
    if kind.tp is Tp.JSON:
        return _JSON.map(lambda v: BinaryJSON(encode_json(json.loads(json.dumps(v)))))
    return st.integers(0, 2**64 - 1).map(Uint) if kind.is_unsigned else _NUMBER


def _decimal(unscaled: int, kind: FieldType) -> Decimal:
    digits = f"{abs(unscaled):0{kind.decimal + 1}d}"
    cut = len(digits) - kind.decimal
    text = ("-" if unscaled < 0 else "") + digits[:cut] + ("." + digits[cut:] if kind.decimal else "")
    return Decimal(text, kind.flen, kind.decimal)


@st.composite
def rows(draw: st.DrawFn) -> tuple[TableInfo, dict[int, Datum], dict[int, Datum]]:
    """A table with an int handle, a clustered key or no key, and two rows of it."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    kinds = [not_null(k) if draw(st.booleans()) else k for k in kinds]
    shape = draw(st.sampled_from(["handle", "unsigned handle", "clustered", "unclustered", "none"]))
    names = [(f"c{n}", kind) for n, kind in enumerate(kinds)]
    if shape.endswith("handle"):
        key = FieldType(Tp.LONGLONG, Flag.UNSIGNED if shape.startswith("un") else 0, 20, 0)
        info = table([*names, ("id", key)], handle="id")
    elif shape == "none":
        info = table(names)
    else:
        parts = draw(st.lists(st.sampled_from(KINDS[:-1]), min_size=1, max_size=2))
        keys = [(f"k{n}", not_null(kind)) for n, kind in enumerate(parts)]
        clustered = shape == "clustered"
        info = table([*keys, *names], unique={"PRIMARY": [k for k, _ in keys]}, clustered=clustered)

    def values() -> dict[int, Datum]:
        return {c.id: draw(datums(c.type) if c.is_not_null else st.none() | datums(c.type)) for c in info.columns}

    return info, values(), values()


def quick(program: object, row: bytes) -> object:
    try:
        return program(row, 0, len(row))  # type: ignore[operator]
    except UNUSUAL:
        return None


def general(codec: Codec, kind: Kind, row: bytes) -> object:
    return getattr(codec, kind.name.lower())(row, 0, len(row), 9)


def pairs(codec: Codec, kind: Kind, row: bytes) -> tuple[object, object]:
    """(quick, general): what folds, or cells; general None where it refuses the row."""
    name = kind.name.lower()
    try:
        if codec.shape.foldable:
            return quick(getattr(codec.programs, name), row), general(codec, kind, row)
        found = codec._cells(kind, row, 9)
    except DecodeError:
        found = None
    programs = codec.programs if codec.shape.foldable else codec._cell_programs
    return quick(getattr(programs, name), row), found if kind is Kind.UPDATE or not found else found[0]


def _encoded(info: TableInfo, old: dict[int, Datum], new: dict[int, Datum]) -> dict[Kind, bytes]:
    return {
        Kind.INSERT: encode_insert(info, new, rowid=7),
        Kind.UPDATE: encode_update(info, old, new),
        Kind.DELETE: encode_delete(info, old),
    }


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
@settings(deadline=None, max_examples=150)
@given(case=rows())
def test_quick_and_general_agree(dialect: Dialect, case: tuple[TableInfo, dict[int, Datum], dict[int, Datum]]) -> None:
    info, old, new = case
    codec = codec_of(info, dialect)
    for kind, row in _encoded(info, old, new).items():
        fast, slow = pairs(codec, kind, row)
        assert slow is not None
        assert fast is None or fast == slow
        assert fast is not None or _is_unusual(info, old, new, dialect)


def _is_unusual(info: TableInfo, old: dict[int, Datum], new: dict[int, Datum], dialect: Dialect) -> bool:
    """Values the programs leave to the general decoder: early packed times, and for SQLite text that is no UTF-8."""
    early = any(isinstance(v, Uint) and 0 < v < 1 << 56 for v in (*old.values(), *new.values()))
    bad = False
    for value in (*old.values(), *new.values()):
        if isinstance(value, bytes) and dialect == "sqlite":
            bad = bad or value.decode(errors="replace").encode() != value
    return early or bad


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
@settings(deadline=None, max_examples=80)
@given(case=rows(), data=st.data())
def test_damage_never_passes_the_quick_way_alone(
    dialect: Dialect, case: tuple[TableInfo, dict[int, Datum], dict[int, Datum]], data: st.DataObject
) -> None:
    """Cut at every byte, and with one byte changed: the quick way gives what the general way gives, or nothing. Only
    damage within an old value that nobody reads may pass, and then the result is the undamaged row's."""
    info, old, new = case
    codec = codec_of(info, dialect)
    for kind, row in _encoded(info, old, new).items():
        intact, _ = pairs(codec, kind, row)
        at = data.draw(st.integers(0, len(row) - 1))
        changed = row[:at] + bytes((data.draw(st.integers(0, 255)),)) + row[at + 1 :]
        for damaged in (changed, *(row[:n] for n in range(len(row)))):
            fast, slow = _either(codec, kind, damaged)
            assert fast is None or fast == slow or (slow is None and fast == intact), (kind, damaged)


def _either(codec: Codec, kind: Kind, row: bytes) -> tuple[object, object]:
    try:
        return pairs(codec, kind, row)
    except DecodeError as err:
        assert "`db`.`t`" in str(err)
        assert "commit_ts 9" in str(err)
        programs = codec.programs if codec.shape.foldable else codec._cell_programs
        return quick(getattr(programs, kind.name.lower()), row), None
