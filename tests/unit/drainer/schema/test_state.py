"""Opening a schema: which jobs count as done."""

import pytest
from binlog.tidb.job import ActionType, Job

from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from tests.support.schema_case import job, table, ts

CREATE = job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d"), finished_ts=ts(10))


def created(job_id: int, finished_ts: int) -> Job:
    info = table(100 + job_id, f"t{job_id}")
    made = job(job_id, ActionType.CREATE_TABLE, job_id, schema_id=2, table_id=info.id, table_info=info)
    # `job` fills in a FinishedTS of 0.
    return Job.from_json({**made.to_json(), "binlog": {**made.to_json()["binlog"], "FinishedTS": finished_ts}})  # type: ignore[dict-item]


def pending(schema: Schema) -> list[int]:
    found = []
    while (due := schema.due(1 << 40)) is not None:
        found.append(due.id)
        schema.commit(schema.plan(due, query="", commit_ts=0, own_ts=0, early=True))
    return found


def test_job_finished_before_position_counts_as_done() -> None:
    history = JobHistory([CREATE, created(2, ts(20)), created(3, ts(30))])
    schema = Schema.open(history, position_ts=ts(20), job_done=lambda _: False)
    assert set(schema.catalog.tables) == {102}
    assert schema.applied_version == 2
    assert pending(schema) == [3]
    assert schema.applied_version == 3


def test_job_with_mark_counts_as_done() -> None:
    """An early DDL ran, and the position stands before its binlog."""
    history = JobHistory([CREATE, created(2, ts(20)), created(3, ts(30))])
    schema = Schema.open(history, position_ts=ts(15), job_done={2}.__contains__)
    assert set(schema.catalog.tables) == {102}
    assert pending(schema) == [3]


def test_job_without_mark_is_pending_in_spite_of_lower_version() -> None:
    """A DDL on another table may have finished later with a lower version."""
    history = JobHistory([CREATE, created(2, ts(30)), created(3, ts(20))])
    schema = Schema.open(history, position_ts=ts(20), schema_version=3, job_done={3}.__contains__)
    assert pending(schema) == [2]


def test_jobs_are_done_by_version_for_upstream_checkpoint() -> None:
    history = JobHistory([CREATE, created(2, ts(30)), created(3, ts(40))])
    assert pending(Schema.open(history, position_ts=ts(20), schema_version=2)) == [3]


def test_job_without_finished_ts_is_done_by_mark_or_version() -> None:
    history = JobHistory([CREATE, created(2, 0), created(3, 0)])
    assert pending(Schema.open(history, position_ts=ts(20), schema_version=2, job_done=lambda _: False)) == [3]
    assert pending(Schema.open(history, position_ts=ts(20), job_done={2}.__contains__)) == [3]


def test_job_learned_late_with_finish_before_start_only_changes_schema() -> None:
    schema = Schema.open(JobHistory([CREATE]), position_ts=ts(20), job_done=lambda _: False)
    assert schema.learn([created(2, ts(15)), created(3, ts(30))]) == 2
    assert set(schema.catalog.tables) == {102}
    assert pending(schema) == [3]
    assert schema.learn([created(3, ts(30))]) == 0


def test_schema_view_is_unchanged_by_later_jobs() -> None:
    schema = Schema.open(JobHistory([CREATE, created(2, ts(30))]), position_ts=ts(20))
    before = schema.view()
    assert before is schema.view()
    assert before.ddl_due_version == 2
    assert pending(schema) == [2]
    assert before.tables == {}
    assert set(schema.view().tables) == {102}
    assert schema.view().ddl_due_version == 0


@pytest.mark.parametrize("count", [5000])
def test_column_results_of_view_are_bounded_in_number(count: int) -> None:
    schema = Schema.open(JobHistory(), position_ts=0, complete=False)
    for column_id in range(count):
        schema.skip_column(10, column_id, 7)
    unknown_columns = schema.view().unknown_columns
    assert unknown_columns is not None
    assert len(unknown_columns) < count
    assert schema.view().skips_column(10, count - 1, 7)
    assert not schema.view().skips_column(10, 0, 7)
