"""Schemas as text: TiCDC's to the byte, defaults in both modes, names."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.avro.schema import allowed_names, allowed_text, avro_name, compact_json, subjects, table_schemas
from drainer.protocol.encoder import RequiredSchema
from drainer.protocol.errors import EncodeError
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Column, ColumnFlag, Table
from drainer.row.column_type import ColumnType
from tests.support.avro_tables import TOPIC, ready
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table
from tests.unit.drainer.protocol.avro.cases import NAMES, TEXT

INT = FieldType(Tp.LONG)
AVRO = ProtocolOptions("avro", avro_defaults="avro")
TICDC = ProtocolOptions("avro")


def with_default(kind: FieldType, **default: Any) -> Table:
    """A table of one column, c."""
    table = make_table("s", "t", [("c", kind)])
    (column,) = table.columns
    return replace(table, columns=(replace(column, info=replace(column.info, **default)),))


def field_of(table: Table, options: ProtocolOptions) -> dict[str, Any]:
    schema = table_schemas(table, options).value
    fastavro.parse_schema(json.loads(schema))
    (found,) = json.loads(schema)["fields"]
    assert isinstance(found, dict)
    return found


def test_key_and_value_schema_text_equals_ticdcs() -> None:
    table = make_table("te-st", "1t", [("id", INT), ("a<b", TEXT)], primary=["id"])
    schemas = table_schemas(table, ProtocolOptions("avro", namespace="my ns", enable_tidb_extension=True))
    head = '{"type":"record","name":"_1t","namespace":"my_ns.te_st","fields":['
    id_ = '{"name":"id","type":{"type":"int","connect.parameters":{"tidb_type":"INT"}}}'
    assert schemas.key == head + id_ + "]}"
    assert schemas.value == (
        head + id_ + ',{"default":null,"name":"a_b","type":["null",{"type":"string","connect.parameters":'
        '{"tidb_type":"TEXT"}}]},{"default":"","name":"_tidb_op","type":"string"},{"default":0,"name":"_tidb_commit_ts"'
        ',"type":"long"},{"default":0,"name":"_tidb_commit_physical_time","type":"long"}]}'
    )


def test_compact_json_escapes_text_as_go_does() -> None:
    assert compact_json({"a": ["<&>\u2028", 1.0, 1e21, True, None]}) == (
        '{"a":["\\u003c\\u0026\\u003e\\u2028",1,1e+21,true,null]}'
    )


def test_table_without_handle_key_has_no_key_schema() -> None:
    table = make_table("s", "t", [("a", INT)])
    assert table_schemas(table, TICDC).key is None
    assert [one.subject for one in AvroEncoder(TICDC).required_schemas("x.y", table)] == ["x_y-value"]


@pytest.mark.parametrize(
    ("kind", "default", "ticdc", "avro"),
    [
        (INT, {"default": "5"}, 5, 5),
        (INT, {"default": 5}, 5, 5),
        (INT, {"default": True}, 1, 1),
        (INT, {"default": None, "origin_default": "6"}, 6, 6),
        (INT, {"default": "nextval(`s`)", "default_is_expr": True}, None, None),
        (FieldType(Tp.LONG), {"default": "4294967296"}, None, None),
        (FieldType(Tp.LONGLONG, Flag.UNSIGNED), {"default": "18446744073709551615"}, -1, -1),
        (FieldType(Tp.FLOAT), {"default": "3.14"}, 3.140000104904175, 3.140000104904175),
        (FieldType(Tp.DOUBLE), {"default": "2.5"}, 2.5, 2.5),
        (FieldType(Tp.DOUBLE), {"default": "inf"}, None, None),
        (FieldType(Tp.NEWDECIMAL, flen=10, decimal=2), {"default": "-1.28"}, None, "\u0080"),
        (FieldType(Tp.NEWDECIMAL, flen=10, decimal=2), {"default": "1.281"}, None, None),
        (TEXT, {"default": "null"}, "null", "null"),
        (TEXT, {"default": "uuid()", "default_is_expr": True}, "uuid()", None),
        (FieldType(Tp.BLOB), {"default": "\u00e4"}, "w6Q=", "\u00c3\u00a4"),
        (FieldType(Tp.BIT, flen=10), {"default_bit": b"\x00\x80"}, "AIA=", "\u0080"),
        (FieldType(Tp.TIMESTAMP), {"default": "CURRENT_TIMESTAMP"}, "CURRENT_TIMESTAMP", None),
        (FieldType(Tp.DATETIME), {"default": "2020-01-02 03:04:05"}, "2020-01-02 03:04:05", "2020-01-02 03:04:05"),
        (FieldType(Tp.TIMESTAMP), {"default": "0000-00-00 00:00:00"}, "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        (FieldType(Tp.ENUM, elems=NAMES), {"default": "b,c"}, "b,c", "b,c"),
        (FieldType(Tp.ENUM, elems=NAMES), {"default": "z"}, "z", None),
        (FieldType(Tp.SET, elems=NAMES), {"default": ""}, "", ""),
        (FieldType(Tp.YEAR, Flag.UNSIGNED), {"default": "2023"}, 2023, 2023),
    ],
)
def test_column_default_in_schema_follows_type_and_mode(
    kind: FieldType, default: dict[str, Any], ticdc: object, avro: object
) -> None:
    """What stands first in a nullable column's union is its default's type; a NOT NULL column without one has none."""
    not_null = replace(kind, flag=kind.flag | Flag.NOT_NULL)
    for options, expected in ((TICDC, ticdc), (AVRO, avro)):
        field = field_of(with_default(kind, **default), options)
        assert (field["default"], type(field["default"])) == (expected, type(expected))
        assert (field["type"][0] == "null") is (expected is None)
        field = field_of(with_default(not_null, **default), options)
        assert field.get("default", None) == expected
        assert ("default" in field) is (expected is not None)
        assert isinstance(field["type"], dict)


def test_timestamp_default_is_utc_in_ticdc_mode_and_local_in_avro_mode() -> None:
    table = with_default(FieldType(Tp.TIMESTAMP), default="2020-01-02 03:04:05")
    assert field_of(table, replace(TICDC, time_zone="Asia/Shanghai"))["default"] == "2020-01-02 03:04:05"
    assert field_of(table, replace(AVRO, time_zone="Asia/Shanghai"))["default"] == "2020-01-02 11:04:05"


@pytest.mark.parametrize(
    ("kind", "default", "read"),
    [
        (FieldType(Tp.BLOB), {"default": "\u00e4"}, "\u00e4".encode()),
        (FieldType(Tp.BIT, flen=10), {"default_bit": b"\x02\xaa"}, b"\x02\xaa"),
        (INT, {"default": "7"}, 7),
    ],
)
def test_reader_with_newer_schema_fills_added_column_with_default(
    kind: FieldType, default: dict[str, Any], read: object
) -> None:
    """A message from before ADD COLUMN, read by the schema behind it."""
    before = make_table("s", "t", [("a", INT)])
    encoder, schemas = ready(before, AVRO)
    (row,) = encoded_rows(encoder.table(before, TOPIC), make_changes(before, Kind.INSERT, new=[[1]]))
    assert row.value is not None
    added = with_default(kind, **default).columns[0]
    after = replace(before, columns=(*before.columns, added))
    written, newest = (json.loads(text) for text in (schemas(1), table_schemas(after, AVRO).value))
    found = fastavro.schemaless_reader(
        BytesIO(row.value[5:]), fastavro.parse_schema(written), fastavro.parse_schema(newest)
    )
    assert isinstance(found, dict)
    default = found.pop("c")
    assert found == {"a": 1}
    # fastavro gives the code points of a default of bytes as they stand in the schema.
    assert (default.encode("latin-1") if isinstance(default, str) else default) == read


def test_new_message_is_read_by_old_schema() -> None:
    """A column that the reader does not know yet, one that is dropped, and one that was widened by DDL."""
    kinds = [("a", INT), ("b", TEXT), ("d", FieldType(Tp.DOUBLE))]
    before, after = make_table("s", "t", kinds), make_table("s", "t", [*kinds[:1], ("c", INT), *kinds[2:]])
    encoder, schemas = ready(after, TICDC)
    (row,) = encoded_rows(encoder.table(after, TOPIC), make_changes(after, Kind.INSERT, new=[[1, 2, 0.5]]))
    assert row.value is not None
    written = fastavro.parse_schema(json.loads(schemas(1)))
    old = fastavro.parse_schema(json.loads(table_schemas(before, TICDC).value))
    assert fastavro.schemaless_reader(BytesIO(row.value[5:]), written, old) == {"a": 1, "b": None, "d": 0.5}
    wide = make_table("s", "t", [("a", FieldType(Tp.LONGLONG)), ("c", FieldType(Tp.DOUBLE)), kinds[2]])
    newest = fastavro.parse_schema(json.loads(table_schemas(wide, TICDC).value))
    assert fastavro.schemaless_reader(BytesIO(row.value[5:]), written, newest) == {"a": 1, "c": 2.0, "d": 0.5}


def test_late_row_of_column_now_not_null_keeps_nullable_schema() -> None:
    """It was written when it was not, perhaps with NULL: so its schema is a union still."""
    table = make_table("s", "t", [("a", INT)])
    (column,) = table.columns
    late = Column("a", ColumnType.of(INT), ColumnFlag(0), replace(column.info, type=replace(INT, flag=Flag.NOT_NULL)))
    assert field_of(replace(table, columns=(late,)), TICDC)["type"][0] == "null"


def test_columns_with_equal_avro_names_are_refused() -> None:
    with pytest.raises(EncodeError) as caught:
        table_schemas(make_table("s", "t", [("a-b", INT), ("c", INT), ("a_b", INT)]), TICDC)
    for part in ("`s`.`t`", "`a-b`", "`a_b`"):
        assert part in str(caught.value)
    taken = make_table("s", "t", [("_tidb_op", INT)])
    table_schemas(taken, TICDC)
    with pytest.raises(EncodeError, match="`_tidb_op`"):
        table_schemas(taken, replace(TICDC, enable_tidb_extension=True))
    with pytest.raises(EncodeError, match="`_ticdc_before`"):
        table_schemas(make_table("s", "t", [("_ticdc_before", INT)]), replace(TICDC, avro_output_old_row=True))


def test_decimal_and_bit_without_length_get_default_parameters() -> None:
    kind = field_of(make_table("s", "t", [("c", FieldType(Tp.NEWDECIMAL))]), TICDC)["type"][1]
    assert (kind["precision"], kind["scale"]) == (10, 0)
    kind = field_of(make_table("s", "t", [("c", FieldType(Tp.BIT))]), TICDC)["type"][1]
    assert kind["connect.parameters"] == {"length": "1", "tidb_type": "BIT"}


@pytest.mark.parametrize(
    ("name", "expected"), [("中文", "__"), ("1a", "_1a"), ("-x", "_x"), ("é1", "_1"), ("_", "_"), ("a.b", "a_b")]
)
def test_avro_name_replaces_invalid_characters(name: str, expected: str) -> None:
    assert avro_name(name) == expected


def test_subject_names_follow_naming_strategy() -> None:
    assert subjects(TICDC, "a.b") == ("a_b-key", "a_b-value")
    assert subjects(replace(TICDC, avro_subject_names="topic"), "a.b") == ("a.b-key", "a.b-value")


def test_schemas_with_different_defaults_have_different_fingerprints() -> None:
    one, other = (with_default(TEXT, default=text) for text in ("a", "b"))
    prints = {RequiredSchema("s", table_schemas(table, TICDC).value).fingerprint for table in (one, other)}
    assert len(prints) == 2


def test_allowed_enum_names_read_back_equal() -> None:
    for names in (("a,b", "c"), ("", "a"), (",", ",,"), ("a",), ("\\",)):
        assert allowed_names(allowed_text(names)) == names
