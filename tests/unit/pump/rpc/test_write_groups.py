"""Single writes that go to the store together: each gets its own answer, and nobody waits for another's trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from binlog.errors import BinlogError, LogBroken

from pump.errors import InvalidBinlog, Stopping
from pump.rpc import write_groups as turn_module
from pump.rpc.write_groups import GROUP_MAX, GROUPED_BYTES_MAX, IDLE_TURNS_MAX, SMALL_MAX, Callers, TurnWriter
from pump.store.write_path import Done
from tests.unit.pump.build import SetClock, commit, opened, prewrite

FAR_TS = 1 << 61
BASE = 470_000_000_000_000_000  # a TSO of nine bytes, which a usual binlog has


class Recorder:
    """Refuses what begins with "bad", leaves what begins with "far", and raises what it was told to."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.error: BaseException | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()

    def submit(self, payloads: Sequence[bytes], done: Done) -> None:
        self.groups.append(list(payloads))
        if self.error is not None:
            raise self.error
        left = [place for place, payload in enumerate(payloads) if payload.startswith(b"far")]
        asyncio.get_running_loop().call_soon(done, [judged(payload) for payload in payloads], left)

    async def write(self, payloads: Sequence[bytes]) -> list[BinlogError | None]:
        self.groups.append(list(payloads))
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return [judged(payload) for payload in payloads]


def judged(payload: bytes) -> BinlogError | None:
    return InvalidBinlog(payload.decode()) if payload[:3] == b"bad" else None


class Caller:
    """Responder of one call."""

    def __init__(self) -> None:
        self.told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def answer(self, numbers: Sequence[int], message: bytes) -> int:
        assert (tuple(numbers), message) == ((7,), b"")
        return self._tell(None)

    def refuse(self, number: int, error: BaseException) -> bool:
        assert number == 7
        return bool(self._tell(error))

    def _tell(self, error: BaseException | None) -> int:
        if self.told.done():
            return 0
        self.told.set_result(error)
        return 1


def tell(callers: Callers, error: BaseException | None) -> None:
    for number in callers.numbers:
        if error is None:
            callers.responder.answer((number,), b"")
        else:
            callers.responder.refuse(number, error)


def turn_of(store: Recorder) -> TurnWriter:
    return TurnWriter(store.submit, store.write, tell)


async def write(turn: TurnWriter, payload: bytes) -> BaseException | None:
    """Waits for the answer; a mistake is raised."""
    caller = Caller()
    turn.take(Callers(caller, (7,), 0.0), (payload,))
    error = await caller.told
    if error is not None and not isinstance(error, BinlogError):
        raise error
    return error


async def test_writes_of_one_loop_turn_form_one_group_in_order() -> None:
    store = Recorder()
    turn = turn_of(store)
    payloads = [b"%d" % number for number in range(GROUP_MAX + 10)]
    payloads[5], payloads[GROUP_MAX] = b"bad 1", b"bad 2"
    answers = await asyncio.gather(*(write(turn, payload) for payload in payloads))
    assert store.groups == [payloads[:GROUP_MAX], payloads[GROUP_MAX:]]
    assert [(place, str(error)) for place, error in enumerate(answers) if error is not None] == [
        (5, "bad 1"),
        (GROUP_MAX, "bad 2"),
    ]
    assert await write(turn, b"alone") is None and store.groups[-1] == [b"alone"]


async def test_write_that_waits_for_timestamp_source_does_not_delay_its_group() -> None:
    store = Recorder()
    store.go_on.clear()
    turn = turn_of(store)
    far = asyncio.create_task(write(turn, b"far"))
    assert await asyncio.wait_for(asyncio.gather(write(turn, b"a"), write(turn, b"b")), 60) == [None, None]
    assert not far.done() and store.groups == [[b"far", b"a", b"b"], [b"far"]]
    store.go_on.set()
    assert await asyncio.wait_for(far, 60) is None


async def test_large_write_forms_a_group_of_its_own() -> None:
    store = Recorder()
    turn = turn_of(store)
    large = bytes(GROUPED_BYTES_MAX + 1)
    await asyncio.gather(write(turn, b"a"), write(turn, large), write(turn, b"b"))
    assert sorted(store.groups, key=len) == [[large], [b"a", b"b"]]


async def test_binlog_error_of_group_is_answered_to_each_writer() -> None:
    store = Recorder()
    store.error = Stopping("the pump is stopping")
    answers = await asyncio.gather(*(write(turn_of(store), b"a") for _ in range(3)))
    assert [str(answer) for answer in answers] == ["the pump is stopping"] * 3


@pytest.mark.parametrize("count", [1, 3])
async def test_unexpected_exception_in_group_reaches_every_writer(count: int) -> None:
    store = Recorder()
    store.error = ValueError("a mistake")
    turn = turn_of(store)
    answers = await asyncio.wait_for(
        asyncio.gather(*(write(turn, b"a") for _ in range(count)), return_exceptions=True), 60
    )
    assert all(isinstance(answer, ValueError) for answer in answers)


async def test_cancelled_writer_does_not_cancel_its_group() -> None:
    store = Recorder()
    turn = turn_of(store)
    tasks = [asyncio.create_task(write(turn, payload)) for payload in (b"a", b"b")]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert await asyncio.wait_for(tasks[1], 60) is None
    assert store.groups == [[b"a", b"b"]] and tasks[0].cancelled()


async def test_failing_answer_of_one_call_does_not_stop_others() -> None:
    class Broken(Caller):
        def _tell(self, error: BaseException | None) -> int:
            raise ValueError("a mistake")

    store = Recorder()
    turn = turn_of(store)
    other = Caller()
    turn.take(Callers(Broken(), (7,), 0.0), (b"a",))
    turn.take(Callers(other, (7,), 0.0), (b"b",))
    assert await asyncio.wait_for(other.told, 60) is None and store.groups == [[b"a", b"b"]]


async def test_cancelled_group_task_cancels_waiting_writers() -> None:
    store = Recorder()
    store.go_on.clear()
    turn = turn_of(store)
    waiting = asyncio.create_task(write(turn, b"far"))
    other = asyncio.create_task(write(turn, b"a"))
    assert await asyncio.wait_for(other, 60) is None
    for task in turn._tasks:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 60)


async def test_turn_writer_over_real_store_answers_each_write_by_itself(tmp_path: Path) -> None:
    """Pairs, a refusal, a probe and a ts that nobody gave out, in one turn; the source does not answer."""
    clock = SetClock(100)
    async with opened(tmp_path, clock) as store:
        turn = TurnWriter(store.writes.submit, store.writes.write, tell)
        clock.down = True
        written = asyncio.gather(
            *(
                write(turn, p)
                for p in (prewrite(10), commit(10, 11), b"", prewrite(FAR_TS), commit(20, 19), prewrite(30))
            )
        )
        answers = await asyncio.wait_for(written, 60)
        assert [answer is None for answer in answers] == [True, True, True, False, False, True]
        assert store.index.complete(11) is not None and 30 in store.pending and FAR_TS not in store.pending


class Held(Recorder):
    """Says what became of a group when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[tuple[int, Done]] = []

    def submit(self, payloads: Sequence[bytes], done: Done) -> None:
        self.groups.append(list(payloads))
        if self.error is not None:
            raise self.error
        self.under_way.append((len(payloads), done))

    def end(self) -> None:
        """The oldest group is written."""
        count, done = self.under_way.pop(0)
        done([None] * count, ())


class Turns:
    """A turn writer over a `Held`, and callers of it; patient by default: `GATHERING_S` ends nothing here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gathering_s: float = 60.0) -> None:
        monkeypatch.setattr(turn_module, "GATHERING_S", gathering_s)
        self.store = Held()
        self.turn = turn_of(self.store)
        self.callers: list[Caller] = []

    def take(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.callers.append(Caller())
            self.turn.take(Callers(self.callers[-1], (7,), 0.0), (payload,))

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def turns_until_begun(self) -> int:
        """How many turns of the loop it takes until another group is begun."""
        before = len(self.store.groups)
        for turns in range(1, 1000):
            await asyncio.sleep(0)
            if len(self.store.groups) > before:
                return turns
        pytest.fail("no group is begun")

    async def group_of(self, count: int) -> None:
        """One that is written; afterwards so many callers are known."""
        self.take(*(b"%d" % number for number in range(count)))
        await self.turns_until_begun()
        self.store.end()


async def test_writes_during_a_running_group_go_with_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    turns.take(b"a")
    await turns.turns_until_begun()
    for payload in (b"b", b"c", b"d"):
        turns.take(payload)
        await turns.pass_turns(3 * IDLE_TURNS_MAX)
    assert turns.store.groups == [[b"a"]]
    turns.store.end()
    await turns.turns_until_begun()
    turns.store.end()
    assert turns.store.groups == [[b"a"], [b"b", b"c", b"d"]]
    assert all(caller.told.done() for caller in turns.callers)


async def test_single_caller_waits_for_no_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    for _ in range(3):
        turns.take(b"a")
        assert await turns.turns_until_begun() == 1
        turns.store.end()
    await turns.group_of(8)
    for _ in range(100):
        await turns.group_of(1)
    turns.take(b"a")
    assert await turns.turns_until_begun() == 1, "that there were others is forgotten"


async def test_small_group_waits_some_turns_for_recent_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    await turns.group_of(3)
    turns.take(b"a")
    await turns.pass_turns(IDLE_TURNS_MAX // 2)
    turns.take(b"b")
    await turns.pass_turns(2)
    turns.take(b"c")
    assert await turns.turns_until_begun() <= IDLE_TURNS_MAX + 1
    assert turns.store.groups[-1] == [b"a", b"b", b"c"]


async def test_group_waiting_ends_at_size_or_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where somebody comes in every turn, nor where turns are long."""
    turns = Turns(monkeypatch)
    await turns.group_of(3)
    before = len(turns.store.groups)
    for number in range(3 * SMALL_MAX):
        turns.take(b"%d" % number)
        await asyncio.sleep(0)
        if len(turns.store.groups) > before:
            break
    assert SMALL_MAX <= len(turns.store.groups[-1]) <= SMALL_MAX + 1
    turns = Turns(monkeypatch, gathering_s=0.0)
    await turns.group_of(3)
    turns.take(b"a")
    assert await turns.turns_until_begun() == 1


async def test_large_group_starts_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    turns.take(b"a")
    await turns.turns_until_begun()
    large = [b"%d" % number for number in range(SMALL_MAX)]
    turns.take(*large[:-1])
    await turns.pass_turns(2)
    turns.take(large[-1])
    assert await turns.turns_until_begun() == 1
    assert turns.store.groups == [[b"a"], large]


async def test_failed_group_does_not_delay_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    turns.store.error = Stopping("the pump is stopping")
    turns.take(b"a", b"b")
    await turns.turns_until_begun()
    turns.store.error = None
    turns.take(b"c")
    await turns.turns_until_begun()
    turns.store.end()
    assert turns.store.groups == [[b"a", b"b"], [b"c"]]
    assert [str(caller.told.result()) for caller in turns.callers] == ["the pump is stopping"] * 2 + ["None"]


async def test_each_group_waits_anew_for_recent_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind one for which all turns were idle; and one caller that is alone is no reason to forget the others."""
    turns = Turns(monkeypatch)
    await turns.group_of(3)
    for first, second in ((b"a", b"b"), (b"c", b"d")):
        turns.take(first)
        await turns.pass_turns(IDLE_TURNS_MAX - 2)
        turns.take(second)
        await turns.turns_until_begun()
        turns.store.end()
    await turns.group_of(1)
    turns.take(b"e")
    await turns.pass_turns(2)
    turns.take(b"f")
    await turns.turns_until_begun()
    assert turns.store.groups[1:] == [[b"a", b"b"], [b"c", b"d"], [b"0"], [b"e", b"f"]]


async def test_calls_that_arrive_together_are_counted_separately_for_group_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(monkeypatch)
    turns.take(b"a")
    await turns.turns_until_begun()
    numbers, payloads = range(SMALL_MAX), [b"%d" % number for number in range(SMALL_MAX)]
    turns.turn.take(Callers(Caller(), numbers, 0.0), payloads)
    assert await turns.turns_until_begun() == 1
    assert turns.store.groups == [[b"a"], payloads]


@pytest.mark.parametrize("wrong", [b"", commit(20, 19)], ids=["usual", "with another"])
async def test_unexpected_exception_after_write_does_not_block_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    """Whoever wrote is told that it is not known, and the calls that came meanwhile are not held back for ever."""
    async with opened(tmp_path, SetClock(BASE + 100)) as store:
        turn = TurnWriter(store.writes.submit, store.writes.write, tell)
        with monkeypatch.context() as patch:
            patch.setattr(store.resolver, "request_refresh", mistake)
            patch.setattr(store.writes, "_settle_down", mistake)
            writes = [write(turn, p) for p in (prewrite(BASE), *([wrong] if wrong else []))]
            batch = store.writes.write([prewrite(BASE + 1)])
            answers = await asyncio.wait_for(asyncio.gather(*writes, batch), 60)
        assert isinstance(answers[0], LogBroken) and isinstance(answers[-1][0], LogBroken)
        assert await asyncio.wait_for(write(turn, prewrite(BASE + 2)), 60) is None
        assert [entry.start_ts for entry in store.pending.first(9)] == [BASE, BASE + 1, BASE + 2]


def mistake(*_args: object) -> None:
    raise ValueError("a mistake")
