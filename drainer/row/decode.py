"""Binlogs to row changes under one view of the schema.

`order.fold.FoldBuilder` is the quick way for tables that fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from drainer.batch.work import Change, Kind, Literals
from drainer.row.codec import Codec
from drainer.row.form import Dialect
from drainer.row.partition.relocated_rows import StrayRows
from drainer.row.transaction import Scanned, rows, scan, start_ts_of
from drainer.schema.errors import TableUnverified
from drainer.schema.view import Gone, SchemaView


class Decoder:
    """Rows as a destination of `dialect` takes them. Keeps the codecs it has made; not for several threads."""

    def __init__(self, view: SchemaView, dialect: Dialect, *, beside: Decoder | None = None) -> None:
        """`beside`: another one for the same rows; what must be asked for is of both."""
        self.view = view
        self.dialect = dialect
        self._codecs: dict[tuple[int, int], Codec | None] = {}
        self._strays: dict[tuple[int, int], StrayRows] = {}
        self._unverified: dict[int, tuple[int, int]] = {} if beside is None else beside._unverified

    def codec(self, table_id: int, schema_version: int, commit_ts: int) -> Codec | None:
        """For rows of one table and schema_version; None when they are left out (Gone), or must be asked one by one.

        Raises TableUnknown naming ids and commit_ts.
        """
        key = (table_id, schema_version)
        if key in self._codecs:
            return self._codecs[key]
        if self.view.must_verify(table_id, schema_version):
            self._unverified.setdefault(table_id, (schema_version, commit_ts))
        made = None
        stray = self.view.relocation(table_id, schema_version)
        if stray is not None:
            self._strays[key] = StrayRows(table_id, stray, self.view, self.dialect)
        else:
            at = self.view.lookup(table_id, schema_version, commit_ts)
            made = None if isinstance(at, Gone) else Codec(at, schema_version, self.view, self.dialect)
        self._codecs[key] = made
        return made

    def check_verified(self) -> None:
        """Raises TableUnverified for all tables that must be asked for before the rows that were met."""
        if self._unverified:
            version, commit_ts = max(self._unverified.values())
            tables = tuple(sorted(self._unverified))
            raise TableUnverified(table_ids=tables, schema_version=version, commit_ts=commit_ts)

    @property
    def has_strays(self) -> bool:
        """Whether rows were met that must be asked one by one."""
        return bool(self._strays)

    def codec_of_row(self, table_id: int, schema_version: int, commit_ts: int, kind: Kind, row: bytes) -> Codec | None:
        """As `codec`, also for rows that say themselves which table they belong to (relocated_rows.py)."""
        found = self.codec(table_id, schema_version, commit_ts)
        if found is None and self._strays:
            stray = self._strays.get((table_id, schema_version))
            return stray.codec(kind, row, commit_ts) if stray is not None else None
        return found

    def changes(self, payloads: Iterable[bytes]) -> Iterator[Change]:
        """Every row change, one by one, in the order of (commit_ts, sequence), each transaction once (rule 19).

        Raises DecodeError, TableUnknown or UnknownColumn, which name the table and commit_ts.
        """
        for found in in_order([scan(payload) for payload in payloads]):
            yield from self.changes_of(found)

    def changes_of(self, found: Scanned, only: frozenset[int] | None = None) -> Iterator[Change]:
        """One transaction's changes; `only`: of these tables (TableShape.table_id)."""
        commit_ts = found[0]
        for sequence, (version, table_id, kind, row) in enumerate(rows(found)):
            codec = self.codec_of_row(table_id, version, commit_ts, kind, row)
            if codec is not None and (only is None or codec.shape.table_id in only):
                yield change_of(codec, kind, row, commit_ts, sequence)


def change_of(codec: Codec, kind: Kind, row: bytes, commit_ts: int, sequence: int) -> Change:
    """One row as a Change with literals."""
    cells = codec.cells(kind, row, commit_ts)
    old: Literals | None = None if kind is Kind.INSERT else codec.literals(cells[0])
    new: Literals | None = None if kind is Kind.DELETE else codec.literals(cells[-1])
    return Change(codec.shape, kind, old, new, commit_ts, sequence)


def in_order(found: list[Scanned]) -> list[Scanned]:
    """Upstream's order, whatever order the pumps were read in, and each transaction once: one that was sent to two
    pumps has the same start_ts and commit_ts on both (rule 19)."""
    found.sort()
    repeated = {one[0] for one, other in pairwise(found) if one[0] == other[0]}
    if not repeated:
        return found
    kept: dict[tuple[int, int], Scanned] = {}
    for one in found:
        kept.setdefault((one[0], start_ts_of(one[1]) if one[0] in repeated else 0), one)
    return [kept[place] for place in sorted(kept)]
