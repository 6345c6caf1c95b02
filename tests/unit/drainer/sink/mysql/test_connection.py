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
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, Session
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


def session(answers: Answers) -> Session:
    connection: Any = answers
    return Session(ServerConfig(), connection)


@pytest.mark.parametrize("code", [1205, 1213, 8002, 8005, 8022, 8027, 8028, 8113, 8229, 9004, 9007])
def test_what_was_rolled_back_is_run_again(code: int) -> None:
    with pytest.raises(Retry, match=str(code)):
        session(Answers((b"X", code))).execute(b"X")


@pytest.mark.parametrize("code", [2006, 2013, 9001, 9002, 9003, 9005])
def test_what_may_have_happened_is_looked_at_on_a_new_connection(code: int) -> None:
    with pytest.raises(ConnectionLost, match=str(code)):
        session(Answers((b"X", code))).execute(b"X")


def test_an_assertion_of_tidb_is_tried_again_strictly_and_believed_then() -> None:
    answers = Answers((b"COMMIT", 8141), (b"COMMIT", 8141))
    used = session(answers)
    with pytest.raises(Retry, match="8141"):
        used.commit()
    assert answers.asked == [b"COMMIT", b"SET SESSION tidb_txn_assertion_level='STRICT'"]
    with pytest.raises(ServerError, match="8141"):
        used.commit()


def test_a_refused_commit_says_what_is_not_written() -> None:
    answers = Answers((b"COMMIT", 8004))
    with pytest.raises(CommitRefused, match=r"rows of \(1, 2\].*8004"):
        run_transaction(session(answers), lambda _: None, "rows of (1, 2]", before="b", after="a")


def test_a_refused_statement_does_not_keep_its_connection() -> None:
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
