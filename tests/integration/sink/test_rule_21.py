"""Rule 21 on a real server: one outcome wherever a stream is cut, inline and spread, also through kills."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from unittest import mock

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from drainer.changes.segment import SegmentDecoder
from drainer.sink.mysql.connection import ConnectionLost
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import server_config
from tests.support.examples import VERY_FEW
from tests.support.schema_case import ts
from tests.support.servers import MariaDB
from tests.unit.drainer.cut_case import (
    BARE,
    COMPOSITE,
    INT_KEY,
    LOOSE,
    NULLABLE,
    SECONDARY,
    Cuts,
    Op,
    Outcome,
    Stream,
    cuts,
    drain,
    gone,
    outcome,
    put,
    stream_of,
    streams,
)

pytestmark = pytest.mark.integration

EACH = Cuts(frozenset(range(99)))
EXAMPLES = settings(VERY_FEW, phases=[Phase.explicit, Phase.generate])


def reset(db: MariaDB) -> None:
    for schema in ("d", "tidb_binlog"):
        db.query(f"DROP DATABASE IF EXISTS {schema}")


def standing(db: MariaDB, stream: Stream) -> dict[str, list[tuple[object, ...]]]:
    return {
        info.name: sorted([tuple(row) for row in db.query(f"SELECT k, u, v FROM d.{info.name}")], key=repr)
        for info in stream.tables
    }


def into_server(db: MariaDB, stream: Stream, how: Cuts) -> Outcome:
    """Into an empty database, by way of the stream's own DDL."""
    reset(db)
    error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
    return outcome(standing(db, stream), error)


@pytest.mark.parametrize("info", [COMPOSITE, SECONDARY, NULLABLE, LOOSE, BARE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_a_stream_of_a_service(db: MariaDB, info: TableInfo, data: st.DataObject) -> None:
    stream = stream_of([info], data.draw(streams([info])), upserts=True)
    how = data.draw(cuts(len(stream.binlogs), spread=True))
    expected = into_server(db, stream, EACH)
    assert expected.error == "", expected.text
    assert into_server(db, stream, how) == expected


@pytest.fixture(params=["by columns", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows are folded where tables can have columns, however few rows there are."""
    least = 0 if request.param == "by columns" else 1 << 40
    for name in ("columns_bytes_min", "columns_rows_min"):
        monkeypatch.setitem(SegmentDecoder.__init__.__kwdefaults__, name, least)
    return str(request.param)


@pytest.mark.parametrize("info", [COMPOSITE, SECONDARY, NULLABLE, BARE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_a_stream_of_tidb(db: MariaDB, way: str, info: TableInfo, data: st.DataObject) -> None:
    stream = stream_of([info], data.draw(streams([info])), upserts=False)
    how = data.draw(cuts(len(stream.binlogs), spread=True))
    assert into_server(db, stream, how) == into_server(db, stream, EACH)


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Killer:
    """Ends a life at the nth place that it comes by."""

    left: int
    at: str = ""

    def __call__(self, place: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.at = place
            raise Killed(place)


PLACES = ["drainer.apply.distributed.crash_point", "drainer.sink.mysql.fenced_session.crash_point"]


def killed(db: MariaDB, stream: Stream, how: Cuts, killer: Killer) -> None:
    """A life that ends at `killer`'s place: its connection goes, and the server rolls back what was not committed."""
    destination = MySQLSink(server_config(db, takeover="force"))
    with contextlib.ExitStack() as stack:
        for place in PLACES:
            stack.enter_context(mock.patch(place, killer))
        try:
            drain(destination, stream, how)
        except Killed:
            driver = destination._driver
            assert driver is not None
            driver.lose()


@pytest.mark.parametrize("info", [SECONDARY, NULLABLE, BARE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_killed_anywhere_a_stream_of_tidb_has_one_outcome(db: MariaDB, info: TableInfo, data: st.DataObject) -> None:
    """Before and behind the commit of the intent with the rows that go ahead, of a chunk, of the end: the next life
    goes on, and stops where a life would have that nobody killed."""
    tables = [info, INT_KEY]
    stream = stream_of(tables, data.draw(streams(tables)), upserts=False)
    how = replace(data.draw(cuts(len(stream.binlogs), spread=True)), spread=(True,))
    expected = into_server(db, stream, EACH)
    reset(db)
    for n in data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=3)):
        killed(db, stream, how, Killer(n))
    error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
    assert outcome(standing(db, stream), error) == expected


BREAKS = [
    pytest.param(SECONDARY, [put(SECONDARY, 1, 1), put(INT_KEY, 5, 5), put(SECONDARY, 2, 1)], id="in the batch"),
    pytest.param(BARE, [put(BARE, 1, 1), put(INT_KEY, 5, 5), gone(BARE, 2, 2)], id="a row that is not there"),
]


@pytest.mark.parametrize(("info", "drawn"), BREAKS)
@pytest.mark.parametrize("nth", range(1, 9))
def test_killed_on_the_way_to_a_refusal(db: MariaDB, info: TableInfo, drawn: list[list[Op]], nth: int) -> None:
    """Each place in turn, among them the one between looking at the batch and the intent."""
    stream = stream_of([info, INT_KEY], drawn, upserts=False)
    how = Cuts(frozenset(), (True,), 2)
    reset(db)
    killed(db, stream, how, Killer(nth))
    error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
    found = outcome(standing(db, stream), error)
    assert (found.commit_ts, found.rows["int_key"], found.rows[info.name]) == (ts(12), [(5, 5, 1)], [(1, 1, 1)])
    assert f"commit_ts {ts(12)}, start_ts {ts(12) - 3}, table d.{info.name}, rows (" in found.text
    assert f"put {ts(12)} into syncer.ignore-txn-commit-ts" in found.text
    assert db.query("SELECT intent FROM tidb_binlog.drainer_position") == [(None,)]


@pytest.mark.parametrize("stands", [True, False])
def test_a_row_of_the_destination_in_the_way_of_a_spread_batch(db: MariaDB, stands: bool) -> None:
    """It was there before the batch, so that nothing in the batch tells of it."""
    stream = stream_of(
        [SECONDARY, INT_KEY], [put(INT_KEY, 5, 5), put(SECONDARY, 2, 1), put(INT_KEY, 6, 6)], upserts=False
    )
    reset(db)
    first = replace(stream, binlogs=stream.binlogs[:1])
    assert drain(MySQLSink(server_config(db, takeover="force")), first, Cuts()) is None
    if stands:
        db.query("INSERT INTO d.secondary VALUES (9, 1, 9)")
    error = drain(MySQLSink(server_config(db, takeover="force")), stream, Cuts(frozenset({0}), (True,)))
    found = outcome(standing(db, stream), error)
    if stands:
        assert (found.error, found.commit_ts) == ("UniqueConflict", ts(11))
        assert found.rows == {"secondary": [(9, 1, 9)], "int_key": [(5, 5, 1)]}
    else:
        assert found.rows == {"secondary": [(2, 1, 1)], "int_key": [(5, 5, 1), (6, 6, 1)]}


def test_what_the_server_cannot_store_is_named_in_a_spread_batch(db: MariaDB) -> None:
    """Nobody can know it before it is tried: the batch is begun, and the error says which transaction it is."""
    drawn = [put(INT_KEY, n, n) for n in range(1, 9)]
    stream = stream_of([INT_KEY], [*drawn, put(INT_KEY, 9, 40_000), *([put(INT_KEY, 20, 1)])], upserts=False)
    reset(db)
    first = replace(stream, binlogs=stream.binlogs[:1])
    assert drain(MySQLSink(server_config(db, takeover="force")), first, Cuts()) is None
    db.query("ALTER TABLE d.int_key MODIFY u SMALLINT")
    how = Cuts(frozenset({0}), (True,), 2)
    for _ in range(2):  # the next life comes to the same
        error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
        assert error is not None and error.commit_ts == ts(18)
        assert f"commit_ts {ts(18)}, start_ts {ts(18) - 3}, table d.int_key, rows (9,40000,1)" in str(error)
        assert f"Its batch ({ts(10)}, {ts(19)}] was begun" in str(error)
    db.query("ALTER TABLE d.int_key MODIFY u INT")
    assert drain(MySQLSink(server_config(db, takeover="force")), stream, how) is None
    assert (9, 40_000, 1) in standing(db, stream)["int_key"]


@dataclass
class AnswerLost:
    """The connection goes behind the nth COMMIT, before its answer comes."""

    left: int

    def __call__(self, place: str) -> None:
        if place == "sink.after_commit":
            self.left -= 1
            if self.left == 0:
                raise ConnectionLost(place)


@pytest.mark.parametrize("nth", range(1, 9))
def test_rows_that_go_ahead_come_once_although_the_answer_is_lost(db: MariaDB, nth: int) -> None:
    """The transaction that records the intent holds them, and is not done again where it was committed."""
    stream = stream_of([BARE], [put(BARE, 1, 1), put(BARE, 1, 1), gone(BARE, 1, 1)], upserts=False)
    reset(db)
    with mock.patch("drainer.sink.mysql.fenced_session.crash_point", AnswerLost(nth)):
        error = drain(MySQLSink(server_config(db, takeover="force")), stream, Cuts(frozenset(), (True,)))
    assert error is None and standing(db, stream) == {"bare": [(1, 1, 1)]}
