"""Many writers, the score of our pumps, and time: are writes distributed as the pumps can bear them, and stay so?

Pumps are queues with a rate of their own. They report every two seconds, each at its own moment, what
pump/tasks/score.py makes of how long their writes took; writers see nothing else. A rule that sends all writes to the
best score fails here, and has to: it is what is meant by a herd.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from binlog.cluster.registry import NodeStatus, State

from pump.tasks.score import Measures, WriteTime
from pumpclient.pool import Pool, ScoreSelector

STEP_S = 0.1
HEARTBEAT_S = 2.0
WRITERS = 20


@dataclass
class Queue:
    """A pump that can do `rate` writes a second; `room` is that of its disk. `reports`: whether it is one of ours."""

    name: str
    rate: float
    room: float = 1.0
    reports: bool = True
    phase_s: float = 0.0
    waiting: float = 0.0
    seconds: float = 0.0
    writes: float = 0.0
    taken: list[int] = field(default_factory=list)
    worst_wait_s: float = 0.0
    write_time: WriteTime = field(default_factory=WriteTime)

    def step(self, arrived: int) -> None:
        """A tenth of a second with so many writes."""
        self.taken.append(arrived)
        self.waiting = max(0.0, self.waiting + arrived - self.rate * STEP_S)
        took_s = (1 + self.waiting) / self.rate
        self.worst_wait_s = max(self.worst_wait_s, took_s)
        self.seconds += arrived * took_s
        self.writes += arrived

    def status(self, now_s: float) -> NodeStatus:
        score = Measures(self.write_time.update(self.seconds, self.writes), self.room).score if self.reports else 0
        return NodeStatus(self.name, "h:1", State.ONLINE, score=score, update_ts=int(now_s * 1000) + 1)


Choose = Callable[[Pool, Sequence[str]], str]


def run(queues: list[Queue], *, load: float, seconds: int, choose: Choose | None = None, seed: int = 5) -> None:
    """`load`: writes a second of all writers together. By default they choose as ScoreSelector does."""
    dice = random.Random(seed)
    now_s = [0.0]
    pool = Pool(clock=lambda: now_s[0])
    names = [queue.name for queue in queues]
    for queue in queues:
        queue.phase_s = dice.random() * HEARTBEAT_S
        pool.put(queue.status(0))
    selectors = [ScoreSelector(pool.weights, random.Random(dice.random())) for _ in range(WRITERS)]
    for step in range(int(seconds / STEP_S)):
        now_s[0] = step * STEP_S
        arrived = dict.fromkeys(names, 0)
        for number in range(round(load * STEP_S)):
            pump = (
                choose(pool, names)
                if choose is not None
                else selectors[number % WRITERS].select(names, start_ts=number, tries=0)
            )
            assert pump is not None
            arrived[pump] += 1
        for queue in queues:
            queue.step(arrived[queue.name])
            if (now_s[0] + queue.phase_s) % HEARTBEAT_S < STEP_S:
                pool.put(queue.status(now_s[0]))


def shares(queues: list[Queue], *, since_s: float) -> dict[str, float]:
    first = int(since_s / STEP_S)
    counts = {queue.name: sum(queue.taken[first:]) for queue in queues}
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def best_only(pool: Pool, names: Sequence[str]) -> str:
    """The herd."""
    weights = pool.weights(names)
    return names[weights.index(max(weights))]


def test_score_selection_spreads_load_evenly_over_equal_pumps() -> None:
    queues = [Queue(name, 1000) for name in "abc"]
    run(queues, load=900, seconds=60)
    assert all(0.28 < share < 0.39 for share in shares(queues, since_s=10).values())
    assert max(queue.worst_wait_s for queue in queues) < 0.05


def test_choosing_only_the_best_score_overloads_a_pump() -> None:
    """The control: the same pumps, the same load, and nothing but the choice is different."""
    queues = [Queue(name, 1000) for name in "abc"]
    run(queues, load=2000, seconds=60, choose=best_only)
    assert max(queue.worst_wait_s for queue in queues) > 1.0


@pytest.mark.parametrize("seed", range(3))
def test_score_selection_gives_slow_pump_only_what_it_can_write(seed: int) -> None:
    """A third of the writes would be three times what it can do. Its queue ends, and no other pump falls over."""
    queues = [Queue("a", 1000), Queue("b", 1000), Queue("slow", 100)]
    run(queues, load=900, seconds=120, seed=seed)
    settled = shares(queues, since_s=60)
    assert settled["slow"] * 900 < 100, settled
    assert queues[2].worst_wait_s < 8, "the control's is 16"
    assert max(queue.worst_wait_s for queue in queues[:2]) < 0.1
    assert settled["slow"] > 0.01, "and is not forgotten"
    assert 0.35 < settled["a"] < 0.6
    assert 0.35 < settled["b"] < 0.6


def test_score_selection_shares_do_not_oscillate() -> None:
    """No swinging to and fro: each pump's share of any five seconds is near its share of all."""
    queues = [Queue("a", 2000), Queue("b", 1000), Queue("c", 1000)]
    run(queues, load=2400, seconds=120)
    whole = shares(queues, since_s=60)
    for begin_s in range(60, 115, 5):
        cut = [Queue(q.name, q.rate, taken=q.taken[: int((begin_s + 5) / STEP_S)]) for q in queues]
        part = shares(cut, since_s=begin_s)
        assert all(abs(part[name] - whole[name]) < 0.06 for name in whole), (begin_s, part, whole)


def test_score_selection_returns_share_to_recovered_pump() -> None:
    queues = [Queue("a", 1000), Queue("b", 1000)]
    queues[1].rate = 20
    run(queues, load=400, seconds=60)
    assert shares(queues, since_s=30)["b"] < 0.2
    healed = [Queue("a", 1000), Queue("b", 1000, write_time=queues[1].write_time)]
    healed[1].seconds, healed[1].writes = queues[1].seconds, queues[1].writes
    run(healed, load=400, seconds=60)
    assert 0.4 < shares(healed, since_s=30)["b"] < 0.6


def test_score_selection_fills_disks_by_available_space() -> None:
    """A disk with a third of the room gets a third as much."""
    queues = [Queue("empty", 10_000, room=0.9), Queue("fuller", 10_000, room=0.3)]
    run(queues, load=1000, seconds=30)
    assert 0.2 < shares(queues, since_s=0)["fuller"] < 0.3


def test_score_selection_keeps_using_pumps_without_score() -> None:
    queues = [Queue("ours", 1000), Queue("go", 1000, reports=False)]
    run(queues, load=500, seconds=30)
    assert 0.4 < shares(queues, since_s=0)["go"] < 0.6
