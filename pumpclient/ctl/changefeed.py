"""pause-changefeed, resume-changefeed, update-changefeed, decide-ddl and decide-transaction: steer a running drainer
over HTTP. It keeps running, unlike with pause-drainer."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pumpclient.ctl.confirm import confirm
from pumpclient.ctl.errors import Misused
from pumpclient.ctl.leave import put_to_node
from pumpclient.ctl.session import CommandSession


async def pause(session: CommandSession) -> None:
    await _ask(session, "pause", {})


async def resume(session: CommandSession) -> None:
    await _ask(session, "resume", {})


async def update(session: CommandSession) -> None:
    given = {"delay": session.options.delay, "stop-at": session.options.stop_at}
    body = {name: value for name, value in given.items() if value}
    if not body:
        raise Misused("update-changefeed needs -delay, -stop-at, or both; 0 removes one")
    await _ask(session, "update", body)


async def decide_ddl(session: CommandSession) -> None:
    options = session.options
    if not options.job_id or [options.run_again, options.skip, bool(options.sql)].count(True) != 1:
        raise Misused("decide-ddl needs -job-id, and one of -run-again, -skip and -sql")
    body: dict[str, object] = {"job-id": options.job_id, "action": "run-again" if options.run_again else "skip"}
    await _ask(session, "decide-ddl", {**body, "action": "replace", "sql": options.sql} if options.sql else body)


async def decide_transaction(session: CommandSession) -> None:
    options = session.options
    if not options.commit_ts or options.run_again == options.skip:
        raise Misused("decide-transaction needs -commit-ts, and one of -run-again and -skip")
    if options.skip:
        await confirm(
            options,
            refusal="the rows of this transaction will be lost downstream: confirm with -yes",
            about=f"The rows of the transaction {options.commit_ts} will be lost downstream. ",
            word=str(options.commit_ts),
        )
    body = {"commit-ts": options.commit_ts, "action": "skip" if options.skip else "run-again"}
    await _ask(session, "decide-transaction", body)


async def _ask(session: CommandSession, command: str, body: Mapping[str, object]) -> None:
    """Request /changefeed/<node id>/<command>. Raises as `put_to_node`."""
    facts = await put_to_node(session, "drainers", f"/changefeed/{{}}/{command}", body=json.dumps(body).encode())
    session.out.done("Changefeed request success", command=command, **facts)
