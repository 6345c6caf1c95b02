"""Status JSON (R-02) and the lifecycle table."""

from __future__ import annotations

import pytest
from binlog.cluster.registry import TRANSITIONS, Event, NodeStatus, State, next_state
from binlog.errors import BinlogError, DecodeError
from hypothesis import given
from hypothesis import strategies as st

STATUS = NodeStatus("pump-1:8250", "10.0.0.1:8250", State.ONLINE, max_commit_ts=44, update_ts=45)


def test_node_status_json_equals_that_of_original() -> None:
    assert STATUS.to_json() == (
        b'{"nodeId":"pump-1:8250","host":"10.0.0.1:8250","state":"online","isAlive":false,"score":0,'
        b'"label":null,"maxCommitTS":44,"updateTS":45}'
    )
    labelled = NodeStatus("a<&>", "", State.PAUSED, True, 3, {"zone": "z1"})
    assert b'"nodeId":"a\\u003c\\u0026\\u003e"' in labelled.to_json()
    assert b'"label":{"labels":{"zone":"z1"}}' in labelled.to_json()


@given(
    st.builds(
        NodeStatus,
        node_id=st.text(min_size=1),
        host=st.text(),
        state=st.sampled_from(State),
        is_alive=st.booleans(),
        score=st.integers(-(1 << 63), 1 << 63),
        label=st.one_of(st.none(), st.dictionaries(st.text(), st.text())),
        max_commit_ts=st.integers(0, 1 << 63),
        update_ts=st.integers(0, 1 << 63),
    ).filter(lambda s: s.node_id.isascii() or s.node_id.encode("utf-8", "ignore").decode() == s.node_id)
)
def test_node_status_survives_json_round_trip(status: NodeStatus) -> None:
    assert NodeStatus.from_json(status.to_json()) == status


def test_only_id_and_state_are_needed_and_unknown_keys_are_fine() -> None:
    status = NodeStatus.from_json(b'{"nodeId":"n","state":"paused","whatever":[1]}')
    assert status == NodeStatus("n", "", State.PAUSED)


def test_null_is_the_zero_value_as_go_reads_it() -> None:
    status = NodeStatus.from_json(b'{"nodeId":"n","state":"paused","host":null,"score":null,"label":{"labels":null}}')
    assert status == NodeStatus("n", "", State.PAUSED, label={})


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "Expecting value"),
        (b"\xff{}", "can't decode byte 0xff"),
        (b"[]", "an object was expected, not list"),
        (b'{"state":"online"}', "nodeId is missing"),
        (b'{"nodeId":"n"}', "unknown state ''"),
        (b'{"nodeId":"n","state":"happy"}', "unknown state 'happy'"),
        (b'{"nodeId":"n","state":["online"]}', "node status.state: a string was expected, not list"),
        (b'{"nodeId":"n","state":"online","score":true}', "node status.score: a whole number was expected"),
        (b'{"nodeId":"n","state":"online","maxCommitTS":"7"}', "node status.maxCommitTS: a whole number was expected"),
        (b'{"nodeId":"n","state":"online","label":7}', "node status.label: an object was expected, not int"),
        (b'{"nodeId":"n","state":"online","label":{"labels":{"a":1}}}', "node status.label.a: a string was expected"),
    ],
)
def test_bad_status_is_refused_by_name(data: bytes, named: str) -> None:
    with pytest.raises(DecodeError, match=named):
        NodeStatus.from_json(data)


def test_node_status_cut_at_any_byte_is_refused() -> None:
    whole = STATUS.to_json()
    for end in range(len(whole)):
        with pytest.raises(DecodeError):
            NodeStatus.from_json(whole[:end])


def test_node_states_follow_pause_and_close() -> None:
    state = State.OFFLINE
    for event, after in [
        (Event.START, State.ONLINE),
        (Event.PAUSE, State.PAUSING),
        (Event.DRAINED, State.PAUSED),
        (Event.START, State.ONLINE),
        (Event.CLOSE, State.CLOSING),
        (Event.DRAINED, State.OFFLINE),
    ]:
        state = next_state(state, event)
        assert state is after


def test_transition_missing_from_table_is_refused() -> None:
    for state in State:
        for event in Event:
            if event in TRANSITIONS[state]:
                continue
            with pytest.raises(BinlogError, match=f"{state} cannot {event}"):
                next_state(state, event)


def test_paused_is_reached_only_by_draining() -> None:
    """Correctness rule 1: nothing else may claim that a pump holds nothing pending."""
    ways = {(s, e) for s, events in TRANSITIONS.items() for e, after in events.items() if after is State.PAUSED}
    assert ways == {(State.PAUSING, Event.DRAINED)}


def test_every_state_can_restart() -> None:
    """A process that crashed comes back from whatever it left in the registry."""
    assert all(next_state(state, Event.START) is State.ONLINE for state in State)
