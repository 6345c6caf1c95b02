"""How a server's errors are told apart, on a connection that answers as told."""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.err import OperationalError

from drainer.sink.errors import CommitRefused
from drainer.sink.mysql import connection
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession
from drainer.sink.mysql.session_settings import SQL_MODE, WARNINGS_MAX, takes_files, wrong


class Answers:
    """Stands for PyMySQL's connection: an error for the statements that `errors` names, once each, else no rows."""

    def __init__(self, *errors: tuple[bytes, int]) -> None:
        self.errors = list(errors)
        self.asked: list[bytes] = []
        self._result = SimpleNamespace(warning_count=0, rows=())

    def query(self, sql: bytes) -> int:
        self.asked.append(sql)
        if self.errors and self.errors[0][0] == sql:
            raise OperationalError(self.errors.pop(0)[1], "said so")
        return 0


def session(answers: Answers) -> ServerSession:
    connection: Any = answers
    return ServerSession(ServerConfig(), connection)


@pytest.mark.parametrize("code", [1205, 1213, 8002, 8005, 8022, 8027, 8028, 8113, 8229, 9004, 9007])
def test_error_that_rolled_back_transaction_is_retried(code: int) -> None:
    with pytest.raises(Retry, match=str(code)):
        session(Answers((b"X", code))).execute(b"X")


@pytest.mark.parametrize("code", [2006, 2013, 9001, 9002, 9003, 9005])
def test_error_with_unknown_result_loses_connection(code: int) -> None:
    with pytest.raises(ConnectionLost, match=str(code)):
        session(Answers((b"X", code))).execute(b"X")


def test_tidb_assertion_error_is_retried_strictly_and_then_raised() -> None:
    answers = Answers((b"COMMIT", 8141), (b"COMMIT", 8141))
    used = session(answers)
    with pytest.raises(Retry, match="8141"):
        used.commit()
    assert answers.asked == [b"COMMIT", b"SET SESSION tidb_txn_assertion_level='STRICT'"]
    with pytest.raises(ServerError, match="8141"):
        used.commit()


def test_refused_commit_names_rows_not_written() -> None:
    answers = Answers((b"COMMIT", 8004))
    with pytest.raises(CommitRefused, match=r"rows of \(1, 2\].*8004"), session(answers).transaction("rows of (1, 2]"):
        pass


def test_connection_of_refused_statement_is_freed_without_garbage_collection() -> None:
    """What nobody refers to any more is closed at once, and with it its locks, without waiting for the collector."""
    answers = Answers((b"X", 1142))
    used = session(answers)
    gone = weakref.ref(used)
    gc.disable()
    try:
        with contextlib.suppress(ServerError):
            used.execute(b"X")
        del used
        assert gone() is None
    finally:
        gc.enable()


# Which connections a worker keeps between tasks.


CONFIG = ServerConfig(port=1)


@dataclass
class OpenSession:
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenSession]:
    sessions: list[OpenSession] = []

    def connect(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> OpenSession:
        sessions.append(OpenSession())
        return sessions[-1]

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(connection, "_kept", {})
    return sessions


def take(config: ServerConfig = CONFIG) -> OpenSession:
    return connection.take(config, idle_s=1, read_timeout_s=None)  # type: ignore[return-value]


def give_back(session: OpenSession, config: ServerConfig = CONFIG) -> None:
    connection.give_back(config, session)  # type: ignore[arg-type]


def test_session_given_back_is_used_again(opened: list[OpenSession]) -> None:
    for _ in range(3):
        give_back(take())
    assert len(opened) == 1


def test_session_in_use_or_of_another_server_is_not_handed_out(opened: list[OpenSession]) -> None:
    first, second = take(), take()
    assert first is not second
    give_back(first)
    assert take(ServerConfig(port=2)) is not first


def test_sessions_beyond_maximum_or_age_are_closed(opened: list[OpenSession], monkeypatch: pytest.MonkeyPatch) -> None:
    for session in [take() for _ in range(connection.KEPT_MAX + 1)]:
        give_back(session)
    assert [session.closed for session in opened] == [False] * connection.KEPT_MAX + [True]
    monkeypatch.setattr(connection, "KEPT_S", 0.0)
    take()
    assert all(session.closed for session in opened[:-1])
    assert len(opened) == connection.KEPT_MAX + 2


# Which session variables must hold, and which versions may lack them.


GOOD = {
    "autocommit": "ON",
    "foreign_key_checks": "OFF",
    "unique_checks": "ON",
    "max_error_count": str(WARNINGS_MAX),
    "sql_notes": "ON",
    "completion_type": "NO_CHAIN",
    "sql_select_limit": "18446744073709551615",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "sql_mode": SQL_MODE,
    "tx_isolation": "READ-COMMITTED",
}
TIDB = {
    **GOOD,
    "tidb_txn_mode": "pessimistic",
    "tidb_disable_txn_auto_retry": "ON",
    "tidb_retry_limit": "0",
    "tidb_constraint_check_in_place_pessimistic": "ON",
    "tidb_batch_insert": "OFF",
    "tidb_batch_delete": "OFF",
    "tidb_batch_commit": "OFF",
    "tidb_dml_batch_size": "0",
    "tidb_dml_type": "STANDARD",
    "tidb_snapshot": "",
    "tidb_read_staleness": "0",
    "tidb_low_resolution_tso": "OFF",
}


def test_session_variables_as_set_are_accepted() -> None:
    assert list(wrong("mariadb", GOOD)) == []
    assert list(wrong("tidb", TIDB)) == []
    assert list(wrong("tidb", {name.upper(): value for name, value in TIDB.items()})) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("autocommit", "OFF"),
        ("foreign_key_checks", "ON"),
        ("unique_checks", "0"),
        ("max_error_count", "64"),
        ("sql_notes", "OFF"),
        ("completion_type", "CHAIN"),
        ("completion_type", "2"),
        ("sql_select_limit", "1"),
        ("character_set_client", "latin1"),
        ("character_set_connection", "latin1"),
        ("sql_mode", ""),
        ("sql_mode", "NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES"),
        ("sql_mode", "NO_AUTO_VALUE_ON_ZERO,EMPTY_STRING_IS_NULL"),
        ("tx_isolation", "READ-UNCOMMITTED"),
        ("transaction_isolation", "READ-UNCOMMITTED"),
        ("tidb_txn_mode", "optimistic"),
        ("tidb_txn_mode", ""),
        ("tidb_constraint_check_in_place_pessimistic", "OFF"),
        ("tidb_batch_insert", "ON"),
        ("tidb_batch_delete", "1"),
        ("tidb_batch_commit", "ON"),
        ("tidb_dml_batch_size", "100"),
        ("tidb_dml_type", "bulk"),
        ("tidb_snapshot", "2026-01-01 00:00:00"),
        ("tidb_read_staleness", "-5"),
        ("tidb_low_resolution_tso", "ON"),
    ],
)
def test_session_variable_with_wrong_value_is_named(name: str, value: str) -> None:
    assert [text.partition(" ")[0] for text in wrong("tidb", {**TIDB, name: value})] == [name]


@pytest.mark.parametrize("name", [name for name in TIDB if name.startswith("tidb_")])
def test_missing_tidb_variable_is_accepted(name: str) -> None:
    """Older and newer versions know other ones."""
    assert list(wrong("tidb", {known: value for known, value in TIDB.items() if known != name})) == []


def test_old_tidb_needs_transaction_retries_disabled() -> None:
    assert list(wrong("tidb", {**GOOD, "tidb_disable_txn_auto_retry": "1"})) == []
    assert list(wrong("tidb", {**GOOD, "tidb_retry_limit": "0"})) == []
    for shown in ({}, {"tidb_disable_txn_auto_retry": "OFF", "tidb_retry_limit": "10"}):
        (text,) = wrong("tidb", {**GOOD, **shown})
        assert "tidb_retry_limit" in text
    assert list(wrong("mariadb", GOOD)) == []


@pytest.mark.parametrize("flavour", ["mysql", "mariadb", "tidb"])
@pytest.mark.parametrize("shown", [{"local_infile": "ON"}, {"LOCAL_INFILE": "1"}, {"local_infile": "OFF"}, {}])
def test_local_infile_is_used_on_mysql_and_mariadb_where_enabled(flavour: str, shown: dict[str, str]) -> None:
    """TiDB takes them, and reads them by rules of its own."""
    assert takes_files(flavour, shown) == (flavour != "tidb" and list(shown.values()) in (["ON"], ["1"]))
