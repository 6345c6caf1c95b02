"""What reparo needs of a destination: apply the transactions of files in order, and store the position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from drainer.protocol.pb_file.decoder import FileEvent
from drainer.sink.errors import DestinationError


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """The last record that is applied: in which file it is, where it begins and ends there (before compression), the
    CRC-32C of its payload and its commit_ts. `in_ddl`: it is a DDL that was begun and perhaps not done."""

    file_number: int
    begin: int
    end: int
    crc: int
    commit_ts: int
    in_ddl: bool = False


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """`name`: of the replay, for destinations that several write to; `safe`: rows may be there already, or be missing
    (`D-LD-11`): inserts replace, updates delete and replace; `wait_s`: how long a server that is gone is waited
    for; `zone`: of TIMESTAMPs in the files."""

    name: str
    safe: bool = False
    wait_s: float = 60.0
    zone: str = "UTC"


class ReplayFailed(DestinationError):
    """A row or a DDL that the destination did not take; `commit_ts` says in which transaction, `table` in which table
    (for a DDL ""). Nothing of its transaction is written."""

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
        """For logs and errors, no password."""
        ...

    def open(self) -> ReplayPosition | None:
        """Where it stands; None where nothing was applied yet. Raises DestinationError."""
        ...

    def apply(self, transactions: Sequence[Replayed], position: ReplayPosition) -> None:
        """All of them, in order, in one transaction that also stores the position. Raises ReplayFailed and other
        DestinationErrors; then nothing is written."""
        ...

    def ddl(self, schema: str, statement: str, position: ReplayPosition, *, repeated: bool) -> None:
        """Run a statement in the database `schema` ("": in none), and store the position. `repeated`: it was begun
        before, so what it does may be done. Raises ReplayFailed."""
        ...

    def close(self) -> None: ...
