"""Every protocol says the same of the same rows: rows that hypothesis draws, with the ends of every type and columns of
odd names, and every change of the recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from binlog.tidb.json import encode_json
from binlog.tidb.time import Civil, from_zone, pack
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.dispatch.row_events import RowEvents
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass
from tests.golden.test_dispatch import steps_of
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.examples import FEW
from tests.support.protocol_cases import CASES, ZONE, Case, Wire, check
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import COLUMNS, decoded_values_of, text_type

pytestmark = pytest.mark.timeout(600)

Row = tuple[DecodedValue, ...]
_NAMES_64: Final = tuple(f"n{number}" for number in range(64))
MORE: Final[tuple[tuple[str, FieldType], ...]] = (
    ("dec65", FieldType(Tp.NEWDECIMAL, 0, 65, 30)),
    ("dec_whole", FieldType(Tp.NEWDECIMAL, 0, 65, 0)),
    ("bit64", FieldType(Tp.BIT, Flag.UNSIGNED, 64)),
    ("set64", FieldType(Tp.SET, charset="utf8mb4", collate="utf8mb4_bin", elems=_NAMES_64)),
    ("stamp_us", FieldType(Tp.TIMESTAMP, 0, 26, 6)),
    ("took_ms", FieldType(Tp.DURATION, 0, 14, 3)),
    ("at_ms", FieldType(Tp.DATETIME, 0, 23, 3)),
    ('quo"te', text_type(Tp.VARCHAR, 10)),
    ("back`tick'", text_type(Tp.VARCHAR, 10)),
    ("d.o.t", FieldType(Tp.LONG, 0, 11)),
    ("größe <&>\u2028", FieldType(Tp.DOUBLE, 0, 22)),
    ("1 leading digit, and \\ \t", text_type(Tp.BLOB)),
    ("🦆", FieldType(Tp.VARCHAR, Flag.BINARY, 16)),
    ("Größe", FieldType(Tp.JSON)),
)
ALL: Final = (*COLUMNS, *MORE)
_MOMENTS: Final = [
    0,
    pack(Civil(0, 0, 1)),
    pack(Civil(0, 1, 1)),
    pack(Civil(69, 12, 31)),
    pack(Civil(70, 1, 1)),
    pack(Civil(99, 12, 31, 23, 59, 59)),
    pack(Civil(1000, 1, 1)),
    pack(Civil(2023, 0, 15)),
    pack(Civil(2023, 2, 0)),
    pack(Civil(2023, 2, 31)),
    pack(Civil(1900, 2, 29)),
    pack(Civil(2000, 2, 29)),
    pack(Civil(9999, 12, 31, 23, 59, 59)),
]
# The first and last second of TIMESTAMPs, and both sides of a gap and a fold of the zone in which they are shown.
_STAMPS: Final = [
    0,
    pack(Civil(1970, 1, 1, 0, 0, 1)),
    pack(Civil(2038, 1, 19, 3, 14, 7)),
    pack(Civil(2024, 3, 10, 6, 59, 59)),
    pack(Civil(2024, 3, 10, 7, 0, 0)),
    pack(Civil(2024, 11, 3, 5, 30)),
    pack(Civil(2024, 11, 3, 6, 30)),
]
_DOUBLES: Final = [0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e-6, 9.99e-7, 1e21, 1e10, 123456789012.5, 2.0**53 + 2]
_SINGLES: Final = [0.0, -0.0, 1.401298464324817e-45, 3.4028234663852886e38, 16777216.0, 0.10000000149011612]
_TEXTS: Final = ["", " ", "\x00", "\x1f\x7f", '"\\/', "\u2028\u2029", "\ufdd0", "\ufeff", "😀", "null", "a\ufdd0b", "'"]
_BYTES: Final = [b"", b"\0", b"\xff\xfe", bytes(range(256)), b"\xe2\x80\xa8", b'"', "é".encode(), b"\x80"]
_DOCUMENTS: Final[list[object]] = [None, {}, [], "", {"": {"": [None, True, 1.5, "\u2028<"]}}, -(1 << 63), 1e300, 1.0]
_SECONDS_MAX: Final = 838 * 3600 + 59 * 60 + 59


def _ends(kind: FieldType) -> list[DecodedValue]:
    """Values of a type that are easily got wrong."""
    match ColumnType.of(kind).type_class:
        case TypeClass.DECIMAL:
            scale, whole = kind.decimal, kind.flen - kind.decimal
            tail = f".{'9' * scale}" if scale else ""
            small = f"0.{'0' * (scale - 1)}1" if scale else "1"
            zero = f"0.{'0' * scale}" if scale else "0"
            return ["9" * whole + tail, f"-{'9' * whole}{tail}", small, f"-{small}", zero]
        case TypeClass.FLOAT:
            return [*(_SINGLES if kind.tp is Tp.FLOAT else _DOUBLES)]
        case TypeClass.DATE:
            return [value >> 41 << 41 for value in _MOMENTS]
        case TypeClass.DATETIME:
            return [*(_STAMPS if kind.tp is Tp.TIMESTAMP else _MOMENTS)]
        case TypeClass.TIME:
            fraction = 10**9 - 10 ** (9 - kind.fsp)
            edges = [0, _SECONDS_MAX * 10**9, -_SECONDS_MAX * 10**9, -(86_400 * 10**9)]
            return [*edges, fraction, -fraction, -(3600 * 10**9) - fraction]
        case TypeClass.BIT:
            return [0, 1, (1 << max(kind.flen, 1)) - 1, 1 << max(kind.flen, 1) - 1]
        case TypeClass.ENUM:
            return [*range(len(kind.elems) + 1)]
        case TypeClass.SET:
            return [0, (1 << len(kind.elems)) - 1, 1 << len(kind.elems) - 1]
        case TypeClass.INT if kind.tp is Tp.LONGLONG:
            return [(1 << 64) - 1, 1 << 63, 0] if kind.is_unsigned else [-(1 << 63), (1 << 63) - 1, 0]
        case TypeClass.TEXT:
            return [text.encode() for text in _TEXTS]
        case TypeClass.BYTES:
            return [*_BYTES]
        case TypeClass.JSON:
            return [bytes(encode_json(document)) for document in _DOCUMENTS]
        case _:
            return [0]


def _decoded_values(kind: FieldType) -> st.SearchStrategy[DecodedValue]:
    return _drawn(kind) | st.sampled_from(_ends(kind))


def _drawn(kind: FieldType) -> st.SearchStrategy[DecodedValue]:
    if kind.tp is Tp.NEWDECIMAL:  # of any precision
        whole, scale = kind.flen - kind.decimal, kind.decimal
        number = st.tuples(st.sampled_from("-+"), st.integers(1, 10**whole - 1), st.integers(0, 10**scale - 1))
        return number.map(lambda part: f"{part[0].strip('+')}{part[1]}" + (f".{part[2]:0{scale}}" if scale else ""))
    return decoded_values_of(kind)


@st.composite
def _rows(draw: st.DrawFn) -> Row:
    key, *others = ALL
    return (draw(_decoded_values(key[1])), *(draw(st.none() | _decoded_values(kind)) for _, kind in others))


TABLES: Final = (
    make_table("typed", "everything", ALL, primary=["id"]),
    make_table("no.key", 'Größe `<&>` "x"\u2028', ALL),
    make_table("a schema", "by several", ALL, primary=["id", 'quo"te', "🦆", "dec65", "stamp_us", "set64"]),
)


def _of_table(table: Table, row: Row) -> Row:
    """With a value in each column of the key."""
    fallback = [_ends(column.column_type.kind)[0] for column in table.columns]
    pairs = zip(table.columns, row, fallback, strict=True)
    return tuple(other if value is None and column.in_handle else value for column, value, other in pairs)


def _changes(table: Table, kind: Kind, old: Sequence[Row], new: Sequence[Row]) -> RowChanges:
    stamps = [(1 << 62) + n for n in range(len(old))]
    before = None if kind is Kind.INSERT else [_of_table(table, row) for row in old]
    after = None if kind is Kind.DELETE else [_of_table(table, row) for row in new]
    return make_changes(table, kind, old=before, new=after, commit_ts=stamps)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@FEW
@given(pairs=st.lists(st.tuples(_rows(), _rows()), min_size=1, max_size=3), table=st.sampled_from(TABLES))
def test_protocols_agree_on_random_rows(case: Case, pairs: list[tuple[Row, Row]], table: Table) -> None:
    wire = Wire(case)
    for kind in Kind:
        check(wire, _changes(table, kind, [pair[0] for pair in pairs], [pair[1] for pair in pairs]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_protocols_agree_on_bounds_of_every_type(case: Case) -> None:
    """All of them in one call, and NULL stands among values."""
    ends = [[*_ends(kind), *([] if n == 0 else [None])] for n, (_, kind) in enumerate(ALL)]
    count = max(map(len, ends))
    rows: list[Row] = [tuple(column[n % len(column)] for column in ends) for n in range(count)]
    for table in TABLES:
        wire = Wire(case)
        for kind in Kind:
            check(wire, _changes(table, kind, rows, rows[1:] + rows[:1]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_protocols_agree_on_table_of_a_thousand_columns(case: Case) -> None:
    columns = [("id", ALL[0][1]), *((f"c{n}", ALL[1 + n % (len(ALL) - 1)][1]) for n in range(1000))]
    table = make_table("wide", "table", columns, primary=["id"])
    rows: list[Row] = [tuple(_ends(kind)[n % len(_ends(kind))] for _, kind in columns) for n in range(3)]
    wire = Wire(case)
    for kind in Kind:
        check(wire, _changes(table, kind, rows, rows[1:] + rows[:1]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_protocols_agree_on_values_of_16_mib(case: Case) -> None:
    """A text as long, and 2 MiB of a binary string: lengths have as many bytes as they may."""
    columns = [("id", ALL[0][1]), ("text", text_type(Tp.LONG_BLOB)), ("blob", FieldType(Tp.LONG_BLOB, Flag.BINARY))]
    table = make_table("large", "values", columns, primary=["id"])
    size = 16 << 20
    rows: list[Row] = [(1, b"<" * (size // 16) + b"a" * (15 * size // 16), bytes(range(256)) * (size // 2048))]
    check(Wire(case), _changes(table, Kind.INSERT, rows, rows))


def test_time_zone_samples_lie_on_either_side_of_gap() -> None:
    """The samples are what they are meant to be: either side of the gap, and both passes of the fold."""
    zone = ZoneInfo(ZONE)
    before, behind = _STAMPS[3], _STAMPS[4]
    assert from_zone(pack(Civil(2024, 3, 10, 1, 59, 59)), zone) == before
    assert from_zone(pack(Civil(2024, 3, 10, 3, 0, 0)), zone) == behind


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_protocols_agree_on_every_recorded_change(case: Case, capture: CaptureSet, tmp_path: Path) -> None:
    """All of them are there, in order, with equal values, whatever the tables went through between them."""
    wire, events, count = Wire(case), RowEvents(), 0
    for step in steps_of(capture, tmp_path):
        if isinstance(step, ChangeSegment):
            for changes in events.of(step):
                check(wire, changes)
                count += len(changes)
    assert count >= 10
