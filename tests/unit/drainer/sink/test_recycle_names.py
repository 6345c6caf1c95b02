"""Names in the recycle bin say everything that is known of a table, in 64 characters."""

from __future__ import annotations

from binlog.cluster import tso
from hypothesis import example, given
from hypothesis import strategies as st

from drainer.sink import recycle_names
from drainer.sink.base import Identity

OWNER = recycle_names.tag(Identity(7, "main", "n"))


@example((1 << 63) - 1, (1 << 48) - 1, (1 << 48) - 1, "t")
@given(
    st.integers(0, (1 << 63) - 1), st.integers(1, (1 << 48) - 1), st.integers(1, (1 << 48) - 1), st.text(max_size=64)
)
def test_recycled_table_name_is_parsed_back_within_64_characters(
    commit_ts: int, job_id: int, table_id: int, table: str
) -> None:
    name = recycle_names.name_for(OWNER, commit_ts=commit_ts, job_id=job_id, table_id=table_id, table=table)
    assert len(recycle_names.fresh_name(name)) <= 64
    assert recycle_names.kept(OWNER, [name]) == [recycle_names.Kept(commit_ts, job_id, table_id, name)]
    (fresh,) = recycle_names.kept(OWNER, [recycle_names.fresh_name(name)])
    assert fresh.fresh


def test_recycled_tables_are_changefeeds_own_with_latest_found() -> None:
    """A table that came back and went again is there twice if the first was brought back by hand."""
    other = recycle_names.tag(Identity(7, "other", "n"))
    names = [
        recycle_names.name_for(owner, commit_ts=ts, job_id=ts, table_id=5, table="t")
        for owner, ts in ((OWNER, 2), (OWNER, 1), (other, 9))
    ]
    found = recycle_names.kept(OWNER, [*names, "drainer_position", recycle_names.fresh_name(names[0])])
    assert [(t.commit_ts, t.fresh) for t in found] == [(1, False), (2, False), (2, True)]
    latest = recycle_names.latest(found, 5)
    assert latest is not None
    assert latest.name == names[0]
    assert recycle_names.latest(found, 6) is None


def test_recycled_table_expires_by_time_in_its_name() -> None:
    at = tso.compose(1_000_000, 7)
    table = recycle_names.Kept(at, 1, 2, "x")
    assert not table.is_expired(tso.compose(1_003_600), 3_600)
    assert table.is_expired(tso.compose(1_003_601), 3_600)
