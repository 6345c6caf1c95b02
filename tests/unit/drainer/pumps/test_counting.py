"""Correctness rule 8: which pumps count, and when the answers between two lists may be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.cluster.node import State

from drainer.pumps.survey import RegisteredPump, counts, unchanged

ONLINE = RegisteredPump("a", "h:1", State.ONLINE, 5, 100, final=False)


@pytest.mark.parametrize("state", [State.ONLINE, State.PAUSING, State.CLOSING, State.PAUSED])
def test_pump_in_any_state_but_offline_counts(state: State) -> None:
    assert counts(replace(ONLINE, state=state), after_ts=1000)


def test_offline_pump_does_not_count() -> None:
    assert not counts(replace(ONLINE, state=State.OFFLINE), after_ts=0)


def test_paused_pump_counts_until_its_last_commit_is_read() -> None:
    """Rule 1: `paused` is written with nothing pending and writes closed, so max_commit_ts is its last."""
    paused = replace(ONLINE, state=State.PAUSED, final=True)
    assert counts(paused, after_ts=99)
    assert not counts(paused, after_ts=100)


def test_paused_go_pump_always_counts() -> None:
    assert counts(replace(ONLINE, state=State.PAUSED, final=False), after_ts=10**18)


def test_heartbeat_of_counting_pump_does_not_restart_survey() -> None:
    assert unchanged([ONLINE], [replace(ONLINE, mod_revision=6, max_commit_ts=200)], after_ts=0)


@pytest.mark.parametrize(
    "after",
    [
        [replace(ONLINE, state=State.PAUSING)],
        [replace(ONLINE, host="h:2")],
        [ONLINE, replace(ONLINE, node_id="b")],
        [],
    ],
)
def test_change_of_state_host_or_members_restarts_survey(after: list[RegisteredPump]) -> None:
    assert not unchanged([ONLINE], after, after_ts=0)


def test_offline_pump_with_new_mod_revision_restarts_survey() -> None:
    """The counterexample of rule 8: only the mod_revision of the pump that does not count tells."""
    before = replace(ONLINE, state=State.OFFLINE, mod_revision=7)
    assert unchanged([before], [before], after_ts=0)
    assert not unchanged([before], [replace(before, mod_revision=9)], after_ts=0)
