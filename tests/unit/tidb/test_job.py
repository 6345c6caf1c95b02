"""DDL jobs from and to JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from binlog.errors import DecodeError
from binlog.tidb.job import ActionType, Job, JobState
from binlog.tidb.table import DBInfo
from binlog.tidb.types import SchemaState
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import survives
from tests.unit.tidb.tables import handle_table

CREATE = Job(
    id=105,
    type=ActionType.CREATE_TABLE,
    schema_id=2,
    table_id=7,
    schema_name="test",
    table_name="t",
    query="create table t(id bigint primary key, name varchar(24)) /* <&> \u2028 */",
    schema_version=53,
    finished_ts=449112233458673665,
    start_ts=449112233419341825,
    table_info=handle_table(),
    db_info=DBInfo(2, "test"),
    multiple_table_infos=(handle_table(),),
)


def test_job_read_from_its_own_json_or_pickle_is_equal() -> None:
    assert Job.from_json(CREATE.to_json()) == CREATE
    assert Job.from_json(CREATE.dump()) == CREATE
    assert pickle.loads(pickle.dumps(CREATE)) == CREATE
    assert CREATE.took_effect


def test_job_json_text_is_escaped_as_by_go() -> None:
    text = CREATE.dump()
    assert b"\\u003c\\u0026\\u003e \\u2028" in text
    assert b"<" not in text
    assert b": " not in text
    assert json.loads(text) == CREATE.to_json()


def test_job_json_without_optional_fields_has_zero_values() -> None:
    job = Job.from_json(b'{"id":1,"type":3}')
    assert (job.schema_version, job.table_info, job.has_history) == (0, None, False)
    assert job.to_json()["binlog"] is None
    v4 = {
        "id": 1,
        "type": 2,
        "state": 6,
        "schema_state": 0,
        "binlog": {"SchemaVersion": 9, "FinishedTS": 5},
        "version": 1,
    }
    job = Job.from_json(v4)
    assert (job.schema_version, job.finished_ts, job.schema_state) == (9, 5, SchemaState.NONE)


def test_unknown_job_type_and_state_numbers_are_kept() -> None:
    job = Job.from_json({"id": 1, "type": 999, "state": 77, "schema_state": 66})
    assert (job.type, job.state, job.schema_state) == (999, 77, 66)
    assert not job.took_effect
    assert Job.from_json(job.dump()) == job


def test_job_error_and_untyped_fields_are_written_again() -> None:
    error = {"class": 20, "code": 1292, "message": "Truncated", "rfccode": "types:1292"}
    meta = {"sql_mode": 1, "warnings": {}}
    job = Job.from_json({"id": 5, "state": 3, "err": error, "reorg_meta": meta, "raw_args": [1, None], "secret": 1})
    assert job.error == error
    assert job.state == JobState.ROLLBACK_DONE
    document = job.to_json()
    assert (document["err"], document["reorg_meta"], document["raw_args"]) == (error, meta, [1, None])
    assert "secret" not in document
    assert Job.from_json({"id": 5}).error is None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"id": "x"}, "Job.id"),
        ({"id": 7, "query": 5}, "Job 7.query"),
        ({"id": 7, "binlog": []}, "Job 7.binlog"),
        ({"id": 7, "binlog": {"TableInfo": {"id": "x"}}}, "Job 7.binlog.TableInfo.id"),
        ({"id": 7, "binlog": {"MultipleTableInfos": {}}}, "Job 7.binlog.MultipleTableInfos"),
    ],
)
def test_job_field_of_wrong_type_raises_decode_error_with_its_path(document: dict[str, Any], field: str) -> None:
    with pytest.raises(DecodeError, match=field):
        Job.from_json(document)


def test_damaged_job_json_raises_decode_error_only() -> None:
    survives(Job.from_json, CREATE.dump(), rounds=500)


json_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(CREATE.to_json())), json_documents)
def test_random_value_in_job_field_raises_decode_error_only(name: str, value: Any) -> None:
    survives(lambda _: Job.from_json({**CREATE.to_json(), name: value}), b"x", rounds=0)


@given(st.sampled_from(sorted(handle_table().to_json())), json_documents)
def test_random_value_in_table_field_of_job_raises_decode_error_only(name: str, value: Any) -> None:
    table = {**handle_table().to_json(), name: value}
    survives(lambda _: Job.from_json({"id": 1, "binlog": {"TableInfo": table}}), b"x", rounds=0)


def test_action_types_and_job_states_have_tidb_numbers() -> None:
    assert [int(a) for a in ActionType] == [n for n in range(73) if n != 66]
    assert [int(s) for s in JobState] == list(range(11))
    assert ActionType.EXCHANGE_TABLE_PARTITION == 42
    assert ActionType.RENAME_TABLES == 47
    assert ActionType.MULTI_SCHEMA_CHANGE == 61
