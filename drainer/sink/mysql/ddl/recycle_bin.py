"""The recycle bin of a server: the dropped tables in the drainer's schema, and which of them have expired.

DROP, TRUNCATE ──RENAME──► tidb_binlog.<name> ──RENAME──► FLASHBACK, RECOVER
                                    └── retention passed, in the stream's own time ──► DROP
"""

from __future__ import annotations

from binlog.runtime.log import get_logger

from drainer.sink import recycle_names
from drainer.sink.base import Identity
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import Retry, ServerError, ServerSession
from drainer.sink.mysql.rows.statements import qualified, quote
from drainer.sink.recycle_names import Kept

_log = get_logger(__name__)

# A table may be locked by a reader; the stream does not wait for that.
_LOCK_WAIT_S = 1


class RecycleBin:
    """One changefeed's tables in the bin. `keeps` false: no tables are added; existing ones are found and expire."""

    def __init__(self, config: ServerConfig, identity: Identity) -> None:
        self.schema = config.recycle_schema
        self._keep_ms = config.recycle_keep_ms
        self._tag = recycle_names.tag(identity)
        self._kept: list[Kept] = []

    @property
    def keeps(self) -> bool:
        return self._keep_ms > 0

    def name_for(self, *, commit_ts: int, job_id: int, table_id: int, table: str) -> str:
        return recycle_names.name_for(self._tag, commit_ts=commit_ts, job_id=job_id, table_id=table_id, table=table)

    def prepare(self, session: ServerSession) -> bool:
        """Create the schema; False, with a log line, if the user lacks the privilege."""
        try:
            session.execute(b"CREATE DATABASE IF NOT EXISTS " + quote(self.schema))
        except ServerError as error:
            _log.warning("cannot create the recycle bin: dropped tables cannot be recovered", error=str(error))
            return False
        return True

    def look(self, session: ServerSession) -> list[Kept]:
        """The changefeed's tables in the bin, read from the server."""
        text = b"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=" + session.literal(self.schema)
        self._kept = recycle_names.kept(self._tag, (str(row[0]) for row in session.query(text)))
        return self._kept

    def is_due(self, position_ts: int) -> bool:
        """Whether a table there has expired, as of the last `look`."""
        return bool(self._kept) and self._kept[0].is_expired(position_ts, self._keep_ms)

    def purge(self, session: ServerSession, position_ts: int) -> None:
        """Drop expired tables. A table that is in use, or that the server refuses to drop, remains until the next
        start."""
        expired = [table for table in self.look(session) if table.is_expired(position_ts, self._keep_ms)]
        (waited,) = session.query(b"SELECT @@SESSION.lock_wait_timeout")[0]
        session.execute(b"SET SESSION lock_wait_timeout=%d" % _LOCK_WAIT_S)
        try:
            for table in expired:
                self._drop(session, table)
        finally:
            session.execute(b"SET SESSION lock_wait_timeout=%d" % int(waited or 0))
        self._kept = [table for table in self._kept if table not in expired]

    def _drop(self, session: ServerSession, table: Kept) -> None:
        try:
            session.execute(b"DROP TABLE IF EXISTS " + qualified(self.schema, table.name))
            _log.info("table deleted from the recycle bin", table=table.name, job_id=table.job_id)
        except (ServerError, Retry) as error:
            _log.warning(
                "cannot delete a table from the recycle bin; the next start tries again",
                table=table.name,
                error=str(error),
            )
