"""Rows to bytes and back, with the layout a real TiDB gives them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from binlog.tidb.flatten import to_float32, to_text
from binlog.tidb.json import encode_json
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ROWID
from hypothesis import given
from hypothesis import strategies as st

from pumpclient.sdk import schema
from pumpclient.sdk import types as t
from pumpclient.sdk.errors import RowRejected, ValueRejected
from pumpclient.sdk.rows import RowCodec
from pumpclient.sdk.table import NOW, Column, Table
from tests.support.tidb_codecs import RecordKey, decode_table_key, json_duration


def codec(*columns: Column, **options: object) -> RowCodec:
    table = Table("t", *columns, **options)  # type: ignore[arg-type]
    return RowCodec("s", schema.build_table(table, table_id=104, start_ts=1))


ID = Column("id", t.BigInt(), primary_key=True)


def test_row_codec_encodes_documented_example_bytes() -> None:
    """By hand from the layout of a row (F-02)."""
    made = codec(ID, Column("name", t.VarChar(24)))
    assert made.insert({"id": 1, "name": "a"}, rowid=0)[0].hex(" ") == "08 02 08 04 02 02 61"
    assert made.insert({"id": 2}, rowid=0)[0] == b"\x08\x04\x00"
    changed = made.update({"id": 1, "name": "a"}, {"id": 1, "name": "b"})
    assert changed is not None
    assert changed.changed.hex() == "08020802080402026108020802" + "0804020262"
    assert made.delete({"id": 1, "name": "b"}).hex() == "080208020804020262"


def shown(made: RowCodec, row: dict[int, object]) -> dict[str, object]:
    return {c.name: to_text(row[c.id], c.type) for c in made.info.columns if c.id in row}  # type: ignore[arg-type]


EVERY = [
    Column("big", t.BigInt(unsigned=True)),
    Column("price", t.NumericType(10, 2)),
    Column("at", t.DateTime(3)),
    Column("took", t.Time(6)),
    Column("state", t.Enum("new", "paid")),
    Column("flags", t.Set("a", "b")),
    Column("bits", t.Bit(9)),
    Column("doc", t.JSON()),
    Column("data", t.Blob()),
    Column("x", t.Double()),
]
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "big": st.none() | st.integers(0, (1 << 64) - 1),
        "price": st.none() | st.decimals(-99_999_999, 99_999_999, places=2, allow_nan=False),
        "at": st.none()
        | st.datetimes(datetime(1, 1, 1)).map(lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)),
        "took": st.none() | st.timedeltas(timedelta(hours=-800), timedelta(hours=800)),
        "state": st.sampled_from([None, "new", "paid"]),
        "flags": st.sampled_from([None, "", "a", "b", "a,b"]),
        "bits": st.none() | st.integers(0, 511),
        "doc": st.none() | st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=3),
        "data": st.none() | st.binary(max_size=20),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    }
)
CODECS = {
    "handle": codec(ID, *EVERY),
    "nonclustered": codec(ID, *EVERY, clustered=False),
    "clustered": codec(Column("id", t.NumericType(20, 0), primary_key=True), *EVERY, unique={"u": ["big"]}),
}


@pytest.mark.parametrize("name", CODECS)
@given(row=ROWS, new=ROWS)
def test_row_codec_decodes_any_row_it_encoded(name: str, row: dict[str, object], new: dict[str, object]) -> None:
    made = CODECS[name]
    _, inserted = decode_insert(made.info, made.insert(row, rowid=77)[0])
    deleted = decode_delete(made.info, made.delete(row))
    inserted.pop(ROWID, None)
    full = shown(made, deleted)
    assert len(full) == len(made.info.columns)
    assert {**dict.fromkeys(full), **shown(made, inserted)} == full
    changed = made.update(row, new)
    if changed is not None and changed.moves:
        assert changed.deleted == made.delete(row)
        assert changed.inserted == made.insert(new, rowid=0)[0]
    elif changed is not None:
        old_row, new_row = decode_update(changed.changed)
        assert shown(made, old_row) == full
        assert shown(made, new_row) == shown(made, decode_delete(made.info, made.delete(new)))
    else:
        assert full == shown(made, decode_delete(made.info, made.delete(new)))


GIVEN = st.fixed_dictionaries(
    {"id": ROWS.map(lambda row: row["id"])},
    optional={
        "tiny": st.booleans() | st.integers(-128, 127),
        "c": st.text(st.characters(codec="utf-8"), max_size=5),
        "s": st.text(st.characters(codec="utf-8"), max_size=5),
        "bin": st.none() | st.binary(max_size=4) | st.binary(max_size=4).map(bytearray),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "y": st.sampled_from([0, 1901, 2155]),
        "d": st.dates() | st.dates().map(str),
        "ts": st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1), timezones=st.just(timezone(timedelta(hours=3)))),
        "set": st.lists(st.sampled_from(["", "a", "b"])).map(tuple) | st.sampled_from(["a,b", "b", ""]),
        "price": st.none() | st.integers(-9, 9) | st.sampled_from(["1.5", "-0", "-0.00"]),
        "took": st.none() | st.times() | st.sampled_from(["-838:59:59", "1:02:03.5"]),
        "doc": st.none() | st.recursive(st.booleans() | st.integers(-9, 1 << 63) | st.floats(allow_nan=False,
            allow_infinity=False) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)
            | st.just(encode_json({"at": json_duration(1_000_000_000, 0)})),
        "now": st.datetimes(),
    },
)  # fmt: skip
GIVEN_CODEC = codec(
    Column("id", t.NumericType(20, 0), primary_key=True),
    Column("tiny", t.TinyInt(), default=7),
    Column("c", t.Char(5), default="x "),
    Column("s", t.VarChar(5)),
    Column("bin", t.Binary(4), default=b"ab"),
    Column("f", t.Float(), default=0.1),
    Column("y", t.Year()),
    Column("d", t.Date(), default="2026-11-22"),
    Column("ts", t.Timestamp(6), default="2026-11-22 01:02:03.000004"),
    Column("set", t.Set("", "a", "b"), default="a,b"),
    Column("bits", t.Bit(9), default=0x181),
    Column("kind", t.Enum("x", "y"), nullable=False, default="y"),
    Column("price", t.NumericType(6, 3), default="1.5"),
    Column("took", t.Time(6), default="-12:34:56.78"),
    Column("doc", t.JSON()),
    Column("now", t.DateTime(6), default=NOW),
    Column("since", t.Timestamp(), default=NOW),
    Column("text", t.VarChar(20), default="CURRENT_TIMESTAMP"),
)


@given(row=GIVEN)
def test_row_returned_by_insert_equals_stored_row(row: dict[str, object]) -> None:
    """Whatever kinds of values it was given; so a delete or an update of it names exactly the row that is there."""
    made = GIVEN_CODEC
    encoded, stored = made.insert(row, rowid=0)
    assert list(stored) == [column.name for column in made.info.columns]
    assert made.insert(stored, rowid=0) == (encoded, stored)
    _, inserted = decode_insert(made.info, encoded)
    deleted = decode_delete(made.info, made.delete(stored))
    assert deleted == {**dict.fromkeys(deleted), **inserted, 1: deleted[1]}
    changed = made.update(stored, {"tiny": None if stored["tiny"] is not None else 1})
    assert changed is not None
    before, after = decode_update(changed.changed)
    assert before == deleted
    assert {i: datum for i, datum in after.items() if i != 2} == {i: d for i, d in deleted.items() if i != 2}
    assert made.update(stored, stored) is None
    assert made.update(stored, {}) is None


def test_insert_returns_stored_values_as_python_types() -> None:
    _, stored = GIVEN_CODEC.insert({"id": 1, "doc": {"a": [1, None]}}, rowid=0)
    for now in (stored.pop("now"), stored.pop("since")):
        assert isinstance(now, datetime)
        assert abs(datetime.now(UTC).replace(tzinfo=None) - now) < timedelta(minutes=10)
    assert stored == {
        "id": Decimal(1), "tiny": 7, "c": "x", "s": None, "bin": b"ab\0\0", "f": to_float32(0.1), "y": None,
        "d": date(2026, 11, 22), "ts": datetime(2026, 11, 22, 1, 2, 3, 4), "set": ("a", "b"), "bits": 0x181,
        "kind": "y", "price": Decimal("1.500"), "took": -timedelta(hours=12, minutes=34, seconds=56, milliseconds=780),
        "doc": {"a": [1, None]}, "text": "CURRENT_TIMESTAMP",
    }  # fmt: skip


def test_row_with_unknown_or_missing_column_is_refused_by_name() -> None:
    made = codec(ID, Column("v", t.Int()))
    with pytest.raises(RowRejected, match=r"s\.t\.w: no such column"):
        made.update({"id": 1, "v": 1}, {"w": 2})
    with pytest.raises(RowRejected, match=r"s\.t\.v: missing; an old or deleted row"):
        made.update({"id": 1}, {"v": 2})
    with pytest.raises(RowRejected, match=r"s\.t: a row is a mapping of column names to values, not \[\('id', 1\)\]"):
        made.insert([("id", 1)], rowid=0)  # type: ignore[arg-type]


def test_row_key_contains_handle_or_clustered_key_columns() -> None:
    made = codec(Column("id", t.BigInt(unsigned=True), primary_key=True))
    encoded = made.insert({"id": (1 << 64) - 1}, rowid=0)[0]
    assert encoded == b"\x08\x01\x00"  # a handle is signed even where its column is not (F-02)
    assert decode_table_key(made.key(encoded)) == RecordKey(104, -1)
    made = codec(Column("a", t.VarChar(9), primary_key=True), Column("b", t.NumericType(5, 1), primary_key=True))
    key = decode_table_key(made.key(made.insert({"a": "x", "b": Decimal("1.5")}, rowid=0)[0]))
    assert isinstance(key, RecordKey)
    assert key.handle == (b"x", "1.5")


def test_rows_without_primary_key_get_rowid() -> None:
    made = codec(Column("a", t.Int()))
    assert made.needs_rowid
    handle, row = decode_insert(made.info, made.insert({"a": 5}, rowid=77)[0])
    assert handle == (77,)
    assert row == {1: 5, ROWID: 77}
    assert decode_delete(made.info, made.delete({"a": None})) == {1: None}


def test_update_of_clustered_key_becomes_delete_and_insert() -> None:
    made = codec(ID, Column("v", t.Int()))
    moved = made.update({"id": 1, "v": 2}, {"id": 3})
    assert moved is not None
    assert moved.moves
    assert moved.inserted == made.insert({"id": 3, "v": 2}, rowid=0)[0]
    stays = made.update({"id": 1, "v": 2}, {"v": 4})
    assert stays is not None
    assert not stays.moves
    nonclustered = codec(ID, Column("v", t.Int()), clustered=False)
    changed = nonclustered.update({"id": 1, "v": 2}, {"id": 3, "v": 2})
    assert changed is not None
    assert not changed.moves


def test_refused_row_error_names_column_value_and_reason() -> None:
    made = codec(ID, Column("v", t.TinyInt(), nullable=False), Column("w", t.Int()))
    with pytest.raises(RowRejected, match=r"s\.t\.x: no such column"):
        made.insert({"id": 1, "v": 1, "x": 1}, rowid=0)
    with pytest.raises(RowRejected, match=r"s\.t\.v: missing, NOT NULL and without a default"):
        made.insert({"id": 1}, rowid=0)
    with pytest.raises(RowRejected, match=r"s\.t\.w: missing; an old or deleted row must contain every column"):
        made.delete({"id": 1, "v": 1})
    with pytest.raises(ValueRejected, match=r"s\.t\.v = None: the column is NOT NULL"):
        made.insert({"id": 1, "v": None}, rowid=0)
    with pytest.raises(ValueRejected, match=r"s\.t\.v = 128: out of range -128 to 127"):
        made.update({"id": 1, "v": 1, "w": 1}, {"id": 1, "v": 128, "w": 1})
    with pytest.raises(ValueRejected, match=r"s\.t\.id = None"):
        made.insert({"id": None, "v": 1}, rowid=0)
    with pytest.raises(ValueRejected) as caught:
        made.insert({"id": "x" * 500, "v": 1}, rowid=0)
    assert len(str(caught.value)) < 150
