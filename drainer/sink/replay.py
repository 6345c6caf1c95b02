"""The interface between reparo and a destination: apply transactions in order, and store the position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from drainer.protocol.pb_file.decoder import FileEvent
from drainer.sink.errors import DestinationError


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """The last record that was applied: its file, its begin and end offset in that file (before compression), the
    CRC-32C of its payload, and its commit_ts. `in_ddl`: it is a DDL that was started and may be incomplete."""

    file_number: int
    begin: int
    end: int
    crc: int
    commit_ts: int
    in_ddl: bool = False


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """`name`: name of the replay, because several replays may share a destination. `safe`: rows may already exist or be
    missing (`D-LD-11`), so inserts replace, and updates delete and replace. `wait_s`: how long to wait for a server
    that does not answer. `zone`: time zone of TIMESTAMPs in the files."""

    name: str
    safe: bool = False
    wait_s: float = 60.0
    zone: str = "UTC"


class ReplayFailed(DestinationError):
    """The destination refused a row or a DDL of the transaction `commit_ts`. `table`: the row's table, "" for a DDL.
    Nothing of the transaction was written."""

    def __init__(self, message: str, *, commit_ts: int, table: str = "") -> None:
        super().__init__(message, commit_ts, table)
        self.message = message
        self.commit_ts = commit_ts
        self.table = table

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Replayed:
    """One transaction's rows."""

    commit_ts: int
    events: Sequence[FileEvent]


class Replayer(Protocol):
    """A destination of reparo. One thread uses it; all methods block."""

    @property
    def name(self) -> str:
        """The kind and address of the destination, without a password, for logs and errors."""
        ...

    def open(self) -> ReplayPosition | None:
        """Return the stored position, None if nothing has been applied. Raises DestinationError."""
        ...

    def apply(self, transactions: Sequence[Replayed], position: ReplayPosition) -> None:
        """Apply the transactions, in order, in one transaction that also stores the position. Raises ReplayFailed and
        other DestinationErrors; then nothing was written."""
        ...

    def ddl(
        self,
        schema: str,
        statement: str,
        position: ReplayPosition,
        *,
        tables: Sequence[tuple[str, str]],
        repeated: bool,
    ) -> None:
        """Run a statement in the database `schema` ("": in none), and store the position. `tables`: those that it
        names, by schema and name; `repeated`: the statement was started before, so it may already have taken effect.
        Raises ReplayFailed."""
        ...

    def close(self) -> None: ...
