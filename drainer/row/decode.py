"""Binlogs to rows, one by one, under one view of the schema: which codec reads a row, and in which order rows come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from drainer.batch.work import Kind
from drainer.row.codec import Codec
from drainer.row.partition.relocated_rows import StrayRows
from drainer.row.transaction import Scanned, rows, scan, start_ts_of
from drainer.row.usual import Cells
from drainer.schema.errors import TableUnverified
from drainer.schema.view import Gone, SchemaView


class DecodedRow(NamedTuple):
    """`old`: carriers of what the codec was asked for, None of an insert; `new`: of every column, None of a delete."""

    codec: Codec
    kind: Kind
    old: Cells | None
    new: Cells | None
    commit_ts: int
    sequence: int

    def image(self, number: int) -> Cells:
        """Of 0 the old one, of 1 the new one; empty where there is none."""
        return (self.new if number else self.old) or ()


class Decoder:
    """Keeps the codecs it has made; not for several threads."""

    def __init__(self, view: SchemaView, *, stored_generated: bool = False) -> None:
        """`stored_generated`: rows are given with their stored generated columns."""
        self.view = view
        self._stored_generated = stored_generated
        self._codecs: dict[tuple[int, int], Codec | None] = {}
        self._strays: dict[tuple[int, int], StrayRows] = {}
        self._unverified: dict[int, tuple[int, int]] = {}

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
            self._strays[key] = StrayRows(table_id, stray, self.view, stored_generated=self._stored_generated)
        else:
            at = self.view.lookup(table_id, schema_version, commit_ts)
            if not isinstance(at, Gone):
                made = Codec(at, schema_version, self.view, stored_generated=self._stored_generated)
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

    def rows(
        self, payloads: Iterable[bytes], asking: Callable[[Codec], Codec] = lambda codec: codec
    ) -> Iterator[DecodedRow]:
        """Every row, one by one, in the order of (commit_ts, sequence), each transaction once (rule 19). `asking`:
        which codec asks for enough of old images (Codec.asking_for).

        Raises DecodeError, TableUnknown or UnknownColumn, which name the table and commit_ts.
        """
        for found in in_order([scan(payload) for payload in payloads]):
            commit_ts = found[0]
            for sequence, (version, table_id, kind, row) in enumerate(rows(found)):
                codec = self.codec_of_row(table_id, version, commit_ts, kind, row)
                if codec is not None:
                    codec = asking(codec)
                    old, new = codec.images(kind, row, commit_ts)
                    yield DecodedRow(codec, kind, old, new, commit_ts, sequence)


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
