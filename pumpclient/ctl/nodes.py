"""Commands about nodes. pumps, drainers, update-pump and update-drainer list the registry, or change a record.

The others are requests to a running node over HTTP: pause-pump, offline-pump, pause-drainer and offline-drainer ask it
to pause or to leave; pause-changefeed, resume-changefeed, update-changefeed, decide-ddl and decide-transaction steer a
drainer, which keeps running.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from binlog.cluster.candidates import waiting_by_node
from binlog.cluster.registry import STATUS_LABEL, Kind, NodeStatus, State
from binlog.cluster.tso import format_local, physical_ms
from binlog.runtime.http import NoAnswer, put
from binlog.runtime.page import span_text

from pumpclient.ctl.errors import CommandError, Misused, NodeSilent, Refused
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
    """Write -state into the record without contacting the node. For dead nodes; may lose data. It fails if the record
    was changed meanwhile, so that a node which is alive after all is not overwritten.
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


OK = 200  # the code inside the JSON; the HTTP status is always 200


async def ask(session: CommandSession, kind: Kind, action: str) -> None:
    """Request /state/<node id>/<action>. Return when the node has agreed; it then takes as long as it needs. Raises as
    `put_to_node` (the original's tool ignores a refusal)."""
    what = kind.removesuffix("s")
    silent = (
        ". If its status page is off, send it SIGTERM to pause it; if it will never return: binlogctl "
        f"update-{what} -node-id {session.options.node_id} -state offline"
    )
    facts = await put_to_node(session, kind, f"/state/{{}}/{action}", silent=silent)
    session.out.done("Apply action on node success", action=action, type=what, **facts)


async def update_changefeed(session: CommandSession) -> None:
    given = {"delay": session.options.delay, "stop-at": session.options.stop_at}
    body = {name: value for name, value in given.items() if value}
    if not body:
        raise Misused("update-changefeed needs -delay, -stop-at, or both; 0 removes one")
    await steer(session, "update", body)


async def decide_ddl(session: CommandSession) -> None:
    options = session.options
    if not options.job_id or [options.run_again, options.skip, bool(options.sql)].count(True) != 1:
        raise Misused("decide-ddl needs -job-id, and one of -run-again, -skip and -sql")
    body: dict[str, object] = {"job-id": options.job_id, "action": "run-again" if options.run_again else "skip"}
    await steer(session, "decide-ddl", {**body, "action": "replace", "sql": options.sql} if options.sql else body)


async def decide_transaction(session: CommandSession) -> None:
    options = session.options
    if not options.commit_ts or options.run_again == options.skip:
        raise Misused("decide-transaction needs -commit-ts, and one of -run-again and -skip")
    if options.skip:
        await session.confirm(
            refusal="the rows of this transaction will be lost downstream: confirm with -yes",
            about=f"The rows of the transaction {options.commit_ts} will be lost downstream. ",
            word=str(options.commit_ts),
        )
    body = {"commit-ts": options.commit_ts, "action": "skip" if options.skip else "run-again"}
    await steer(session, "decide-transaction", body)


async def steer(session: CommandSession, command: str, body: Mapping[str, object]) -> None:
    """Request /changefeed/<node id>/<command>. Raises as `put_to_node`."""
    facts = await put_to_node(session, "drainers", f"/changefeed/{{}}/{command}", body=json.dumps(body).encode())
    session.out.done("Changefeed request success", command=command, **facts)


async def put_to_node(
    session: CommandSession, kind: Kind, path: str, *, body: bytes = b"", silent: str = ""
) -> dict[str, str]:
    """Send PUT to -node-id, and return the facts of its agreement. `path`: with {} for the node's id; `silent`: what to
    do if the node does not answer. Raises NodeSilent, Refused, or CommandError for an answer that is not one of a
    node which knows the request."""
    record = await session.record(kind)
    node_id = record.status.node_id
    # host:port of the node's HTTP port: from its label or, for the original's nodes, the address in its record.
    place = (record.status.label or {}).get(STATUS_LABEL) or record.status.host
    what = f"{kind.removesuffix('s')} {node_id}"
    try:
        answer = await put(place, path.format(quote(node_id, safe=":")), body=body, security=session.security)
    except NoAnswer as error:
        raise NodeSilent(f"{what} ({record.status.state}) does not answer: {error}{silent}") from error
    code, message = result_of(answer)
    if code != OK:
        raise (CommandError if code is None else Refused)(f"{what} at {place}: {message}")
    return {"node": node_id, "at": place, "answer": message}


def result_of(body: bytes) -> tuple[object, str]:
    """Return the code and the message of a node's answer; the code is None if it is not one."""
    try:
        document: Any = json.loads(body)
        return document["code"], str(document["message"])
    except (ValueError, KeyError, TypeError):
        return None, f"not the answer of a node: {body[:200]!r}"
