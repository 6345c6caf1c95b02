"""The SQLite file's position and jobs: each part of each statement is felt (rules 15 and 17).

The file has a lock, so two drainers never meet in it; that the epoch is compared all the same is what stands between
a lock that did not hold (a network file system) and rows written twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from drainer.sink.base import Identity
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.sqlite import position
from drainer.sink.sqlite.position import JOBS, POSITION, Feed, Stored

OURS, *OTHERS = FEEDS = [Feed(Identity(cluster_id, name, "n")) for cluster_id, name in ((7, "a"), (8, "a"), (7, "b"))]
EPOCH = 3


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    """Three changefeeds that stand at the same place in the same epoch."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    position.create_tables(connection)
    for feed in FEEDS:
        position.create(connection, feed, 100)
        assert position.take_epoch(connection, feed, EPOCH - 1) == EPOCH
    yield connection
    connection.close()


def all_of(file: sqlite3.Connection) -> list[Stored | None]:
    return [position.read(file, feed) for feed in FEEDS]


AS_IT_WAS = Stored(100, 0, EPOCH)


def move(file: sqlite3.Connection, *, epoch: int = EPOCH, after_ts: int = 100, schema_version: int = 5) -> None:
    position.move(file, OURS, epoch=epoch, after_ts=after_ts, until_ts=200, schema_version=schema_version)


def test_a_move_changes_its_own_row_alone(file: sqlite3.Connection) -> None:
    move(file)
    assert all_of(file) == [Stored(200, 5, EPOCH), AS_IT_WAS, AS_IT_WAS]


@pytest.mark.parametrize(
    ("part", "value", "error"),
    [
        ("epoch", EPOCH - 1, Fenced),
        ("epoch", EPOCH + 1, Fenced),
        ("after_ts", 99, PositionMoved),
        ("after_ts", 101, PositionMoved),
    ],
)
def test_a_move_that_is_wrong_in_one_part_changes_nothing(
    file: sqlite3.Connection, part: str, value: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        move(file, **{part: value})
    assert all_of(file) == [AS_IT_WAS] * 3


def test_a_row_that_is_gone(file: sqlite3.Connection) -> None:
    file.execute(f"DELETE FROM {POSITION} WHERE cluster_id=7 AND changefeed='a'")
    with pytest.raises(PositionMoved, match="position is gone"):
        move(file)
    assert all_of(file) == [None, AS_IT_WAS, AS_IT_WAS]


def test_the_schema_version_never_goes_back(file: sqlite3.Connection) -> None:
    move(file, schema_version=5)
    position.move(file, OURS, epoch=EPOCH, after_ts=200, until_ts=300, schema_version=4)
    assert position.read(file, OURS) == Stored(300, 5, EPOCH)


def test_an_epoch_is_taken_in_its_own_row_alone(file: sqlite3.Connection) -> None:
    position.take_epoch(file, OURS, EPOCH)
    assert all_of(file) == [Stored(100, 0, EPOCH + 1), AS_IT_WAS, AS_IT_WAS]


def test_a_job_is_its_own_changefeeds(file: sqlite3.Connection) -> None:
    position.mark_job(file, OURS, 5, 100)
    assert [position.job_done(file, feed, 5) for feed in FEEDS] == [True, False, False]
    assert not position.job_done(file, OURS, 6)


def test_old_jobs_go_a_thousand_later(file: sqlite3.Connection) -> None:
    for feed in FEEDS:
        for job_id in (999, 1000):
            position.mark_job(file, feed, job_id, 100)
    position.mark_job(file, OURS, 2000, 200)
    assert sorted(file.execute(f"SELECT cluster_id, changefeed, job_id FROM {JOBS}")) == [
        (7, "a", 1000), (7, "a", 2000), (7, "b", 999), (7, "b", 1000), (8, "a", 999), (8, "a", 1000),
    ]  # fmt: skip
