"""settle and inspect: list pending prewrites, and commit or roll back those of a writer that has died.

A pending prewrite holds back its pump's resolved ts, and with it every drainer. Only its writer knew whether the
transaction was committed, so an operator decides. Two facts help: a DDL whose job is published was committed, at the
job's FinishedTS; and if another pump serves a commit for the start_ts, the transaction was settled there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from binlog.cluster.node import NodeStatus, State
from binlog.cluster.tso import format_local
from binlog.pb import pump_ext_pb2 as pb

from pumpclient.ctl.confirm import confirm
from pumpclient.ctl.errors import Misused, NodeSilent, NotFound, Refused
from pumpclient.ctl.output import Listing
from pumpclient.ctl.session import CommandSession
from pumpclient.ctl.settle_all import facts_of, settle_all

_PUMPS = Listing(
    "pumps",
    {
        "node_id": "NODE ID",
        "state": "STATE",
        "resolved": "RESOLVED",
        "pending": "PENDING",
        "late_commits": "LATE COMMITS",
        "version": "VERSION",
    },
    "inspect",
)
_PENDING = Listing(
    "pending prewrites",
    {
        "node_id": "NODE ID",
        "start_ts": "START TS",
        "started": "STARTED",
        "age_s": "AGE (S)",
        "bytes": "BYTES",
        "ddl_job_id": "DDL JOB",
        "writer": "WRITER",
        "settle_with": "SETTLE WITH",
    },
    "pending prewrite",
)


async def _pumps(session: CommandSession) -> Sequence[NodeStatus]:
    listing = await session.registry.list("pumps")
    wanted = session.options.node_id
    statuses = [r.status for r in listing.nodes if not wanted or r.status.node_id == wanted]
    if wanted and not statuses:
        raise NotFound(f"there is no pump {wanted}")
    return [status for status in statuses if wanted or status.state is not State.OFFLINE]


async def inspect(session: CommandSession) -> None:
    """List the state, positions and pending prewrites of every pump that answers. Raises NodeSilent at the end if one
    did not.
    """
    answers, silent = await session.inspect_all(await _pumps(session), session.options.pending_max)
    session.out.rows(_PUMPS, [_facts(answer) for _, answer in answers])
    published = await session.published(pending for _, answer in answers for pending in answer.pending)
    rows: list[dict[str, object]] = []
    for status, answer in answers:
        others = [other.host for other, _ in answers if other.host != status.host]
        elsewhere = await _committed_elsewhere(session, answer, others)
        for pending in answer.pending:
            rows.append(_pending(answer.node_id, pending, published, elsewhere.get(pending.start_ts, 0)))
    if rows:
        session.out.rows(_PENDING, rows)
    if silent:
        raise NodeSilent(f"no answer from {', '.join(silent)}")


def _facts(answer: pb.InspectResp) -> dict[str, object]:
    return {
        "node_id": answer.node_id,
        "state": answer.state,
        "version": answer.version,
        "resolved_ts": answer.resolved_ts,
        "resolved": format_local(answer.resolved_ts),
        "max_commit_ts": answer.max_commit_ts,
        "purged_ts": answer.purged_ts,
        "pending": answer.pending_count,
        "late_commits": answer.late_commit_count,
        "late_commit_ts": list(answer.late_commit_ts),
    }


async def _committed_elsewhere(
    session: CommandSession, answer: pb.InspectResp, others: Sequence[str]
) -> dict[int, int]:
    """Map start_ts to commit_ts, for pending prewrites whose commit another pump serves: copies whose clean-up was
    lost.
    """
    wanted = [pending.start_ts for pending in answer.pending]
    found: dict[int, int] = {}
    for host in others if wanted else ():
        for start_ts, commit_ts in zip(wanted, await session.outcome(host, wanted), strict=True):
            if commit_ts:
                found[start_ts] = commit_ts
    return found


def _pending(
    node_id: str, pending: pb.PendingPrewrite, published: Mapping[int, int], elsewhere: int = 0
) -> dict[str, object]:
    """Return the facts of one pending prewrite, with advice if there is any."""
    facts = facts_of(node_id, pending)
    if pending.ddl_job_id:
        commit_ts = published.get(pending.ddl_job_id)
        facts["settle_with"] = (
            "-rollback (its job is not published)" if commit_ts is None else f"-commit-ts {commit_ts}"
        )
    if elsewhere:
        facts["settle_with"] = f"-rollback (another pump has its commit at {elsewhere})"
    return facts


async def settle(session: CommandSession) -> None:
    """Settle pending prewrites.

    With -start-ts: end that prewrite on -node-id. With -all: end every old one. With neither: list the pending ones.
    """
    options = session.options
    if options.all:
        await settle_all(session, await _pumps(session))
        return
    if not options.start_ts:
        if options.commit_ts or options.rollback:
            raise Misused("-start-ts or -all is required")
        await inspect(session)
        return
    if bool(options.commit_ts) == options.rollback:
        raise Misused("-commit-ts N or -rollback is required")
    if options.commit_ts and options.commit_ts <= options.start_ts:
        raise Misused(f"commit ts {options.commit_ts} is not after start ts {options.start_ts}")
    if not options.node_id:
        raise Misused("-node-id is required")
    status = (await _pumps(session))[0]
    pending = await _find(session, status)
    published = await session.published([pending])
    _check_published(session, pending, published)
    facts = _pending(status.node_id, pending, published)
    if options.dry_run:
        session.out.rows(_PENDING, [facts])
        return
    await confirm(
        options,
        refusal="settling cannot be undone: confirm with -yes",
        about="".join(f"{name}: {value}\n" for name, value in facts.items()),
        word=str(options.start_ts),
    )
    await session.settle(status.host, options.start_ts, options.commit_ts)
    how = f"committed at {options.commit_ts}" if options.commit_ts else "rolled back"
    session.out.done("settled", node_id=status.node_id, start_ts=options.start_ts, how=how)


async def _find(session: CommandSession, status: NodeStatus) -> pb.PendingPrewrite:
    answer = await session.inspect(status.host, pending_max=10_000)
    for pending in answer.pending:
        if pending.start_ts == session.options.start_ts:
            return pending
    raise NotFound(f"pump {status.node_id} has no pending prewrite {session.options.start_ts}")


def _check_published(session: CommandSession, pending: pb.PendingPrewrite, published: Mapping[int, int]) -> None:
    """Check that a DDL is committed if and only if its job is published, and at the job's FinishedTS."""
    options = session.options
    if not pending.ddl_job_id or options.force:
        return
    commit_ts = published.get(pending.ddl_job_id)
    if (commit_ts or 0) != options.commit_ts:
        right = f"-commit-ts {commit_ts}" if commit_ts else "-rollback: its job was never published"
        raise Refused(
            f"prewrite {pending.start_ts} is DDL job {pending.ddl_job_id}; settle it with {right} (or -force)"
        )
