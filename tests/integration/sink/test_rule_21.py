"""Rule 21 on a real server: a sound stream has one outcome wherever it is cut, in the driver and distributed, also
through kills; one that breaks its keys stops, and what is applied of it is applied once."""

from __future__ import annotations

import contextlib
import re
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
    BEGUN,
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
    expected_of,
    gone,
    outcome,
    put,
    sound,
    stream_of,
    streams,
    without,
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
def test_sdk_stream_into_server_gives_equal_rows_for_any_cut(db: MariaDB, info: TableInfo, data: st.DataObject) -> None:
    stream = stream_of([info], data.draw(streams([info])), upserts=True)
    how = data.draw(cuts(len(stream.binlogs), distributed=True))
    expected = into_server(db, stream, EACH)
    assert expected.error == "", expected.text
    assert into_server(db, stream, how) == expected


@pytest.fixture(params=["by columns", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows are decoded, however few there are."""
    least = 0 if request.param == "by columns" else 1 << 40
    monkeypatch.setitem(SegmentDecoder.__init__.__kwdefaults__, "columns_rows_min", least)
    return str(request.param)


@pytest.mark.parametrize("info", [COMPOSITE, SECONDARY, NULLABLE, LOOSE, BARE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_tidb_stream_into_server_gives_equal_rows_or_error_for_any_cut(
    db: MariaDB, way: str, info: TableInfo, data: st.DataObject
) -> None:
    drawn, rows = sound(data.draw(streams([info])))
    stream = stream_of([info], drawn, upserts=False)
    how = data.draw(cuts(len(stream.binlogs), distributed=True))
    assert into_server(db, stream, how) == expected_of([info], rows)


@pytest.mark.parametrize("info", [SECONDARY, LOOSE], ids=lambda info: info.name)
@EXAMPLES
@given(data=st.data())
def test_tidb_stream_with_deletes_left_out_into_server_gives_equal_rows_for_any_cut(
    db: MariaDB, info: TableInfo, data: st.DataObject
) -> None:
    drawn, _ = sound(data.draw(streams([info])))
    stream = replace(stream_of([info], drawn, upserts=False), events=without("delete"))
    how = data.draw(cuts(len(stream.binlogs), distributed=True))
    expected = into_server(db, stream, EACH)
    assert expected.error == "", expected.text
    assert into_server(db, stream, how) == expected


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


PLACES = ["drainer.apply.distributed.crash_point", "drainer.sink.mysql.connection.crash_point"]


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
def test_tidb_stream_gives_equal_result_after_kills_at_any_point(
    db: MariaDB, info: TableInfo, data: st.DataObject
) -> None:
    """Before and behind the commit of the intent, of a chunk, of a phase, of the end: the next life goes on."""
    tables = [info, INT_KEY]
    drawn, rows = sound(data.draw(streams(tables)))
    stream = stream_of(tables, drawn, upserts=False)
    how = replace(data.draw(cuts(len(stream.binlogs), distributed=True)), distributed=(True,))
    reset(db)
    for n in data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=3)):
        killed(db, stream, how, Killer(n))
    error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
    assert outcome(standing(db, stream), error) == expected_of(tables, rows)


@dataclass(frozen=True)
class Broken:
    """A stream that breaks its keys with its last transaction but one, what an error of it says, and a statement after
    which the destination takes it, with the rows that it has in the end."""

    info: TableInfo
    drawn: list[list[Op]]
    says: str
    mend: str
    rows: list[tuple[object, ...]]


BROKEN = [
    pytest.param(
        Broken(
            SECONDARY,
            [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1)],
            r"d\.secondary: unique key 'uu' .*Duplicate entry '1' for key",
            "ALTER TABLE d.secondary DROP KEY uu",
            [(1, 1, 1), (2, 1, 1)],
        ),
        id="a value of two rows",
    ),
    pytest.param(
        Broken(
            BARE,
            [put(BARE, 1, 1), gone(BARE, 2, 2)],
            r"d\.bare: DELETE of commit_ts .* the destination has no row \(2,2,1\)",
            "INSERT INTO d.bare VALUES (2, 2, 1)",
            [(1, 1, 1), (9, 9, 1)],
        ),
        id="a row that is not there",
    ),
]  # fmt: skip


def broken_stream(broken: Broken) -> Stream:
    """Its transactions between those of another table and one behind them."""
    last = put(broken.info, 9, 9) if broken.info is BARE else put(INT_KEY, 9, 9)
    drawn = [put(INT_KEY, 5, 5), *broken.drawn, [*put(INT_KEY, 6, 6), *last]]
    return stream_of([broken.info, INT_KEY], drawn, upserts=False)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_stream_inline_stops_at_the_transaction(db: MariaDB, broken: Broken) -> None:
    """All before it is applied and nothing else; skipped, all the rest comes."""
    stream = broken_stream(broken)
    at = ts(12)
    reset(db)
    for _ in range(2):
        error = drain(MySQLSink(server_config(db, takeover="force")), stream, Cuts())
        found = outcome(standing(db, stream), error)
        assert found.rows == {broken.info.name: [(1, 1, 1)], "int_key": [(5, 5, 1)]}
        assert re.search(broken.says, found.text)
        assert f"commit_ts {at}, start_ts {at - 3}, table d.{broken.info.name}, rows (2," in found.text
        assert f"put {at} into syncer.ignore-txn-commit-ts" in found.text
    assert drain(MySQLSink(server_config(db, takeover="force")), replace(stream, ignored=at), Cuts()) is None
    assert (6, 6, 1) in standing(db, stream)["int_key"]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("nth", [0, *range(2, 14, 2)])
def test_broken_stream_distributed_stops_with_its_batch_open(db: MariaDB, broken: Broken, nth: int) -> None:
    """The error names row and range, in each life, killed on the way or not. When the destination takes the row, the
    batch is finished, and everything is there once: a table without a key would show a repetition."""
    stream = broken_stream(broken)
    reset(db)
    how = Cuts(frozenset(), (True,), 2)
    if nth:
        killed(db, stream, how, Killer(nth))
    for _ in range(2):
        error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
        assert error is not None and re.search(broken.says, str(error))
        named = re.search(rf"commit_ts (\d+), start_ts (\d+), table d\.{broken.info.name}, rows \(\d", str(error))
        assert named is not None and int(named[2]) == int(named[1]) - 3
        assert f"Its batch ({BEGUN}, {ts(13)}] was begun" in str(error)
        assert db.query("SELECT commit_ts FROM tidb_binlog.drainer_position") == [(BEGUN,)]
    db.query(broken.mend)
    assert drain(MySQLSink(server_config(db, takeover="force")), stream, how) is None
    more = [] if broken.info is BARE else [(9, 9, 1)]
    expected = {broken.info.name: broken.rows, "int_key": [(5, 5, 1), (6, 6, 1), *more]}
    assert standing(db, stream) == expected


def test_destination_row_in_conflict_with_distributed_batch_is_reported(db: MariaDB) -> None:
    """It was there before the batch and upstream has it not: it is never evicted (rule 12)."""
    stream = stream_of(
        [SECONDARY, INT_KEY], [put(INT_KEY, 5, 5), put(SECONDARY, 2, 1), put(INT_KEY, 6, 6)], upserts=False
    )
    reset(db)
    first = replace(stream, binlogs=stream.binlogs[:1])
    assert drain(MySQLSink(server_config(db, takeover="force")), first, Cuts()) is None
    db.query("INSERT INTO d.secondary VALUES (9, 1, 9)")
    how = Cuts(frozenset({0}), (True,))
    error = drain(MySQLSink(server_config(db, takeover="force")), stream, how)
    found = outcome(standing(db, stream), error)
    assert (found.error, found.commit_ts, found.rows["secondary"]) == ("UniqueConflict", ts(11), [(9, 1, 9)])
    assert f"commit_ts {ts(11)}, start_ts {ts(11) - 3}, table d.secondary, rows (2,1,1)" in found.text
    db.query("DELETE FROM d.secondary WHERE k = 9")
    assert drain(MySQLSink(server_config(db, takeover="force")), stream, how) is None
    assert standing(db, stream) == {"secondary": [(2, 1, 1)], "int_key": [(5, 5, 1), (6, 6, 1)]}


def test_value_refused_by_server_in_distributed_batch_names_its_transaction(db: MariaDB) -> None:
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
        if place in ("sink.after_commit", "sink.after_chunk_commit"):
            self.left -= 1
            if self.left == 0:
                raise ConnectionLost(place)


@pytest.mark.parametrize("nth", range(1, 9))
def test_rows_without_a_key_come_once_although_an_answer_is_lost(db: MariaDB, nth: int) -> None:
    """Rule 11: executors write them, in one slot, in marked chunks."""
    stream = stream_of([BARE], [put(BARE, 1, 1), put(BARE, 1, 1), put(BARE, 1, 1), gone(BARE, 1, 1)], upserts=False)
    reset(db)
    with mock.patch("drainer.sink.mysql.connection.crash_point", AnswerLost(nth)):
        error = drain(MySQLSink(server_config(db, takeover="force")), stream, Cuts(frozenset(), (True,)))
    assert error is None and standing(db, stream) == {"bare": [(1, 1, 1), (1, 1, 1)]}
