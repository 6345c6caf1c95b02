"""The line between the stream reader's process and the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import AuthenticationError

import pytest

from drainer.pumps.mark import PumpRange
from drainer.spark.line import PlannerGone, PlannerLine, Tasks
from drainer.spark.planner import PlannerServer

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
    running = PlannerServer(answers, errors.append)
    yield running, answers, errors
    running.close()


def test_questions_and_answers(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    line = PlannerLine(server[0].address, server[0].key)
    assert line.next_until(5) == 9
    assert line.tasks(5, 9) == (((RANGE,),), None)
    line.close()


def test_an_error_reaches_both_ends(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    running, answers, errors = server
    answers.error = ValueError("no pump")
    with pytest.raises(PlannerGone, match="no pump"):
        PlannerLine(running.address, running.key).next_until(5)
    assert errors == [answers.error]


def test_a_stranger_is_not_let_in(server: tuple[PlannerServer, Answers, list[BaseException]]) -> None:
    running, _, errors = server
    with pytest.raises(AuthenticationError):
        PlannerLine(running.address, "00").next_until(5)
    assert PlannerLine(running.address, running.key).next_until(5) == 9
    assert errors == []


def test_a_driver_that_is_gone_is_an_error() -> None:
    with pytest.raises(PlannerGone):
        PlannerLine("/nowhere/socket", "00").next_until(5)
