"""Errors of destinations. Every message names the destination and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

if TYPE_CHECKING:
    from drainer.batch.work import TableShape

_log = get_logger(__name__)


class DestinationError(BinlogError):
    """Root of this package's errors. `failing_s`: for how long an operation had failed when it gave up with this
    error."""

    failing_s = 0.0


class Transient(DestinationError):
    """A failure of one try: another one may succeed."""


class DestinationDown(DestinationError):
    """The server did not answer for as long as the configuration allows. Nothing is lost."""


class DestinationRefused(DestinationError):
    """The destination cannot be used in its present state: privileges, settings, version, a file of another kind."""


class LockHeld(DestinationError):
    """Another drainer holds the lock of this changefeed in the destination."""


class Fenced(DestinationError):
    """Another driver has taken over: this one's epoch is no longer the destination's. Stop, do not retry."""


class PositionMoved(DestinationError):
    """The destination's position is neither the start nor the end of what was to be applied."""


class SchemaMoved(DestinationError):
    """A DDL has run at the destination since it was opened."""


class CommitRefused(DestinationError):
    """The destination accepted every statement of a transaction and refused its COMMIT. Nothing of it was written."""


class DdlFailed(DestinationError):
    """The destination refused a DDL. `job_id` and `commit_ts` say which."""

    def __init__(self, message: str, *, job_id: int, commit_ts: int) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.commit_ts = commit_ts


class DdlUndecided(DestinationError):
    """A crash interrupted a DDL, and the tables do not show whether it took effect. An operator must decide."""


class DataError(DestinationError):
    """A row could not be written. `schema`, `table`: the row's table; `key`: the unique key that refused it, or "";
    `commit_ts`: its transaction (0: not known yet). For a row of a slot, `table_id` and `identity` identify the net
    row, and `shown` is its text."""

    def __init__(self, message: str, *, schema: str, table: str, key: str = "") -> None:
        super().__init__(message)
        self.schema = schema
        self.table = table
        self.key = key
        self.commit_ts = 0
        self.table_id = 0
        self.identity = b""
        self.shown = ""

    @classmethod
    def of(cls, shape: TableShape, text: str, key: str = "") -> Self:
        """Return the error of a row of this table."""
        return cls(f"{shape.schema}.{shape.table}: {text}", schema=shape.schema, table=shape.table, key=key)

    def name_transaction(self, commit_ts: int, start_ts: int, keys: str) -> None:
        """Add to the message which transaction it is and how to skip it. `keys`: keys of its rows in this table."""
        self.commit_ts = commit_ts
        rows = f", rows {keys}" if keys else ""
        self.args = (
            f"{self}. It is the transaction of commit_ts {commit_ts}, start_ts {start_ts}, table "
            f"{self.schema}.{self.table}{rows}; everything before it is applied. To skip the whole transaction, "
            f"put {commit_ts} into syncer.ignore-txn-commit-ts and start again, or see binlogctl decide-transaction",
        )

    def name_in_batch(self, start_ts: int, after_ts: int, until_ts: int) -> None:
        """Add to the message which transaction it is, for a row of a distributed batch that has been started.
        `start_ts` is 0 if it could not be determined, and so is `commit_ts`."""
        started = f", start_ts {start_ts}" if start_ts else ""
        rows = f", rows {self.shown}" if self.shown else ""
        which = f"the transaction of commit_ts {self.commit_ts}{started}, " if self.commit_ts else ""
        self.args = (
            f"{self}. It is {which}table {self.schema}.{self.table}{rows}. Its batch ({after_ts}, {until_ts}] was "
            f"begun, so rows of other transactions of it may be applied, and it must be finished: let the destination "
            f"take the row, and start again. syncer.ignore-txn-commit-ts and binlogctl decide-transaction skip "
            f"transactions of batches that are not begun",
        )


class UniqueConflict(DataError):
    """A row of the destination, not changed by this range, has a unique value that upstream gave to another row.

    Upstream's index is probably being dropped (rule 12): the pipeline may run that job early and try again."""


class RowMissing(DataError):
    """An UPDATE or DELETE in a table without a key matched no row: the destination differs from upstream."""


class MissingRows:
    """Where it is no error: logs a warning, once for each table while the destination is open."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def note(self, shape: TableShape, rows: int) -> None:
        table = (shape.schema, shape.table)
        if rows and table not in self._told:
            self._told.add(table)
            _log.warning(
                "a row to update or delete is missing in the destination; its table has no key, so other rows may "
                "differ too",
                table=f"{shape.schema}.{shape.table}",
                rows=rows,
            )


class ValueChanged(DataError):
    """The destination would store a value that differs from upstream's (its warning says that data changes)."""


class RowsRefused(DataError):
    """The destination's server refused rows: no such table or column, a constraint, a statement too large."""
