"""Run one DDL of reparo's files once, however often reparo or its connection dies.

The DDL's position, with `in_ddl`, and the definitions of its tables are stored before it runs. Both show at the next
attempt that it was begun, and whether it has run (drainer/sink/mysql/ddl/interrupted.py). A DDL that the server refused
has not run: then the former position is stored again, so that "exists already" and similar errors (D-LD-14) do not
count as success at the next start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.sink.mysql.connection import ServerError, Session
from drainer.sink.mysql.ddl import fingerprint
from drainer.sink.mysql.ddl.fingerprint import Fingerprint, Name
from drainer.sink.mysql.ddl.interrupted import has_run, statement_lock
from drainer.sink.mysql.ddl.runner import execute_text
from drainer.sink.mysql.replay.positions import Positions
from drainer.sink.replay import ReplayFailed, ReplayPosition

_log = get_logger(__name__)

_BUSY: Final = "a DDL of a reparo of this name is still running"


def lock_name(name: str) -> str:
    """Return the name of a replay's lock; servers limit such names to 64 characters."""
    return "reparo." + sha256(name.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class DdlReplay:
    """One DDL. `schema`: the database in which it runs, "": in none; `tables`: those that it names; `position`: the
    position after it; `repeated`, `safe`: see Replayer.ddl and ReplaySettings."""

    schema: str
    statement: str
    tables: Sequence[Name]
    position: ReplayPosition
    repeated: bool
    safe: bool

    def run(self, session: Session, positions: Positions) -> None:
        """Run it unless it has run, and store its position. Raises ReplayFailed, ServerError, ConnectionLost, Retry."""
        with statement_lock(session, lock_name(positions.name), _BUSY):
            former = positions.read(session)
            if former == self.position:
                return
            begun = replace(self.position, end=self.position.begin, in_ddl=True)
            interrupted = self.repeated or former == begun
            if interrupted and self._has_run(session, positions):
                _log.warning("the interrupted DDL has already run; it is not run again", statement=self.statement)
            else:
                positions.begin_ddl(session, begun, json.dumps(fingerprint.take(session, (), self.tables)))
                crash_point("reparo.before_ddl")
                self._execute(session, positions, former, interrupted=interrupted)
                crash_point("reparo.after_ddl")
            positions.end_ddl(session, self.position)

    def _has_run(self, session: Session, positions: Positions) -> bool:
        text = positions.definitions(session)
        before: Fingerprint | None = None if text is None else json.loads(text)
        found = has_run(session, self.schema, self.statement, self.tables, before)
        if found is None:
            raise self._failed(
                f"the DDL was interrupted, and it is not known whether it has run; a second run would undo it. Run it "
                f"if it has not run, then put {self.position.commit_ts} into ignore-txn-commit-ts"
            )
        return found

    def _execute(
        self, session: Session, positions: Positions, former: ReplayPosition | None, *, interrupted: bool
    ) -> None:
        commit_ts = self.position.commit_ts
        try:
            execute_text(
                session, self.schema, self.statement, commit_ts=commit_ts, may_have_run=interrupted or self.safe
            )
        except ServerError as error:
            if not interrupted:
                positions.end_ddl(session, former)
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> ReplayFailed:
        return ReplayFailed(f"{why}; the statement: {self.statement}", commit_ts=self.position.commit_ts)
