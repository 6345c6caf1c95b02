"""A query that is stopped before it runs, and what one leaves that has failed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from drainer.changes.slot_blob import folder_of, write_blobs
from drainer.spark.errors import ErrorInTask, SparkFailed
from drainer.spark.query import Query, SparkBatch
from tests.support.servers import wait_until


def test_query_that_was_not_started_can_be_stopped() -> None:
    """A drainer that is told to stop just when a query begins again."""
    query = Query(None, options={})
    query.stop()


class Begins:
    """A session whose queries begin only when the test says so. Every attribute and call of building one is itself."""

    def __init__(self) -> None:
        self.beginning, self.go_on, self.stopped = threading.Event(), threading.Event(), threading.Event()

    def __getattr__(self, _name: str) -> Begins:
        return self

    def __call__(self, *_args: object, **_options: object) -> Begins:
        return self

    def start(self) -> Begins:
        self.beginning.set()
        assert self.go_on.wait(60)
        return self

    def stop(self) -> None:
        self.stopped.set()

    def awaitTermination(self) -> None:
        assert self.stopped.wait(60)


def test_query_stopped_while_it_starts_ends() -> None:
    """Its first batch may fail before Spark has told that it runs, and no other batch would end it."""
    session: Any = Begins()
    query = Query(session, options={})
    ended = threading.Event()
    starting = threading.Thread(target=query.start, args=(lambda *_: None, lambda _: ended.set()))
    starting.start()
    assert session.beginning.wait(60)
    query.stop()
    session.go_on.set()
    assert session.stopped.wait(60)
    assert ended.wait(60)
    starting.join(60)


class Fails(Begins):
    """A session whose query calls for one batch, keeps its error as pyspark does, and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on.set()
        self.stopped.set()

    def foreachBatch(self, batch: Any) -> Fails:
        self.batch = batch
        return self

    def awaitTermination(self) -> None:
        try:
            self.batch(self, 0)
        except (OSError, ErrorInTask) as error:
            self.error = error


@pytest.mark.parametrize(
    "log", [None, "", "v1\n{", "v1\n[8]", "v1\n{}", 'v1\n{"commit_ts":null}', 'v1\n{"commit_ts":"x"}']
)
def test_unexpected_offset_log_of_spark_is_an_error_with_its_path(log: str | None) -> None:
    """Through Spark, which passes the error of a batch as text."""
    session: Any = Fails()
    query = Query(session, options={})
    path = query._checkpoint / "offsets" / "0"
    path.parent.mkdir()
    if log is not None:
        path.write_text(log)
    ended = threading.Event()
    query.start(lambda *_: pytest.fail("no batch is applied"), lambda _: ended.set())
    assert ended.wait(60)
    found = query._errors.unwrap(session.error)
    assert isinstance(found, SparkFailed)
    assert str(path) in str(found)


def test_blob_files_of_failed_batch_are_removed_with_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drainer may begin one query after another, for as long as a pump cannot be reached."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    session: Any = Fails()
    query = Query(session, options={}, one_machine=True)
    base = query._options["blob-folder"]
    there_when_ended = []
    offsets = query._checkpoint / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"commit_ts": 8}')

    def batch(until_ts: int, found: SparkBatch) -> None:
        assert until_ts == 8
        found.covers(3, 8)
        folder = folder_of(base, 3, 8)
        Path(folder).mkdir(parents=True)
        write_blobs(folder, {0: b"x"})
        raise OSError("a pump cannot be reached")

    query.start(batch, lambda _: there_when_ended.append(Path(base).exists()))
    wait_until(lambda: bool(there_when_ended) and not Path(base).exists(), what="the files were removed")
    assert isinstance(session.error, OSError)
    assert there_when_ended == [True], "one that is still applied reads its files"


def test_blob_files_are_removed_when_no_next_query_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    session: Any = Fails()
    query = Query(session, options={}, one_machine=True)
    base = Path(query._options["blob-folder"])
    base.mkdir(parents=True)
    offsets = query._checkpoint / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"commit_ts": 8}')

    def ended(_error: BaseException | None) -> None:
        raise OSError("no other query can begin")

    query.start(lambda *_: None, ended)
    for thread in threading.enumerate():
        if thread.name == "query":
            thread.join(60)
    assert not base.exists()
