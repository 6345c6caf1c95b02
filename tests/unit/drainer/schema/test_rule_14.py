"""Rule 14 for any order of binlogs, versions and batches: the walk's promises, checked on made-up histories."""

from __future__ import annotations

from collections.abc import Sequence

from binlog import envelope
from binlog.tidb.job import ActionType, Job
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.served import ServedBinlog, read_batch
from drainer.schema.history.base import JobHistory
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Advance, Ddl, Rows
from tests.support.schema_case import BEGIN_TS, belongs, ddl, job, row, table, ts, versions_of

TABLES = 3
BEGUN = [
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d"), finished_ts=1),
    *(
        job(
            2 + i,
            ActionType.CREATE_TABLE,
            2,
            schema_id=2,
            table_id=10 + i,
            table_info=table(10 + i, f"t{i}"),
            finished_ts=1,
        )
        for i in range(TABLES)
    ),
]
END = ts(9000)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Job], list[ServedBinlog]]:
    """Jobs with rising versions and gaps, each with a DDL binlog anywhere (or lost), and rows of any version."""
    jobs, binlogs, version = [], [], 2
    columns = {10 + i: ["id"] for i in range(TABLES)}
    slots = iter(draw(st.permutations(range(1, 60))))
    for number in range(draw(st.integers(0, 8))):
        version += draw(st.integers(1, 3))
        table_id = draw(st.sampled_from(sorted(columns)))
        columns[table_id] = [*columns[table_id], f"c{version}"]
        info = table(table_id, f"t{table_id - 10}", columns[table_id])
        jobs.append(
            job(
                100 + number, ActionType.ADD_COLUMN, version, schema_id=2, table_id=table_id, table_info=info, query="q"
            )
        )
        if draw(st.booleans()):
            binlogs.append(ddl(ts(next(slots)), 100 + number, "x"))
    for _ in range(draw(st.integers(0, 20))):
        binlogs.append(row(ts(next(slots)), draw(st.integers(2, version + 1)), draw(st.integers(10, 9 + TABLES))))
    return jobs, binlogs


@given(histories(), st.lists(st.integers(1, 60), max_size=4))
def test_rule_14_holds_for_any_order_of_binlogs_versions_and_batches(
    history: tuple[list[Job], list[ServedBinlog]], cuts: Sequence[int]
) -> None:
    jobs, binlogs = history
    schema = Schema.open(JobHistory([*BEGUN, *jobs]), position_ts=BEGIN_TS)
    schema.settle(1 << 40)
    versions = {j.id: j.schema_version for j in jobs}
    ran: list[int] = []
    rows: list[int] = []
    position = BEGIN_TS
    for end in [*(ts(cut) for cut in sorted(set(cuts))), END]:
        inside = [b for b in binlogs if position < b.commit_ts <= end]
        for step in walk(read_batch(inside, after_ts=position, until_ts=end), schema):
            if isinstance(step, Ddl):
                assert position <= step.commit_ts
                ran.append(step.job.id)
                position = step.commit_ts
            elif isinstance(step, Rows):
                assert position == step.after_ts
                for commit_ts, version in versions_of(step):
                    needed = {i for i, v in versions.items() if v <= version}
                    assert needed <= set(ran), "a row before a DDL it needs"
                    assert belongs(step.view, version)
                    rows.append(commit_ts)
                position = step.until_ts
            else:
                assert isinstance(step, Advance)
                position = step.until_ts
        assert position == end

    assert ran == sorted(ran, key=versions.__getitem__), "in the order of versions"
    assert len(ran) == len(set(ran)), "once"
    sent = {envelope_job(b) for b in binlogs} - {0}
    assert sent <= set(ran)
    assert rows == sorted(b.commit_ts for b in binlogs if not envelope_job(b))


def envelope_job(binlog: ServedBinlog) -> int:
    """The DDL job id of a binlog, 0 for rows."""
    return envelope.scan(binlog.payload).ddl_job_id
