"""A prewrite's way over the pumps, whatever they answer and whenever."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum

import pytest
from binlog.cluster.registry import NodeStatus, State
from binlog.envelope import BinlogType
from hypothesis import given
from hypothesis import strategies as st

from pumpclient import writer
from pumpclient.answer import ACKED, Answer, Outcome, classify, lost, not_sent
from pumpclient.errors import PumpClientError
from pumpclient.pool import Pool, RangeSelector, Selector
from pumpclient.prewrite import Prewriting
from pumpclient.tracker import Tracker
from pumpclient.writer import Limits, prewrite_payload
from tests.support.counted import counting
from tests.unit.pumpclient.conftest import FAST, Field, until
from tests.unit.pumpclient.stub_pump import Fault, StubPump

KEY, VALUE = b"t\x80key", b"\x08\x01"
PATIENCE_S = 0.002
FOREVER_S = 600.0
IMPATIENT = replace(FAST, write_timeout_s=0.02, prewrite_retry_s=0.001)


class Way(Enum):
    """How one try ends. `stores`: whether the pump has a copy then."""

    ACKS = "acks"
    REFUSES = "refuses"
    AWAY = "away"
    LOST_STORED = "stores, and its answer is lost"
    LOST = "its refusal is lost"
    TOO_LARGE = "too large"
    HANGS = "stores, and never answers"


@dataclass
class Played:
    """The writer's side, with pumps that do as they are told; once out of orders they refuse."""

    orders: dict[str, list[tuple[Way, float]]]
    selector: Selector = field(default_factory=RangeSelector)
    tracker: Tracker = field(default_factory=Tracker)
    pool: Pool = field(default_factory=Pool)
    limits: Limits = IMPATIENT
    stored: set[str] = field(default_factory=set)
    slow: list[str] = field(default_factory=list)
    waits_for: dict[str, str] = field(default_factory=dict)  # a pump answers only after this other one was asked
    asked: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def attempt(self, pump: str, payload: bytes) -> Answer:
        orders = self.orders.get(pump)
        way, delay_s = orders.pop(0) if orders else (Way.REFUSES, 0.0)
        self.asked[pump].set()
        try:
            if pump in self.waits_for:
                await self.asked[self.waits_for[pump]].wait()
            await asyncio.sleep(delay_s)
            if way is Way.HANGS:
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.stored.add(pump)  # whoever stops waiting cannot know: the worst
            raise
        if way in (Way.ACKS, Way.LOST_STORED, Way.HANGS):
            self.stored.add(pump)
        return {
            Way.ACKS: ACKED,
            Way.REFUSES: classify(9, "no online: paused"),
            Way.AWAY: not_sent("no connection"),
            Way.TOO_LARGE: Answer(Outcome.TOO_LARGE, "larger than max"),
        }.get(way, lost("no answer"))

    def patience_s(self, pump: str, payload_bytes: int) -> float:
        return PATIENCE_S

    def found_slow(self, pump: str) -> None:
        self.slow.append(pump)

    def found_failing(self, pump: str, start_ts: int, answer: Answer) -> None: ...

    def falls_back(self) -> None: ...

    def renew(self, pump: str, before_s: float) -> None: ...


async def play(played: Played, pumps: str) -> tuple[str | None, set[str]]:
    """Who acknowledged, and who is thought to hold a copy beside it."""
    for pump in pumps:
        played.pool.put(NodeStatus(pump, "h:1", State.ONLINE))
    played.tracker.begin(7, KEY, now_s=0)
    try:
        acked = await Prewriting(7, b"x", played).run()
    except PumpClientError:
        return None, set(played.tracker.failed(7).pumps)
    finally:
        await asyncio.sleep(0)  # what was cancelled notices it
    assert played.tracker.ending(7, 8) == acked
    return acked, set(played.tracker.settled(7).pumps)


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.tuples(st.sampled_from(Way), st.sampled_from([0.0, PATIENCE_S, 4 * PATIENCE_S])), max_size=3),
    )
)
def test_prewrite_knows_every_pump_that_may_hold_a_copy(orders: dict[str, list[tuple[Way, float]]]) -> None:
    """However tries overlap: one pump at most gets the transaction's end, and all others with a copy a rollback."""
    played = Played({pump: list(ways) for pump, ways in orders.items()})
    acked, unknown = asyncio.run(play(played, "abc"))
    assert played.stored <= unknown | {acked}
    assert acked not in unknown


async def test_first_pump_to_acknowledge_gets_the_transaction() -> None:
    played = Played({"a": [(Way.ACKS, FOREVER_S)], "b": [(Way.ACKS, 0.0)]})
    acked, unknown = await play(played, "ab")
    assert (acked, unknown, played.slow) == ("b", {"a"}, ["a"])


async def test_prewrite_waits_for_single_slow_pump() -> None:
    played = Played({"a": [(Way.ACKS, 20 * PATIENCE_S)]})
    assert await play(played, "a") == ("a", set())


async def test_prewrite_does_not_ask_a_pump_twice_concurrently() -> None:
    """Both hang: the first of them to answer has it, and neither got a second copy meanwhile."""
    played = Played({"a": [(Way.ACKS, 0.05)], "b": [(Way.ACKS, FOREVER_S)]}, waits_for={"a": "b"})
    assert await play(played, "ab") == ("a", {"b"})
    assert played.orders == {"a": [], "b": []}


async def test_blocked_event_loop_marks_no_pump_slow() -> None:
    """The timer and the answer are due together when the loop runs again; the timer came too late to say anything."""
    played = Played({"a": [(Way.ACKS, 0.25)], "b": [(Way.ACKS, 0.0)]})
    loop = asyncio.get_running_loop()

    def stand_still() -> None:
        time.sleep(0.6)  # from well before the timer, so that no pause of the machine comes first

    loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(stand_still)))
    played.patience_s = lambda pump, payload_bytes: 0.2  # type: ignore[method-assign]
    acked, unknown = await play(played, "ab")
    assert (acked, unknown) == ("a", set())
    assert played.slow == []


# --- with pumps that are servers --------------------------------------------------------------------------------------

QUICK = replace(FAST, patience_s=0.05, write_timeout_s=60, detect_first_s=60, detect_s=60)
BOTH_WAYS = pytest.mark.parametrize("extension", [True, False], ids=["batched", "plain"])


def hang(pump: StubPump) -> None:
    """At its next prewrite that is no probe."""
    pump.only = lambda envelope: envelope.tp == BinlogType.PREWRITE and envelope.start_ts != 0
    pump.faults.append(Fault.HANG)


@BOTH_WAYS
async def test_pump_that_hangs_delays_only_first_prewrite(field: Field, extension: bool) -> None:
    """The next prewrites do not ask it, and what it may hold is rolled back."""
    bad, good = await field.add("a", extension=extension), await field.add("b", extension=extension)
    client = await field.client(limits=QUICK)
    hang(bad)
    slow = counting(writer.SLOW)
    assert await client.write_prewrite(100, KEY, VALUE) == "b"
    assert client.available_pumps == ("b",)
    for start_ts in range(200, 220, 2):
        assert await client.write_prewrite(start_ts, KEY, VALUE) == "b"
    assert slow() == 1
    assert not bad.tombstones, "before the outcome nothing is rolled back"
    await client.commit(100, 101)
    assert good.commits == {100: 101}
    if not extension:  # the stream of batches is stuck behind the one that hangs
        await until(lambda: bad.tombstones == {100})


async def test_patience_grows_with_bytes_already_under_way(field: Field) -> None:
    """Sixteen MiB are not slow because they take longer than two bytes."""
    await field.add("a")
    client = await field.client(limits=QUICK)
    writer = client._writer
    assert writer.patience_s("a", 0) == pytest.approx(0.05)
    await client.write_prewrite(2, KEY, VALUE)
    connection = writer._connections["a"]
    connection.open_bytes, connection.open_count = 16 << 20, 1000
    assert writer.patience_s("a", 8 << 20) == pytest.approx(0.05 + 3 + 0.1)


async def test_patience_includes_bytes_of_the_prewrite_itself(field: Field) -> None:
    """Its own bytes count, though nothing of it is at the pump when the wait begins."""
    await field.add("a")
    await field.add("b")
    client = await field.client(limits=QUICK)
    writer, given = client._writer, []
    patience_s = writer.patience_s

    def spy(pump: str, payload_bytes: int) -> float:
        given.append(patience_s(pump, payload_bytes))
        return given[-1]

    writer.patience_s = spy  # type: ignore[method-assign]
    await writer.prewrite(
        2, KEY, prewrite_payload(2, KEY, VALUE + b"\x12" + bytes([0x80, 0x80, 0x80, 0x08]) + bytes(16 << 20))
    )
    assert given[0] > 0.05 + 2


async def test_cancelled_attempt_counts_as_possible_copy(field: Field) -> None:
    """As at the end of an event loop, which cancels every task."""
    played = Played({"a": [(Way.ACKS, FOREVER_S)], "b": [(Way.ACKS, FOREVER_S)]}, waits_for={"b": "a"})
    task = asyncio.create_task(play(played, "ab"))
    await until(lambda: played.asked["b"].is_set())
    tries = [each for each in asyncio.all_tasks() if "Played.attempt" in repr(each.get_coro())]
    assert len(tries) == 2
    for each in tries:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(played.tracker.failed(7).pumps) == {"a", "b"}


async def test_slow_pump_is_available_again_after_successful_probe(field: Field) -> None:
    bad = await field.add("a", extension=False)
    await field.add("b")
    client = await field.client(limits=replace(QUICK, detect_first_s=0.05))
    hang(bad)
    await client.write_prewrite(100, KEY, VALUE)
    await until(lambda: client.available_pumps == ("a", "b"))


async def test_cancelled_prewrite_rolls_back_every_copy(field: Field) -> None:
    bad, good = await field.add("a", extension=False), await field.add("b", extension=False)
    client = await field.client(limits=QUICK)
    hang(bad)
    hang(good)
    task = asyncio.create_task(client.write_prewrite(100, KEY, VALUE))
    await until(lambda: bad.received and good.received)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: bad.tombstones == good.tombstones == {100})
    assert client.open_transactions == 0


async def test_batch_stream_that_hangs_is_replaced(field: Field) -> None:
    """Nobody waits for what is on it any more; a pump that has come back gets another."""
    bad = await field.add("a")
    await field.add("b")
    client = await field.client(limits=replace(QUICK, detect_first_s=0.05, write_timeout_s=2))
    hang(bad)
    for start_ts in range(100, 100_000, 2):
        if await client.write_prewrite(start_ts, KEY, VALUE) == "a":
            break
        await client.rollback(start_ts)
    assert bad.pending.keys() == {start_ts}
