"""What a line says of each value, and that nothing of it is lost."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import enum_text, flatten, set_text
from binlog.tidb.job import ActionType, Job
from binlog.tidb.json import BinaryJSON, decode_text, encode_json
from binlog.tidb.table import TableInfo
from binlog.tidb.time import date_text, datetime_text, duration_text
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.stream import StreamDecoder
from drainer.protocol.errors import EncodeError
from drainer.row.column_type import ColumnType, TypeClass, type_class_of
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.file.files import ByTable, slot_of_table
from drainer.sink.file.lines import ddl_line, lines_by_slot, lines_in_order, texts_of
from tests.support.examples import FEW
from tests.support.row_case import BEGIN_TS, INT, TEXT, table, transaction, view_of
from tests.unit.drainer.changes.cases import KINDS, datums, tables, values_of


def written(info: TableInfo, values: dict[int, Datum]) -> dict[str, Any]:
    """The new row of a line about one insert."""
    payload = transaction([(info, ("insert", {}, values))], commit_ts=BEGIN_TS)
    (line,) = lines_in_order(StreamDecoder(view_of(info)).segment([payload], 0, 1))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)["new"]
    return found


def one(kind: FieldType, value: Datum) -> Any:
    return written(table([("id", INT), ("c", kind)], handle="id"), {1: 1, 2: value})["c"]


def kind_of(tp: Tp, *, flen: int = 20, decimal: int = 0, elems: tuple[str, ...] = (), flag: int = 0) -> FieldType:
    return FieldType(tp, flag, flen, decimal, "utf8mb4", "utf8mb4_bin", elems)


BYTES = FieldType(Tp.BLOB, Flag.BINARY, 100, 0, "binary", "binary", ())


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (kind_of(Tp.LONGLONG), -(1 << 63), -(1 << 63)),
        (kind_of(Tp.LONGLONG, flag=Flag.UNSIGNED), Uint((1 << 64) - 1), (1 << 64) - 1),
        (kind_of(Tp.NEWDECIMAL, flen=30, decimal=2), Decimal("-1234567890123456789012345678.90", 30, 2),
         "-1234567890123456789012345678.90"),
        (kind_of(Tp.FLOAT, decimal=-1), struct.unpack("<f", struct.pack("<f", 0.1))[0], 0.1),
        (kind_of(Tp.DOUBLE, decimal=-1), 0.1 + 0.2, 0.1 + 0.2),
        (kind_of(Tp.DOUBLE, decimal=-1), 1e300, 1e300),
        (TEXT, "a\"\\\n\0é😀".encode(), "a\"\\\n\0é😀"),
        (TEXT, b"a\xff\xe9", "a\udcff\udce9"),
        (BYTES, bytes(range(256)), base64.b64encode(bytes(range(256))).decode()),
        (kind_of(Tp.DATETIME, decimal=3), flatten("2026-11-22 10:11:12.345", kind_of(Tp.DATETIME, decimal=3)),
         "2026-11-22 10:11:12.345"),
        (kind_of(Tp.DATE), flatten("0000-00-00", kind_of(Tp.DATE)), "0000-00-00"),
        (kind_of(Tp.DURATION, decimal=0), -3_020_399 * 1_000_000_000, "-838:59:59"),
        (kind_of(Tp.ENUM, elems=("a", "")), Uint(1), "a"),
        (kind_of(Tp.ENUM, elems=("a", "")), Uint(2), 2),
        (kind_of(Tp.ENUM, elems=("a", "")), Uint(0), 0),
        (kind_of(Tp.SET, elems=("a", "b")), Uint(3), "a,b"),
        (kind_of(Tp.SET, elems=("a", "")), Uint(2), 2),
        (kind_of(Tp.BIT, flen=64), Uint((1 << 64) - 1), (1 << 64) - 1),
        (kind_of(Tp.JSON), BinaryJSON(encode_json({"a": [1, None]})), '{"a": [1, null]}'),
        (kind_of(Tp.JSON), BinaryJSON(encode_json(None)), "null"),
        (kind_of(Tp.JSON), None, None),
    ],
)  # fmt: skip
def test_json_value_of_each_type_is_as_documented(kind: FieldType, value: Datum, shown: object) -> None:
    found = one(kind, value)
    assert (found, type(found)) == (shown, type(shown))


def read_back(kind: FieldType, shown: Any) -> object:
    """What docs/jsonl.md says a value means: the value, or its text where that is all of it."""
    type_class = type_class_of(kind)
    if type_class is TypeClass.BYTES:
        return base64.b64decode(shown, validate=True)
    if type_class is TypeClass.TEXT:
        return shown.encode("utf-8", "surrogateescape")
    if type_class is TypeClass.FLOAT:
        return struct.pack("<f" if kind.tp is Tp.FLOAT else "<d", shown)
    return shown


def meant(kind: FieldType, value: Any) -> object:
    type_class = type_class_of(kind)
    if type_class is TypeClass.FLOAT:
        return struct.pack("<f" if kind.tp is Tp.FLOAT else "<d", value + 0.0)  # a row of TiDB's has no -0.0
    if type_class is TypeClass.DECIMAL:
        return str(value)
    if type_class is TypeClass.DATE:
        return date_text(value)
    if type_class is TypeClass.DATETIME:
        return datetime_text(value, kind.fsp)
    if type_class is TypeClass.TIME:
        return duration_text(value, kind.fsp)
    if type_class is TypeClass.JSON:
        return decode_text(value)[0]
    if type_class is TypeClass.ENUM:
        return enum_text(value, kind) or int(value)
    if type_class is TypeClass.SET:
        return int(value) if "" in kind.elems else set_text(value, kind)
    return bytes(value) if isinstance(value, bytes) else int(value)


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), datums(kind))))
def test_json_value_of_any_datum_reads_back_equal(case: tuple[FieldType, Datum]) -> None:
    kind, value = case
    assert read_back(kind, one(kind, value)) == meant(kind, value)


@FEW
@given(data=st.data(), info=tables())
def test_json_row_has_every_column_under_its_name(data: st.DataObject, info: TableInfo) -> None:
    values = data.draw(values_of(info))
    found = written(info, values)
    assert list(found) == [column.name for column in info.columns]
    for column in info.columns:
        value = values[column.id]
        shown = found[column.name]
        assert (shown is None) == (value is None)


def test_lines_of_table_are_in_one_slot_in_commit_order() -> None:
    infos = [table([("id", INT)], handle="id", table_id=n, name=f"t{n}") for n in range(1, 9)]
    payloads = [
        transaction([(info, ("insert", {}, {1: n})) for info in infos], commit_ts=BEGIN_TS + n) for n in range(20)
    ]
    found = lines_by_slot(StreamDecoder(view_of(*infos)).segment(payloads, 0, 1), ByTable(3))
    assert sum(map(len, found.values())) == 160
    assert len(found) == 3
    for slot, lines in found.items():
        read = [json.loads(line) for line in lines]
        places = [(line["commit_ts"], line["place"]) for line in read]
        assert places == sorted(places)
        assert {slot_of_table("db", line["table"], 3) for line in read} == {slot}


def test_slot_of_table_equals_slotting_version_1() -> None:
    """Part of a batch's recorded cut: another answer needs another version."""
    assert [slot_of_table("shop", name, 16) for name in ("orders", "lines", "", "ü")] == [2, 6, 5, 5]


def test_invalid_value_is_reported_with_column_and_commit_ts() -> None:
    import pyarrow as pa

    with pytest.raises(DecodeError):
        texts_of(ColumnType.of(kind_of(Tp.JSON)), pa.array([b"\x99\x00"], pa.binary()))
    info = table([("id", INT), ("c", kind_of(Tp.DOUBLE, decimal=-1))], handle="id")
    with pytest.raises(EncodeError, match=rf"column `db`\.`t`\.`c` at commit_ts {BEGIN_TS}: "):
        written(info, {1: 1, 2: float("inf")})


def test_ddl_line_names_its_schema_table_job_and_statements() -> None:
    info = table([("id", INT)], handle="id", name="t")
    job = Job(5, ActionType.CREATE_TABLE, schema_version=9, start_ts=BEGIN_TS - 9)
    change = TableChange(None, Located(info.id, "d", info))
    line = json.loads(ddl_line(Ddl(job, BEGIN_TS, True, "d", "d", ("x",), "x\n/* é */", 0, (change,)), 3))
    assert line == {
        "commit_ts": BEGIN_TS, "start_ts": BEGIN_TS - 9, "place": 3, "kind": "ddl", "schema": "d", "table": "t",
        "job_id": 5, "early": True, "query": "x\n/* é */", "sql": ["x"],
    }  # fmt: skip
    of_database = json.loads(ddl_line(Ddl(job, BEGIN_TS, False, "d", "", ("x",), "x", BEGIN_TS, ()), 0))
    assert (of_database["schema"], of_database["table"]) == ("d", "")
