"""Rows that come behind the DDL which took their partition away, or gave it to another table. Off the fast path.

TRUNCATE and DROP PARTITION take the rows of a partition, EXCHANGE PARTITION gives them to another table; the
transactions of older versions that commit behind such a DDL wrote into the partition as it was (X-08).
"""

from __future__ import annotations

from binlog.errors import DecodeError
from binlog.runtime.log import get_logger
from binlog.tidb.row import decode_delete, decode_insert, decode_update

from drainer.batch.work import Kind
from drainer.row.codec import Codec
from drainer.row.partition.locate import PartitionUnknown, Values, locator
from drainer.schema.view import Gone, SchemaView, Stray

_log = get_logger(__name__)


class StrayRows:
    """Of one table, of versions before one DDL."""

    def __init__(self, table_id: int, stray: Stray, view: SchemaView) -> None:
        self._table_id = table_id
        self._stray = stray
        self._view = view
        self._codecs: dict[int | None, Codec | None] = {}
        self._told = False
        try:
            self._locate = locator(stray.info)
        except PartitionUnknown as error:
            self._tell(error)
            self._locate = lambda _: None

    def codec(self, kind: Kind, row: bytes, commit_ts: int) -> Codec | None:
        """Of the table this row belongs to now; None: it is gone with its partition. What cannot be told stays with
        its table. Raises TableUnknown, and DecodeError for a damaged row."""
        try:
            place = self._locate(self._values(kind, row))
        except PartitionUnknown as error:
            self._tell(error)
            place = None
        if place not in self._codecs:
            at = self._view.rehomed(self._table_id, self._stray, place, commit_ts)
            made = None
            if not isinstance(at, Gone):
                made = Codec(at, self._stray.before_version - 1, self._view)
            _log.info(
                "rows behind a DDL on their partition", table_id=self._table_id, physical_id=place, kept=bool(made)
            )
            self._codecs[place] = made
        return self._codecs[place]

    def _values(self, kind: Kind, row: bytes) -> Values:
        """An update that moves a row to another partition is a delete and an insert: either half tells."""
        info = self._stray.info
        try:
            if kind is Kind.INSERT:
                return decode_insert(info, row)[1]
            return decode_delete(info, row) if kind is Kind.DELETE else decode_update(row)[0]
        except DecodeError as err:
            what = f"row of `{info.name}` (table id {self._table_id}): {err.what}"
            raise DecodeError(what, offset=err.offset, detail=err.detail) from None

    def _tell(self, error: PartitionUnknown) -> None:
        if not self._told:
            _log.warning("a row behind a DDL on its partition cannot be placed and is kept", why=str(error))
        self._told = True
