"""The TableInfo and the DDL text of declared tables against what a real TiDB stored and sent for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from binlog.pb import binlog_pb2
from binlog.tidb.job import Job
from binlog.tidb.table import TableInfo

from pumpclient.sdk import schema, sql
from pumpclient.sdk import types as t
from pumpclient.sdk.table import Column, Index, Table
from tests.support.capture import GOLDEN, CaptureSet


def pk(kind: Any) -> tuple[Column, Column]:
    return Column("k", kind, primary_key=True), Column("v", t.Int())


def c(name: str, kind: Any, **options: Any) -> Column:
    return Column(name, kind, **options)


def i(*names: str) -> list[Column]:
    return [Column(name, t.Int()) for name in names]


ID = Column("id", t.Int(), primary_key=True)

TYPES = [
    Table("t_int", ID, c("ti", t.TinyInt()), c("tiu", t.TinyInt(unsigned=True)), c("si", t.SmallInt()),
          c("siu", t.SmallInt(unsigned=True)), c("mi", t.MediumInt()), c("miu", t.MediumInt(unsigned=True)),
          c("i", t.Int()), c("iu", t.Int(unsigned=True)), c("bi", t.BigInt()), c("biu", t.BigInt(unsigned=True)),
          c("bo", t.Bool()), c("z", t.Int()), c("nn", t.BigInt(), nullable=False, default=-5)),
    Table("t_bit", ID, *(c(f"b{n}", t.Bit(n)) for n in (1, 7, 8, 13, 32, 63, 64)),
          c("bn", t.Bit(5), nullable=False, default=0b10101)),
    Table("t_json", ID, c("j", t.JSON()), c("k", t.JSON(), nullable=False), c("v", t.VarChar(10))),
    Table("p_bigint", *pk(t.BigInt())),
    Table("p_ubigint", *pk(t.BigInt(unsigned=True))),
    Table("p_dec", *pk(t.NumericType(20, 5))),
    Table("p_float", *pk(t.Float())),
    Table("p_double", *pk(t.Double())),
    Table("p_date", *pk(t.Date())),
    Table("p_dt", *pk(t.DateTime(6))),
    Table("p_ts", *pk(t.Timestamp(3))),
    Table("p_time", *pk(t.Time(3))),
    Table("p_enum", *pk(t.Enum("a", "b", "c"))),
    Table("p_set", *pk(t.Set("a", "b", "c"))),
    Table("p_bit", *pk(t.Bit(40))),
    Table("p_char", *pk(t.Char(10))),
    Table("p_varchar", *pk(t.VarChar(20))),
    Table("p_gci", *pk(t.VarChar(20, collate="utf8mb4_general_ci"))),
    Table("p_uci", *pk(t.VarChar(20, collate="utf8mb4_unicode_ci"))),
    Table("p_binary", *pk(t.Binary(6))),
    Table("p_varbinary", *pk(t.VarBinary(20))),
    Table("p_prefix", c("k", t.VarChar(40)), c("b", t.Blob()), c("v", t.Int()), primary_key=[("k", 5), ("b", 3)]),
    Table("t_onlypk", c("id", t.BigInt(), primary_key=True)),
    Table("t_nokey", c("a", t.Int()), c("b", t.VarChar(10))),
    Table("t_empty", c("id", t.BigInt(), primary_key=True), c("a", t.Int()), c("b", t.VarChar(5))),
]  # fmt: skip

KEYS = [
    Table("k_int", ID, c("v", t.Int()), c("s", t.VarChar(20))),
    Table("k_bigu", c("id", t.BigInt(unsigned=True), primary_key=True), c("v", t.Int())),
    Table("k_str", c("id", t.VarChar(20), primary_key=True), c("v", t.Int())),
    Table("k_comp", c("a", t.Int(), primary_key=True), c("b", t.VarChar(10), primary_key=True),
          c("c", t.DateTime(), primary_key=True), c("v", t.Int()), c("w", t.VarChar(10))),
    Table("k_comp_ci", c("a", t.VarChar(10, collate="utf8mb4_general_ci"), primary_key=True),
          c("b", t.NumericType(10, 3), primary_key=True), c("v", t.Int()), unique={"uv": ["v"]}),
    Table("k_nc", ID, c("v", t.Int()), c("s", t.VarChar(10)), clustered=False),
    Table("k_nc_comp", c("a", t.VarChar(10)), *i("b", "v"), primary_key=["b", "a"], clustered=False),
    Table("k_none", c("a", t.Int()), c("b", t.VarChar(10))),
    Table("k_none_idx", c("a", t.Int()), c("b", t.VarChar(10)), indexes={"ka": ["a"]}),
    Table("k_uk", c("a", t.Int()), c("b", t.VarChar(10)), c("v", t.Int()), unique={"ua": ["a"]}),
    Table("k_uknn", c("a", t.Int(), nullable=False), c("b", t.VarChar(10), nullable=False), c("v", t.Int()),
          unique={"uab": ["a", "b"]}),
    Table("k_ukmulti", ID, c("u1", t.Int()), c("u2", t.VarChar(10)), *i("u3", "v"),
          unique={"k1": ["u1"], "k2": ["u2", "u3"]}, indexes={"kv": ["v"]}),
    Table("k_ukprefix", ID, c("t", t.VarChar(100)), c("b", t.Blob()), unique={"kt": [("t", 5)], "kb": [("b", 4)]}),
    Table("k_par", ID, *i("v")),
    Table("k_chi", ID, *i("pid", "v"), indexes={"kp": ["pid"]}),
    Table("k_case", c("Id", t.Int(), primary_key=True), c("VaL", t.Int()), c("UPPER", t.VarChar(5))),
    Table("k_big", ID, c("v", t.Int()), c("s", t.VarChar(50)), indexes={"kv": ["v"]}),
    Table("k_churn", ID, *i("v", "u"), unique={"ku": ["u"]}),
]  # fmt: skip

# TiDB's text for these has what the SDK does not declare: ZEROFILL.
TEXT_DIFFERS = {"t_int"}


@cache
def jobs(name: str) -> Mapping[str, dict[str, Any]]:
    """CREATE TABLE jobs of a recording by table, and the text TiDB sent under "text"."""
    capture = CaptureSet(GOLDEN / name)
    texts = {}
    for payload in capture.binlogs:
        binlog = binlog_pb2.Binlog.FromString(payload)
        if binlog.ddl_job_id:
            texts[binlog.ddl_job_id] = binlog.ddl_query.decode()
    found = {}
    for line in capture.jobs_text.decode().splitlines():
        line = line.strip().rstrip(",")
        if line.startswith("{"):
            job = json.loads(line)
            if job["type"] == 3:
                found[job["table_name"]] = {**job, "text": texts.get(job["id"])}
    return found


CASES = [pytest.param("types", table, id=table.name) for table in TYPES]
CASES += [pytest.param("keys", table, id=table.name) for table in KEYS]


@pytest.mark.parametrize(("capture", "table"), CASES)
def test_build_table_makes_table_info_recorded_from_tidb(capture: str, table: Table) -> None:
    real = jobs(capture)[table.name]["binlog"]["TableInfo"]
    made = schema.build_table(table, table_id=real["id"], start_ts=real["update_timestamp"]).to_json()
    if table.name == "t_int":
        z = real["cols"][12]["type"]
        assert (z["Flag"], z["Flen"]) == (96, 8)  # ZEROFILL, which is not declared here
        z["Flag"], z["Flen"] = 0, 11
    assert {k: v for k, v in made.items() if k in real} == real


@pytest.mark.parametrize(("capture", "table"), CASES)
def test_create_table_text_equals_text_recorded_from_tidb(capture: str, table: Table) -> None:
    text = jobs(capture)[table.name]["text"]
    if table.name in TEXT_DIFFERS:
        text = text.replace("INT(8) UNSIGNED ZEROFILL", "INT")
    assert sql.create_table(table) == text


def test_alter_table_assigns_ids_offsets_and_flags_as_tidb_does() -> None:
    """ADD COLUMN, ADD UNIQUE, DROP INDEX, DROP COLUMN: ids go on, offsets close up, flags follow the keys."""
    table = Table("t3", ID, *i("a", "b"), c("c", t.VarChar(50)), *i("u"))
    info = schema.build_table(table, table_id=171, start_ts=1)
    info = schema.add_index(info, Index.over("ia", ["a"]))
    info = schema.add_index(info, Index.over("iab", ["a", "b"]))
    info = schema.add_index(info, Index.over("uu", ["u"], unique=True))
    assert [x.type.flag for x in info.columns] == [4099, 8, 0, 0, 4]
    info = schema.drop_index(info, "iab")
    info = schema.add_column(info, c("e", t.Int(), default=5), after="id")
    assert [(x.id, x.name, x.offset) for x in info.columns] == [
        (1, "id", 0), (6, "e", 1), (2, "a", 2), (3, "b", 3), (4, "c", 4), (5, "u", 5)]  # fmt: skip
    assert (info.columns[1].default, info.columns[1].origin_default) == ("5", "5")
    assert [(x.name, x.id, x.columns[0].offset) for x in info.indexes] == [("ia", 1, 2), ("uu", 3, 5)]
    info = schema.drop_column(info, "u")
    assert [x.name for x in info.indexes] == ["ia"]
    assert (info.max_column_id, info.max_index_id) == (6, 3)
    info = schema.add_column(info, c("z", t.Bit(12), default=0b1010_0000_0001), first=True)
    assert info.columns[0].id == 7
    assert info.columns[0].origin_default_bit == b"\x0a\x01"
    assert info.indexes[0].columns[0].offset == 3


@cache
def changed_tables() -> Mapping[int, tuple[TableInfo, TableInfo]]:
    """TableInfo before and after each job of the recording `ddl` that changed a column."""
    before: dict[int, TableInfo] = {}
    found = {}
    for line in CaptureSet(GOLDEN / "ddl").jobs_text.decode().splitlines():
        line = line.strip().rstrip(",")
        if not line.startswith("{"):
            continue
        job = Job.from_json(line)
        if job.table_info is not None:
            if job.table_info.id in before:
                found[job.id] = before[job.table_info.id], job.table_info
            before[job.table_info.id] = job.table_info
    return found


@pytest.mark.parametrize(
    ("job_id", "change"),
    [
        (149, lambda info: schema.change_column(info, "v", c("v", t.BigInt()))),
        (150, lambda info: schema.change_column(info, "s", c("s", t.VarChar(40)))),
        (159, lambda info: schema.change_column(info, "e", c("e", t.Enum("a", "b", "c")))),
        (166, lambda info: schema.rename_column(info, "nn", "nnn")),
        (167, lambda info: schema.change_column(info, "k", c("k", t.Int(), comment="only comment"))),
    ],
)
def test_changed_column_has_table_info_recorded_from_tidb(
    job_id: int, change: Callable[[TableInfo], TableInfo]
) -> None:
    before, after = changed_tables()[job_id]
    made = replace(change(before), update_timestamp=after.update_timestamp)
    assert made.to_json()["cols"] == after.to_json()["cols"]
    assert made.to_json() == after.to_json()
