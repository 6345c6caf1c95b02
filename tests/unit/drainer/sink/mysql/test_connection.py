"""How a server's errors are told apart, on a connection that answers as told."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.err import OperationalError

from drainer.sink.errors import CommitRefused
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession
from drainer.sink.mysql.fenced_session import run_transaction


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
    with pytest.raises(CommitRefused, match=r"rows of \(1, 2\].*8004"):
        run_transaction(session(answers), lambda _: None, "rows of (1, 2]", before="b", after="a")


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
