"""The walk: steps, positions, and where it stops. What runs before which row is in tests/cases/schema/order.txt."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType, Job

from drainer.batch.served import Batch, ServedBinlog, read_batch
from drainer.schema.errors import JobUnknown
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy, RewriteRule, RewriteRules
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Advance, Ddl, Rows
from tests.support.schema_case import BEGIN_TS, Case, Runner, belongs, cases, ddl, job, row, table, ts

DONE = [
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d"), finished_ts=1),
    job(2, ActionType.CREATE_TABLE, 2, schema_id=2, table_id=10, table_info=table(10, "t", ["a"]), finished_ts=1),
]
ADD_B = job(
    9,
    ActionType.ADD_COLUMN,
    9,
    schema_id=2,
    table_id=10,
    table_info=table(10, "t", ["a", "b"]),
    query="alter table t add column b int",
)
END = ts(900_000)


def opened(*jobs: Job, policy: Policy | None = None) -> Schema:
    return Schema.open(JobHistory([*DONE, *jobs]), position_ts=BEGIN_TS, policy=policy)


def batch_of(*binlogs: ServedBinlog) -> Batch:
    return read_batch(binlogs, after_ts=BEGIN_TS, until_ts=END)


def positions(steps: Iterable[object]) -> list[tuple[str, int]]:
    """(kind, position after it) of each step."""
    shown = []
    for step in steps:
        if isinstance(step, Rows | Advance):
            shown.append((type(step).__name__, step.until_ts))
        elif isinstance(step, Ddl):
            shown.append(("early" if step.early else "ddl", step.commit_ts))
    return shown


def test_steps_cover_the_range_without_a_gap() -> None:
    """Each Rows begins where the destination stands, and the last step ends at the batch's end."""
    batch = batch_of(row(ts(1), 2, 10), ddl(ts(2), 9, "ALTER …;"), row(ts(3), 9, 10))
    steps = list(walk(batch, opened(ADD_B)))
    assert positions(steps) == [("Rows", ts(2) - 1), ("ddl", ts(2)), ("Rows", END)]
    assert [(s.after_ts, s.until_ts) for s in steps if isinstance(s, Rows)] == [(BEGIN_TS, ts(2) - 1), (ts(2), END)]


def test_early_ddl_comes_just_before_row_that_needs_it() -> None:
    batch = batch_of(row(ts(1), 2, 10), row(ts(2), 9, 10), ddl(ts(3), 9, "ALTER …;"))
    steps = list(walk(batch, opened(ADD_B)))
    assert positions(steps) == [("Rows", ts(2) - 1), ("early", ts(2) - 1), ("Rows", END)]
    early = steps[1]
    assert isinstance(early, Ddl)
    assert early.own_ts == ts(3)


IGNORED = Policy(ignored_ts=frozenset({ts(1)}))
NOTHING_RUNS = Policy(rewrite=RewriteRules([RewriteRule((), job_id=9)]))


@pytest.mark.parametrize(
    ("binlogs", "jobs", "policy", "last", "versions"),
    [
        ([], [], None, "Advance", (2,)),
        ([row(ts(1), 2, 10)], [], IGNORED, "Advance", (2,)),
        ([ddl(ts(1), 9, "x")], [ADD_B], IGNORED, "Advance", (2, 9)),
        ([ddl(ts(1), 4711, "x")], [], IGNORED, "Advance", (2,)),  # its job is unknown
        ([ddl(ts(1), 9, "x"), row(ts(2), 9, 10)], [ADD_B], Policy(sync_ddl=False), "Rows", (2, 9)),
        ([ddl(ts(2), 9, "x")], [ADD_B], NOTHING_RUNS, "Advance", (2, 9)),
        # The announcement of a dropped column: it is written while the job runs, when no history has it.
        ([ddl(ts(1), 9, "ALTER … DROP", state=1), row(ts(2), 2, 10)], [], None, "Rows", (2,)),
        # FinishedTS is after the binlog's commit_ts: a start may fall between them.
        ([row(ts(1), 9, 10)], [replace(ADD_B, finished_ts=ts(500))], None, "Rows", (2, 9)),
    ],
)
def test_batch_without_a_ddl_to_run_is_one_step(
    binlogs: list[ServedBinlog], jobs: list[Job], policy: Policy | None, last: str, versions: tuple[int, ...]
) -> None:
    """A DDL that is not to run changes the schema all the same."""
    schema = opened(*jobs, policy=policy)
    assert positions(walk(batch_of(*binlogs), schema)) == [(last, END)]
    assert schema.catalog.tables[10].versions == versions


def test_ddl_that_the_stream_leaves_out_is_not_run() -> None:
    """Rows have the table as it is after it. One that is there, or has not finished in the batch, runs."""
    for own, finished_ts, shown in (
        ([], ts(2), []),
        ([ddl(ts(2), 9, "ALTER …;")], ts(2), [("ddl", ts(2))]),
        ([], END + 1, [("early", ts(3) - 1)]),
    ):
        schema = opened(replace(ADD_B, finished_ts=finished_ts))
        schema.is_left_out = lambda job: job.id == 9
        found = [*walk(batch_of(row(ts(1), 2, 10), *own, row(ts(3), 9, 10)), schema)]
        assert [one for one in positions(found) if one[0] != "Rows"] == shown
        last = found[-1]
        assert isinstance(last, Rows) and "b" in {column.name for column in last.view.tables[10].current.columns}


def test_ddl_at_end_of_batch_needs_no_advance_step() -> None:
    batch = read_batch([ddl(ts(2), 9, "x")], after_ts=BEGIN_TS, until_ts=ts(2))
    assert positions(walk(batch, opened(ADD_B))) == [("ddl", ts(2))]


def test_ddl_changes_schema_only_when_next_step_is_taken() -> None:
    """A DDL that failed downstream leaves the schema as it was, and comes again."""
    schema = opened(ADD_B)
    batch = batch_of(ddl(ts(2), 9, "x"), row(ts(3), 9, 10))
    for step in walk(batch, schema):
        assert isinstance(step, Ddl)
        break
    assert schema.catalog.tables[10].versions == (2,)
    assert positions(walk(batch, schema)) == [("ddl", ts(2)), ("Rows", END)]
    assert schema.catalog.tables[10].versions == (2, 9)


def test_job_marked_done_by_destination_is_not_run_again() -> None:
    batch = batch_of(row(ts(1), 9, 10), ddl(ts(2), 9, "x"))
    schema = opened(ADD_B)
    assert positions(walk(batch, schema, job_done={9}.__contains__)) == [("Rows", END)]
    assert schema.catalog.tables[10].versions == (2, 9)


def test_an_unknown_job_ends_the_batch_before_its_binlog() -> None:
    schema = opened()
    batch = batch_of(row(ts(1), 2, 10), ddl(ts(2), 9, "ALTER …;"), row(ts(3), 9, 10))
    steps = walk(batch, schema)
    assert positions([next(steps)]) == [("Rows", ts(2) - 1)]
    with pytest.raises(JobUnknown) as caught:
        next(steps)
    error = caught.value
    assert (error.job_id, error.commit_ts, error.final_ts) == (9, ts(2), ts(2) - 1)

    schema.learn([ADD_B])
    schema.settle(9)
    assert positions(walk(batch.after(error.final_ts), schema)) == [("ddl", ts(2)), ("Rows", END)]


def test_unsettled_schema_version_ends_batch_before_its_row() -> None:
    """With or without complete sources, they are read again once per new version."""
    schema = opened()
    batch = batch_of(row(ts(1), 8, 10))
    with pytest.raises(JobUnknown) as caught:
        list(walk(batch, schema))
    assert (caught.value.job_id, caught.value.version, caught.value.final_ts) == (None, 8, ts(1) - 1)
    schema.settle(8)
    assert positions(walk(batch, schema)) == [("Rows", END)]


def test_segment_view_belongs_excludes_versions_of_later_ddl() -> None:
    schema = opened(ADD_B)
    first = next(iter(walk(batch_of(row(ts(1), 2, 10), row(ts(2), 9, 10)), schema)))
    assert isinstance(first, Rows)
    assert belongs(first.view, 8)
    assert not belongs(first.view, 9)


@pytest.mark.parametrize(
    "rule", [RewriteRule(("SQL 1", "SQL 2"), job_id=9), RewriteRule(("SQL 1", "SQL 2"), commit_ts=ts(2))]
)
def test_rewrite_rule_replaces_ddl_statements(rule: RewriteRule) -> None:
    schema = opened(ADD_B, policy=Policy(rewrite=RewriteRules([rule])))
    (step, _) = walk(batch_of(ddl(ts(2), 9, "x")), schema)
    assert isinstance(step, Ddl)
    assert (step.use, step.sql, step.query) == ("d", ("SQL 1", "SQL 2"), "x")


def test_ddl_step_names_tables_it_touches() -> None:
    step = next(iter(walk(batch_of(ddl(ts(2), 9, "x")), opened(ADD_B))))
    assert isinstance(step, Ddl)
    assert step.touched_names == (("d", "t"),)
    assert step.before is not None
    assert step.after is not None
    assert [len(info.columns) for info in (step.before, step.after)] == [1, 2]


def test_ddl_may_exist_is_set_only_at_first_start() -> None:
    old = job(9, ActionType.ADD_COLUMN, 9, schema_id=2, table_id=10, table_info=ADD_B.table_info, start_ts=BEGIN_TS - 5)
    for first_start in (True, False):
        schema = Schema.open(JobHistory([*DONE, old]), position_ts=BEGIN_TS, first_start=first_start)
        step = next(iter(walk(batch_of(ddl(ts(2), 9, "x")), schema)))
        assert isinstance(step, Ddl)
        assert step.may_exist is first_start


# Every case of tests/cases/schema.


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_schema_case_of_text_file_gives_expected_steps(case: Case) -> None:
    Runner().run(case)
