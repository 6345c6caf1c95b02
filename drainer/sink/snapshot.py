"""Reads a destination's rows as of its position, and runs transactions that keep the position. For check and repair."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import SegmentWork
from drainer.changes.vector import Ints, Words
from drainer.row.codec import Codec, Format
from drainer.schema.view import TableVersions
from drainer.sink.base import Identity, Verification, unfinished
from drainer.sink.errors import DestinationRefused, PositionMoved
from drainer.sink.position import BUILDING, SqlPositionStore, Stored

BUCKETS: Final = 1 << 16  # by the hash of the key


@dataclass(frozen=True, slots=True)
class PackedRows:
    """`keys`, `rows`: binary arrays of one length. Without a key (rule 9: what may be folded) the key is the row."""

    keys: Any
    rows: Any

    @classmethod
    def of(cls, format_: Format, codec: Codec, columns: Sequence[Any]) -> PackedRows:
        """From columns of decoded values. Raises DecodeError, which names no row, for a value that the destination
        cannot have."""
        rows = format_.packed_rows(codec.column_types, columns)
        key = codec.shape.key
        if not key:
            return cls(rows, rows)
        return cls(format_.packed_rows([codec.column_types[at] for at in key], [columns[at] for at in key]), rows)

    def buckets(self) -> Ints:
        return (hashes(self.keys) % np.uint64(BUCKETS)).astype(np.int64)

    def in_buckets(self, buckets: Ints) -> PackedRows:
        return self._filtered(pa.array(np.isin(self.buckets(), buckets)))

    def with_keys(self, keys: Sequence[bytes]) -> PackedRows:
        """A server may take other keys for equal than these bytes."""
        return self._filtered(pc.is_in(self.keys, value_set=pa.array(keys, pa.binary())))

    def _filtered(self, mask: Any) -> PackedRows:
        return PackedRows(self.keys.filter(mask), self.rows.filter(mask))


def hashes(texts: Any) -> Words:
    """Of this process: Python's hash is another one in each."""
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts)).view(np.uint64)


class Transaction(Protocol):
    """An open transaction that keeps the destination's position at `commit_ts`. Reads see the rows at that position."""

    commit_ts: int

    def rows(self, codec: Codec) -> Iterable[PackedRows]:
        """All rows of a table."""
        ...

    def with_keys(self, codec: Codec, keys: Sequence[bytes]) -> Iterable[PackedRows]:
        """The rows that the destination finds under these packed keys."""
        ...

    def write(self, work: SegmentWork) -> None: ...


class DestinationSnapshot(Protocol):
    """The rows of a destination as of the position that it had when the snapshot was opened. Open until `close`."""

    commit_ts: int
    schema_version: int

    @property
    def format(self) -> Format: ...

    def job_done(self, job_id: int) -> bool: ...

    def schema_differences(self, tables: Iterable[TableVersions]) -> list[SchemaDifference]:
        """Compare the definitions of tables as they are now. Raises SchemaMoved or PositionMoved if a DDL has run since
        the destination was opened, or is running."""
        ...

    def rows(self, codec: Codec) -> Iterable[PackedRows]:
        """All rows of a table, in any order. Raises DestinationError, DecodeError."""
        ...

    def schema_moved(self) -> bool:
        """Whether a DDL has run since that `rows` may have seen: another table may have this one's name now."""
        ...

    def key_literals(self, keys: Sequence[bytes]) -> list[bytes]:
        """Packed keys as SQL: `(1,'a')`."""
        ...

    def transact(self, body: Callable[[Transaction], None]) -> None:
        """Run `body` in one transaction; again if the position moves before it begins, or the server says so. Raises
        SchemaMoved if a DDL has run since the destination was opened, and what `body` raises."""
        ...

    def record(self, found: Sequence[Verification], known: Container[int]) -> None:
        """Store comparisons, and forget those of tables whose id is not `known`. Raises DestinationError."""
        ...

    def close(self) -> None: ...


def settled(store: SqlPositionStore) -> Stored:
    """The position at which all rows are. Raises PositionMoved while they are on the way, and DestinationRefused."""
    stored = store.read()
    if stored is None:
        raise DestinationRefused(f"{store.label}: it has no position, so nothing has been applied yet")
    if stored.intent is not None:
        raise PositionMoved(f"{store.label}: a batch is being applied by several tasks")
    if jobs := [job for job in store.open_jobs() if job.state != BUILDING]:
        raise PositionMoved(f"{store.label}: DDL job {jobs[0].job_id} is running")
    loads = store.loads()
    if unfinished(loads, [load.table_id for load in loads]):
        raise DestinationRefused(f"{store.label}: its first load is not complete; start drainer load again")
    return stored


@runtime_checkable
class ReadsTables(Protocol):
    """A sink whose tables can be read."""

    def snapshot(self, identity: Identity) -> DestinationSnapshot:
        """The destination as it is now; the sink itself need not be open. Raises PositionMoved while a batch is
        distributed or a DDL runs, whose effects are partly there, and DestinationRefused."""
        ...


# Differences between the tables of a destination and the definitions that upstream's TableInfos ask for. Pure.
#
# The destination itself shows both: the wanted definition is created there as a temporary table (for SQLite: in a
# database in memory), and what it shows of that is compared with what it shows of the table. So a type, default or
# expression that a server writes in its own way, or does not support, is no difference. Not compared is what no row
# depends on: the order of columns, the display width of integers, defaults and indexes with expressions, the visibility
# of indexes, further indexes that are not unique, counters, foreign keys, CHECKs, partitions, and options of the table.
Definition = dict[tuple[str, str], str]  # ("column" or "index", name in lower case) → its text; the columns first
Found = Iterator[tuple[str, str]]  # differences of one table: each in words, and its statement


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """`table`: its name at the destination. `what`: in words. `statement`: the SQL that mends it in a session like the
    drainer's, several separated by `; `, '' if none is known. Those of a table are to be run in their order. A column
    gets AUTO_INCREMENT from the statement of another check, when all keys are there."""

    table: str
    what: str
    statement: str


def of_each(tables: Iterable[TableVersions], found: Callable[[TableVersions], Found]) -> Iterator[SchemaDifference]:
    """Those of tables of a view, by name: tables that are merged into one ask for the same definition."""
    for name, table in {f"{one.schema}.{one.name}": one for one in tables if one.current.has_rows}.items():
        yield from (SchemaDifference(name, *one) for one in found(table))


def differences(
    table: TableVersions, there: Definition, wanted: Definition
) -> Iterator[tuple[str, str, str, str | None, str | None]]:
    """Each in words, its kind and name, what is there and what is wanted; a surplus index before its columns."""
    left_out = table.applied.left_out if table.applied is not None else frozenset()
    allowed = {("column", one.name.lower()) for one in table.infos[-1].columns if one.id in left_out}
    surplus = [key for key in there if key not in wanted and key not in allowed]
    first = [key for key in surplus if key[0] == "index" and there[key].startswith(("UNIQUE", "CREATE UNIQUE"))]
    for kind, name in [*first, *wanted, *(key for key in surplus if key[0] == "column")]:
        found, asked = there.get((kind, name)), wanted.get((kind, name))
        if found != asked:
            yield f"{kind} {name}: {found or 'not'} there, {asked or 'not'} wanted", kind, name, found, asked
