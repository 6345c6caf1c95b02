"""pumps, drainers, update-pump, update-drainer: the registry as it is, and as an operator declares it to be."""

from __future__ import annotations

from dataclasses import replace

from binlog.errors import NodeNotFound
from binlog.log import get_logger
from binlog.node import NodeStatus, State
from binlog.registry import Kind, key_of
from binlog.tso import format_local

from pumpclient.ctl.session import CommandError, Session

log = get_logger("binlogctl")


def describe(status: NodeStatus) -> str:
    """As upstream's `query node` line shows a node."""
    return (
        f"{{NodeID: {status.node_id}, Addr: {status.host}, State: {status.state}, "
        f"MaxCommitTS: {status.max_commit_ts}, UpdateTime: {format_local(status.update_ts)}}}"
    )


async def query(session: Session, kind: Kind) -> None:
    """One line a node; offline ones only when asked for."""
    listing = await session.registry.list(kind)
    all_of_them = session.options.show_offline_nodes
    shown = [r.status for r in listing.nodes if all_of_them or r.status.state is not State.OFFLINE]
    for status in shown:
        log.info("query node", type=kind.removesuffix("s"), node=describe(status))
    if not shown:
        log.info(f"no {kind} to list", registered=len(listing.nodes), offline=len(listing.nodes) - len(shown))
    for key in listing.unreadable:
        log.warning("a record cannot be read", key=key)


async def update(session: Session, kind: Kind) -> None:
    """Write -state into the record, without asking the node: for nodes that are dead. May lose data.

    Compares with the record as read, so that a node that is alive after all is not overwritten unseen.
    """
    options = session.options
    if options.state not in [state.value for state in State]:
        raise CommandError(f"state {options.state} is illegal")
    record = await session.registry.get(kind, options.node_id) if options.node_id else None
    if record is None:
        raise NodeNotFound(key_of(kind, options.node_id))
    changed = replace(record.status, state=State(options.state))
    await session.registry.update(kind, changed, mod_revision=record.mod_revision)
    log.info("update node state", type=kind.removesuffix("s"), before=record.status.state.value, node=describe(changed))
