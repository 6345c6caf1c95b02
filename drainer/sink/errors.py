"""What may go wrong at a destination. Every message names the place and says what to do."""

from __future__ import annotations

from binlog.errors import BinlogError


class DestinationError(BinlogError):
    """Root of this package's errors."""


class DestinationDown(DestinationError):
    """The server did not answer for as long as the configuration lets us wait; nothing is lost."""


class DestinationRefused(DestinationError):
    """The destination cannot be used as it is: privileges, settings, version, a file that is something else."""


class LockHeld(DestinationError):
    """Another drainer holds this changefeed in the destination."""


class Fenced(DestinationError):
    """Another driver has taken over: this one's epoch is no longer the destination's. Stop, do not retry."""


class PositionMoved(DestinationError):
    """The destination's position is neither the start nor the end of what was to be applied."""


class CommitRefused(DestinationError):
    """The destination took every statement of a transaction and refused its COMMIT; nothing of it is written."""


class DdlFailed(DestinationError):
    """The destination refused a DDL. `job_id` and `commit_ts` say which."""

    def __init__(self, message: str, *, job_id: int, commit_ts: int) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.commit_ts = commit_ts


class DdlUndecided(DestinationError):
    """A crash fell into a DDL whose outcome cannot be told by looking; an operator must decide."""

    def __init__(self, message: str, *, job_id: int) -> None:
        super().__init__(message)
        self.job_id = job_id


class DataError(DestinationError):
    """A row could not be written as it is. `schema` and `table` say where, `commit_ts` in which transaction (0: that is
    not known yet). Of a slot's rows `table_id` and `identity` say which net row it is, and `shown` how it reads."""

    def __init__(self, message: str, *, schema: str, table: str) -> None:
        super().__init__(message)
        self.schema = schema
        self.table = table
        self.commit_ts = 0
        self.table_id = 0
        self.identity = b""
        self.shown = ""

    def name_transaction(self, commit_ts: int, start_ts: int, keys: str) -> None:
        """Add which transaction it is, and the way past it. `keys`: of its rows in this table."""
        self.commit_ts = commit_ts
        rows = f", rows {keys}" if keys else ""
        self.args = (
            f"{self}. It is the transaction of commit_ts {commit_ts}, start_ts {start_ts}, table "
            f"{self.schema}.{self.table}{rows}; everything before it is applied. To pass over the whole transaction, "
            f"put {commit_ts} into syncer.ignore-txn-commit-ts and start again",
        )

    def name_in_batch(self, start_ts: int, after_ts: int, until_ts: int) -> None:
        """As `name_transaction`, of the `commit_ts` that is known, in a spread batch that was begun. `start_ts` 0: it
        could not be asked for."""
        started = f", start_ts {start_ts}" if start_ts else ""
        rows = f", rows {self.shown}" if self.shown else ""
        self.args = (
            f"{self}. It is the transaction of commit_ts {self.commit_ts}{started}, table {self.schema}.{self.table}"
            f"{rows}. Its batch ({after_ts}, {until_ts}] was begun, so rows of other transactions of it may be "
            f"applied, and it must be finished: let the destination take the row, and start again. "
            f"syncer.ignore-txn-commit-ts passes over transactions of batches that are not begun",
        )


class UniqueConflict(DataError):
    """A row outside the range stands under a unique key that upstream has given to another row.

    Upstream's index is probably being dropped (rule 12): the pipeline may run that job early and try again."""

    def __init__(self, message: str, *, schema: str, table: str, key: str) -> None:
        super().__init__(message, schema=schema, table=table)
        self.key = key


class RowMissing(DataError):
    """An UPDATE or DELETE of a table without a key found no such row: the destination has diverged."""


class ValueChanged(DataError):
    """The destination would store another value than upstream's (a warning that changes data)."""


class RowsRefused(DataError):
    """The destination's server refused rows: no such table or column, a constraint, a statement too large."""
