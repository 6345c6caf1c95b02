"""Schema objects from and to TiDB's JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from binlog.errors import DecodeError
from binlog.tidb.table import ColumnInfo, DBInfo, IndexColumn, IndexInfo, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp

from tests.unit.tidb import tables

MINIMAL: dict[str, Any] = {
    "id": 104,
    "name": {"O": "Tab", "L": "tab"},
    "cols": [
        {"id": 1, "name": "id", "offset": 0, "type": {"Tp": 8, "Flag": 4099, "Flen": 20, "Decimal": 0}, "state": 5},
        {
            "id": 2,
            "name": {"O": "B", "L": "b"},
            "offset": 1,
            "type": {"Tp": 16, "Flen": 9},
            "state": 5,
            "origin_default": "\x01\x01",
            "origin_default_bit": "AQE=",
            "default_bit": "AQE=",
        },
    ],
    "pk_is_handle": True,
    "added_in_tidb_99": {"x": 1},
}


def test_table_json_with_absent_and_unknown_fields_is_read() -> None:
    table = TableInfo.from_json(MINIMAL)
    assert (table.id, table.name, table.pk_is_handle, table.is_common_handle) == (104, "Tab", True, False)
    assert table.columns[0].name == "id"
    assert table.columns[1].origin_default_bit == b"\x01\x01"
    assert table.columns[1].default_bit == b"\x01\x01"
    assert table.columns[1].type == FieldType(Tp.BIT, 0, 9, 0, "", "")
    assert "added_in_tidb_99" not in table.to_json()
    assert TableInfo.from_json(json.dumps(MINIMAL)) == TableInfo.from_json(json.dumps(MINIMAL).encode()) == table


def test_untyped_fields_of_table_json_are_written_again() -> None:
    view = {"view_algorithm": 0, "view_select": "SELECT 1", "view_cols": None}
    more = {"view": view, "ttl_info": {"enable": False}, "auto_inc_id_extra": 3, "policy_ref_info": None}
    table = TableInfo.from_json(MINIMAL | more)
    document = table.to_json()
    assert table.is_view
    assert table.view == view
    assert not table.is_sequence
    assert document["view"] == view
    assert document["ttl_info"] == {"enable": False}
    assert document["auto_inc_id_extra"] == 3
    assert document["policy_ref_info"] is None
    assert set(table.rest) == {"view", "ttl_info", "auto_inc_id_extra"}
    assert TableInfo.from_json(document) == table
    assert "auto_inc_id_extra" not in TableInfo.from_json(MINIMAL).to_json()


@pytest.mark.parametrize("table", [tables.handle_table(), tables.keyless_table(), tables.changing_table()])
def test_table_read_from_its_own_json_or_pickle_is_equal(table: TableInfo) -> None:
    assert TableInfo.from_json(table.to_json()) == table
    assert pickle.loads(pickle.dumps(table)) == table


def test_unique_indexes_are_public_and_include_primary_key_of_handle() -> None:
    plain = tables.handle_table()
    handle = plain.handle_column
    assert handle is not None
    assert handle.name == "id"
    primary = plain.primary_index()
    assert primary is not None
    assert (primary.name, primary.columns) == ("PRIMARY", (IndexColumn("id", 0),))
    unique = IndexInfo(2, "u", (IndexColumn("name", 1),), unique=True)
    adding = IndexInfo(3, "v", (IndexColumn("name", 1),), state=SchemaState.WRITE_ONLY, unique=True)
    both = TableInfo(7, "t", plain.columns, (unique, adding), pk_is_handle=True)
    assert both.unique_indexes() == (primary, unique)
    assert both.index_columns(unique) == (plain.columns[1],)
    clustered = tables.clustered_table(tables.VARCHAR)
    assert clustered.unique_indexes() == clustered.indexes
    assert tables.keyless_table().unique_indexes() == ()
    assert tables.keyless_table().handle_column is None


def test_column_properties_follow_its_state_and_flags() -> None:
    columns = {c.name: c for c in tables.changing_table().columns}
    assert [c.name for c in tables.changing_table().public_columns] == ["id", "virtual", "stored"]
    assert [c.name for c in columns.values() if c.is_writable] == ["id", "writing", "filling", "virtual", "stored"]
    assert columns["virtual"].is_virtual
    assert columns["stored"].is_generated
    assert not columns["stored"].is_virtual
    assert columns["id"].is_primary
    assert columns["id"].is_not_null
    assert not columns["id"].is_unsigned
    assert tables.changing_table().columns_by_id[4].name == "filling"


def test_column_json_has_fields_in_order_of_tidb() -> None:
    names = "id name offset origin_default origin_default_bit default default_bit default_is_expr generated_expr_string"
    names += " generated_stored dependences type state comment hidden change_state_info version"
    found = ColumnInfo(1, "a", 0, FieldType(Tp.LONG, int(Flag.NOT_NULL), 11, 0)).to_json()
    assert list(found) == names.split()
    assert found["type"] == {
        "Tp": 3, "Flag": 1, "Flen": 11, "Decimal": 0, "Charset": "binary", "Collate": "binary",
        "Elems": None, "ElemsIsBinaryLit": None, "Array": False,
    }  # fmt: skip


def test_partition_json_is_read_and_written_again() -> None:
    document = {
        "type": 3,
        "expr": "",
        "columns": [{"O": "C", "L": "c"}],
        "enable": True,
        "definitions": [
            {"id": 5, "name": {"O": "p0", "L": "p0"}, "less_than": None, "in_values": [["1"], ["NULL"]],
             "comment": "x"},
            {"id": 6, "name": {"O": "p1", "L": "p1"}, "less_than": ["10"], "in_values": None, "policy_ref_info": None},
        ],
        "adding_definitions": None,
        "dropping_definitions": None,
        "states": None,
        "num": 2,
        "ddl_state": 0,
    }  # fmt: skip
    found = PartitionInfo.from_json(document)
    assert found.type == PartitionType.LIST
    assert found.columns == ("C",)
    assert [(d.id, d.name, d.less_than, d.in_values) for d in found.definitions] == [
        (5, "p0", (), (("1",), ("NULL",))),
        (6, "p1", ("10",), ()),
    ]
    assert PartitionInfo.from_json(found.to_json()) == found
    assert found.to_json()["definitions"][0]["comment"] == "x"  # type: ignore[index,call-overload]
    assert list(found.to_json()) == list(document)


def test_database_json_is_read_and_written_again() -> None:
    document = {"id": 2, "db_name": "Test", "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}
    found = DBInfo.from_json(document)
    assert (found.id, found.name, found.state) == (2, "Test", SchemaState.PUBLIC)
    assert found.to_json() == document | {"db_name": {"O": "Test", "L": "test"}, "policy_ref_info": None}
    assert DBInfo.from_json(json.dumps(found.to_json())) == found


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "x"}, "TableInfo Tab.id"),
        ({"id": True}, "TableInfo Tab.id"),
        ({"name": 5}, "TableInfo.name"),
        ({"cols": {}}, "TableInfo Tab.cols"),
        ({"cols": [5]}, r"TableInfo Tab.cols\[0\]"),
        ({"cols": [{"id": 1, "type": []}]}, "type"),
        ({"cols": [{"id": 1, "origin_default_bit": "?"}]}, "origin_default_bit"),
        ({"cols": [{"id": 1, "origin_default_bit": 5}]}, "origin_default_bit"),
        ({"cols": [{"id": 1, "hidden": 1}]}, "hidden"),
        ({"cols": [{"id": 1, "type": {"Elems": [1]}}]}, "Elems"),
        ({"charset": []}, "TableInfo Tab.charset"),
        ({"partition": 1}, "partition"),
        ({"index_info": [{"idx_name": "i", "idx_cols": [{"offset": 9}]}]}, "index_info i"),
    ],
)
def test_table_field_of_wrong_type_raises_decode_error_with_its_path(change: dict[str, Any], field: str) -> None:
    with pytest.raises(DecodeError, match=field):
        TableInfo.from_json(MINIMAL | change)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}"])
def test_schema_json_that_is_no_object_raises_decode_error(text: bytes) -> None:
    for read in (TableInfo.from_json, DBInfo.from_json):
        with pytest.raises(DecodeError):
            read(text)
