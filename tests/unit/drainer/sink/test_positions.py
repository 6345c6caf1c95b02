"""The positions that need no server: in memory, in a file, in SQLite. The suite is tests/support/position_suite.py."""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
import zlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.cluster import tso

from drainer.kafka_consumer.consumer import resume_text
from drainer.kafka_consumer.core import Resume
from drainer.schema.state import FINISH_LAG_MS_MAX
from drainer.sink.base import Identity
from drainer.sink.document_position import Document, DocumentPositionStore, PositionFile, label_of
from drainer.sink.errors import DestinationDown, DestinationRefused, LockHeld, PositionMoved
from drainer.sink.position import DONE, ConsumerPosition, JobMark, PositionStore, Stored, purge_old_jobs
from drainer.sink.snapshot import settled
from drainer.sink.sqlite import sink
from tests.support.position_suite import EPOCH, INTENT, OPEN, OURS, LoadSuite, PositionSuite, Transactions


class TestMemory(PositionSuite, LoadSuite):
    test_a_first_position_forgets_loads_of_an_earlier_one = None  # type: ignore[assignment]  # of SQL's tables
    test_only_a_job_that_is_not_done_is_open_and_forgotten = None  # type: ignore[assignment]

    @pytest.fixture
    def transaction_of(self) -> Transactions:
        documents: dict[Identity, Document] = {}

        @contextlib.contextmanager
        def transaction(identity: Identity) -> Iterator[PositionStore]:
            store = DocumentPositionStore(deepcopy(documents.get(identity, Document())), label_of(identity, "memory:"))
            yield store
            documents[identity] = store.document

        return transaction


class TestSQLite(PositionSuite, LoadSuite):
    @pytest.fixture
    def transaction_of(self, tmp_path: Path) -> Transactions:
        connection = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
        sink.create_tables(connection)

        @contextlib.contextmanager
        def transaction(identity: Identity) -> Iterator[PositionStore]:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield sink.position_store(connection, identity)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

        return transaction


class TestFile(PositionSuite, LoadSuite):
    test_a_first_position_forgets_loads_of_an_earlier_one = None  # type: ignore[assignment]  # of SQL's tables
    test_only_a_job_that_is_not_done_is_open_and_forgotten = None  # type: ignore[assignment]

    @pytest.fixture
    def transaction_of(self, tmp_path: Path) -> Transactions:
        @contextlib.contextmanager
        def transaction(identity: Identity) -> Iterator[PositionStore]:
            file = PositionFile(tmp_path / f"{identity.cluster_id}-{identity.changefeed}.json", identity)
            try:
                with file.transaction() as store:
                    yield store
            finally:
                file.close()

        return transaction


def test_purge_removes_only_jobs_old_in_both_days_and_ids() -> None:
    """One that ran early is asked for again at its own binlog, whatever ids partitions have taken meanwhile."""
    store = DocumentPositionStore(Document(), "x")
    begin = tso.compose(1_700_000_000_000, 0)
    day = tso.compose(86_400_000, 0)
    store.mark_job(JobMark(9, DONE, begin))
    purge_old_jobs(store, 50_000, begin + day)
    assert store.job(9) is not None, "thousands of ids, and not a day"
    purge_old_jobs(store, 1_009, begin + 2 * day)
    assert store.job(9) is not None, "days, and not many ids"
    purge_old_jobs(store, 1_010, begin + day + 1)
    assert store.job(9) is None
    purge_old_jobs(store, 1, 1)


# The file


def written(path: Path) -> None:
    file = PositionFile(path, OURS)
    with file.transaction() as store:
        store.create(100, 5)
        for epoch in range(EPOCH):
            store.take_epoch(epoch, "n")
        store.mark_job(JobMark(9, DONE, 90))
        store.write_intent(epoch=EPOCH, intent=INTENT, stage="direct")
        store.document.notes["x"] = {"length": 1}
    file.close()


def test_position_file_reads_back_everything_written(tmp_path: Path) -> None:
    written(tmp_path / "p")
    file = PositionFile(tmp_path / "p", OURS)
    with file.transaction() as store:
        assert store.read() == OPEN
        assert store.job(9) == JobMark(9, DONE, 90)
        assert store.document.notes == {"x": {"length": 1}}
    file.close()


def test_position_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "p")
    whole = (tmp_path / "p").read_bytes()
    file = PositionFile(tmp_path / "p", OURS)
    for length in range(len(whole) - 1):  # all but the end of the line
        (tmp_path / "p").write_bytes(whole[:length])
        with pytest.raises(DestinationRefused, match="'main' of cluster 7"), file.transaction():
            pass
    file.close()


def test_position_file_with_changed_byte_is_refused_by_checksum(tmp_path: Path) -> None:
    written(tmp_path / "p")
    whole = (tmp_path / "p").read_text()
    file = PositionFile(tmp_path / "p", OURS)
    for old, new in (('"commit_ts": 100', '"commit_ts": 101'), ('"epoch": 3', '"epoch": 2'), ('"crc": ', '"crc": 1')):
        assert old in whole
        (tmp_path / "p").write_text(whole.replace(old, new, 1))
        with pytest.raises(DestinationRefused, match="checksum"), file.transaction():
            pass
    file.close()


def test_partial_new_file_left_by_crash_is_ignored(tmp_path: Path) -> None:
    written(tmp_path / "p")
    (tmp_path / "p.new").write_text('{"crc"')
    file = PositionFile(tmp_path / "p", OURS)
    with file.transaction() as store:
        assert store.read() == OPEN
        store.take_epoch(EPOCH, "m")
    with file.transaction() as store:
        assert store.read() == Stored(100, 5, 4, "m", INTENT, "direct")
    file.close()


def test_position_file_is_locked_by_one_drainer_at_a_time(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "p", OURS)
    with pytest.raises(LockHeld, match="another drainer"):
        PositionFile(tmp_path / "p", OURS)
    file.close()
    PositionFile(tmp_path / "p", OURS).close()


def test_position_file_of_another_changefeed_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "p")
    file = PositionFile(tmp_path / "p", Identity(7, "other", "n"))
    with pytest.raises(DestinationRefused, match="is the position of changefeed 'main'"), file.transaction():
        pass
    file.close()


def test_position_file_is_unchanged_when_writing_fails(tmp_path: Path) -> None:
    written(tmp_path / "p")
    before = (tmp_path / "p").read_text()
    (tmp_path / "p.new").mkdir()
    file = PositionFile(tmp_path / "p", OURS)
    with pytest.raises(DestinationDown), file.transaction() as store:
        store.take_epoch(EPOCH, "m")
    file.close()
    assert (tmp_path / "p").read_text() == before
    assert json.loads(before)["body"]["changefeed"] == "main"


def test_creating_position_twice_is_refused(tmp_path: Path) -> None:
    document = Document(Stored(1, 1, 1))
    with pytest.raises(PositionMoved):
        DocumentPositionStore(document, "x").create(2)


def test_created_directories_are_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine must not take it away with the position that was flushed into it."""
    synced: list[Path] = []
    monkeypatch.setattr("binlog.runtime.directories.sync_directory", synced.append)
    PositionFile(tmp_path / "a" / "b" / "p", OURS).close()
    assert synced == [tmp_path, tmp_path / "a"]


def test_file_system_without_locks_is_refused_with_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no other drainer."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("drainer.sink.document_position.fcntl.flock", no_locks)
    with pytest.raises(DestinationRefused, match=r"No locks available.*a file system with locks"):
        PositionFile(tmp_path / "p", OURS)


@pytest.mark.parametrize("missing", ["notes", "jobs", "position"])
def test_position_file_of_another_version_is_refused(tmp_path: Path, missing: str) -> None:
    """Its checksum is right."""
    written(tmp_path / "p")
    body = json.loads((tmp_path / "p").read_text())["body"]
    del body[missing]
    text = json.dumps(body, sort_keys=True)
    (tmp_path / "p").write_text(f'{{"crc": {zlib.crc32(text.encode())}, "body": {text}}}')
    file = PositionFile(tmp_path / "p", OURS)
    with pytest.raises(DestinationRefused, match="start the one that wrote it"), file.transaction():
        pass
    file.close()


def consumer_at(applied_ts: int, *ddls: int, running: str | None = None) -> ConsumerPosition:
    connection = sqlite3.connect(":memory:")
    connection.execute("ATTACH ':memory:' AS tidb_binlog")
    connection.execute("CREATE TABLE tidb_binlog.kafka_consumer (name, position, ddl)")
    resume = Resume(applied_ts, ddls=frozenset((ts, ts - 1, "DROP TABLE t", n) for n, ts in enumerate(ddls)))
    rows = [("other", resume_text(Resume(99)), None), ("new", "", None), ("ours", resume_text(resume), running)]
    connection.executemany("INSERT INTO kafka_consumer VALUES (?,?,?)", rows)
    return ConsumerPosition(sink.position_store(connection, Identity(0, "", "")).tables, "x", (0, "ours"))


DDL_TS = tso.compose(1 << 40, 3)
LATER_TS = tso.compose((1 << 40) + FINISH_LAG_MS_MAX + 1, 0)


def test_tables_of_a_consumer_are_at_its_position_and_each_ddl_is_a_version() -> None:
    assert settled(consumer_at(LATER_TS)) == Stored(LATER_TS, 0, 0)
    assert settled(consumer_at(LATER_TS, DDL_TS)) == settled(consumer_at(LATER_TS, DDL_TS, DDL_TS))
    assert settled(consumer_at(LATER_TS, DDL_TS)) == Stored(LATER_TS, -DDL_TS, 0)
    with pytest.raises(DestinationRefused, match=r"x: .*nothing has been applied yet"):
        settled(replace(consumer_at(1), key=(0, "new")))


@pytest.mark.parametrize(
    ("at_ts", "running"), [(DDL_TS, None), (tso.compose((1 << 40) + FINISH_LAG_MS_MAX, 9), None), (LATER_TS, "{}")]
)
def test_tables_of_a_consumer_are_not_compared_soon_after_a_ddl(at_ts: int, running: str | None) -> None:
    with pytest.raises(PositionMoved, match=f"x: the DDL at {DDL_TS} has not run, or not been finished"):
        settled(consumer_at(at_ts, DDL_TS, running=running))
