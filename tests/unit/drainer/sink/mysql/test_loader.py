"""When a load stays, when it is taken back, and when none is tried, with a session that answers as told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from drainer.batch.work import Match, TableShape
from drainer.sink.mysql.connection import ConnectionLost, Loaded, Retry, ServerError
from drainer.sink.mysql.rows import writer
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import STATEMENTS_ONLY_S, Loader, leave_to_statements, may_load
from tests.support.net_rows import tuples_of

TABLE = TableShape(1, "d", "t", ("id", "e"), (0,), (), (Match.PLAIN,) * 2, type_classes=("int", "enum"))
ROWS = tuples_of([b"(1,1)", b"(2,0)"])
SAVEPOINT, BACK = b"SAVEPOINT drainer_load", b"ROLLBACK TO SAVEPOINT drainer_load"
Warned = tuple[str, int, str]


class Scripted:
    """A session whose load ends with `answer`, or raises it."""

    local_infile = True
    address = "there:3306"

    def __init__(
        self, answer: Loaded | Exception | None, *warned: Warned, refuses: bytes = b"", digits: int | None = None
    ) -> None:
        self._digits = digits
        self._answer = answer
        self._warned = list(warned)
        self._refuses = refuses
        self.warning_count = len(warned)
        self.ran: list[bytes] = []

    def execute(self, sql: bytes) -> int:
        self.ran.append(sql)
        if sql == self._refuses:
            raise ServerError(1305, "SAVEPOINT drainer_load does not exist", self.address)
        return 0

    def load(self, sql: bytes, rows: bytes) -> Loaded | None:
        assert rows == b"(1,1),(2,0),"
        self.ran.append(sql.split(b" INTO")[0])
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def warnings(self) -> list[Warned]:
        return self._warned

    def literal(self, value: str) -> bytes:
        return b"'%s'" % value.encode()

    def query(self, sql: bytes) -> list[tuple[object, ...]]:
        if b"information_schema.COLUMNS" in sql:
            return [("id", None, self._digits, "int", None, "NO"), ("e", "utf8mb4_bin", None, "enum", "utf8mb4", "YES")]
        return []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    writer._until.clear()
    yield
    writer._until.clear()


def write(session: Scripted, keys: UniqueKeys | None = None, *, replaces: bool = True, rows_min: int = 2) -> bool:
    server: Any = session
    return Loader(server, keys or UniqueKeys(), rows_min).write(TABLE, ROWS, replaces=replaces)


def stays(answer: Loaded | Exception | None, *warned: Warned) -> bool:
    """Whether it does; what does not is taken back, and that table is not loaded again."""
    session, keys = Scripted(answer, *warned), UniqueKeys()
    wrote = write(session, keys)
    assert session.ran == [SAVEPOINT, b"LOAD DATA LOCAL INFILE 'rows' REPLACE", *([] if wrote else [BACK])]
    session.ran.clear()
    assert write(session, keys) == wrote
    assert bool(session.ran) == wrote
    keys.forget()
    assert write(session, keys) == wrote
    assert session.ran
    return wrote


def test_load_with_expected_counts_is_kept() -> None:
    assert stays(Loaded(2, 0, 0, 0))
    assert stays(Loaded(2, 2, 0, 0))


@pytest.mark.parametrize(
    "answer",
    [None, Loaded(1, 0, 0, 0), Loaded(3, 0, 0, 0), Loaded(2, 0, 1, 0), ServerError(1526, "no partition", "there")],
)
def test_load_with_unexpected_counts_is_rolled_back(answer: Loaded | Exception | None) -> None:
    assert not stays(answer)


@pytest.mark.parametrize(
    "warned",
    [
        ("Warning", 1264, "Out of range value for column 'id' at row 1"),
        ("Warning", 1265, "Data truncated for column 'e' at row 1"),  # the value is not 0 there
        ("Warning", 1265, "Data truncated for column 'e' at row 3"),
        ("Warning", 1261, "Row 1 doesn't contain data for all columns"),
        ("Warning", 1262, "Row 2 was truncated; it contained more data than there were input columns"),
        ("Note", 1051, "Unknown table 'd.x'"),
        ("Note", 1265, "Data truncated for column 'e' at row 1"),
    ],
)
def test_load_with_value_warning_is_rolled_back(warned: Warned) -> None:
    assert not stays(Loaded(2, 0, 0, 1), warned)
    harmless = ("Warning", 1265, "Data truncated for column 'e' at row 2")
    assert not stays(Loaded(2, 0, 0, 2), harmless, warned)
    assert stays(Loaded(2, 0, 0, 1), harmless)


def test_load_with_unreadable_warnings_is_rolled_back() -> None:
    harmless = ("Warning", 1265, "Data truncated for column 'e' at row 2")
    assert not stays(Loaded(2, 0, 0, 1))
    assert not stays(Loaded(2, 0, 0, 2), harmless)


def test_table_with_fewer_fraction_digits_is_not_loaded() -> None:
    """They look at each value: a server need not tell what it cuts off."""
    at = replace(TABLE, fractions=(2, 0))
    for digits, loaded in ((1, False), (2, True)):
        session: Any = Scripted(Loaded(2, 0, 0, 0), digits=digits)
        assert Loader(session, UniqueKeys(), 2).write(at, ROWS, replaces=True) == loaded


def test_load_of_plain_inserts_omits_replace() -> None:
    session = Scripted(Loaded(2, 0, 0, 0))
    assert write(session, replaces=False)
    assert session.ran == [SAVEPOINT, b"LOAD DATA LOCAL INFILE 'rows'"]


def test_load_is_not_tried_below_rows_min_or_without_local_infile() -> None:
    session = Scripted(Loaded(2, 0, 0, 0))
    assert not write(session, rows_min=3)
    session.local_infile = False
    assert not write(session)
    assert session.ran == []


@pytest.mark.parametrize("code", [1064, 1148, 3948, 4166])
def test_load_refused_by_server_is_not_tried_there_again(code: int) -> None:
    refusing = Scripted(ServerError(code, "no", "there:3306"))
    assert not write(refusing)
    assert refusing.ran[-1] == BACK
    other = Scripted(Loaded(2, 0, 0, 0))
    assert not write(other)
    assert other.ran == []
    other.address = "elsewhere:3306"
    assert write(other)


def test_load_error_of_one_table_does_not_disable_loading_for_server() -> None:
    assert not write(Scripted(ServerError(1644, "trigger", "there:3306")))
    assert write(Scripted(Loaded(2, 0, 0, 0)))


def test_connection_lost_during_load_disables_loading_for_server() -> None:
    """A proxy may break it each time; without this, a transaction would be tried that way for ever."""
    with pytest.raises(ConnectionLost):
        write(Scripted(ConnectionLost("gone")))
    assert not may_load("there:3306")
    assert not write(Scripted(Loaded(2, 0, 0, 0)))


def test_loading_is_tried_again_after_statements_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(writer.time, "monotonic", lambda: now_s)
    leave_to_statements("there:3306", "broken")
    now_s += STATEMENTS_ONLY_S - 1
    assert not may_load("there:3306")
    now_s += 1
    assert may_load("there:3306")


def test_deadlock_during_load_retries_transaction() -> None:
    session, keys = Scripted(Retry("deadlock")), UniqueKeys()
    with pytest.raises(Retry, match="deadlock"):
        write(session, keys)
    assert BACK not in session.ran
    assert write(Scripted(Loaded(2, 0, 0, 0)), keys)


def test_load_with_failed_rollback_to_savepoint_retries_by_statements() -> None:
    keys = UniqueKeys()
    with pytest.raises(Retry, match="gone"):
        write(Scripted(ServerError(1020, "changed", "there:3306"), refuses=BACK), keys)
    assert not write(Scripted(Loaded(2, 0, 0, 0)), keys)
