"""The interface between a program that replays changes (reparo, kafka-consumer, arbiter) and a destination: apply
transactions and DDLs in order, and store the position. A position is a text that only the program understands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Protocol

from binlog.tidb.time import datetime_text, from_zone, parse_datetime

from drainer.ddl.lexer import statements, tokens
from drainer.protocol.errors import MessageError
from drainer.protocol.event import DdlEvent, RowEvent
from drainer.sink.errors import DestinationError

# A TIMESTAMP's text from the zone in which a file has it to UTC. Pure.


def to_utc(text: str, zone: tzinfo) -> str:
    """Convert a time to UTC, with the same number of fractional digits. Raises MessageError if it is not a time."""
    try:
        packed = parse_datetime(text)
    except ValueError as error:
        raise MessageError(f"{text!r:.60} is no TIMESTAMP") from error
    return datetime_text(from_zone(packed, zone) if packed else 0, len(text.partition(".")[2]))


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """`program`: what replays, for errors; `table`: the destination's table of positions; `name`: name of the replay,
    because several replays may share a destination. `safe`: rows may already exist or be missing (`D-LD-11`), so
    inserts replace, and updates delete and replace. `wait_s`: how long to wait for a server that does not answer.
    `zone`: time zone of TIMESTAMPs. `remedy`: how an operator leaves a DDL out, with {commit_ts}; "": by a statement in
    the destination, which errors have. `names_only`: rows bring the columns of their tables, so a SQLite file needs of
    a DDL what concerns names and whole tables; without it, what may change values is refused there. `is_arbiter`: the
    table is that of the original's arbiter; positions are JSON with `ts` and `status`, which are columns there."""

    program: str
    table: str
    name: str
    safe: bool = False
    wait_s: float = 60.0
    zone: str = "UTC"
    remedy: str = ""
    names_only: bool = False
    is_arbiter: bool = False


class ReplayFailed(DestinationError):
    """The destination refused a row or a DDL of the transaction `commit_ts`. `table`: the row's table, "" for a DDL.
    Nothing of the transaction was written."""

    def __init__(self, message: str, *, commit_ts: int, table: str = "") -> None:
        super().__init__(message)
        self.commit_ts = commit_ts
        self.table = table


@dataclass(frozen=True, slots=True)
class Replayed:
    """One transaction's rows."""

    commit_ts: int
    events: Sequence[RowEvent]


@dataclass(frozen=True, slots=True)
class ReplayedDdl:
    """A DDL. `use`: the database in which its statements run, "": in none; `schema` and `table`: the first table that
    it names; `may_exist`: errors such as "table exists" (D-LD-14) count as success. `where`: position, for errors."""

    commit_ts: int
    statements: tuple[str, ...]
    use: str
    schema: str
    table: str
    may_exist: bool = False
    where: str = ""

    def failed(self, why: str) -> ReplayFailed:
        prefix = f"{self.where}: " if self.where else ""
        return ReplayFailed(f"{prefix}the DDL at commit_ts {self.commit_ts}: {why}", commit_ts=self.commit_ts)


def replayed(event: DdlEvent, *, may_exist: bool = False, where: str = "") -> ReplayedDdl:
    """Return the DDL of a message."""
    every = tuple(one for one in statements(event.query) if not _is_of_temporary_table(one))
    return ReplayedDdl(event.commit_ts, every, event.schema, event.schema, event.table, may_exist, where)


def _is_of_temporary_table(query: str) -> bool:
    """Return whether the statement creates or drops a GLOBAL TEMPORARY table: TiDB's own, without rows in topics."""
    words = list(tokens(query))[:3]
    return len(words) == 3 and words[0].is_word("CREATE", "DROP") and words[1].is_word("GLOBAL")


def never(ddl: ReplayedDdl) -> bool:
    return False


class Replayer(Protocol):
    """A destination. One thread uses it; all methods block."""

    @property
    def name(self) -> str:
        """The kind and address of the destination, without a password, for logs and errors."""
        ...

    def open(self, is_left_out: Callable[[ReplayedDdl], bool] = never) -> str:
        """Continue a DDL that was interrupted or refused, unless it is to be left out, and return the stored position,
        "" if nothing has been applied. Raises DestinationError."""
        ...

    def apply(self, transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None = None) -> None:
        """Apply the transactions, in order, in one transaction that also stores the position; then run the DDL, exactly
        once. Raises ReplayFailed and other DestinationErrors; then nothing was written, or the next `open` continues
        the DDL."""
        ...

    def close(self) -> None: ...


def consumer_settings(name: str, **more: Any) -> ReplaySettings:
    """Return those of a consumer of this name."""
    return ReplaySettings("consumer", "kafka_consumer", name, safe=True, names_only=True, **more)
