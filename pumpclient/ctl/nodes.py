"""pumps, drainers, update-pump, update-drainer: list the registry, or change a record."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from binlog.cluster.candidates import waiting_by_node
from binlog.cluster.registry import Kind, NodeStatus, State
from binlog.cluster.tso import format_local, physical_ms
from binlog.runtime.page import span_text

from pumpclient.ctl.errors import Misused
from pumpclient.ctl.output import Listing
from pumpclient.ctl.session import CommandSession

# Pumps write their record every 2 s, drainers every second (`R-07`).
HEARTBEAT_OLD_S = 15.0
_LIVING = (State.ONLINE, State.PAUSING, State.CLOSING)
_COLUMNS = {
    "node_id": "NODE ID",
    "addr": "ADDRESS",
    "shown_state": "STATE",
    "heartbeat": "LAST HEARTBEAT",
    "max_commit_time": "POSITION",
}


def describe(status: NodeStatus) -> str:
    """Return a node in the form of the original's `query node` line."""
    return (
        f"{{NodeID: {status.node_id}, Addr: {status.host}, State: {status.state}, "
        f"MaxCommitTS: {status.max_commit_ts}, UpdateTime: {format_local(status.update_ts)}}}"
    )


def facts_of(status: NodeStatus, kind: Kind, *, now_s: float) -> dict[str, Any]:
    """Return the facts of one node for every output format.

    The age of its heartbeat is measured with this machine's clock. A state that requires a running process is marked as
    doubtful if the heartbeat is older than HEARTBEAT_OLD_S.
    """
    age_s = max(0.0, round(now_s - physical_ms(status.update_ts) / 1000, 1)) if status.update_ts else None
    missing = status.state in _LIVING and (age_s is None or age_s > HEARTBEAT_OLD_S)
    return {
        "type": kind.removesuffix("s"),
        "node": describe(status),
        "node_id": status.node_id,
        "addr": status.host,
        "state": status.state.value,
        "heartbeat_missing": missing,
        "heartbeat_age_s": age_s,
        "max_commit_ts": status.max_commit_ts,
        "max_commit_time": format_local(status.max_commit_ts) if status.max_commit_ts else None,
        "update_ts": status.update_ts,
        "labels": dict(status.label or {}),
        "shown_state": f"{status.state.value}, but no heartbeat" if missing else status.state.value,
        "heartbeat": None if age_s is None else f"{span_text(age_s)} ago",
    }


async def query(session: CommandSession, kind: Kind) -> None:
    """List one row per node. Offline nodes are listed only with -show-offline-nodes. Drainers that wait to take over
    from one are named with it."""
    listing = await session.registry.list(kind)
    all_of_them = session.options.show_offline_nodes
    shown = [r.status for r in listing.nodes if all_of_them or r.status.state is not State.OFFLINE]
    now_s = time.time()
    rows = [facts_of(status, kind, now_s=now_s) for status in shown]
    columns = _COLUMNS
    if kind == "drainers":
        waiting = await waiting_by_node(session.etcd)
        rows = [{**row, "standbys": waiting.get(row["node_id"], [])} for row in rows]
        if any(row["standbys"] for row in rows):
            columns = {**_COLUMNS, "standbys": "STANDBY"}
    session.out.rows(Listing(kind, columns, "query node", ("type", "node")), rows)
    hidden = len(listing.nodes) - len(shown)
    if not shown and hidden:
        session.out.problem(f"offline {kind} are not listed; -show-offline-nodes lists them", offline=hidden)
    for key in listing.unreadable:
        session.out.problem("a record cannot be read", key=key)


async def update(session: CommandSession, kind: Kind) -> None:
    """Write -state into the record without contacting the node. For dead nodes; may lose data.

    The write is conditional on the record as it was read, so that a node which is alive after all is not overwritten.
    """
    options = session.options
    states = [state.value for state in State]
    if options.state not in states:
        given = f"-state {options.state} is illegal" if options.state else "-state is required"
        raise Misused(f"{given}: one of {', '.join(states)}")
    record = await session.record(kind)
    changed = replace(record.status, state=State(options.state))
    await session.registry.update(kind, changed, mod_revision=record.mod_revision)
    session.out.done(
        "update node state", type=kind.removesuffix("s"), before=record.status.state.value, node=describe(changed)
    )
