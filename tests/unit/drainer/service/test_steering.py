"""Pause, stop-at and delay: the limits of batches, what the scheduler plans under them, and the requests that set
them."""

from __future__ import annotations

import asyncio
import json

import pytest
from binlog.cluster.timestamp import ClusterClock
from binlog.cluster.tso import compose
from binlog.errors import TimestampUnavailable
from binlog.runtime.http import Request
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import DELAY_STEP_MS, ceiling, final
from drainer.apply.progress import Refused
from drainer.pumps.watermark import BatchLimits, Counted, PumpRange, Stop, Watermark, watermark_of
from drainer.service.scheduler import Scheduler, Steering
from drainer.service.status import CHANGEFEED, PageSwitch, StartingPages
from drainer.service.steering import SteeringApi, why_not_stop_at
from drainer.sink.base import Intent
from tests.unit.drainer.service.test_scheduler import Position, Pumps, made, mark, next_until

NOW_MS = 1_700_000_000_500


@pytest.mark.parametrize(
    ("until_now", "stop_at", "found"), [(None, 0, None), (7, 0, 7), (None, 5, 5), (7, 5, 5), (3, 5, 3), (0, 5, 0)]
)
def test_drainer_ends_at_the_lower_of_two_ends(until_now: int | None, stop_at: int, found: int | None) -> None:
    assert final(until_now, stop_at) == found


@given(
    st.none() | st.integers(0, compose(NOW_MS * 2)), st.integers(0, 1 << 45), st.integers(0, compose(NOW_MS, 1 << 17))
)
def test_no_batch_exceeds_end_or_delay(final_ts: int | None, delay_ms: int, now_ts: int) -> None:
    found = ceiling(final_ts, delay_ms, now_ts)
    if final_ts is not None:
        assert found is not None and found <= final_ts
    if delay_ms:
        latest = max(0, now_ts - compose(delay_ms))
        assert found is not None and found <= latest
        assert found == final_ts or latest - found < compose(DELAY_STEP_MS)
    else:
        assert found == final_ts


def test_delay_without_a_clock_lets_nothing_pass() -> None:
    assert ceiling(None, 1, 0) == 0


class Source:
    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    async def get(self) -> int:
        if not self.answers:
            raise TimestampUnavailable("none")
        return self.answers.pop(0)

    async def close(self) -> None:
        self.answers = [0]


async def test_clock_keeps_the_last_timestamp_while_the_source_fails() -> None:
    source, connected = Source(9), []

    async def connect() -> Source:
        connected.append(1)
        return source

    clock = ClusterClock(connect, every_s=0)
    assert [await clock.now_ts(), await clock.now_ts()] == [9, 9] and len(connected) == 1
    await clock.close()
    assert source.answers == [0]


class Counting(Pumps):
    """Pumps that hold binlogs at some commit_ts, and count them."""

    def __init__(self, *commits: int, resolved: int) -> None:
        self.commits = commits
        super().__init__(lambda after, _: self._answer(after, resolved))

    def _answer(self, after_ts: int, resolved_ts: int) -> Watermark:
        count = sum(after_ts < ts <= resolved_ts for ts in self.commits)
        return watermark_of((mark(resolved_ts, batch_count=count, batch_bytes=count, last_ts=0),), floor_ts=0)

    async def count(self, part: PumpRange) -> Counted:
        return Counted(sum(part.after_ts < ts <= part.until_ts for ts in self.commits))


def steered(pumps: Pumps, position: Position, steering: Steering, **more: object) -> Scheduler:
    scheduler, _ = made(pumps.answer, position, steering=steering, **more)
    scheduler._pumps = pumps  # type: ignore[assignment]
    return scheduler


async def test_paused_changefeed_plans_nothing_until_it_is_resumed() -> None:
    """It asks the pumps now and then, for the status page."""
    pumps, steering = Counting(60, resolved=100), Steering()
    scheduler = steered(pumps, Position(50), steering)
    steering.pause("me")
    assert await next_until(scheduler, 50) == 50
    assert scheduler.watermark_state.watermark_ts == 100
    steering.resume()
    assert await next_until(scheduler, 50) == 100


async def test_batch_that_was_planned_while_the_pause_came_is_not_begun() -> None:
    steering = Steering()

    def answer(*_: object) -> Watermark:
        steering.pause("me")
        return watermark_of((mark(100, batch_bytes=1, batch_count=1),), floor_ts=0)

    scheduler, _ = made(answer, Position(50), steering=steering)
    assert await next_until(scheduler, 50) == 50 and not scheduler.batches.end_ts


async def test_batch_ends_exactly_at_stop_at_and_the_drainer_then_ends() -> None:
    position, steering, reached = Position(50), Steering(stop_at_ts=70), asyncio.Event()
    scheduler = steered(Counting(60, 80, resolved=100), position, steering, on_reached=reached.set)
    assert await next_until(scheduler, 50) == 70
    position.position_ts = 70
    scheduler.applied()
    await next_until(scheduler, 70)
    assert reached.is_set() and position.stored[-1] == 70


def test_end_that_came_while_a_batch_was_planned_keeps_a_later_one_from_beginning() -> None:
    assert Steering(stop_at_ts=70).admits(70) and not Steering(stop_at_ts=70).admits(71)


def test_end_inside_a_planned_batch_is_refused() -> None:
    position = Position(50)
    assert why_not_stop_at(80, position, 90) and not why_not_stop_at(90, position, 90)  # type: ignore[arg-type]


async def test_stop_at_that_no_binlog_is_at_is_reached_by_moving_the_position() -> None:
    """Also if the drainer already knows that nothing is there, and has not stored it."""
    position, steering, reached = Position(50), Steering(), asyncio.Event()
    scheduler = steered(Counting(resolved=100), position, steering, on_reached=reached.set)
    scheduler.watermark_state.applied_ts = 100
    steering.stop_at_ts = 70
    await next_until(scheduler, 50)
    assert position.advances == [70] and reached.is_set()


async def test_delayed_batches_end_before_the_clusters_time_less_the_delay() -> None:
    base = NOW_MS - NOW_MS % 1000
    now, steering = [compose(base)], Steering(delay_ms=60_000)
    old, young = compose(base - 70_000), compose(base - 50_000)
    start = compose(base - 100_000)
    position, pumps = Position(start), Counting(old, young, resolved=compose(base))

    async def now_ts() -> int:
        return now[0]

    scheduler = steered(pumps, position, steering, now_ts=now_ts)
    assert await next_until(scheduler, start) == compose(base - 60_000)
    position.position_ts = compose(base - 60_000)
    scheduler.applied()
    asked = len(pumps.asked)
    assert await next_until(scheduler, 0) == 0 and scheduler.watermark_state.at_ceiling
    assert len(pumps.asked) == asked, "nothing may be applied, so the pumps are not asked"
    now[0] = compose(base + 5_000)
    assert await next_until(scheduler, 0) == 0, "no binlog is in those seconds, so no batch"
    assert scheduler.watermark_state.applied_ts == compose(base - 55_000)
    steering.delay_ms = 0
    assert await next_until(scheduler, 0) == compose(base)


async def test_survey_of_delayed_drainer_does_not_ask_for_a_whole_distributed_batch() -> None:
    asked: list[BatchLimits] = []

    def answer(_: int, limits: BatchLimits) -> Watermark:
        asked.append(limits)
        found = mark(compose(NOW_MS), end_ts=compose(NOW_MS - 100), batch_bytes=1, batch_count=1, stop=Stop.LIMIT)
        return watermark_of((found,), floor_ts=0)

    async def now_ts() -> int:
        return compose(NOW_MS)

    scheduler, _ = made(answer, Position(5), steering=Steering(delay_ms=3000), now_ts=now_ts)
    scheduler._sizes = type(scheduler._sizes)(
        driver_bytes_max=10, distributed_bytes_min=1000, distributed_bytes_max=8000
    )
    await next_until(scheduler, 5)
    assert [limits.batch_bytes_max for limits in asked[:1]] == [10]


class Api:
    def __init__(self, position_ts: int = 50) -> None:
        self.position = Position(position_ts)
        self.scheduler, _ = made(lambda *_: Watermark(0, ()), self.position)
        self.api = SteeringApi("d", self.position, self.scheduler)  # type: ignore[arg-type]

    async def ask(self, command: str, body: object = None, node_id: str = "d") -> tuple[int, str]:
        text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        path = {"node_id": node_id, "command": command}
        answer = await self.api.handle(Request("PUT", path, {}, text, "10.0.0.7 (ops)"))
        document = json.loads(answer.body)
        assert document["code"] == answer.status
        return answer.status, document["message"]


async def test_requests_pause_resume_and_update() -> None:
    api = Api()
    steering = api.scheduler.steering
    assert (await api.ask("pause"))[0] == 200 and steering.paused_by == "10.0.0.7 (ops)"
    assert "already paused, by 10.0.0.7" in (await api.ask("pause", {}))[1]
    assert (await api.ask("resume"))[0] == 200 and not steering.paused
    assert "not paused" in (await api.ask("resume"))[1]
    assert (await api.ask("update", {"delay": "1h"}))[0] == 200
    assert (await api.ask("update", {"stop-at": "60"}))[0] == 200
    assert (steering.delay_ms, steering.stop_at_ts) == (3_600_000, 60)
    assert (await api.ask("update", {"delay": "0", "stop-at": 0}))[0] == 200
    assert (steering.delay_ms, steering.stop_at_ts) == (0, 0)


@pytest.mark.parametrize(
    ("command", "body", "status", "text"),
    [
        ("update", b"{", 400, "not JSON"),
        ("update", [1], 400, "a JSON object was expected"),
        ("update", {}, 400, "give delay, stop-at, or both"),
        ("update", {"delay": "soon"}, 400, "delay: 'soon' is not a duration"),
        ("update", {"delay": "-1h"}, 400, "delay: "),
        ("update", {"stop-at": "yesterday"}, 400, "stop-at: 'yesterday' is neither a TSO nor a time"),
        ("update", {"stop-at": 49}, 409, "stop-at 49 "),
        ("update", {"stop_at": 90}, 400, "stop_at: unknown field; there is delay, stop-at"),
        ("pause", {"why": "x"}, 400, "why: unknown field; there is none"),
        ("stop", {}, 404, "invalid command stop: one of pause, resume, update"),
        ("decide-ddl", {"action": "skip"}, 400, "job-id: "),
        ("decide-ddl", {"job-id": 7, "action": "forget"}, 400, "action: "),
        ("decide-ddl", {"job-id": 7, "action": "replace"}, 400, "sql: it must be given with action replace"),
        ("decide-ddl", {"job-id": 7, "action": "skip", "sql": "x"}, 400, "sql: it must be given with action replace"),
        (
            "decide-ddl",
            {"job-id": 7, "action": "skip"},
            409,
            "job-id 7: the drainer waits for a decision about nothing",
        ),
        ("decide-transaction", {"commit-ts": 0, "action": "skip"}, 400, "commit-ts: "),
        (
            "decide-transaction",
            {"commit-ts": 50, "action": "skip"},
            409,
            "commit-ts 50: everything up to 50 is applied",
        ),
        ("decide-transaction", {"commit-ts": 60, "action": "run-again"}, 409, "waits for a decision about nothing"),
    ],
)
async def test_bad_request_is_refused_with_the_field(command: str, body: object, status: int, text: str) -> None:
    api = Api()
    code, message = await api.ask(command, body)
    assert code == status and text in message, message
    assert api.scheduler.steering == Steering()


@pytest.mark.parametrize("sql", [" ", ["a", ""]])
async def test_empty_statement_is_refused(sql: object) -> None:
    """A server answers it with an error, or it would be a skip that nobody has asked for."""
    api = Api()
    api.position.decisions.refused = Refused(7, 60, "refused")
    code, message = await api.ask("decide-ddl", {"job-id": 7, "action": "replace", "sql": sql})
    assert (code, message) == (400, "sql: a statement is empty") and not api.position.decisions._decided


async def test_body_that_is_nested_too_deeply_is_refused() -> None:
    request = Request("PUT", {"node_id": "d", "command": "update"}, {}, b"[" * 100_000)
    answer = await Api().api.handle(request)
    assert answer.status == 400 and b"the body is not JSON: " in answer.body


async def test_request_for_another_node_is_refused() -> None:
    code, message = await Api().ask("pause", node_id="other")
    assert code == 404 and "this drainer's nodeID is d" in message


async def test_end_inside_a_begun_batch_is_refused() -> None:
    """An open batch must be finished as it was begun (rule 16)."""
    api = Api()
    api.position.open_intent = Intent(50, 90, 1, 1, 1, "", ("a",), (1,))
    assert (await api.ask("update", {"stop-at": 80}))[0] == 409
    assert (await api.ask("update", {"stop-at": 90}))[0] == 200


@pytest.mark.parametrize(
    ("body", "decided"),
    [
        ({"action": "run-again"}, None),
        ({"action": "skip"}, ()),
        ({"action": "replace", "sql": "a"}, ("a",)),
        ({"action": "replace", "sql": ["a", "b"]}, ("a", "b")),
    ],
)
async def test_request_decides_about_the_ddl_that_waits_and_no_other(
    body: dict[str, object], decided: tuple[str, ...] | None
) -> None:
    api = Api()
    decisions = api.position.decisions
    decisions.refused = Refused(7, 60, "refused")
    code, message = await api.ask("decide-ddl", {"job-id": 8, **body})
    assert code == 409 and "job-id 8: the drainer waits for a decision about DDL job 7" in message
    assert not decisions._decided
    assert (await api.ask("decide-ddl", {"job-id": 7, **body}))[0] == 200
    assert decisions._decided == [decided]


async def test_destination_that_runs_no_text_refuses_text() -> None:
    api = Api()
    api.api._runs_text = False
    code, message = await api.ask("decide-ddl", {"job-id": 7, "action": "replace", "sql": "a"})
    assert code == 409 and message.startswith("sql: ")


async def test_request_skips_a_transaction_and_ends_the_wait_for_it() -> None:
    api = Api()
    decisions = api.position.decisions
    assert (await api.ask("decide-transaction", {"commit-ts": 60, "action": "skip"}))[0] == 200
    assert decisions.skips == {60} and not decisions._decided
    decisions.refused = Refused(0, 61, "refused")
    assert (await api.ask("decide-transaction", {"commit-ts": 61, "action": "skip"}))[0] == 200
    assert decisions.skips == {60, 61} and decisions._decided == [None]


async def test_transaction_of_a_begun_batch_is_not_skipped() -> None:
    api = Api()
    api.position.open_intent = Intent(50, 90, 1, 1, 1, "", ("a",), (1,))
    code, message = await api.ask("decide-transaction", {"commit-ts": 60, "action": "skip"})
    assert code == 409 and "the batch (50, 90] is begun" in message and "let the destination take the row" in message


async def test_starting_drainer_cannot_be_steered_yet() -> None:
    pages = StartingPages("d", "x")
    request = Request("PUT", {"node_id": "d", "command": "pause"}, {}, b"")
    answer = await PageSwitch(pages).actions()[CHANGEFEED](request)
    assert answer.status == 409 and b"this drainer is starting, pause is not possible yet" in answer.body
