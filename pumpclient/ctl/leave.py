"""pause-pump, offline-pump, pause-drainer, offline-drainer: request a running node over HTTP to pause or to leave."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from binlog.cluster.node import STATUS_LABEL, NodeStatus
from binlog.cluster.registry import Kind
from binlog.runtime.http import NoAnswer, put

from pumpclient.ctl.errors import CommandError, NodeSilent, Refused
from pumpclient.ctl.session import CommandSession

OK = 200  # the code inside the JSON; the HTTP status is always 200


async def ask(session: CommandSession, kind: Kind, action: str) -> None:
    """Send PUT /state/<node id>/<action> to the node. Return when it has agreed; it then takes as long as it needs.

    Raises NodeSilent, or Refused if the node refuses (the original's tool ignores a refusal).
    """
    record = await session.record(kind)
    node_id = record.status.node_id
    what = kind.removesuffix("s")
    place = place_of(record.status)
    try:
        body = await put(place, f"/state/{quote(node_id, safe=':')}/{action}", security=session.security)
    except NoAnswer as error:
        raise NodeSilent(
            f"{what} {node_id} ({record.status.state}) does not answer: {error}. If its status page is off, send it "
            f"SIGTERM to pause it; if it will never return: binlogctl update-{what} -node-id {node_id} -state offline"
        ) from error
    code, message = result_of(body)
    if code != OK:
        raise (CommandError if code is None else Refused)(f"{what} {node_id} at {place}: {message}")
    session.out.done("Apply action on node success", action=action, type=what, node=node_id, at=place, answer=message)


def place_of(status: NodeStatus) -> str:
    """Return host:port of a node's HTTP port: from its label or, for the original's nodes, the address in its
    record.
    """
    return (status.label or {}).get(STATUS_LABEL) or status.host


def result_of(body: bytes) -> tuple[object, str]:
    """Return the code and the message of a node's answer; the code is None if it is not one."""
    try:
        document: Any = json.loads(body)
        return document["code"], str(document["message"])
    except (ValueError, KeyError, TypeError):
        return None, f"not the answer of a node: {body[:200]!r}"
