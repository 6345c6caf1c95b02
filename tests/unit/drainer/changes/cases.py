"""Tables of every type and key with rows, as hypothesis makes them, and rows as two ways of decoding give them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import flatten
from binlog.tidb.json import BinaryJSON, encode_json
from binlog.tidb.row import encode_delete, encode_insert, encode_update
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes.decode import Changes
from tests.support.row_case import Step, not_null, table

COLLATIONS = ("utf8mb4_bin", "utf8mb4_0900_bin", "utf8mb4_general_ci", "latin1_bin")
KINDS = (
    FieldType(Tp.LONG, flen=11, decimal=0),
    FieldType(Tp.TINY, Flag.UNSIGNED, 4, 0),
    FieldType(Tp.LONGLONG, 0, 20, 0),
    FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0),
    FieldType(Tp.NEWDECIMAL, 0, 10, 2),
    FieldType(Tp.NEWDECIMAL, Flag.UNSIGNED, 18, 9),
    FieldType(Tp.NEWDECIMAL, 0, 30, 10),
    FieldType(Tp.NEWDECIMAL, 0, 36, 18),
    FieldType(Tp.NEWDECIMAL, 0, 65, 30),
    FieldType(Tp.NEWDECIMAL, 0, 9, 0),
    FieldType(Tp.NEWDECIMAL, 0, 9, 9),
    FieldType(Tp.NEWDECIMAL, 0, 5, 5),
    FieldType(Tp.FLOAT, 0, 12, -1),
    FieldType(Tp.DOUBLE, 0, 22, -1),
    *(FieldType(Tp.VARCHAR, 0, 100, 0, "utf8mb4", collate) for collate in COLLATIONS),
    FieldType(Tp.STRING, 0, 100, 0, "utf8mb4", "utf8mb4_general_ci"),
    FieldType(Tp.BLOB, Flag.BINARY, 65535, 0, "binary", "binary"),
    FieldType(Tp.STRING, Flag.BINARY, 8, 0, "binary", "binary"),
    FieldType(Tp.DATE, 128, 10, 0),
    FieldType(Tp.DATETIME, 128, 19, 0),
    FieldType(Tp.DATETIME, 128, 23, 3),
    FieldType(Tp.TIMESTAMP, 128, 26, 6),
    FieldType(Tp.DURATION, 128, 10, 0),
    FieldType(Tp.DURATION, 128, 14, 3),
    FieldType(Tp.YEAR, Flag.UNSIGNED | Flag.ZEROFILL, 4, 0),
    FieldType(Tp.ENUM, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("a", "it's", "\\")),
    FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("x", "y'", "z")),
    FieldType(Tp.BIT, Flag.UNSIGNED, 1, 0),
    FieldType(Tp.BIT, Flag.UNSIGNED, 20, 0),
    FieldType(Tp.BIT, Flag.UNSIGNED, 64, 0),
    FieldType(Tp.JSON, 128, -1, 0),
)
_INTS = {Tp.LONG: 31, Tp.LONGLONG: 63, Tp.TINY: 7}
BYTES = st.binary(max_size=200) | st.text(st.sampled_from("ab'\\\0\n é你😀"), max_size=80).map(str.encode)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
Values = dict[int, Datum]


def datums(kind: FieldType) -> st.SearchStrategy[Datum]:
    """Values of a column, NULL left out."""
    if kind.tp is Tp.NEWDECIMAL:
        most = 10**kind.flen - 1
        least = 0 if kind.is_unsigned else -most
        return (st.integers(least, most) | st.integers(max(-20, least), 20)).map(lambda n: _decimal(n, kind))
    if kind.tp in (Tp.FLOAT, Tp.DOUBLE):
        return st.floats(allow_nan=False, allow_infinity=False, width=32 if kind.tp is Tp.FLOAT else 64)
    if kind.is_string:
        return BYTES
    if kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP):
        stamps = st.datetimes().map(lambda d: d.isoformat(" ", "microseconds")) | st.just("0000-00-00 00:00:00")
        return stamps.map(lambda text: flatten(text[:10] if kind.tp is Tp.DATE else text, kind))
    if kind.tp is Tp.DURATION:
        unit = 1_000_000 if kind.decimal else 1_000_000_000
        return st.integers(-3_020_399, 3_020_399).map(lambda n: n * unit)
    if kind.tp is Tp.YEAR:
        return st.sampled_from([0, 1901, 2000, 2155])
    if kind.tp in (Tp.ENUM, Tp.SET, Tp.BIT):
        most = {Tp.ENUM: 3, Tp.SET: 7}.get(kind.tp, 2**kind.flen - 1)
        return st.integers(0, most).map(Uint)
    if kind.tp is Tp.JSON:
        return _JSON.map(lambda value: BinaryJSON(encode_json(json.loads(json.dumps(value)))))
    bits = _INTS[kind.tp]
    if kind.is_unsigned:
        return (st.integers(0, 2 ** (bits + 1) - 1) | st.integers(0, 300)).map(Uint)
    return st.integers(-(2**bits), 2**bits - 1) | st.integers(-70, 70)


def _decimal(unscaled: int, kind: FieldType) -> Decimal:
    digits = f"{abs(unscaled):0{kind.decimal + 1}d}"
    cut = len(digits) - kind.decimal
    text = ("-" if unscaled < 0 else "") + digits[:cut] + ("." + digits[cut:] if kind.decimal else "")
    return Decimal(text, kind.flen, kind.decimal)


KEY_SHAPES = ("handle", "unsigned handle", "clustered", "unclustered", "unique", "none")


@st.composite
def tables(draw: st.DrawFn, shapes: Sequence[str] = KEY_SHAPES) -> TableInfo:
    """A table of every kind of key; some columns have a default that rows from before it lack."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    kinds = [not_null(k) if draw(st.booleans()) else k for k in kinds]
    shape = draw(st.sampled_from(shapes))
    names = [(f"c{n}", kind) for n, kind in enumerate(kinds)]
    if shape.endswith("handle"):
        key = FieldType(Tp.LONGLONG, Flag.UNSIGNED if shape.startswith("un") else 0, 20, 0)
        return table([*names, ("id", key)], handle="id")
    if shape == "none":
        return table(names)
    parts = draw(st.lists(st.sampled_from(KINDS[:-1]), min_size=1, max_size=3))
    keys = [(f"k{n}", not_null(kind)) for n, kind in enumerate(parts)]
    index = "u" if shape == "unique" else "PRIMARY"
    return table([*keys, *names], unique={index: [k for k, _ in keys]}, clustered=shape == "clustered")


def values_of(info: TableInfo) -> st.SearchStrategy[Values]:
    kinds = {c.id: c.type for c in info.columns}
    return st.fixed_dictionaries(
        {n: datums(kind) if kind.is_not_null else st.none() | datums(kind) for n, kind in kinds.items()}
    )


def steps_of(info: TableInfo, most: int = 6) -> st.SearchStrategy[list[Step]]:
    """Changes whose old and new values need not fit one another."""
    values = values_of(info)
    step = st.tuples(st.sampled_from(["insert", "update", "delete"]), values, values)
    return st.lists(step, min_size=1, max_size=most)  # type: ignore[arg-type]


def encoded(info: TableInfo, step: Step, *, new_collation: bool = True) -> tuple[Kind, bytes]:
    """A row as TiDB sends it."""
    kind, old, new = step
    if kind == "update":
        return Kind.UPDATE, encode_update(info, old, new)
    if kind == "insert":
        return Kind.INSERT, encode_insert(info, new, rowid=7, new_collation=new_collation)
    return Kind.DELETE, encode_delete(info, old)


def images(changes: Sequence[Changes]) -> list[tuple[object, ...]]:
    """Every change in upstream's order: kind, timestamps, sequence, decoded values of old and new."""
    found = []
    for one in changes:
        old = [None] * len(one) if one.old is None else list(zip(*map(_values, one.old), strict=True))
        new = [None] * len(one) if one.new is None else list(zip(*map(_values, one.new), strict=True))
        found += list(
            zip(
                one.order.tolist(),
                [one.shape.table_id] * len(one),
                [one.kind] * len(one),
                one.commit_ts.tolist(),
                one.start_ts.tolist(),
                one.sequence.tolist(),
                old,
                new,
                strict=True,
            )
        )
    return sorted(found, key=lambda row: row[0])


def _values(column: object) -> list[object]:
    return [_same(value) for value in column.to_pylist()]  # type: ignore[attr-defined]


def _same(value: object) -> object:
    """0.0 and -0.0 are not the same."""
    return repr(value) if isinstance(value, float) else value
