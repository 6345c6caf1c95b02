"""Which pumps are available (C-03 to C-06, C-14)."""

from __future__ import annotations

from binlog.cluster.registry import NodeStatus, State

from pumpclient.pool import ERRORS_MAX, PAUSE_MAX_S, STALE_S, STEADY_S, WORST, Pool


def status(node_id: str, state: State = State.ONLINE, host: str = "h:1") -> NodeStatus:
    return NodeStatus(node_id, host, state)


def test_only_online_pumps_are_available_in_the_order_of_ids() -> None:
    pool = Pool()
    for node_id, state in (("c", State.ONLINE), ("a", State.ONLINE), ("b", State.PAUSED), ("d", State.OFFLINE)):
        assert pool.put(status(node_id, state)) is False
    assert pool.available() == ("a", "c")
    assert pool.online() == ("a", "c")
    assert len(pool) == 4


def test_eleven_consecutive_errors_make_pump_unavailable() -> None:
    pool = Pool()
    pool.put(status("a"))
    assert [pool.failed("a") for _ in range(ERRORS_MAX + 2)] == [False] * ERRORS_MAX + [True, False]
    assert pool.available() == ()
    assert pool.due() == pool.online() == ("a",)
    assert pool.succeeded("a") is True
    assert pool.available() == ("a",)


def test_broken_stream_counts_as_one_error() -> None:
    """Hundreds of binlogs may have been on it; the pump is not hundreds of times as bad."""
    pool = Pool()
    pool.put(status("a"))
    broken = object()
    assert not any(pool.failed("a", broken) for _ in range(500))
    assert pool.available() == ("a",)
    assert [pool.failed("a", object()) for _ in range(ERRORS_MAX)] == [False] * (ERRORS_MAX - 1) + [True]


def test_success_resets_error_count() -> None:
    pool = Pool()
    pool.put(status("a"))
    for _ in range(5):
        for _ in range(ERRORS_MAX):
            pool.failed("a")
        assert pool.succeeded("a") is False
    assert pool.available() == ("a",)


def test_heartbeat_does_not_make_failed_pump_available() -> None:
    """The record is written every two seconds; only state and address matter."""
    pool = Pool()
    pool.put(status("a"))
    for _ in range(ERRORS_MAX + 1):
        pool.failed("a")
    assert pool.put(NodeStatus("a", "h:1", State.ONLINE, max_commit_ts=99, update_ts=77)) is False
    assert pool.available() == ()


def test_new_state_or_address_makes_failed_pump_available() -> None:
    pool = Pool()
    pool.put(status("a"))
    for _ in range(ERRORS_MAX + 1):
        pool.failed("a")
    assert pool.put(status("a", host="h:2")) is True
    assert pool.available() == ("a",)
    for _ in range(ERRORS_MAX + 1):
        pool.failed("a")
    assert pool.put(status("a", State.PAUSING, "h:2")) is False  # answers on their way are not thrown away
    assert pool.available() == pool.online() == ()
    assert pool.put(status("a", State.ONLINE, "h:2")) is False
    assert pool.available() == ("a",)


def test_replace_all_replaces_pumps_and_returns_removed_ones() -> None:
    pool = Pool()
    for node_id in "abc":
        pool.put(status(node_id))
    stale = pool.replace_all([status("b"), status("c", State.PAUSED), status("d")])
    assert stale == {"a"}
    assert pool.available() == ("b", "d")
    assert pool.get("a") is None


def test_pool_ignores_results_of_unknown_pump() -> None:
    pool = Pool()
    assert pool.failed("x") is False
    assert pool.succeeded("x") is False
    assert pool.remove("x") is False


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def two(clock: Clock) -> Pool:
    pool = Pool(clock=clock)
    pool.put(status("a"))
    pool.put(status("b"))
    return pool


def test_slow_pump_is_skipped_unless_it_is_the_last_one() -> None:
    pool = two(Clock())
    assert pool.found_slow("a") is True
    assert pool.available() == ("b",)
    assert pool.found_slow("b") is False
    assert pool.found_slow("a") is False
    assert pool.available() == ("b",)


def test_slow_pump_is_available_again_only_after_probe() -> None:
    """Acknowledgements that come late, one after another, are what made it slow."""
    pool = two(Clock())
    pool.found_slow("a")
    assert pool.succeeded("a") is False
    assert pool.available() == ("b",)
    assert pool.succeeded("a", probe=True) is True
    assert pool.available() == ("a", "b")
    pool.found_slow("a")
    pool.put(status("b", State.PAUSED))
    assert pool.succeeded("a") is True, "the only one there is"


def test_probe_pauses_double_up_to_maximum() -> None:
    clock = Clock()
    pool = two(clock)
    pool.found_slow("a")
    pauses = []
    for _ in range(8):
        assert pool.due() == ()
        pauses.append(pool.next_probe_s())
        clock.now_s += pauses[-1]
        assert pool.due() == ("a",)
        pool.probe_failed("a")
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]


def test_probe_pause_doubles_for_pump_that_is_slow_repeatedly() -> None:
    """Each return costs writers a second of waiting; after a steady while it has its first chance again."""
    clock = Clock()
    pool = two(clock)
    pauses = []
    for _ in range(4):
        pool.found_slow("a")
        pauses.append(pool.next_probe_s())
        clock.now_s += pauses[-1]
        pool.succeeded("a", probe=True)
        clock.now_s += 0.5
    assert pauses == [1, 2, 4, 8]
    clock.now_s += STEADY_S
    pool.found_slow("a")
    assert pool.next_probe_s() == 1


def test_all_suspended_pumps_are_probed_at_once_if_none_is_available() -> None:
    clock = Clock()
    pool = two(clock)
    pool.found_slow("a")
    for _ in range(ERRORS_MAX + 1):
        pool.failed("b")
    assert pool.available() == ()
    assert pool.due() == ("a", "b")


def test_available_pumps_are_never_due_for_probe() -> None:
    pool = two(Clock())
    assert pool.next_probe_s() == float("inf")
    assert pool.due() == ()


# --- scores and labels ------------------------------------------------------------------------------------------------


def scored(pool: Pool, clock: Clock, **scores: int) -> None:
    """A heartbeat of each."""
    for node_id, score in scores.items():
        pool.put(NodeStatus(node_id, "h:1", State.ONLINE, score=score, update_ts=int(clock.now_s * 1000)))


def test_pump_without_score_gets_mean_weight() -> None:
    """A Go pump gets its share beside ours; among Go pumps alone all count alike."""
    clock = Clock()
    pool = Pool(clock=clock)
    scored(pool, clock, a=900, b=300, go=0)
    assert pool.weights(("a", "b", "go")) == [900, 300, 600]
    assert pool.weights(("go",)) == [1]
    assert pool.weights(("go", "unknown")) == [1, 1]


def test_score_without_new_heartbeat_becomes_worst() -> None:
    clock = Clock()
    pool = Pool(clock=clock)
    scored(pool, clock, a=900, b=300)
    clock.now_s += STALE_S + 1
    assert pool.weights(("a", "b")) == [1, 1], "nobody was heard of: that is this process's trouble, not theirs"
    scored(pool, clock, b=400)
    assert pool.weights(("a", "b")) == [WORST, 400]
    pool.put(NodeStatus("a", "h:1", State.ONLINE, score=900, update_ts=1_000_000))  # listed again, as it was
    assert pool.weights(("a", "b")) == [WORST, 400]
    scored(pool, clock, a=800)
    assert pool.weights(("a", "b")) == [800, 400]


def test_rarer_heartbeats_do_not_make_score_stale() -> None:
    """`heartbeat-interval` is an operator's choice."""
    clock = Clock()
    pool = Pool(clock=clock)
    for _ in range(3):
        scored(pool, clock, a=500)
        clock.now_s += 60
    scored(pool, clock, b=100)
    assert pool.weights(("a", "b")) == [500, 100]
    clock.now_s += 121
    scored(pool, clock, b=100)
    assert pool.weights(("a", "b")) == [WORST, 100]


def test_pool_restricted_to_labels_ignores_other_pumps() -> None:
    clock = Clock()
    pool = Pool(clock=clock, only={"zone": "a"})
    pool.put(NodeStatus("a1", "h:1", State.ONLINE, label={"zone": "a", "status": "h:2"}))
    pool.put(NodeStatus("a2", "h:1", State.ONLINE, label={"zone": "a"}))
    pool.put(NodeStatus("b1", "h:1", State.ONLINE, label={"zone": "b"}))
    pool.put(NodeStatus("go", "h:1", State.ONLINE))
    assert pool.available() == pool.online() == ("a1", "a2")
    assert pool.told() == "4 registered, 2 of them with zone=a"
    assert pool.labelled("a1", {"zone": "a"})
    assert not pool.labelled("go", {"zone": "a"})
    assert pool.found_slow("a1")
    assert not pool.found_slow("a2"), "the last one of its labels stays"
    assert pool.get("b1") is not None, "ends of older transactions still go there"
