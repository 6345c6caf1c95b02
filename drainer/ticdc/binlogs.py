"""Rows and DDLs of TiCDC's messages as the binlogs that TiDB would have written. Pure.

Each row is a binlog of its own. TiCDC's messages of a transaction lie in several partitions and name no start_ts that
they share, so start_ts is made here. A batch orders binlogs by (commit_ts, start_ts), and one that comes twice counts
once. So the upper bits of start_ts order a transaction: deletes, then updates, then inserts, because a row whose key
changes may be deleted in one partition and inserted in another. The lower bits are a hash of the row: a row that TiCDC
sends again is the same binlog, in whatever partition it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from hashlib import blake2b
from typing import Final

from binlog.envelope import BinlogType, encode_binlog
from binlog.tidb.datum import Datum
from binlog.tidb.flatten import INTEGER_BITS, flatten
from binlog.tidb.json import parse_json
from binlog.tidb.mutation import PrewriteValue
from binlog.tidb.row import RowLayout
from binlog.tidb.types import STRINGS, FieldType, SchemaState, Tp

from drainer.changes import scan
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, Image, RowEvent
from drainer.protocol.table import handle_index
from drainer.sink.replay import to_utc
from drainer.ticdc.tables import NamedTable

RANK_BITS: Final = int(scan.RANK_BITS)
RANKS: Final = {Change.DELETE: 0, Change.UPDATE: 1, Change.INSERT: 2}
_DDL_RANK: Final = 3


def ddl_start_ts(job_id: int) -> int:
    """Return what stands for the start_ts of a DDL, which runs after the rows of its commit_ts."""
    return _DDL_RANK << RANK_BITS | job_id


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
    """Encodes the rows of one table. `zone`: of TIMESTAMPs in messages. `is_keyed`: whether a key tells its rows apart;
    `columns`: id of each column, and what makes datums of its values, by its name in lower case; `needed`: id and name
    of those that every message has."""

    def __init__(self, table: NamedTable, zone: tzinfo) -> None:
        self._table_id, self._version, info = table
        self._person = self._table_id.to_bytes(8, "big", signed=True)  # equal rows of two tables are two binlogs
        self.is_keyed = handle_index(info) is not None
        self._layout = RowLayout(info)
        zone_of = None if str(zone) == "UTC" else zone
        self.columns = {column.name.lower(): (column.id, _cast(column.type, zone_of)) for column in info.columns}
        # TiCDC leaves out columns that no INSERT may name.
        written = (one for one in info.public_columns if not one.is_virtual and not one.hidden)
        self.needed = {one.id: one.name for one in written if not one.is_generated}

    def binlog(self, event: RowEvent, place: tuple[int, int] | None = None) -> tuple[int, bytes]:
        """Return the start_ts and the binlog of a row. `place`: of a row without a key, number of the partition and
        position in it, as a transaction may have equal ones. Raises MessageError, which names table and column."""
        value, change = PrewriteValue(self._version), event.change
        try:
            new, old = self._values(event.new), self._values(event.old)
            self._check_complete(old if change is Change.DELETE else new)
            if change is Change.INSERT:
                row = self._layout.insert(new, event.row_id)
                value.insert(self._table_id, row)
            elif change is Change.DELETE:
                row = self._layout.delete(old)
                value.delete(self._table_id, row)
            else:
                row = self._layout.update(new | old, new)
                value.update(self._table_id, row)
        except (ValueError, MessageError) as error:
            where = f"the {change} of `{event.schema}`.`{event.table}` at commit_ts {event.commit_ts}"
            raise MessageError(f"{where}: {error}") from error
        digest = blake2b(row, digest_size=8, person=self._person)
        if place is not None:
            digest.update(b"%d %d" % place)
        start_ts = RANKS.get(change, 0) << RANK_BITS | int.from_bytes(digest.digest(), "big") >> 64 - RANK_BITS
        return start_ts, encode_binlog(
            tp=BinlogType.COMMIT,
            start_ts=start_ts,
            commit_ts=event.commit_ts,
            prewrite_key=b"",
            prewrite_value=value.serialize(),
        )

    def _check_complete(self, values: Mapping[int, Datum]) -> None:
        if not self.needed.keys() <= values.keys():
            name = next(name for column_id, name in self.needed.items() if column_id not in values)
            raise MessageError(
                f"column {name} is not in the message: column-selectors of the changefeed leave it out, or "
                "delete-only-output-handle-key-columns, or the DDL history lacks the DDL that dropped it, or it is "
                "generated, which only TiDB's DDL history says ([schema] history-url)"
            )

    def _values(self, image: Image | None) -> dict[int, Datum]:
        found: dict[int, Datum] = {}
        for name, one in (image or {}).items():
            column = self.columns.get(name.lower())
            if column is None:
                raise MessageError(f"column {name} is not in the table as the DDL history has it at that commit_ts")
            try:
                found[column[0]] = column[1](one.value)
            except (ValueError, MessageError) as error:
                raise MessageError(f"column {name}: {error}") from error
        return found


def _cast(kind: FieldType, zone: tzinfo | None) -> Callable[[object], Datum]:
    """Return what makes datums of a column's values. Each raises ValueError."""
    if kind.tp in INTEGER_BITS and not kind.is_unsigned:
        high = 1 << INTEGER_BITS[kind.tp] - 1
        low = -high
        return lambda value: value if type(value) is int and low <= value < high else flatten(value, kind)
    if kind.tp in STRINGS and kind.charset != "binary":
        return lambda value: value.encode(errors="surrogateescape") if type(value) is str else flatten(value, kind)
    if kind.tp is Tp.TIMESTAMP and zone is not None:
        return lambda value: flatten(to_utc(value, zone) if isinstance(value, str) else value, kind)
    if kind.tp is Tp.JSON:
        return lambda value: flatten(parse_json(value, minus_zero=-0.0) if isinstance(value, str) else value, kind)
    return lambda value: flatten(value, kind)
