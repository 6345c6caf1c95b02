"""The directory as the pipeline meets it: the fence, rotation by size and age, compression, retention, DDLs."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from binlog.errors import ConfigError
from binlog.tidb.job import ActionType, Job

from drainer.batch.work import Pieces
from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.protocol.pb_file import records
from drainer.schema.steps import Ddl
from drainer.sink.base import FirstStart, Intent, Wants
from drainer.sink.document_position import POSITION
from drainer.sink.errors import DestinationDown, DestinationRefused, Fenced, LockHeld, PositionMoved
from drainer.sink.file.pb import PbFormat, TransactionWriter
from drainer.sink.file.section import FileSection
from drainer.sink.file.sink import FileSink, make
from drainer.sink.registry import section
from drainer.sink.registry import sink as made_sink
from drainer.sink.settings import SyncerSettings
from tests.support.change_replay import WHO
from tests.support.file_case import binlogs, parquet_rows, settle, sink
from tests.support.jsonl_case import in_order
from tests.support.row_case import BEGIN_TS, INT, table, transaction, view_of

INFO = table([("id", INT)], handle="id")

with_lines = pytest.mark.parametrize("form", ["pb", "jsonl"])


def segment(after: int, until: int, *transactions: int | tuple[int, ...]) -> ChangeSegment:
    """Each transaction inserts its keys, or its key."""
    payloads = []
    for n, keys in enumerate(transactions):
        rows = [(INFO, ("insert", {}, {1: key})) for key in ((keys,) if isinstance(keys, int) else keys)]
        payloads.append(transaction(rows, commit_ts=BEGIN_TS + after + 1 + n))
    return StreamDecoder(view_of(INFO)).segment(payloads, BEGIN_TS + after, BEGIN_TS + until)


def keys_of(directory: Path) -> list[list[Any]]:
    """Of each transaction; of lines, of each line."""
    lines = [[line["new"]["id"]] for line in in_order(directory) if line["kind"] != "ddl"]
    if lines:
        return lines
    return [
        [(event.new or {})["id"].value for event in one.events()] for one in binlogs(directory) if one.query is None
    ]


def files_of(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if path.suffix == ".jsonl" or path.name.startswith("binlog-")]


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """A file takes so many bytes and no more, which the kernel tells as a write's error as it does of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def torn_behind(
    *whole: ChangeSegment, then: Callable[[], None] = lambda: None
) -> Callable[..., Iterator[ChangeSegment]]:
    """Pieces of a transaction whose pump is lost."""

    def works(*_: object) -> Iterator[ChangeSegment]:
        yield from whole
        then()
        raise DestinationDown("the pump is gone")

    return works


class Clock:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(directory: Path, form: str = "pb", **more: Any) -> FileSink:
    destination = sink(directory, form, **{"rotate_bytes": 1 << 20, **more})
    destination.open(WHO, BEGIN_TS)
    return destination


def ddl(commit: int, *sql: str, query: str = "", schema: str = "d", tp: int = 3, rewritten: bool = False) -> Ddl:
    job = Job(commit, ActionType(tp), schema_version=commit)
    return Ddl(job, BEGIN_TS + commit, False, schema, "", sql, query or "; ".join(sql), 0, (), rewritten=rewritten)


def test_each_transaction_is_one_record_in_order(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    assert (destination.wants, destination.parallel) == (Wants.CHANGES, None)
    destination.apply(segment(0, 10, (1, 2), (3,)), 1)
    destination.ddl(ddl(15, "alter table t add c int"))
    destination.apply(segment(15, 20, (4,)), 1)
    assert keys_of(tmp_path) == [[1, 2], [3], [4]]
    assert [one.commit_ts - BEGIN_TS for one in binlogs(tmp_path)] == [1, 2, 15, 16]
    assert binlogs(tmp_path)[2].query == "use `d`; alter table t add c int;"
    assert destination.job_done(15) and not destination.job_done(16)
    (path,) = tmp_path.glob("binlog-*")
    assert path.stat().st_mode & 0o777 == 0o600


def test_ddl_records_hold_statements_that_would_run_downstream(tmp_path: Path) -> None:
    destination = opened(tmp_path)
    destination.ddl(ddl(1, "create database `d`", tp=1))
    destination.ddl(ddl(2, "drop table a", "drop table b", query="drop table a, b, x"))
    destination.ddl(ddl(3, query="create view v as select 1"))
    destination.ddl(ddl(4, query="alter table t cache", rewritten=True))
    assert [one.query for one in binlogs(tmp_path)] == [
        "create database `d`;",
        "use `d`; drop table a;",
        "use `d`; drop table b;",
        "use `d`; create view v as select 1;",
    ]
    assert destination.commit_ts == BEGIN_TS + 4


def test_transaction_in_pieces_is_one_record_in_memory_and_spilled(tmp_path: Path) -> None:
    """Held in memory as far as it may, the rest in a temporary file that has no name."""
    pieces = [segment(0, 10, (n,) * 1) for n in range(40)]
    whole, spilled = tmp_path / "whole", tmp_path / "spilled"
    for directory, held in ((whole, 1 << 20), (spilled, 300)):
        destination = FileSink(directory, PbFormat(UTC, held_bytes_max=held), rotation=sink(directory, "pb")._rotation)
        destination.open(WHO, BEGIN_TS)
        destination.apply_pieces(Pieces(BEGIN_TS, BEGIN_TS + 10, lambda: pieces), 1)
        assert keys_of(directory) == [list(range(40))]
        assert len(list(directory.iterdir())) == 3  # the file, the position and its lock
    assert next(whole.glob("binlog-*")).read_bytes() == next(spilled.glob("binlog-*")).read_bytes()


def test_transaction_too_large_for_record_is_refused_with_its_commit_ts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainer.sink.file.pb.PAYLOAD_BYTES_MAX", 100)
    destination = opened(tmp_path)
    with pytest.raises(DestinationRefused, match=f"commit_ts {BEGIN_TS + 1} has .*ignore-txn-commit-ts"):
        destination.apply(segment(0, 10, (1, 2, 3, 4, 5, 6)), 1)
    destination.apply(segment(0, 10, (1,)), 1)
    assert keys_of(tmp_path) == [[1]]


@pytest.mark.parametrize("form", ["pb", "parquet"])
@pytest.mark.parametrize("by_next_attempt", [True, False])
def test_rotation_after_failed_attempt_leaves_none_of_its_records(
    tmp_path: Path, form: str, by_next_attempt: bool
) -> None:
    clock = Clock()
    destination = opened(tmp_path, form, interval_ms=60_000, clock_s=clock)
    destination.apply(segment(0, 10, (1,)), 1)

    with pytest.raises(DestinationDown):
        torn = torn_behind(segment(10, 12, 2, 3))
        destination.apply_pieces(Pieces(BEGIN_TS + 10, BEGIN_TS + 20, torn), 1)
    clock.now += 61
    if not by_next_attempt:
        destination.advance(BEGIN_TS + 10, 1)
    destination.apply(segment(10, 20, (2,), (3,)), 1)
    if form == "pb":
        assert keys_of(tmp_path) == [[1], [2], [3]]
    else:
        clock.now += 61
        for _ in range(2):  # what was under way may not have known of the last file
            destination.advance(BEGIN_TS + 20, 1)
            settle(destination)
        assert len(parquet_rows(tmp_path)) == 3


@with_lines
def test_transaction_that_fails_midway_is_overwritten_by_next_attempt(tmp_path: Path, form: str) -> None:
    """And what it wrote is overwritten by the next attempt of the same life, also where it had begun another file."""
    clock = Clock()
    destination = opened(tmp_path, form, rotate_bytes=100, clock_s=clock)
    destination.apply(segment(0, 10, 1), 1)

    def later() -> None:
        clock.now += 5

    with pytest.raises(DestinationDown):
        torn = torn_behind(segment(10, 12, 77, 78), segment(12, 14, 79, 80), then=later)
        destination.apply_pieces(Pieces(BEGIN_TS + 10, BEGIN_TS + 20, torn), 1)
    assert destination.commit_ts == BEGIN_TS + 10
    clock.now += 5
    whole = Pieces(BEGIN_TS + 10, BEGIN_TS + 20, lambda: (segment(10, 12, 2, 3), segment(12, 20, 4, 5)))
    destination.apply_pieces(whole, 1)
    assert (keys_of(tmp_path), destination.commit_ts) == ([[1], [2], [3], [4], [5]], BEGIN_TS + 20)
    numbers = [path.name[:23] for path in files_of(tmp_path)]
    assert len(numbers) == len(set(numbers)) >= 3


@with_lines
def test_a_batch_that_does_not_begin_at_the_position_writes_nothing(tmp_path: Path, form: str) -> None:
    destination = opened(tmp_path, form)
    for attempt in (
        lambda: destination.apply(segment(5, 10, 1), 1),
        lambda: destination.apply_pieces(Pieces(BEGIN_TS + 5, BEGIN_TS + 10, lambda: ()), 1),
    ):
        with pytest.raises(PositionMoved):
            attempt()
    assert not files_of(tmp_path)


@with_lines
def test_fenced_driver_changes_no_file(tmp_path: Path, form: str) -> None:
    """Where the lock did not hold, the epoch does."""
    old = opened(tmp_path, form)
    old.apply(segment(0, 10, 1), 1)
    with pytest.raises(LockHeld):
        opened(tmp_path, form)
    old._opened().close()
    new = opened(tmp_path, form)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for attempt in (
        lambda: old.apply(segment(10, 20, 2), 1),
        lambda: old.ddl(ddl(15, "x")),
        lambda: old.advance(BEGIN_TS + 20, 1),
        lambda: old.begin(Intent(BEGIN_TS + 10, BEGIN_TS + 20, 1, 10, 1, "d")),
    ):
        with pytest.raises(Fenced, match="has taken over"):
            attempt()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    new.apply(segment(10, 20, 3), 1)
    assert keys_of(tmp_path) == [[1], [3]]


@with_lines
def test_jobs_are_remembered(tmp_path: Path, form: str) -> None:
    destination = opened(tmp_path, form)
    destination.ddl(ddl(5, "x"))
    destination.close(clean=True)
    again = sink(tmp_path, form)
    position = again.open(WHO, 1)
    assert (position.commit_ts, position.schema_version, position.fresh) == (BEGIN_TS + 5, 5, False)
    assert (again.job_done(5), again.job_done(6)) == (True, False)


@with_lines
def test_a_job_that_ran_early_is_known_at_its_own_binlog(tmp_path: Path, form: str) -> None:
    """Ids are shared with tables and partitions: one CREATE TABLE in between takes thousands."""
    destination = opened(tmp_path, form)
    for job_id, commit_ts, early in ((5, BEGIN_TS + 5, True), (9000, BEGIN_TS + 6, False)):
        job = Job(job_id, ActionType.CREATE_TABLE, schema_version=9)
        destination.ddl(Ddl(job, commit_ts, early, "d", "d", ("x",), "x", 0, ()))
    assert destination.job_done(5)


@with_lines
def test_a_first_start(tmp_path: Path, form: str) -> None:
    """Nothing is there, so it begins at the beginning where that is offered."""
    destination = sink(tmp_path / "new" / "directory", form)
    position = destination.open(WHO, 7, FirstStart((("d", "t"),), 3))
    assert (position.commit_ts, position.fresh, position.missing) == (3, True, (("d", "t"),))
    destination.close(clean=True)
    assert (tmp_path / "new" / "directory" / POSITION).exists()


@pytest.mark.parametrize(("form", "name"), [("pb", "binlog-0-x"), ("jsonl", "000-000000000.jsonl")])
def test_what_cannot_be_opened_holds_no_lock(tmp_path: Path, form: str, name: str) -> None:
    (tmp_path / name).write_text("of another time\n")
    for _ in range(2):
        with pytest.raises(DestinationRefused, match=r"exists, and position\.json does not"):
            opened(tmp_path, form)
    assert (tmp_path / name).read_text() == "of another time\n"


@with_lines
def test_file_rotates_when_it_reaches_its_size_limit(tmp_path: Path, form: str) -> None:
    destination = opened(tmp_path, form, rotate_bytes=150)
    for n in range(8):
        destination.apply(segment(10 * n, 10 * n + 10, n, 100 + n), 1)
    sizes = [path.stat().st_size for path in files_of(tmp_path)]
    assert len(sizes) > 4
    assert all(size >= 150 for size in sizes[:-1])
    assert keys_of(tmp_path) == [[key] for n in range(8) for key in (n, 100 + n)]
    for path in tmp_path.glob("binlog-*"):
        assert list(records(path)), "no file without a record: upstream's reparo would lose the one before"


def test_file_rotates_by_age_and_complete_files_may_be_removed(tmp_path: Path) -> None:
    clock = Clock()
    destination = opened(tmp_path, interval_ms=60_000, clock_s=clock)
    destination.apply(segment(0, 10, (1,)), 1)
    clock.now += 59
    destination.apply(segment(10, 20, (2,)), 1)
    clock.now += 1
    destination.advance(BEGIN_TS + 30, 1)
    (first,) = tmp_path.glob("binlog-*")
    saved = first.read_bytes()
    first.unlink()  # moved away: it is complete, though nothing follows it
    destination.close(clean=True)
    destination = opened(tmp_path, interval_ms=60_000, clock_s=clock)
    assert destination.commit_ts == BEGIN_TS + 30
    destination.advance(BEGIN_TS + 40, 1)
    assert not list(tmp_path.glob("binlog-*"))
    destination.apply(segment(40, 50, (3,)), 1)
    (second,) = tmp_path.glob("binlog-*")
    assert second.name.startswith("binlog-0000000000000001-")
    first.write_bytes(saved)
    assert keys_of(tmp_path) == [[1], [2], [3]]


@with_lines
def test_a_current_file_that_is_gone_is_not_begun_anew(tmp_path: Path, form: str) -> None:
    """Moved away or cut while the drainer runs: zeros in its place would be rows lost in silence."""
    destination = opened(tmp_path, form)
    destination.apply(segment(0, 10, 1), 1)
    (path,) = files_of(tmp_path)
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(DestinationRefused, match=f"has 0 bytes, and {len(data)} are committed"):
        destination.apply(segment(10, 20, 2), 1)
    path.write_bytes(data[:-1])
    with pytest.raises(DestinationRefused, match=f"has {len(data) - 1} bytes, and {len(data)} are committed"):
        destination.apply(segment(10, 20, 2), 1)
    path.write_bytes(data)
    destination.apply(segment(10, 20, 2), 1)
    assert keys_of(tmp_path) == [[1], [2]]


def test_complete_files_are_compressed_and_removed_after_retention_time(tmp_path: Path) -> None:
    clock = Clock()
    destination = opened(tmp_path, "pb-gzip", rotate_bytes=1, clock_s=clock, retention=timedelta(days=2))
    for n in range(3):
        destination.apply(segment(10 * n, 10 * n + 10, (n,)), 1)
        settle(destination)
    settle(destination)
    names = sorted(path.name for path in tmp_path.glob("binlog-*"))
    assert [name.rpartition("-")[2] for name in names] == [f"{BEGIN_TS + 10 * n + 1}.gz" for n in range(3)]
    assert keys_of(tmp_path) == [[0], [1], [2]]
    os.utime(tmp_path / names[0], (clock.now - 3 * 86400,) * 2)
    for name in names[1:]:
        os.utime(tmp_path / name, (clock.now - 86400,) * 2)
    clock.now += 3601
    destination.advance(BEGIN_TS + 40, 1)
    settle(destination)
    assert sorted(path.name for path in tmp_path.glob("binlog-*")) == names[1:]


def test_newest_file_older_than_retention_time_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    destination = opened(tmp_path, clock_s=clock, retention=timedelta(days=2))
    destination.apply(segment(0, 10, (1,)), 1)
    (path,) = tmp_path.glob("binlog-*")
    os.utime(path, (clock.now - 9 * 86400,) * 2)
    clock.now += 4000
    destination.advance(BEGIN_TS + 40, 1)
    settle(destination)
    assert path.exists()


def test_current_file_is_neither_compressed_nor_converted(tmp_path: Path) -> None:
    for form in ("pb-gzip", "parquet"):
        destination = opened(tmp_path / form, form)
        for n in range(2):
            destination.apply(segment(10 * n, 10 * n + 10, (n,)), 1)
            settle(destination)
        destination.close(clean=True)
    assert [path.suffix for path in (tmp_path / "pb-gzip").glob("binlog-*")] == [""]
    assert keys_of(tmp_path / "pb-gzip") == [[0], [1]]
    assert not list(tmp_path.rglob("*.parquet"))


def test_file_whose_compression_fails_stays_and_is_compressed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise OSError("no space")

    destination = opened(tmp_path, "pb-gzip", rotate_bytes=1)
    with monkeypatch.context() as patched:
        patched.setattr("drainer.sink.file.pb._compress", refuse)
        destination.apply(segment(0, 10, (1,)), 1)
        settle(destination)
    assert keys_of(tmp_path) == [[1]]
    destination.apply(segment(10, 20, (2,)), 1)
    settle(destination)
    assert len(list(tmp_path.glob("binlog-*.gz"))) == 2


@with_lines
def test_full_disk_is_reported_and_next_attempt_loses_nothing(tmp_path: Path, form: str) -> None:
    """Not even what the driver could not flush hides the error."""
    destination = opened(tmp_path, form)
    destination.apply(segment(0, 10, 1), 1)
    with full_disk(2000), pytest.raises(DestinationDown, match="File too large"):
        destination.apply(segment(10, 20, tuple(range(200))), 1)
    with full_disk(2000), pytest.raises(DestinationDown, match="the pump is gone"):
        torn = torn_behind(segment(10, 20, *range(2, 200)))
        destination.apply_pieces(Pieces(BEGIN_TS + 10, BEGIN_TS + 20, torn), 1)
    assert destination.commit_ts == BEGIN_TS + 10
    destination.apply(segment(10, 20, 2, 3), 1)
    assert keys_of(tmp_path) == [[1], [2], [3]]


def test_parquet_files_appear_only_when_complete(tmp_path: Path) -> None:
    clock = Clock()
    destination = opened(tmp_path, "parquet", interval_ms=60_000, clock_s=clock)
    destination.apply(segment(0, 10, (1, 2), (3,)), 1)
    destination.ddl(ddl(15, "alter table t add c int"))
    settle(destination)
    assert not parquet_rows(tmp_path)
    clock.now += 60
    destination.advance(BEGIN_TS + 30, 1)
    settle(destination)
    found = parquet_rows(tmp_path)
    assert [row["after"] for _, row in found if "after" in row] == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert [row["query"] for _, row in found if "query" in row] == ["alter table t add c int"]
    assert {row["of"] for _, row in found} == {("ddl",), ("tables/test/t",)} or len(
        {row["of"] for _, row in found}
    ) == 2
    assert not list((tmp_path / "stage").iterdir())


def test_failed_parquet_conversion_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = opened(tmp_path, "parquet", rotate_bytes=1)
    with monkeypatch.context() as patched:
        patched.setattr("drainer.sink.file.parquet.HELD_ROWS_MAX", "not a number")
        destination.apply(segment(0, 10, (1,)), 1)
        settle(destination)
    assert not list(tmp_path.rglob("*.parquet")) and not list(tmp_path.rglob("*.tmp"))
    destination.apply(segment(10, 20, (2,)), 1)
    settle(destination)
    assert [row["after"]["id"] for _, row in parquet_rows(tmp_path)] == [1, 2]


def test_file_section_makes_sink_with_its_settings() -> None:
    model = section("file")
    to = model.model_validate({"dir": "/x", "rotate-interval": "10m", "retention-time": "7", "compression": "gzip"})
    assert isinstance(to, FileSection)
    assert (to.address(), to.retention_time, to.rotate_bytes) == ("file:/x", timedelta(days=7), 512 << 20)
    made = made_sink("file", to, SyncerSettings())
    assert isinstance(made, FileSink) and made.name == "file:/x"
    assert make(to.model_copy(update={"format": "parquet"}), SyncerSettings())._files.directory == Path("/x/stage")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "syncer.to.dir"),
        ({"dir": "/x", "format": "parquet", "compression": "gzip"}, "syncer.to.compression"),
        ({"dir": "/x", "retention-time": "-1s"}, "retention-time must not be negative"),
    ],
)
def test_file_section_with_conflicting_settings_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        section("file").model_validate(values).check()


def test_unknown_time_zone_of_file_section_is_refused() -> None:
    with pytest.raises(ValueError, match="Mars"):
        section("file").model_validate({"dir": "/x", "time-zone": "Mars"})


def test_abandoned_transaction_writer_outputs_nothing(tmp_path: Path) -> None:
    given: list[int] = []
    writer = TransactionWriter(tmp_path, lambda slot, parts, length: given.append(length), UTC, 10)
    writer.add(segment(0, 10, (1, 2)))
    writer.abandon()
    writer.finish()
    assert not given
