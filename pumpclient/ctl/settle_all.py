"""settle -all: settles every old pending prewrite of one pump or of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from binlog.cluster.node import NodeStatus
from binlog.cluster.tso import format_local
from binlog.cluster.writers import living_writers
from binlog.pb import pump_ext_pb2 as pb

from pumpclient.ctl.confirm import confirm
from pumpclient.ctl.errors import CommandError, Misused, NodeSilent
from pumpclient.ctl.output import Listing
from pumpclient.ctl.session import CommandSession

INSPECTED_MAX = 10_000  # a pump returns at most this many in one answer

_LISTING = Listing(
    "prewrites to settle",
    {
        "node_id": "NODE ID",
        "start_ts": "START TS",
        "started": "STARTED",
        "age_s": "AGE (S)",
        "ddl_job_id": "DDL JOB",
        "writer": "WRITER",
        "how": "HOW",
    },
    "prewrite to settle",
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one pending prewrite: commit it at `commit_ts`, roll it back (0), or leave it (`left`: the
    reason).
    """

    host: str
    node_id: str
    pending: pb.PendingPrewrite
    commit_ts: int = 0
    left: str = ""

    def facts(self) -> dict[str, object]:
        how = f"commit at {self.commit_ts}, because its job is published" if self.commit_ts else "rollback"
        return {**facts_of(self.node_id, self.pending), "how": f"left alone: {self.left}" if self.left else how}


def facts_of(node_id: str, pending: pb.PendingPrewrite) -> dict[str, object]:
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


async def settle_all(session: CommandSession, pumps: Sequence[NodeStatus]) -> None:
    """List what will be done, then do it unless -dry-run is given. Raises NodeSilent at the end if a pump did not
    answer.
    """
    options = session.options
    if not options.rollback or options.commit_ts or options.start_ts:
        raise Misused("-all requires -rollback, and excludes -start-ts and -commit-ts")
    answers, silent = await session.inspect_all(pumps, INSPECTED_MAX)
    decisions = await _decide(session, answers)
    session.out.rows(_LISTING, [decision.facts() for decision in decisions])
    chosen = [decision for decision in decisions if not decision.left]
    if chosen and not options.dry_run:
        count = len(chosen)
        await confirm(
            options,
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


async def _decide(session: CommandSession, answers: Sequence[tuple[NodeStatus, pb.InspectResp]]) -> list[Decision]:
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
        decisions.append(Decision(status.host, status.node_id, pending, commit_ts, left))
    return decisions


async def _carry_out(session: CommandSession, chosen: Sequence[Decision]) -> None:
    """Settle all prewrites of one pump concurrently over one connection, so that one log sync serves many of them."""
    failed = 0
    for host in dict.fromkeys(decision.host for decision in chosen):
        part = [decision for decision in chosen if decision.host == host]
        errors = await session.settle_many(host, [(d.pending.start_ts, d.commit_ts) for d in part])
        ended = Counter("failed" if error else "settled" for error in errors)
        for decision, error in zip(part, errors, strict=True):
            if error:
                session.out.problem(
                    "not settled", node_id=decision.node_id, start_ts=decision.pending.start_ts, error=error
                )
        failed += ended["failed"]
        session.out.done("settled", node_id=part[0].node_id, count=ended["settled"])
    if failed:
        raise CommandError(f"{failed} of {len(chosen)} prewrites were not settled")
