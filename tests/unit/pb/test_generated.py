"""The committed modules are what the .proto files say today, and the field numbers are upstream's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from binlog.pb import binlog_pb2, pb_binlog_pb2, pump_ext_pb2, pump_pb2, secondary_binlog_pb2
from google.protobuf.message import Message

ROOT = Path(__file__).resolve().parents[3]
PROTO = ROOT / "proto"


def test_regenerated_modules_are_the_committed_ones(tmp_path: Path) -> None:
    """`make proto` after changing a .proto; a forgotten run shows here."""
    sources = sorted((PROTO / "binlog" / "pb").glob("*.proto"))
    assert sources
    options = [f"-I{PROTO}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *map(str, sources)], check=True)
    generated = sorted((tmp_path / "binlog" / "pb").iterdir())
    assert len(generated) == 2 * len(sources)
    for path in generated:
        assert path.read_text() == (PROTO / "binlog" / "pb" / path.name).read_text(), f"{path.name}: run `make proto`"


NUMBERS: list[tuple[type[Message], dict[str, int]]] = [
    (binlog_pb2.TableMutation, {"table_id": 1, "inserted_rows": 2, "updated_rows": 3, "deleted_ids": 4,
                                "deleted_pks": 5, "deleted_rows": 6, "sequence": 7}),
    (binlog_pb2.PrewriteValue, {"schema_version": 1, "mutations": 2}),
    (binlog_pb2.Binlog, {"tp": 1, "start_ts": 2, "commit_ts": 3, "prewrite_key": 4, "prewrite_value": 5,
                         "ddl_query": 6, "ddl_job_id": 7, "ddl_schema_state": 8,
                         "writer": 100}),  # ours alone: far from what upstream may add
    (pump_pb2.WriteBinlogReq, {"clusterID": 1, "payload": 2}),
    (pump_pb2.PullBinlogReq, {"clusterID": 1, "startFrom": 2}),
    (pump_pb2.Pos, {"suffix": 1, "offset": 2}),
    (pump_pb2.Meta, {"startTs": 1, "commitTs": 2}),
    (pump_pb2.Entity, {"pos": 1, "payload": 2, "checksum": 3, "meta": 4}),
    (secondary_binlog_pb2.Column, {"is_null": 1, "int64_value": 2, "uint64_value": 3, "double_value": 4,
                                   "bytes_value": 5, "string_value": 6}),
    (secondary_binlog_pb2.TableMutation, {"type": 1, "row": 2, "change_row": 3}),
    (secondary_binlog_pb2.Table, {"schema_name": 1, "table_name": 2, "column_info": 3, "mutations": 4,
                                  "unique_keys": 5}),
    (secondary_binlog_pb2.Binlog, {"type": 1, "commit_ts": 2, "dml_data": 3, "ddl_data": 4, "time_zone": 5}),
    (pb_binlog_pb2.Column, {"name": 1, "tp": 2, "mysql_type": 3, "value": 4, "changed_value": 5}),
    (pb_binlog_pb2.Event, {"schema_name": 1, "table_name": 2, "tp": 3, "row": 4}),
    (pb_binlog_pb2.Binlog, {"tp": 1, "commit_ts": 2, "dml_data": 3, "ddl_query": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "numbers"), NUMBERS, ids=[m.DESCRIPTOR.full_name for m, _ in NUMBERS])
def test_field_numbers_are_the_spec_s(message: type[Message], numbers: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == numbers


def test_services_keep_the_names_that_clients_call() -> None:
    assert pump_pb2.DESCRIPTOR.services_by_name["Pump"].full_name == "binlog.Pump"
    assert pump_ext_pb2.DESCRIPTOR.services_by_name["PumpExt"].full_name == "binlog.ext.PumpExt"
