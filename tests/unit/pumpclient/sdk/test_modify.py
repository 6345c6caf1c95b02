"""Which changes of a column are taken, what ids they give, and that what is taken keeps every value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from binlog.tidb.document import dump_document
from binlog.tidb.flatten import flatten, missing_value, to_text
from binlog.tidb.table import TableInfo

from pumpclient.sdk import BadDeclaration, Column, SchemaExists, SchemaNotFound, Table, schema, statements
from pumpclient.sdk import types as t
from pumpclient.sdk.types import Retype, retype
from pumpclient.sdk.values import encoder, stored_default

SAME, CAST = Retype.SAME, Retype.CAST
TAKEN: list[tuple[Any, Any, Retype, list[object]]] = [
    (t.TinyInt(), t.BigInt(), SAME, [-128, 127]),
    (t.Bool(), t.TinyInt(), SAME, [True, False]),
    (t.Int(unsigned=True), t.BigInt(), CAST, [0, (1 << 32) - 1]),
    (t.Int(), t.NumericType(10, 0), CAST, [-(1 << 31), (1 << 31) - 1]),
    (t.SmallInt(), t.VarChar(6), CAST, [-32768, 32767]),
    (t.BigInt(), t.Text(), CAST, [-(1 << 63)]),
    (t.Int(), t.Double(), CAST, [-(1 << 31), (1 << 31) - 1]),
    (t.NumericType(6, 2), t.NumericType(8, 4), CAST, ["-9999.99", "0.01"]),
    (t.VarChar(5), t.VarChar(9), SAME, ["", "x" * 5, "  "]),
    (t.VarChar(5), t.TinyText(), CAST, ["😀" * 5, "a "]),
    (t.VarChar(5, collate="utf8_bin"), t.VarChar(5), SAME, ["ä"]),
    (t.TinyText(), t.LongText(), SAME, ["x" * 255]),
    (t.TinyText(), t.VarChar(255), CAST, ["x" * 255]),
    (t.Char(5), t.Char(6), SAME, ["abc"]),
    (t.Char(5), t.VarChar(5), CAST, ["abc"]),
    (t.Binary(3), t.VarBinary(3), CAST, [b"a", b"\xff\x00\xfe"]),
    (t.VarBinary(3), t.Blob(), CAST, [b"a", b"\xff\x00\xfe"]),
    (t.Enum("a", "b"), t.Enum("a", "b", "c"), SAME, ["a", "b"]),
    (t.Set("a", "b"), t.Set("a", "b", "c"), SAME, ["", "a,b"]),
    (t.Bit(7), t.Bit(9), SAME, [0, 127]),
    (t.Date(), t.DateTime(3), CAST, ["0001-01-01", "9999-12-31"]),
    (t.DateTime(), t.DateTime(6), CAST, ["2026-11-22 01:02:03"]),
    (t.Timestamp(3), t.Timestamp(6), CAST, ["2026-11-22 01:02:03.004"]),
    (t.Time(), t.Time(2), CAST, ["-838:59:59"]),
    (t.JSON(), t.JSON(), SAME, [{"a": 1}]),
    (t.Float(), t.Float(), SAME, [0.1]),
]
REFUSED = [
    (t.BigInt(), t.Int()), (t.Int(), t.BigInt(unsigned=True)), (t.Int(unsigned=True), t.Int()),
    (t.BigInt(), t.Double()), (t.Int(), t.NumericType(11, 2)), (t.Int(), t.VarChar(10)), (t.Int(), t.Binary(20)),
    (t.Int(), t.Float()), (t.Float(), t.Double()), (t.Double(), t.Float()), (t.Double(), t.NumericType(30, 10)),
    (t.NumericType(6, 2), t.NumericType(7, 4)), (t.NumericType(6, 2), t.NumericType(6, 1)),
    (t.NumericType(6, 2), t.NumericType(6, 2, unsigned=True)), (t.VarChar(5), t.VarChar(4)), (t.VarChar(5), t.Char(5)),
    (t.VarChar(64), t.TinyText()), (t.Text(), t.VarChar(9000)), (t.VarChar(5), t.VarBinary(20)),
    (t.VarChar(5), t.VarChar(5, collate="ascii_bin")), (t.Binary(3), t.Binary(4)), (t.VarBinary(3), t.Binary(3)),
    (t.Enum("a", "b"), t.Enum("b", "a")), (t.Enum("a"), t.Set("a")), (t.Bit(9), t.Bit(8)), (t.DateTime(), t.Date()),
    (t.DateTime(6), t.DateTime(3)), (t.DateTime(), t.Timestamp()), (t.Timestamp(), t.DateTime()), (t.JSON(), t.Text()),
    (t.Text(), t.JSON()), (t.VarChar(9), t.Int()), (t.Year(), t.Int()), (t.Date(), t.VarChar(10)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "how", "values"), TAKEN)
def test_retype_keeps_every_value_of_accepted_type_change(
    old: Any, new: Any, how: Retype, values: list[object]
) -> None:
    """The drainer casts as `flatten` does; the new type's encoder takes what comes out as it is."""
    assert retype(old, new) is how
    for value in values:
        datum = encoder(old)(value)
        text = to_text(datum, old)
        cast = datum if how is SAME else flatten(text, new)
        if new.tp not in (t.JSON().tp, t.Set("a").tp):
            assert encoder(new)(to_text(cast, new) if not isinstance(cast, float | int) else _value(cast, new)) == cast
        if how is SAME:
            assert to_text(datum, new) == text or new.tp is t.Bit().tp


def _value(cast: Any, kind: Any) -> object:
    text = to_text(cast, kind)
    return cast if kind.tp in (t.BigInt().tp, t.Double().tp, t.TinyInt().tp, t.Bit().tp, t.Float().tp) else text


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_a_type_that_may_lose_a_value_is_refused_with_both_types(old: Any, new: Any) -> None:
    assert retype(old, new) is None
    made = table(Column("v", old))
    with pytest.raises(BadDeclaration, match=r"^t\.v: .* cannot become .* may not fit or would change"):
        schema.change_column(made, "v", Column("v", new))


def table(*columns: Column, **more: Any) -> TableInfo:
    key = Column("id", t.BigInt(), primary_key=True)
    return schema.build_table(Table("t", key, *columns, **more), table_id=5, start_ts=1)


def test_a_cast_gives_the_column_and_its_keys_new_ids() -> None:
    """As TiDB 8.1 does it: the column's place stays, keys without it keep their ids."""
    columns = [Column("a", t.Date()), Column("b", t.Int()), Column("c", t.Int())]
    made = table(*columns, indexes={"ia": ["a"], "ib": ["b"], "iab": ["b", "a"]})
    made = schema.change_column(made, "A", Column("aa", t.DateTime(), comment="new"))
    assert [(x.id, x.name, x.offset) for x in made.columns] == [(1, "id", 0), (5, "aa", 1), (3, "b", 2), (4, "c", 3)]
    shown = [(x.id, x.name, [(p.name, p.offset) for p in x.columns]) for x in made.indexes]
    assert shown == [(4, "ia", [("aa", 1)]), (2, "ib", [("b", 2)]), (5, "iab", [("b", 2), ("aa", 1)])]
    assert (made.max_column_id, made.max_index_id) == (5, 5)


def test_rows_older_than_the_column_keep_its_first_default() -> None:
    made = schema.add_column(table(), Column("v", t.NumericType(4, 1), default="1.5"))
    made = schema.change_column(made, "v", Column("v", t.NumericType(6, 2), default="7"))
    assert (made.columns[1].origin_default, made.columns[1].default) == ("1.50", "7.00")
    made = schema.change_column(made, "v", Column("v", t.NumericType(6, 2)))
    assert (made.columns[1].origin_default, made.columns[1].default) == ("1.50", None)


def test_impossible_column_change_error_names_column_and_reason() -> None:
    made = table(Column("v", t.Int()), Column("s", t.VarChar(9)), indexes={"k": ["s"]})
    for name, column, why in (
        ("id", Column("id", t.NumericType(30)), r"t\.id is part of the primary key: its type BIGINT cannot become DEC"),
        ("v", Column("v", t.Int(), primary_key=True), r"t\.v: primary_key=True, but the column is not part of"),
        ("v", Column("v", t.Int(), nullable=False), r"t\.v: nullable=False, but existing rows may hold NULL"),
        ("id", Column("id", t.BigInt(), nullable=True), r"t\.id: a primary key's column cannot be nullable"),
        (
            "s",
            Column("s", t.VarChar(9, collate="utf8mb4_general_ci")),
            r"t\.s: the collation utf8mb4_bin cannot become",
        ),
        ("s", Column("s", t.Text()), r"key k, column s: a key over text needs a prefix length"),
    ):
        with pytest.raises(BadDeclaration, match=why):
            schema.change_column(made, name, column)
    with pytest.raises(SchemaExists, match=r"t: column s already exists"):
        schema.rename_column(made, "v", "S")
    with pytest.raises(SchemaNotFound, match=r"t: there is no column x"):
        schema.rename_column(made, "x", "y")
    with pytest.raises(BadDeclaration, match="name ''"):
        schema.rename_column(made, "v", "")


def test_a_primary_keys_column_may_be_renamed() -> None:
    key = [Column("a", t.VarChar(9)), Column("b", t.Date())]
    made = schema.build_table(Table("t", *key, primary_key=["b", "a"]), table_id=5, start_ts=1)
    made = schema.rename_column(made, "a", "z")
    assert [p.name for p in made.indexes[0].columns] == ["b", "z"]
    made = schema.change_column(made, "z", Column("z", t.VarChar(9), comment="same type"))
    assert [(x.id, x.name, x.is_primary) for x in made.columns] == [(1, "z", True), (2, "b", True)]


def names(info: TableInfo) -> list[str]:
    return [column.name for column in info.columns]


def test_move_column_updates_offsets_in_keys() -> None:
    made = table(Column("a", t.Int()), Column("b", t.Int()), Column("c", t.Int()), indexes={"k": ["c", "a"]})
    moved = schema.move_column(made, "C", "id")
    assert names(moved) == ["id", "c", "a", "b"]
    assert [c.offset for c in moved.columns] == [0, 1, 2, 3]
    assert [(part.name, part.offset) for part in moved.indexes[0].columns] == [("c", 1), ("a", 2)]
    assert names(schema.move_column(made, "b", None)) == ["b", "id", "a", "c"]
    assert names(schema.move_column(made, "a", "c")) == ["id", "b", "c", "a"]
    with pytest.raises(BadDeclaration, match="cannot follow itself"):
        schema.move_column(made, "a", "A")
    with pytest.raises(SchemaNotFound, match="there is no column x"):
        schema.move_column(made, "a", "x")


def test_primary_key_integer_may_only_become_a_wider_signed_integer() -> None:
    made = schema.build_table(Table("t", Column("id", t.Int(), primary_key=True)), table_id=5, start_ts=1)
    wider = schema.change_column(made, "id", Column("id", t.BigInt(), primary_key=True))
    assert (wider.columns[0].id, wider.columns[0].type.tp, wider.pk_is_handle) == (1, t.BigInt().tp, True)
    for kind in (t.SmallInt(), t.BigInt(unsigned=True), t.NumericType(20)):
        with pytest.raises(BadDeclaration, match="only an integer may get more bytes there"):
            schema.change_column(made, "id", Column("id", kind, primary_key=True))
    unsigned = schema.build_table(
        Table("t", Column("id", t.Int(unsigned=True), primary_key=True)), table_id=5, start_ts=1
    )
    with pytest.raises(BadDeclaration, match="only an integer"):  # TiDB makes another column of it
        schema.change_column(unsigned, "id", Column("id", t.BigInt(), primary_key=True))


def test_binary_default_that_is_not_text_survives_json() -> None:
    """The text of a JSON document has no such bytes, so they travel where those of a BIT do."""
    column = Column("v", t.Binary(3), default=b"\xff\x00\xfe")
    made = schema.add_column(table(), column)
    read = TableInfo.from_json(json.loads(dump_document(made.to_json()))).columns[1]
    assert (read.default_bit, read.origin_default_bit) == (b"\xff\x00\xfe", b"\xff\x00\xfe")
    assert missing_value(read) == b"\xff\x00\xfe"
    assert stored_default(read.type, read.default, read.default_bit) == b"\xff\x00\xfe"
    cast = schema.change_column(replace(made, columns=(made.columns[0], read)), "v", Column("v", t.VarBinary(5)))
    assert cast.columns[1].origin_default_bit == b"\xff\x00\xfe"
    text = schema.add_column(table(), Column("v", t.Binary(3), default=b"abc")).columns[1]
    assert (text.default, text.default_bit) == ("abc", None)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"place": {"a": "b"}}, "place names a, which is in neither modify nor change"),
        ({"change": {"a": Column("z", t.Int())}, "place": {"a": None}}, "place names a, which is in neither"),
        ({"drop": ["b"], "place": {"A": "B"}}, r"place\['A'\]='B' names a column that this statement changes"),
        ({"place": {"A": "a"}}, r"place\['A'\]='a' names a column that this statement changes"),
        ({"place": {"a": "b", "A": "c"}}, "place names a column twice"),
        ({"place": ["a"]}, r"place must be a dict of names to a name or None, not \['a'\]"),
        ({"place": {"a": 1}}, r"place\['a'\] must be a str, not 1"),
        ({"place": {1: "a"}}, "a key of place must be a str, not 1"),
    ],
)
def test_alter_table_place_argument_refuses_invalid_positions(arguments: dict[str, Any], why: str) -> None:
    arguments = {"modify": [Column("b" if "neither" in why else "a", t.Int())], **arguments}
    with pytest.raises(BadDeclaration, match=why):
        statements.alteration(**arguments).check("ALTER TABLE d.t")
