"""Columns of Parquet files against the values that went in; names of directories."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.stream import StreamDecoder
from drainer.protocol.errors import EncodeError
from drainer.row.column_type import ColumnType, TypeClass
from drainer.sink.file.parquet import arrow_column, arrow_type, path_of, tables_of
from tests.support.any_changes import KINDS
from tests.support.row_case import BEGIN_TS, INT, TEXT, table, transaction, view_of
from tests.support.shown_text import shown_text
from tests.support.typed_columns import decoded_values_of

SAME = {TypeClass.INT, TypeClass.BIT, TypeClass.FLOAT, TypeClass.BYTES}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_arrow_column_of_each_type_holds_values_given(name: str, data: st.DataObject) -> None:
    column_type = ColumnType.of(KINDS[name])
    values = data.draw(st.lists(st.none() | decoded_values_of(KINDS[name]), min_size=1, max_size=8))
    found = arrow_column(column_type, pa.array(values, column_type.decoded_type))
    assert found.type == arrow_type(column_type)
    for value, cell in zip(values, found.to_pylist(), strict=True):
        if value is None:
            assert cell is None
        elif column_type.type_class in SAME:
            assert cell == value
        elif column_type.type_class is TypeClass.DECIMAL:
            assert cell == Decimal(value)
        elif column_type.type_class is TypeClass.TEXT:
            assert cell == value.decode()
        else:
            assert cell == shown_text(column_type, value, UTC)


def test_decimal_and_bit_too_wide_for_arrow_become_string_and_decimal() -> None:
    wide = ColumnType.of(FieldType(Tp.NEWDECIMAL, 0, 65, 30))
    assert arrow_type(wide) == pa.string()
    assert arrow_column(wide, pa.array(["1.5"])).to_pylist() == ["1.5"]
    whole = ColumnType.of(FieldType(Tp.BIT, Flag.UNSIGNED, 64, 0))
    most = (1 << 64) - 1
    assert arrow_column(whole, pa.array([most], pa.uint64())).to_pylist() == [Decimal(most)]


@pytest.mark.parametrize(("name", "value"), [("bit", 2), ("name", b"\xff"), ("several", 8), ("doc", b"\x99")], ids=str)
def test_arrow_column_refuses_invalid_value_of_its_type(name: str, value: Any) -> None:
    column_type = ColumnType.of(KINDS[name])
    with pytest.raises(DecodeError):
        arrow_column(column_type, pa.array([value], column_type.decoded_type))


def segment(*rows: Any) -> Any:
    info = table([("id", INT), ("v", TEXT)], handle="id")
    payloads = [transaction([(info, row)], commit_ts=BEGIN_TS + n + 1) for n, row in enumerate(rows)]
    return StreamDecoder(view_of(info)).segment(payloads, BEGIN_TS, BEGIN_TS + 100)


def test_arrow_table_holds_inserts_updates_and_deletes_in_commit_order() -> None:
    (found,) = tables_of(
        segment(
            ("insert", {}, {1: 1, 2: b"a"}),
            ("update", {1: 1, 2: b"a"}, {1: 1, 2: b"b"}),
            ("insert", {}, {1: 2, 2: None}),
            ("delete", {1: 1, 2: b"b"}, {}),
        )
    )
    assert [(row["kind"], row["before"], row["after"]) for row in found.to_pylist()] == [
        ("insert", None, {"id": 1, "v": "a"}),
        ("update", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        ("insert", None, {"id": 2, "v": None}),
        ("delete", {"id": 1, "v": "b"}, None),
    ]
    stamps = np.array(found["commit_ts"].to_pylist()) - BEGIN_TS
    assert stamps.tolist() == [1, 2, 3, 4]


def test_refused_row_is_reported_with_column_and_commit_ts() -> None:
    with pytest.raises(EncodeError, match=rf"`db`\.`t`\.`v` at commit_ts {BEGIN_TS + 2}: ") as refused:
        list(tables_of(segment(("insert", {}, {1: 1, 2: b"a"}), ("insert", {}, {1: 2, 2: b"\xff"}))))
    assert "UTF" in str(refused.value)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64))
def test_path_of_any_name_is_one_safe_directory_name(name: str) -> None:
    made = path_of(name)
    assert Path(made).name == made
    assert not made.startswith((".", "_"))
    assert not set(made) & set("*?{}[]=,:/\\ ")
    assert path_of(name + "x") != made


def test_names_that_differ_only_in_escaped_characters_get_different_directories() -> None:
    assert len({path_of(name) for name in ("a.b", "a%2Eb", "a_b", "_a", "%5Fa", "a b", "表")}) == 7
    assert path_of("orders_2024-a") == "orders_2024-a"
    assert path_of("表") == "表"
