"""The main loop: filter records of files, and apply them in batches to a destination or print them as lines."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from binlog.errors import BinlogError

from drainer.ddl.repetition import named_tables
from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file.decoder import FileEvent
from drainer.reparo.errors import ReparoError
from drainer.reparo.printing import lines
from drainer.reparo.statement import Statement, parse
from drainer.reparo.stream import Entry, Stream
from drainer.schema.filter import Filter
from drainer.sink.replay import Replayed, Replayer, ReplayFailed, ReplayPosition

ROWS_MAX = 10_000  # of a destination's transaction that contains several of upstream's


@dataclass(slots=True)
class Counts:
    """Counts of what was applied or printed."""

    transactions: int = 0
    rows: int = 0
    ddls: int = 0


class _Chosen:
    """Selects the wanted rows and DDLs."""

    def __init__(self, filter_: Filter, ignored: Collection[int]) -> None:
        self._filter = filter_
        self._ignored = frozenset(ignored)

    def events(self, entry: Entry) -> list[FileEvent]:
        """Raises ReparoError naming file and offset."""
        if entry.binlog.commit_ts in self._ignored:
            return []
        names = entry.binlog.names()
        if not any(self._filter.allows(*name) for name in set(names)):
            return []
        try:
            return [one for one in entry.binlog.events() if self._filter.allows(one.schema, one.table)]
        except MessageError as error:
            raise ReparoError(f"{entry.where}: {error}") from error

    def ddl(self, entry: Entry) -> Statement | None:
        """Return the statement if it is wanted. Raises the same errors as `events`."""
        assert entry.binlog.query is not None
        if entry.binlog.commit_ts in self._ignored:
            return None
        try:
            found = parse(entry.binlog.query)
        except ReparoError as error:
            raise ReparoError(f"{entry.where}: {error}") from error
        return found if self._filter.allows(found.schema, found.table) else None


def print_all(stream: Stream, filter_: Filter, ignored: Collection[int], write: Callable[[str], object]) -> Counts:
    """Raises ReparoError."""
    counts, chosen = Counts(), _Chosen(filter_, ignored)
    for entry in stream:
        if entry.binlog.query is not None:
            if chosen.ddl(entry) is None:
                continue
            counts.ddls += 1
            events: list[FileEvent] = []
        else:
            events = chosen.events(entry)
            if not events:
                continue
            counts.transactions += 1
            counts.rows += len(events)
        for line in lines(entry.binlog, iter(events)):
            write(f"{line}\n")
    return counts


def replay(stream: Stream, to: Replayer, filter_: Filter, ignored: Collection[int], batch_max: int) -> Counts:
    """Apply everything in commit order; `to` is open. One transaction of the destination has at most `batch_max` of
    upstream's.

    Raises ReparoError naming file, offset and table, and DestinationErrors; what was applied before stays applied."""
    counts, chosen = Counts(), _Chosen(filter_, ignored)
    held: list[tuple[Entry, Replayed]] = []
    last: Entry | None = None

    def flush() -> None:
        """Apply the held entries, and write the position of the last entry, even if nothing of it is wanted."""
        nonlocal last
        if last is not None:
            _named(held, last, lambda position: to.apply([one for _, one in held], position))
            counts.transactions += len(held)
            counts.rows += sum(len(one.events) for _, one in held)
        held.clear()
        last = None

    rows = 0
    for entry in stream:
        if entry.binlog.query is not None:
            flush()
            rows = 0
            statement = chosen.ddl(entry)
            if statement is not None:
                run = partial(
                    to.ddl,
                    statement.use,
                    statement.text,
                    tables=named_tables(statement.text, statement.schema, statement.table),
                    repeated=entry.repeated,
                )
                _named([], entry, run)
                counts.ddls += 1
            continue
        events = chosen.events(entry)
        last = entry
        if events:
            held.append((entry, Replayed(entry.binlog.commit_ts, events)))
            rows += len(events)
        if len(held) >= batch_max or rows >= ROWS_MAX:
            flush()
            rows = 0
    flush()
    return counts


def _named(held: list[tuple[Entry, Replayed]], last: Entry, work: Callable[[ReplayPosition], None]) -> None:
    """Run `work`. Raises ReparoError with the place of the record that was refused."""
    try:
        work(last.position)
    except ReplayFailed as error:
        found = [entry.where for entry, one in held if one.commit_ts == error.commit_ts]
        raise ReparoError(f"{found[0] if found else last.where}, commit_ts {error.commit_ts}: {error}") from error
    except BinlogError as error:
        if isinstance(error, ReparoError):
            raise
        raise ReparoError(f"{last.where}: {error}") from error
