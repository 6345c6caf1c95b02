"""Reading a batch of served binlogs once."""

import pytest
from binlog import envelope
from binlog.errors import DecodeError

from drainer.batch.served import ServedBinlog, read_batch
from tests.support.schema_case import ddl, row, ts


def fake(commit_ts: int) -> ServedBinlog:
    return ServedBinlog(commit_ts, commit_ts, "p1", envelope.encode_fake(commit_ts))


def test_read_batch_merges_pumps_in_commit_order() -> None:
    batch = read_batch([row(ts(3), 7, 1, pump="b"), row(ts(1), 5, 1, pump="a")], after_ts=0, until_ts=ts(9))
    assert [item.commit_ts for item in batch.items] == [ts(1), ts(3)]
    assert batch.greatest_version == 7


def test_read_batch_leaves_out_fake_binlogs_and_sequence_setval() -> None:
    """D-CO-06: `select setval` has a job id that is in no history."""
    sequence = ddl(ts(2), 4711, "SELECT SETVAL(`db`.`seq`, 2000);")
    batch = read_batch([fake(ts(1)), sequence], after_ts=0, until_ts=ts(9))
    assert batch.items == ()
    assert not batch.ddl_texts


def test_transaction_on_two_pumps_counts_once() -> None:
    """Rule 19: the same (commit_ts, start_ts) from two pumps."""
    twice = [row(ts(1), 5, 1, pump="a"), row(ts(1), 5, 1, pump="b")]
    batch = read_batch(twice, after_ts=0, until_ts=ts(9))
    assert len(batch.items) == 1
    assert batch.duplicates == 1


def test_first_binlog_of_drop_column_is_only_announcement() -> None:
    first, second = ddl(ts(1), 9, "ALTER TABLE `t` DROP COLUMN `a`;", state=1), ddl(ts(3), 9, "ALTER …;", state=0)
    batch = read_batch([first, second], after_ts=0, until_ts=ts(9))
    assert [item.ddl.announces_drop for item in batch.items if item.ddl] == [True, False]
    assert batch.ddl_texts[9].commit_ts == ts(3)


def test_batch_after_ts_holds_only_later_binlogs() -> None:
    batch = read_batch([row(ts(1), 5, 1), row(ts(2), 5, 1)], after_ts=0, until_ts=ts(9)).after(ts(1))
    assert (batch.after_ts, [item.commit_ts for item in batch.items]) == (ts(1), [ts(2)])


def test_damaged_binlog_is_refused_with_pump_and_commit_ts() -> None:
    whole = row(ts(1), 5, 1).payload
    for end in range(1, len(whole)):
        try:
            read_batch([ServedBinlog(ts(1), ts(1) - 1, "p7", whole[:end])], after_ts=0, until_ts=ts(9))
        except DecodeError as error:
            assert f"commit_ts {ts(1)} from pump p7" in str(error)
    with pytest.raises(DecodeError, match="from pump p7"):
        read_batch([ServedBinlog(ts(1), ts(1) - 1, "p7", b"\xff" * 40)], after_ts=0, until_ts=ts(9))


def test_ddl_query_with_invalid_utf8_is_refused() -> None:
    payload = envelope.encode_binlog(tp=1, start_ts=1, commit_ts=ts(1), ddl_query=b"\xff\xfe", ddl_job_id=3)
    with pytest.raises(DecodeError, match="from pump p1"):
        read_batch([ServedBinlog(ts(1), 1, "p1", payload)], after_ts=0, until_ts=ts(9))


def test_binlog_outside_batch_range_raises_value_error() -> None:
    with pytest.raises(ValueError, match="outside the batch"):
        read_batch([row(ts(5), 5, 1)], after_ts=ts(5), until_ts=ts(9))
