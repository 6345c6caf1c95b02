"""Which messages are new, what is applied together, and from which offset a topic is read. Pure.

Messages are in commit order in one partition, and each has a transaction or a DDL. Two things disturb this order:

    a drainer that begins again           sends messages again, from some commit_ts on, and then goes on
    a transaction above 4 MiB, from ours  is several messages with one commit_ts, its pieces

So a message with a lower commit_ts than the newest is a repeat. One with the newest commit_ts is a repeat if it has the
contents of the piece that is due in a repetition, otherwise the next piece.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Final

from binlog.errors import BinlogError

from drainer.kafka_reading.records import Record
from drainer.protocol.encoder import Decoder
from drainer.protocol.errors import MessageError
from drainer.protocol.event import DdlEvent, Event, RowEvent
from drainer.protocol.secondary import commit_ts_of
from drainer.protocol.table import ColumnFlag
from drainer.schema.filter import OWN_SCHEMA
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.replay import Replayed, ReplayedDdl, replayed

ENDED: Final = 0
RUNNING: Final = 1
ROWS_MAX: Final = 10_000  # of several transactions that are applied in one
BYTES_MAX: Final = 64 << 20  # of messages that are applied in one transaction
# All pieces but a transaction's last have at least this size, unless most of its rows are of tables left out.
_PIECE_BYTES_MIN: Final = 1 << 20

_REMEDY: Final = (
    "To begin after another commit_ts, write it into `ts` of the topic's row in tidb_binlog.arbiter_checkpoint, or "
    "without a row into up.initial-commit-ts"
)

Apply = Callable[[Sequence[Replayed], str, ReplayedDdl | None], None]


class ArbiterError(BinlogError):
    """Messages that cannot be read or applied; the text says which."""


@dataclass(frozen=True, slots=True)
class Position:
    """Every transaction up to `ts` is applied. `status`: the original's, RUNNING or ENDED. `offset`: the next message,
    -1 if the original stored the position, or a person. `newest`: the newest commit_ts that was received; `pieces`: the
    digests of its messages; `at`: how many of them the drainer sent since it began again. `again_below`: the original
    may have run DDLs below this offset."""

    ts: int
    status: int
    offset: int = -1
    newest: int = 0
    pieces: tuple[str, ...] = ()
    at: int = 0
    again_below: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ArbiterError for what neither `text` nor the original wrote."""
        try:
            found = json.loads(text)
            return cls(**{"newest": found["ts"], **found, "pieces": tuple(found.get("pieces", ()))})
        except (ValueError, KeyError, TypeError) as error:
            raise ArbiterError(f"the stored position is damaged: {error}") from None

    def received(self, commit_ts: int, value: bytes, events: Sequence[Event]) -> tuple[Position, bool]:
        """Return the position after a message, apart from `offset`, and whether the message is new."""
        digest = blake2b(value, digest_size=8).hexdigest()
        if commit_ts > self.newest:
            return replace(self, newest=commit_ts, pieces=(digest,), at=1), True
        if commit_ts < self.newest:
            return replace(self, at=0), False
        if not self.pieces or self.pieces[self.at : self.at + 1] == (digest,):  # without any, all of it is applied
            return replace(self, at=min(self.at + 1, len(self.pieces))), False
        # Two pieces have equal contents if a large transaction has thousands of equal rows in a table without a key.
        if digest == self.pieces[0] and (len(value) < _PIECE_BYTES_MIN or any(map(_has_key, events))):
            return replace(self, at=1), False
        pieces = (*self.pieces, digest)
        return replace(self, pieces=pieces, at=len(pieces)), True


def _has_key(event: Event) -> bool:
    """Return whether a row has a primary key; messages do not name other keys of a row."""
    columns = (event.new or event.old or {}) if isinstance(event, RowEvent) else {}
    return any(column.flags & ColumnFlag.PRIMARY_KEY for column in columns.values())


def first_after(ts: int, low: int, high: int, probe: Callable[[int], tuple[int, int] | None]) -> int:
    """Return an offset from `low` to `high` behind a message up to `ts`, and at or before one above it. `probe`: offset
    and commit_ts of the first message at or after an offset, None if there is none: offsets have gaps.

    Where a drainer began again there are several such offsets. Each will do: behind a message, its drainer sent
    everything that follows it."""
    while low < high:
        middle = (low + high) // 2
        found = probe(middle)
        if found is None or found[1] > ts:
            high = middle
        else:
            low = found[0] + 1
    return low


def start_offset(position: Position, ends: tuple[int, int], probe: Callable[[int], tuple[int, int] | None]) -> int:
    """Return from where to read. Raises ArbiterError if messages after the position may have been deleted: the original
    goes on with a warning, and nobody notices that rows are missing."""
    low, high = ends
    if position.offset >= 0:
        if not low <= position.offset <= high:
            raise ArbiterError(
                f"the position is offset {position.offset}, commit_ts {position.ts}, and the topic has offsets {low} "
                f"to {high}: messages were deleted before they were applied, or the topic was made again. {_REMEDY}"
            )
        return position.offset
    if not position.ts:
        return low
    found = first_after(position.ts, low, high, probe)
    first = probe(low) if found == low and low > 0 else None
    if first is not None:  # nothing was ever deleted from a topic that begins with offset 0
        raise ArbiterError(
            f"the position is commit_ts {position.ts}, and the topic's oldest message, offset {first[0]}, has "
            f"{first[1]}: those between them may have been deleted. If nothing is missing, begin after "
            f"{first[1] - 1}. {_REMEDY}"
        )
    return found


@dataclass(eq=False)
class Batches:
    """Hold messages, and apply them in batches. `apply`: see Replayer.apply; `position`: where the destination
    stands; `batch_max`: the most transactions that are applied in one; `bytes_max`: of messages, also of one."""

    apply: Apply
    decoder: Decoder
    position: Position  # of what is applied
    batch_max: int
    may_exist: bool
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        self._next = self.position  # of what was read
        self._held: list[Replayed] = []
        self._rows = self._bytes = 0
        self.held = 0  # how many transactions wait
        self._place = ""
        self.counts = Counter[str]()  # by the types of the original's metric

    def add(self, record: Record) -> None:
        """Raises ArbiterError that names topic, partition and offset."""
        value = record.value or b""
        place = f"{record.topic_partition} offset {record.offset}"
        try:
            commit_ts, events = commit_ts_of(value), self.decoder.decode(record.key, value)
        except MessageError as error:
            raise ArbiterError(f"{place}: {error}") from None
        ddl = next((event for event in events if isinstance(event, DdlEvent)), None)
        is_first = commit_ts > self._next.newest
        if self._held and is_first and (ddl or self.held >= self.batch_max or self._rows >= ROWS_MAX):
            self._flush(self._next.newest)  # what is held is complete
        found, is_new = self._next.received(commit_ts, value, events)
        self._next, self._place = replace(found, offset=record.offset + 1), place
        if is_new and ddl is not None:
            self._ddl(ddl, record.offset)
        elif is_new:
            self._hold(commit_ts, events, len(value), is_first=is_first)

    def at_end(self, offset: int) -> None:
        """Apply everything: the topic was read to its end, before `offset`."""
        self._next = replace(self._next, offset=offset)
        if self._next != self.position or self._held or self.position.ts != self.position.newest:
            self._flush(self._next.newest)

    def end(self) -> None:
        """Store a clean end if nothing is applied beyond `ts`: the original's arbiter then starts without safe mode."""
        if self.position.newest == self.position.ts:
            self.position = replace(self.position, status=ENDED)
            self.apply((), self.position.text(), None)

    def _hold(self, commit_ts: int, events: Sequence[Event], size: int, *, is_first: bool) -> None:
        rows = [event for event in events if isinstance(event, RowEvent) and event.schema.lower() != OWN_SCHEMA]
        self.held += is_first
        self._held.append(Replayed(commit_ts, rows))
        self._rows += len(rows)
        self._bytes += size
        if self._bytes >= self.bytes_max:
            # The last transaction may have more pieces: `ts` stays below it, and `offset` tells where they begin.
            earlier = [one.commit_ts for one in self._held if one.commit_ts < commit_ts]
            self._flush(max(earlier, default=self.position.ts))

    def _flush(self, ts: int) -> None:
        position = replace(self._next, ts=ts, status=RUNNING)
        self._move(position, self._held, None)
        self.counts["Txn"] += self.held
        self.counts.update(event.change.capitalize() for one in self._held for event in one.events)
        self._held = []
        self._rows = self._bytes = self.held = 0

    def _ddl(self, event: DdlEvent, offset: int) -> None:
        position = replace(self._next, ts=event.commit_ts, status=RUNNING)
        if event.schema.lower() == OWN_SCHEMA or not event.query:
            self._next = position
            return
        may_exist = self.may_exist or offset < self._next.again_below
        self._move(position, (), replayed(event, may_exist=may_exist, where=self._place))
        self.counts["DDL"] += 1

    def _move(self, position: Position, transactions: Sequence[Replayed], ddl: ReplayedDdl | None) -> None:
        """Apply, and stand there then. Raises ArbiterError that names the place, as a DDL's error does itself."""
        try:
            self.apply(transactions, position.text(), ddl)
        except DestinationDown:
            raise
        except DestinationError as error:
            commit_ts = getattr(error, "commit_ts", self._next.newest)
            place = "" if ddl is not None else f"up to {self._place}, commit_ts {commit_ts}: "
            raise ArbiterError(f"{place}{error}") from error
        self.position = self._next = position
