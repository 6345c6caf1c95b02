"""What holds back drainers. settle and inspect: list pending prewrites, and commit or roll back those of a writer that
has died. pass-over: make a pump serve a damaged binlog without its rows, so that drainers can continue.

A pending prewrite holds back its pump's resolved ts, and with it every drainer. Only its writer knew whether the
transaction was committed, so an operator decides. Two facts help: a DDL whose job is published was committed, at the
job's FinishedTS; and if another pump serves a commit for the start_ts, the transaction was settled there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from binlog.cluster.registry import NodeStatus, State
from binlog.cluster.tso import format_local
from binlog.cluster.writers import living_writers
from binlog.extension import PENDING_MAX
from binlog.pb import pump_ext_pb2 as pb

from pumpclient.ctl.errors import CommandError, Misused, NodeSilent, NotFound, Refused
from pumpclient.ctl.output import Listing, headed
from pumpclient.ctl.session import CommandSession

_PUMPS = Listing("pumps", headed("node_id", "state", "resolved", "pending", "late_commits", "version"), "inspect")
_PREWRITE = ("node_id", "start_ts", "started", "age_s")
_HEADINGS = {"age_s": "AGE (S)", "ddl_job_id": "DDL JOB"}
_PENDING = Listing(
    "pending prewrites",
    headed(*_PREWRITE, "bytes", "ddl_job_id", "writer", "settle_with", **_HEADINGS),
    "pending prewrite",
)
_CHOSEN = Listing(
    "prewrites to settle", headed(*_PREWRITE, "ddl_job_id", "writer", "how", **_HEADINGS), "prewrite to settle"
)


async def _pumps(session: CommandSession) -> Sequence[NodeStatus]:
    listing = await session.registry.list("pumps")
    wanted = session.options.node_id
    statuses = [r.status for r in listing.nodes if not wanted or r.status.node_id == wanted]
    if wanted and not statuses:
        raise NotFound(f"there is no pump {wanted}")
    return [status for status in statuses if wanted or status.state is not State.OFFLINE]


async def inspect(session: CommandSession) -> None:
    """List state, positions and pending prewrites of every pump that answers. Raises NodeSilent if one does not."""
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
    """Map start_ts to commit_ts, for prewrites whose commit another pump serves: copies that were not cleaned up."""
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
    facts = _prewrite_facts(node_id, pending)
    if pending.ddl_job_id:
        commit_ts = published.get(pending.ddl_job_id)
        facts["settle_with"] = (
            "-rollback (its job is not published)" if commit_ts is None else f"-commit-ts {commit_ts}"
        )
    if elsewhere:
        facts["settle_with"] = f"-rollback (another pump has its commit at {elsewhere})"
    return facts


async def settle(session: CommandSession) -> None:
    """Settle the prewrite -start-ts of -node-id, or with -all every old one; without both, list the pending ones."""
    options = session.options
    if options.all:
        await _settle_all(session, await _pumps(session))
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
    await session.confirm(
        refusal="settling cannot be undone: confirm with -yes",
        about="".join(f"{name}: {value}\n" for name, value in facts.items()),
        word=str(options.start_ts),
    )
    await session.settle(status.host, options.start_ts, options.commit_ts)
    how = f"committed at {options.commit_ts}" if options.commit_ts else "rolled back"
    session.out.done("settled", node_id=status.node_id, start_ts=options.start_ts, how=how)


async def _find(session: CommandSession, status: NodeStatus) -> pb.PendingPrewrite:
    answer = await session.inspect(status.host, pending_max=PENDING_MAX)
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


@dataclass(frozen=True, slots=True)
class _Decision:
    """What to do with one pending prewrite: commit it, roll it back (`commit_ts` 0), or leave it (`left`: why)."""

    host: str
    node_id: str
    pending: pb.PendingPrewrite
    commit_ts: int = 0
    left: str = ""

    def facts(self) -> dict[str, object]:
        how = f"commit at {self.commit_ts}, because its job is published" if self.commit_ts else "rollback"
        return {**_prewrite_facts(self.node_id, self.pending), "how": f"left alone: {self.left}" if self.left else how}


def _prewrite_facts(node_id: str, pending: pb.PendingPrewrite) -> dict[str, object]:
    """Return the facts of one pending prewrite."""
    key, writer = bytes(pending.prewrite_key), bytes(pending.writer)  # the stub types allow None, the wire does not
    return {
        "node_id": node_id,
        "start_ts": pending.start_ts,
        "started": format_local(pending.start_ts),
        "age_s": round(pending.age_ms / 1000, 1),
        "bytes": pending.bytes,
        "key": key.hex(),
        **({"writer": writer.hex()} if writer else {}),
        **({"ddl_job_id": pending.ddl_job_id} if pending.ddl_job_id else {}),
    }


async def _settle_all(session: CommandSession, pumps: Sequence[NodeStatus]) -> None:
    """List every old prewrite, then settle them unless -dry-run is given. Raises NodeSilent if a pump is silent."""
    options = session.options
    if not options.rollback or options.commit_ts or options.start_ts:
        raise Misused("-all requires -rollback, and excludes -start-ts and -commit-ts")
    answers, silent = await session.inspect_all(pumps, PENDING_MAX)
    decisions = await _decide(session, answers)
    session.out.rows(_CHOSEN, [decision.facts() for decision in decisions])
    chosen = [decision for decision in decisions if not decision.left]
    if chosen and not options.dry_run:
        count = len(chosen)
        await session.confirm(
            refusal=f"settling {count} transactions cannot be undone: confirm with -yes, or preview with -dry-run",
            about=f"{count} prewrites will be settled. ",
            word=str(count),
        )
        await _carry_out(session, chosen)
    more = sum(answer.pending_count - len(answer.pending) for _, answer in answers)
    if more > 0:
        session.out.problem("more prewrites are pending than a pump lists at once; run the command again", count=more)
    if silent:
        raise NodeSilent(f"no answer from {', '.join(silent)}")


async def _decide(session: CommandSession, answers: Sequence[tuple[NodeStatus, pb.InspectResp]]) -> list[_Decision]:
    found = [(status, pending) for status, answer in answers for pending in answer.pending]
    living = await living_writers(session.etcd)
    published = await session.published(pending for _, pending in found)
    decisions = []
    for status, pending in found:
        if pending.age_ms < session.options.older_than * 1000:
            continue
        force = session.options.force
        left = "its writer is alive and may still commit it (-force)" if pending.writer in living and not force else ""
        commit_ts = published.get(pending.ddl_job_id, 0) if pending.ddl_job_id and not force else 0
        decisions.append(_Decision(status.host, status.node_id, pending, commit_ts, left))
    return decisions


async def _carry_out(session: CommandSession, chosen: Sequence[_Decision]) -> None:
    """Settle all prewrites of one pump concurrently over one connection, so that one log sync serves many of them."""
    failed = 0
    for host in dict.fromkeys(decision.host for decision in chosen):
        part = [decision for decision in chosen if decision.host == host]
        errors = await session.settle_many(host, [(d.pending.start_ts, d.commit_ts) for d in part])
        for decision, error in zip(part, errors, strict=True):
            if error:
                session.out.problem(
                    "not settled", node_id=decision.node_id, start_ts=decision.pending.start_ts, error=error
                )
        failed += sum(map(bool, errors))
        session.out.done("settled", node_id=part[0].node_id, count=errors.count(""))
    if failed:
        raise CommandError(f"{failed} of {len(chosen)} prewrites were not settled")


async def skip_binlog(session: CommandSession) -> None:
    """Make the pump -node-id serve the binlog -commit-ts without its rows. With -dry-run, only report it."""
    options = session.options
    if not options.commit_ts:
        raise Misused("-commit-ts is required: the errors of the drainer and the pump contain it")
    record = await session.record("pumps")
    host = record.status.host
    binlog = await session.skip_binlog(host, options.commit_ts, dry_run=True)
    facts: dict[str, object] = {
        "node_id": options.node_id,
        "commit_ts": options.commit_ts,
        "committed": format_local(options.commit_ts),
        "start_ts": binlog.start_ts,
        "ddl_job_id": binlog.ddl_job_id or None,
        "why": binlog.why,
    }
    if not binlog.why:
        session.out.done("the binlog is already skipped", **facts)
        return
    if options.dry_run:
        session.out.done("the binlog would be skipped: its rows would be lost downstream", **facts)
        return
    await session.confirm(
        refusal="the rows of this binlog will be lost downstream: confirm with -yes, or preview with -dry-run",
        about=f"{binlog.why}\nThe rows of this transaction will be lost downstream. ",
        word=str(options.commit_ts),
    )
    await session.skip_binlog(host, options.commit_ts, dry_run=False)
    session.out.done("the binlog is skipped: its rows are lost downstream", **facts)
