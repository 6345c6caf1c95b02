"""`reparo -data-dir …`: exit code 0, 1 for bad settings, 2 for a failure or a bad command line (K-03).

Filters records of files, and applies them in batches to a destination or prints them as lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from binlog.cluster import tso
from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.command_line import INTERRUPTED, discard_stdout
from binlog.runtime.config import load_or_exit
from binlog.tidb.types import Tp
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from drainer.ddl.lexer import Unexpected, Words, statements, tokens
from drainer.protocol.errors import MessageError
from drainer.protocol.event import ColumnValue, RowEvent
from drainer.protocol.pb_file import FileBinlog
from drainer.reparo.config import PRINT, PROGRAM, ReparoConfig
from drainer.reparo.stream import Entry, FilePosition, ReparoError, Stream
from drainer.schema.filter import Filter
from drainer.sink.registry import replayer
from drainer.sink.replay import Replayed, ReplayedDdl, Replayer, ReplayFailed

_log = log.get_logger("reparo")

# Find the database of a DDL in a file, and the table by which it is filtered. Pure.
_BEFORE_NAME: Final = ("IF", "NOT", "EXISTS", "IGNORE")
_KINDS: Final = ("TABLE", "VIEW", "SEQUENCE")


def parse(query: str, commit_ts: int, *, may_exist: bool = False, where: str = "") -> ReplayedDdl:
    """Parse a record's ddl_query: one statement, perhaps after `use …;`. Raises ReparoError for more statements."""
    found = statements(query)
    use = ""
    if len(found) > 1:
        words = list(tokens(found[0]))
        if len(words) == 2 and words[0].is_word("USE") and words[1].is_name:
            use, found = words[1].value, found[1:]
    if len(found) != 1:
        raise ReparoError(f"{where}: {len(found)} statements where one is expected: {query!r:.300}")
    schema, table = _first_table(found[0])
    return ReplayedDdl(commit_ts, found, use, schema or use, table, may_exist, where)


def _first_table(text: str) -> tuple[str, str]:
    """Return (database if the statement names one, table)."""
    words = Words(text)
    try:
        if words.take("TRUNCATE"):
            words.take("TABLE")
            return words.table()
        while words.left and not words.left[0].is_word(*_KINDS, "DATABASE", "SCHEMA", "INDEX"):
            words.left.pop(0)
        if words.take("INDEX"):
            while words.left and not words.take("ON"):
                words.left.pop(0)
            return words.table()
        is_of_database = words.take("DATABASE", "SCHEMA") or not words.take(*_KINDS)
        words.skip(*_BEFORE_NAME)
        return (words.name(), "") if is_of_database else words.table()
    except Unexpected:
        return "", ""


# Transactions and DDLs as lines for people. Pure.
_TEXTS = frozenset({Tp.DATE, Tp.NEWDATE, Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION, Tp.NEWDECIMAL})


def lines(binlog: FileBinlog, events: Iterable[RowEvent]) -> Iterator[str]:
    """Return a line for a DDL, or for each row: time, commit_ts, the kind of change, the table and its columns."""
    when = f"{tso.format_local(binlog.commit_ts)}  {binlog.commit_ts}"
    if binlog.query is not None:
        yield f"{when}  ddl     {' '.join(binlog.query.split())}"
        return
    for event in events:
        old, new = event.old or event.new or {}, event.new or event.old or {}
        columns = "  ".join(_column(name, cell, new[name]) for name, cell in old.items())
        yield f"{when}  {event.change:<6}  {event.schema}.{event.table}  {columns}"


def _column(name: str, old: ColumnValue, new: ColumnValue) -> str:
    return f"{name}={_shown(old)}" + ("" if old.value == new.value else f" → {_shown(new)}")


def _shown(cell: ColumnValue) -> str:
    value = cell.value
    if value is None:
        return "NULL"
    if isinstance(value, bytes) and ("blob" in cell.type_name or "binary" in cell.type_name):
        return f"0x{value.hex()}" if value else "''"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return repr(value) if isinstance(value, str) and cell.type_code not in _TEXTS else str(value)


ROWS_MAX = 10_000  # of a destination's transaction that contains several of upstream's


@dataclass(slots=True)
class Counts:
    """Counts of what was applied or printed."""

    transactions: int = 0
    rows: int = 0
    ddls: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """Selects the wanted rows and DDLs. `ignored`: the commit_ts of those that are left out; `start_ts`: that of the
    first one, 0: from the beginning; `may_exist`: see ReplayedDdl."""

    filter: Filter
    ignored: frozenset[int]
    start_ts: int = 0
    may_exist: bool = False

    def is_left_out(self, ddl: ReplayedDdl) -> bool:
        """Return whether a DDL that an earlier run has begun is not wanted by this one."""
        if ddl.commit_ts in self.ignored or ddl.commit_ts < self.start_ts:
            return True
        return not self.filter.allows(ddl.schema, ddl.table)

    def events(self, entry: Entry) -> list[RowEvent]:
        """Raises ReparoError naming file and offset."""
        if entry.binlog.commit_ts in self.ignored:
            return []
        names = entry.binlog.names()
        if not any(self.filter.allows(*name) for name in set(names)):
            return []
        try:
            return [one for one in entry.binlog.events() if self.filter.allows(one.schema, one.table)]
        except MessageError as error:
            raise ReparoError(f"{entry.where}: {error}") from error

    def ddl(self, entry: Entry) -> ReplayedDdl | None:
        """Return the DDL if it is wanted. Raises the same errors as `events`."""
        assert entry.binlog.query is not None
        if entry.binlog.commit_ts in self.ignored:
            return None
        found = parse(entry.binlog.query, entry.binlog.commit_ts, may_exist=self.may_exist, where=entry.where)
        return found if self.filter.allows(found.schema, found.table) else None


def print_all(stream: Stream, chosen: Chosen, write: Callable[[str], object]) -> Counts:
    """Raises ReparoError."""
    counts = Counts()
    for entry in stream:
        if entry.binlog.query is not None:
            if chosen.ddl(entry) is None:
                continue
            counts.ddls += 1
            events: list[RowEvent] = []
        else:
            events = chosen.events(entry)
            if not events:
                continue
            counts.transactions += 1
            counts.rows += len(events)
        for line in lines(entry.binlog, events):
            write(f"{line}\n")
    return counts


def replay(stream: Stream, to: Replayer, chosen: Chosen, batch_max: int) -> Counts:
    """Apply everything in commit order; `to` is open. One transaction of the destination has at most `batch_max` of
    upstream's.

    Raises ReparoError naming file, offset and table, and DestinationErrors; what was applied before stays applied."""
    counts = Counts()
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

    for entry in stream:
        if entry.binlog.query is not None:
            flush()
            ddl = chosen.ddl(entry)
            if ddl is not None:
                _named([], entry, partial(to.apply, (), ddl=ddl))
                counts.ddls += 1
            continue
        events = chosen.events(entry)
        last = entry
        if events:
            held.append((entry, Replayed(entry.binlog.commit_ts, events)))
        if len(held) >= batch_max or sum(len(one.events) for _, one in held) >= ROWS_MAX:
            flush()
    flush()
    return counts


def _named(held: list[tuple[Entry, Replayed]], last: Entry, work: Callable[[str], None]) -> None:
    """Run `work`. Raises ReparoError with the position of the record that was refused."""
    try:
        work(last.position.text())
    except ReplayFailed as error:
        if not error.table:
            raise ReparoError(str(error)) from error  # a DDL's error has its position
        found = [entry.where for entry, one in held if one.commit_ts == error.commit_ts]
        raise ReparoError(f"{found[0] if found else last.where}, commit_ts {error.commit_ts}: {error}") from error
    except BinlogError as error:
        if isinstance(error, ReparoError):
            raise
        raise ReparoError(f"{last.where}: {error}") from error


def main(argv: list[str] | None = None) -> int:
    config = load_or_exit(PROGRAM, argv)
    try:
        log.setup(config.log_level, config.log_file)
        config.check()
        counts = run(config)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"reparo: {error}\n")
        return 1
    except BinlogError as error:
        _log.error("reparo failed", kind=type(error).__name__, error=str(error))
        if config.log_file:  # otherwise the log is on standard error
            sys.stderr.write(f"reparo: {error}\n")
        return 2
    except KeyboardInterrupt:
        _log.info("interrupted; into a database the next run goes on behind the last transaction that it committed")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of its output has closed it, as `head` does
        discard_stdout()
        return 0
    _log.info("done", transactions=counts.transactions, rows=counts.rows, ddls=counts.ddls)
    return 0


def run(config: ReparoConfig) -> Counts:
    """Raises BinlogError."""
    chosen = Chosen(config.filter(), frozenset(config.ignore_txn_commit_ts), config.start_ts, config.safe_mode)
    if config.dest_type == PRINT:
        with _stream(config, None) as stream:
            return print_all(stream, chosen, sys.stdout.write)
    to = replayer(config.dest_type, config.dest_db.model_dump(by_alias=True), config.replay())
    try:
        position = FilePosition.parse(to.open(chosen.is_left_out))
        if position is not None:
            _log.info("going on where the destination stands", destination=to.name, commit_ts=position.commit_ts)
        with _stream(config, position) as stream:
            return replay(stream, to, chosen, config.txn_batch)
    finally:
        to.close()


@contextmanager
def _stream(config: ReparoConfig, position: FilePosition | None) -> Iterator[Stream]:
    """Return the stream, with a progress bar if a terminal is standard error and gets nothing else."""
    console = Console(stderr=True)
    shown = console.is_terminal and not (config.dest_type == PRINT and sys.stdout.isatty())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task("files", total=None)
        read: dict[int, int] = {}

        def advanced(number: int, read_bytes: int) -> None:
            if shown:
                read[number] = read_bytes
                progress.update(task, completed=sum(read.values()))

        ends = config.start_ts, config.stop_ts
        stream = Stream(Path(config.data_dir), *ends, position, config.skip_damaged, advanced)
        progress.update(task, total=stream.total_bytes())
        yield stream


if __name__ == "__main__":
    sys.exit(main())
