"""The line between the stream reader's process and the scheduler."""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from drainer.pumps.watermark import PumpRange
from drainer.spark.source.planner import (
    SOCKET_FOLDER_BYTES_MAX,
    PlannerGone,
    PlannerLine,
    PlannerServer,
    QuestionUnreadable,
    Tasks,
    question_of,
)

RANGE = PumpRange("a", "h:1", True, 5, 9)


class Answers:
    """A planner that ends every batch four further on."""

    error: Exception | None = None

    def next_until(self, start_ts: int) -> int:
        if self.error is not None:
            raise self.error
        return start_ts + 4

    def tasks(self, start_ts: int, until_ts: int) -> Tasks:
        return ((RANGE,),), None


@pytest.fixture
def server() -> Iterator[tuple[PlannerServer, Answers, list[BaseException]]]:
    errors: list[BaseException] = []
    answers = Answers()
    running = PlannerServer(answers.next_until, answers.tasks, errors.append)
    yield running, answers, errors
    running.close()


def test_planner_line_returns_schedulers_answers(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    line = PlannerLine(server[0].address, server[0].key)
    assert line.next_until(5) == 9
    assert line.tasks(5, 9) == (((RANGE,),), None)
    line.close()


def test_planner_error_reaches_reader_and_driver(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    running, answers, errors = server
    answers.error = ValueError("no pump")
    with pytest.raises(PlannerGone, match="no pump"):
        PlannerLine(running.address, running.key).next_until(5)
    assert errors == [answers.error]


def test_error_after_planner_server_closed_is_not_reported() -> None:
    """The reader of a query that is over may still wait for an answer; the next query has begun."""
    errors: list[BaseException] = []
    asked, closed = threading.Event(), threading.Event()

    class Slow(Answers):
        def next_until(self, start_ts: int) -> int:
            asked.set()
            assert closed.wait(60)
            raise ValueError("nothing is planned")

    server = PlannerServer(Slow().next_until, Slow().tasks, errors.append)
    line = PlannerLine(server.address, server.key)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(line.next_until, 9)
        assert asked.wait(60)
        server.close()
        closed.set()
        with pytest.raises(PlannerGone):
            answer.result(60)
    assert errors == []
    line.close()


def test_planner_server_refuses_wrong_key(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    running, _, errors = server
    with pytest.raises(AuthenticationError):
        PlannerLine(running.address, "00").next_until(5)
    assert PlannerLine(running.address, running.key).next_until(5) == 9
    assert errors == []


def test_planner_line_without_driver_raises_planner_gone() -> None:
    with pytest.raises(PlannerGone):
        PlannerLine("/nowhere/socket", "00").next_until(5)


def test_planner_socket_folder_is_private_to_user(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    folder = Path(server[0].address).parent.stat()
    assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.getuid())


class Harmful:
    """What a pickle may hold: a call of anything."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._trace,)


def test_planner_server_does_not_unpickle_requests(
    server: tuple[PlannerServer, Answers, list[BaseException]], tmp_path: Path
) -> None:
    """Not even from somebody who knows the key."""
    running, _, errors = server
    with Client(running.address, family="AF_UNIX", authkey=running.key.encode()) as connection:
        connection.send(Harmful(tmp_path / "called"))
        result, _ = connection.recv()
    assert result == "error"
    assert not (tmp_path / "called").exists()
    assert [type(error) for error in errors] == [QuestionUnreadable]


ASKED = b'["tasks", 5, 9]'


@pytest.mark.parametrize(
    "asked",
    [
        *(ASKED[:at] for at in range(len(ASKED))),
        b"\xff",
        b"7",
        b"{}",
        b"[" * 1000,
        b'["tasks", 5]',
        b'["tasks", 5, 9, 9]',
        b'["stop", 5, 9]',
        b'["tasks", "5", 9]',
        b'["tasks", 5, 9.5]',
        b'["tasks", true, 9]',
        b'[["tasks"], 5, 9]',
        pickle.dumps(("tasks", 5, 9)),
    ],
)
def test_malformed_planner_request_is_refused(asked: bytes) -> None:
    with pytest.raises(QuestionUnreadable):
        question_of(asked)


def test_planner_request_is_parsed() -> None:
    assert question_of(ASKED) == ("tasks", 5, 9)


def test_planner_socket_works_with_long_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket holds 107 bytes, and TMPDIR may be longer alone."""
    for bytes_more in (SOCKET_FOLDER_BYTES_MAX - len(str(tmp_path)) - 1, 100):
        if bytes_more < 1:
            continue
        folder = tmp_path / ("x" * bytes_more)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        running = PlannerServer(Answers().next_until, Answers().tasks, print)
        line = PlannerLine(running.address, running.key)
        assert line.next_until(5) == 9
        line.close()
        running.close()
        assert not Path(running.address).parent.exists()
