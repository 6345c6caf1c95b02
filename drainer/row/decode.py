"""Decodes the rows of binlogs one by one, in commit order, with one view of the schema; also rows that arrive
after a DDL dropped or moved their partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from binlog.errors import DecodeError
from binlog.runtime.log import get_logger
from binlog.tidb.row import decode_delete, decode_insert, decode_update

from drainer.batch.work import Kind
from drainer.row.codec import Codec
from drainer.row.fast_path import Cells
from drainer.row.partition.locate import PartitionUnknown, Values, locator
from drainer.row.transaction import Scanned, rows, scan
from drainer.schema.errors import TableUnverified
from drainer.schema.view import Relocation, SchemaView, SkipReason, TableAt

# Rows that arrive after a DDL dropped their partition or moved it to another table. Not on the fast path.
#
# TRUNCATE and DROP PARTITION delete the rows of a partition, EXCHANGE PARTITION moves them to another table;
# transactions of older schema versions that commit after such a DDL wrote into the previous partition.

_log = get_logger(__name__)


class RelocatedRows:
    """Computes the partitions of rows of one table that a transaction wrote before a DDL changed the table's partitions
    and committed after it."""

    def __init__(self, table_id: int, relocation: Relocation) -> None:
        self._table_id = table_id
        self._relocation = relocation
        self._warned = False
        try:
            self._locate = locator(relocation.info)
        except PartitionUnknown as error:
            self._tell(error)
            self._locate = lambda _: None

    def partition(self, kind: Kind, row: bytes) -> int | None:
        """The physical id of the row's partition; None if it cannot be computed: then the row stays in its table.
        Raises DecodeError for a damaged row."""
        try:
            return self._locate(self._values(kind, row))
        except PartitionUnknown as error:
            self._tell(error)
            return None

    def _values(self, kind: Kind, row: bytes) -> Values:
        """The column values of a row image; an update that changes the partition is a delete and an insert."""
        info = self._relocation.info
        try:
            if kind is Kind.INSERT:
                return decode_insert(info, row)[1]
            return decode_delete(info, row) if kind is Kind.DELETE else decode_update(row)[0]
        except DecodeError as err:
            raise err.within(f"row of `{info.name}` (table id {self._table_id})") from None

    def _tell(self, error: PartitionUnknown) -> None:
        if not self._warned:
            _log.warning(
                "cannot compute the partition of a row that arrived after a DDL on it; the row is applied",
                why=str(error),
            )
        self._warned = True


# Identifies a codec under one view, in every process: (table id, schema_version) of the rows; of a table whose
# partitions were moved or dropped (table id, schema_version, 0) if the rows came before, else (table id, the version
# before which they are, their physical id).
Name = tuple[int, ...]
_NO_PARTITION: Final = -1  # in place of a physical id that cannot be computed


class DecodedRow(NamedTuple):
    """`old`: decoded values of the columns that the codec was asked for, None for an insert; `new`: of all columns,
    None for a delete."""

    codec: Codec
    kind: Kind
    old: Cells | None
    new: Cells | None
    commit_ts: int
    sequence: int

    def image(self, number: int) -> Cells:
        """The old image for 0, the new one for 1; empty if the row has none."""
        return (self.new if number else self.old) or ()


class Decoder:
    """Caches the codecs it makes. Not thread-safe."""

    def __init__(self, view: SchemaView, *, stored_generated: bool = False) -> None:
        """`stored_generated`: rows are given with their stored generated columns."""
        self.view = view
        self._stored_generated = stored_generated
        self._codecs: dict[Name, Codec | None] = {}
        self._relocating: set[tuple[int, int]] = set()
        self._relocated: dict[tuple[int, int], RelocatedRows] = {}
        self._unverified: dict[int, tuple[int, int]] = {}

    def codec(self, table_id: int, schema_version: int, commit_ts: int) -> Codec | None:
        """The codec of a table's rows at a schema version; None if they are skipped (SkipReason), or if only
        `codec_of_row` can say.

        Raises TableUnknown naming ids and commit_ts.
        """
        key = (table_id, schema_version)
        if key in self._codecs:
            return self._codecs[key]
        if self.view.must_verify(table_id, schema_version):
            self._unverified.setdefault(table_id, (schema_version, commit_ts))
        made = None
        if self.view.relocation(table_id, schema_version, 0) is not None:
            self._relocating.add(key)
        else:
            made = self._made(self.view.lookup(*key, commit_ts), schema_version)
        self._codecs[key] = made
        return made

    def relocates(self, table_id: int, schema_version: int) -> bool:
        """Whether the partition of such rows decides of which table they are, and if they are skipped. Call it after
        `codec`."""
        return (table_id, schema_version) in self._relocating

    def name_of_row(self, table_id: int, schema_version: int, commit_ts: int, kind: Kind, row: bytes) -> Name:
        """What `codec_named` takes for such a row. Raises DecodeError for a damaged one."""
        relocation = self.view.relocation(table_id, schema_version, commit_ts)
        if relocation is None:
            return table_id, schema_version, 0
        key = table_id, relocation.before_version
        if key not in self._relocated:
            self._relocated[key] = RelocatedRows(table_id, relocation)
        partition = self._relocated[key].partition(kind, row)
        return *key, _NO_PARTITION if partition is None else partition

    def codec_named(self, name: Name, commit_ts: int) -> Codec | None:
        """The codec of rows of this name; None if they are skipped. Raises as `codec`."""
        if len(name) == 2:
            return self.codec(*name, commit_ts)
        if name not in self._codecs:
            self._codecs[name] = self._relocated_codec(name, commit_ts)
        return self._codecs[name]

    def _relocated_codec(self, name: Name, commit_ts: int) -> Codec | None:
        """The codec of the table that rows of a partition belong to now."""
        table_id, version, physical_id = name
        if not physical_id:
            return self._made(self.view.lookup(table_id, version, commit_ts), version)
        relocation = next(one for one in self.view.relocations[table_id] if one.before_version == version)
        partition = None if physical_id == _NO_PARTITION else physical_id
        made = self._made(self.view.relocated(table_id, relocation, partition, commit_ts), version - 1)
        _log.info(
            "rows arrived after a DDL on their partition",
            table_id=table_id,
            physical_id=partition,
            kept=made is not None,
        )
        return made

    def _made(self, at: TableAt | SkipReason, schema_version: int) -> Codec | None:
        if isinstance(at, SkipReason):
            return None
        return Codec(at, schema_version, self.view, stored_generated=self._stored_generated)

    def check_verified(self) -> None:
        """Raises TableUnverified for the tables that must be verified upstream before the rows decoded so far are
        used."""
        if self._unverified:
            version, commit_ts = max(self._unverified.values())
            tables = tuple(sorted(self._unverified))
            raise TableUnverified(table_ids=tables, schema_version=version, commit_ts=commit_ts)

    def codec_of_row(self, table_id: int, schema_version: int, commit_ts: int, kind: Kind, row: bytes) -> Codec | None:
        """Like `codec`, also for rows whose partition was moved or dropped."""
        found = self.codec(table_id, schema_version, commit_ts)
        if found is not None or not self.relocates(table_id, schema_version):
            return found
        return self.codec_named(self.name_of_row(table_id, schema_version, commit_ts, kind, row), commit_ts)

    def rows(
        self, payloads: Iterable[bytes], asking: Callable[[Codec], Codec] = lambda codec: codec
    ) -> Iterator[DecodedRow]:
        """All rows ordered by (commit_ts, sequence), each transaction once (rule 19: one transaction on several pumps).
        `asking`: returns a codec that decodes the columns of old images that the caller needs (Codec.asking_for).

        Raises DecodeError, TableUnknown or UnknownColumn, which name the table and commit_ts.
        """
        for found in in_order([scan(payload) for payload in payloads]):
            commit_ts = found.commit_ts
            for sequence, (version, table_id, kind, row) in enumerate(rows(found)):
                codec = self.codec_of_row(table_id, version, commit_ts, kind, row)
                if codec is not None and kind not in codec.ignored_kinds:
                    codec = asking(codec)
                    found_row = codec.change(kind, row, commit_ts)
                    if found_row is not None:
                        yield DecodedRow(codec, *found_row, commit_ts, sequence)


def in_order(found: Iterable[Scanned]) -> list[Scanned]:
    """Sorts transactions of several pumps into commit order and removes duplicates: a transaction that was sent to two
    pumps has the same start_ts and commit_ts on both (rule 19: one transaction on several pumps)."""
    return sorted({(one.commit_ts, one.start_ts): one for one in found}.values())
