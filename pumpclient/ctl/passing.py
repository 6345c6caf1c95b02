"""pass-over: makes a pump serve a damaged binlog without its rows, so that drainers can continue."""

from __future__ import annotations

from binlog.cluster.tso import format_local

from pumpclient.ctl.errors import Misused
from pumpclient.ctl.session import CommandSession


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
