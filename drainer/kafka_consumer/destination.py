"""The interface of a destination of `kafka-consumer`, the stored form of a `Resume`, and a replayer's destination as
one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

from drainer.ddl.lexer import statements, tokens
from drainer.kafka_consumer.core import ConsumeError, Part, Read, Resume
from drainer.kafka_reading.records import Place
from drainer.protocol.event import DdlEvent, Image, RowEvent
from drainer.protocol.table import ColumnFlag
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.replay import Replayed, ReplayedDdl, Replayer, ReplayFailed

_T = TypeVar("_T")


class Destination(Protocol):
    """A destination writes rows and the `Resume` in one transaction, so that nothing is applied twice."""

    def open(self) -> Resume:
        """Return the stored position; that of a new destination is the beginning."""
        ...

    def apply(self, part: Part) -> None:
        """Apply a part. Raises ConsumeError: then nothing of the part is written, or the next `open` continues its
        DDL."""
        ...

    def close(self) -> None: ...


def resume_text(resume: Resume) -> str:
    reads = [[*place, read.offset, read.seen] for place, read in sorted(resume.reads.items())]
    return json.dumps({"applied_ts": resume.applied_ts, "reads": reads, "ddls": sorted(resume.ddls)})


def resume_of(text: str) -> Resume:
    """Raises ConsumeError for what `resume_text` did not write."""
    try:
        found = json.loads(text)
        reads = {Place(topic, number): Read(offset, seen) for topic, number, offset, seen in found["reads"]}
        ddls = frozenset((ts, start, query, number) for ts, start, query, number in found["ddls"])
        return Resume(int(found["applied_ts"]), reads, ddls)
    except (ValueError, KeyError, TypeError) as error:
        raise ConsumeError(f"the stored position is damaged: {error}") from None


def key_of(event: RowEvent, image: Image) -> tuple[str, ...]:
    """Return the names of the row's key columns; empty if its table has no key, or its protocol does not name one."""
    if event.key is not None:
        return tuple(event.key)
    return tuple(name for name, column in image.items() if column.flags & ColumnFlag.HANDLE_KEY)


def removed(event: RowEvent) -> tuple[dict[str, object], bool]:
    """Return the columns and values that identify the removed row, and whether they are a key. Empty: no row is
    removed."""
    new = event.new or {}
    if event.new is not None and event.old is None:  # an insert, which may be repeated
        keys = key_of(event, new)
        return {name: new[name].value for name in keys if name in new}, True
    old = {**new, **(event.old or {})}
    keys = key_of(event, old)
    if not keys:
        return {name: column.value for name, column in old.items()}, False
    of_key = event.key if event.key is not None and not event.old else old
    return {name: of_key[name].value for name in keys if name in of_key}, True


def added(event: RowEvent) -> dict[str, object]:
    """Return the columns and values of the added row; empty: no row is added."""
    return {name: column.value for name, column in (event.new or {}).items()}


class ReplayDestination:
    """A destination that replays parts."""

    def __init__(self, to: Replayer) -> None:
        self._to = to

    def open(self) -> Resume:
        text = _tried(self._to.open)
        return resume_of(text) if text else Resume()

    def apply(self, part: Part) -> None:
        rows = [Replayed(part.resume.applied_ts, part.rows)] if part.rows else []
        ddl = None if part.ddl is None else _replayed(part.ddl)
        _tried(lambda: self._to.apply(rows, resume_text(part.resume), ddl))

    def close(self) -> None:
        self._to.close()


def _tried(work: Callable[[], _T]) -> _T:
    """Raises ConsumeError, and DestinationDown if the destination stays unreachable."""
    try:
        return work()
    except DestinationDown:
        raise
    except ReplayFailed as error:
        place = f"rows up to commit_ts {error.commit_ts}: " if error.table else ""
        raise ConsumeError(f"{place}{error}") from error
    except DestinationError as error:
        raise ConsumeError(str(error)) from error


def _replayed(event: DdlEvent) -> ReplayedDdl:
    every = tuple(one for one in statements(event.query) if not _is_of_temporary_table(one))
    return ReplayedDdl(event.commit_ts, every, event.schema, event.schema, event.table)


def _is_of_temporary_table(query: str) -> bool:
    """Return whether the statement creates or drops a GLOBAL TEMPORARY table, which only TiDB has. It has no rows in
    topics."""
    words = list(tokens(query))[:3]
    return len(words) == 3 and words[0].is_word("CREATE", "DROP") and words[1].is_word("GLOBAL")
