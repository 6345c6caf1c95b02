"""Requests to a running node over HTTP.

pause-pump, offline-pump, pause-drainer and offline-drainer ask it to pause or to leave. pause-changefeed,
resume-changefeed, update-changefeed, decide-ddl and decide-transaction steer a drainer, which keeps running.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from binlog.cluster.registry import STATUS_LABEL, Kind
from binlog.runtime.http import NoAnswer, put

from pumpclient.ctl.errors import CommandError, Misused, NodeSilent, Refused
from pumpclient.ctl.session import CommandSession

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


async def pause_changefeed(session: CommandSession) -> None:
    await _steer(session, "pause", {})


async def resume_changefeed(session: CommandSession) -> None:
    await _steer(session, "resume", {})


async def update_changefeed(session: CommandSession) -> None:
    given = {"delay": session.options.delay, "stop-at": session.options.stop_at}
    body = {name: value for name, value in given.items() if value}
    if not body:
        raise Misused("update-changefeed needs -delay, -stop-at, or both; 0 removes one")
    await _steer(session, "update", body)


async def decide_ddl(session: CommandSession) -> None:
    options = session.options
    if not options.job_id or [options.run_again, options.skip, bool(options.sql)].count(True) != 1:
        raise Misused("decide-ddl needs -job-id, and one of -run-again, -skip and -sql")
    body: dict[str, object] = {"job-id": options.job_id, "action": "run-again" if options.run_again else "skip"}
    await _steer(session, "decide-ddl", {**body, "action": "replace", "sql": options.sql} if options.sql else body)


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
    await _steer(session, "decide-transaction", body)


async def _steer(session: CommandSession, command: str, body: Mapping[str, object]) -> None:
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
