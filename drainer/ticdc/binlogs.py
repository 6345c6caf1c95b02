"""Rows and DDLs of TiCDC's messages as the binlogs that TiDB would have written. Pure.

Each row is a binlog of its own. TiCDC's messages of a transaction lie in several partitions and name no start_ts that
they share, so start_ts is made here. A batch orders binlogs by (commit_ts, start_ts), and one that comes twice counts
once. So the upper bits of start_ts order a transaction: deletes, then updates, then inserts, because a row whose key
changes may be deleted in one partition and inserted in another. The lower bits are a hash of the row: a row that TiCDC
sends again is the same binlog, in whatever partition it comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import tzinfo
from typing import Final

from binlog.envelope import BinlogType, encode_binlog
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten
from binlog.tidb.json_encode import parse_json
from binlog.tidb.mutation import PrewriteValue
from binlog.tidb.row import InsertLayout, encode_delete, encode_update
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import SchemaState, Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, Image, RowEvent
from drainer.sink.replay import to_utc
from drainer.ticdc.tables import NamedTable

_RANK_BITS: Final = 60
_RANKS: Final = {Change.DELETE: 0, Change.UPDATE: 1, Change.INSERT: 2}
_DDL_RANK: Final = 3


def start_ts_of(event: RowEvent, place: tuple[int, int] | None) -> int:
    """Return what stands for the start_ts of a row. `place`: of a row without a key, number of the partition and
    position in it, as a transaction may have equal ones."""
    images = (image and sorted((name, one.value) for name, one in image.items()) for image in (event.old, event.new))
    text = repr((event.schema, event.table, event.change.value, place, *images))
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return _RANKS.get(event.change, 0) << _RANK_BITS | int.from_bytes(digest, "big") >> 64 - _RANK_BITS


def ddl_start_ts(job_id: int) -> int:
    """Return what stands for the start_ts of a DDL, which runs after the rows of its commit_ts."""
    return _DDL_RANK << _RANK_BITS | job_id


def ddl_binlog(job_id: int, query: str, commit_ts: int, start_ts: int) -> bytes:
    """Return the binlog of a DDL."""
    return encode_binlog(
        tp=BinlogType.COMMIT,
        start_ts=start_ts,
        commit_ts=commit_ts,
        ddl_query=query.encode(),
        ddl_job_id=job_id,
        ddl_schema_state=SchemaState.PUBLIC,
    )


class RowEncoder:
    """Encodes the rows of one table. `zone`: of TIMESTAMPs in messages."""

    def __init__(self, table: NamedTable, zone: tzinfo) -> None:
        self._table_id, self._version, self._info = table
        self._zone = None if str(zone) == "UTC" else zone
        self._columns = {column.name.lower(): column for column in self._info.columns}
        self._inserts = InsertLayout(self._info)
        # TiCDC leaves out columns that no INSERT may name.
        written = (one for one in self._info.public_columns if not one.is_virtual and not one.hidden)
        self._needed = [one for one in written if not one.is_generated]

    def binlog(self, event: RowEvent, start_ts: int) -> bytes:
        """Return the binlog of a row. `start_ts`: see start_ts_of. Raises MessageError, which names table and
        column."""
        value = PrewriteValue(self._version)
        try:
            new, old = self._values(event.new), self._values(event.old)
            self._check_complete(old if event.change is Change.DELETE else new)
            if event.change is Change.INSERT:
                value.insert(self._table_id, self._inserts.encode(new, event.row_id))
            elif event.change is Change.DELETE:
                value.delete(self._table_id, encode_delete(self._info, old))
            else:
                value.update(self._table_id, encode_update(self._info, new | old, new))
        except (ValueError, MessageError) as error:
            where = f"the {event.change} of `{event.schema}`.`{event.table}` at commit_ts {event.commit_ts}"
            raise MessageError(f"{where}: {error}") from error
        return encode_binlog(
            tp=BinlogType.COMMIT,
            start_ts=start_ts,
            commit_ts=event.commit_ts,
            prewrite_key=b"",
            prewrite_value=value.serialize(),
        )

    def _check_complete(self, values: Mapping[int, Datum]) -> None:
        for column in self._needed:
            if column.id not in values:
                raise MessageError(
                    f"column {column.name} is not in the message: column-selectors of the changefeed leave it "
                    "out, or delete-only-output-handle-key-columns, or the DDL history lacks the DDL that dropped it"
                )

    def _values(self, image: Image | None) -> dict[int, Datum]:
        found: dict[int, Datum] = {}
        for name, one in (image or {}).items():
            column = self._columns.get(name.lower())
            if column is None:
                raise MessageError(f"column {name} is not in the table as the DDL history has it at that commit_ts")
            try:
                found[column.id] = self._datum(one.value, column)
            except (ValueError, MessageError) as error:
                raise MessageError(f"column {name}: {error}") from error
        return found

    def _datum(self, value: object, column: ColumnInfo) -> Datum:
        if self._zone is not None and column.type.tp is Tp.TIMESTAMP and isinstance(value, str):
            value = to_utc(value, self._zone)
        if column.type.tp is Tp.JSON and isinstance(value, str):
            value = parse_json(value, minus_zero=-0.0)
        return flatten(value, column.type)
