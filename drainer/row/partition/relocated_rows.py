"""Rows that arrive after a DDL dropped their partition or moved it to another table. Not on the fast path.

TRUNCATE and DROP PARTITION delete the rows of a partition, EXCHANGE PARTITION moves them to another table; transactions
of older schema versions that commit after such a DDL wrote into the previous partition (X-08).
"""

from __future__ import annotations

from binlog.errors import DecodeError
from binlog.runtime.log import get_logger
from binlog.tidb.row import decode_delete, decode_insert, decode_update

from drainer.batch.work import Kind
from drainer.row.codec import Codec
from drainer.row.partition.locate import PartitionUnknown, Values, locator
from drainer.schema.view import Relocation, SchemaView, SkipReason

_log = get_logger(__name__)


class RelocatedRows:
    """Codecs for late rows of one table, of schema versions before one DDL."""

    def __init__(
        self, table_id: int, relocation: Relocation, view: SchemaView, *, stored_generated: bool = False
    ) -> None:
        self._table_id = table_id
        self._relocation = relocation
        self._view = view
        self._stored_generated = stored_generated
        self._codecs: dict[int | None, Codec | None] = {}
        self._warned = False
        try:
            self._locate = locator(relocation.info)
        except PartitionUnknown as error:
            self._tell(error)
            self._locate = lambda _: None

    def codec(self, kind: Kind, row: bytes, commit_ts: int) -> Codec | None:
        """The codec of the table that the row belongs to now; None: its partition was dropped. A row whose partition
        cannot be computed stays in its table. Raises TableUnknown, and DecodeError for a damaged row."""
        try:
            place = self._locate(self._values(kind, row))
        except PartitionUnknown as error:
            self._tell(error)
            place = None
        if place not in self._codecs:
            at = self._view.relocated(self._table_id, self._relocation, place, commit_ts)
            made = None
            if not isinstance(at, SkipReason):
                version = self._relocation.before_version - 1
                made = Codec(at, version, self._view, stored_generated=self._stored_generated)
            _log.info(
                "rows arrived after a DDL on their partition",
                table_id=self._table_id,
                physical_id=place,
                kept=bool(made),
            )
            self._codecs[place] = made
        return self._codecs[place]

    def _values(self, kind: Kind, row: bytes) -> Values:
        """The column values of a row image; an update that changes the partition is a delete and an insert."""
        info = self._relocation.info
        try:
            if kind is Kind.INSERT:
                return decode_insert(info, row)[1]
            return decode_delete(info, row) if kind is Kind.DELETE else decode_update(row)[0]
        except DecodeError as err:
            what = f"row of `{info.name}` (table id {self._table_id}): {err.what}"
            raise DecodeError(what, offset=err.offset, detail=err.detail) from None

    def _tell(self, error: PartitionUnknown) -> None:
        if not self._warned:
            _log.warning(
                "cannot compute the partition of a row that arrived after a DDL on it; the row is applied",
                why=str(error),
            )
        self._warned = True
