"""pause-pump, offline-pump, pause-drainer, offline-drainer: request a running node over HTTP to pause or to leave."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from binlog.cluster.node import STATUS_LABEL
from binlog.cluster.registry import Kind
from binlog.runtime.http import NoAnswer, put

from pumpclient.ctl.errors import CommandError, NodeSilent, Refused
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
