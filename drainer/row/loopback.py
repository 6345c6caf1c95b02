"""Finds the transactions that the drainer of the opposite direction wrote, in two-way replication (loopback-control).

Such a drainer updates a row of its channel in the table of marks in every transaction that it writes. A drainer with
the same channel id leaves these transactions out as a whole; otherwise two clusters that replicate into each other
would write them to each other for ever. DDL has no marks: sync-ddl decides which direction replicates it.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.mutation import DELETE, INSERT
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.varint import encode_uvarint

from drainer.row.transaction import rows_of_tables
from drainer.schema.view import MarkTables

CHANNEL = "channel_id"


class LoopbackFilter:
    """Leaves out the transactions of one channel. `left_out`: how many."""

    def __init__(self, marks: MarkTables | None) -> None:
        """`marks`: None: nothing is left out."""
        self.left_out = 0
        self._tables = marks.tables if marks is not None else {}
        self._channel_id = marks.channel_id if marks is not None else 0
        # A TableMutation contains its table's id. Searching for it is so quick that only the few transactions that may
        # have a mark are read here.
        self._ids = tuple(b"\x08" + encode_uvarint(table_id) for table_id in self._tables)

    def keep(self, payloads: Iterable[bytes]) -> Iterable[bytes]:
        """The served binlogs without those that are left out."""
        if not self._ids:
            return payloads
        kept = []
        for payload in payloads:
            for table_id in self._ids:
                if table_id in payload and self.is_marked(payload):
                    self.left_out += 1
                    break
            else:
                kept.append(payload)
        return kept

    def is_marked(self, payload: bytes | memoryview) -> bool:
        """Whether a row of the channel is anywhere in the transaction. False if it is damaged: decoding its rows raises
        the error."""
        if not self._ids:
            return False
        try:
            return any(self._channel_of(*row) == self._channel_id for row in rows_of_tables(payload, self._tables))
        except DecodeError:
            return False

    def _channel_of(self, version: int, table_id: int, kind: int, row: bytes) -> Datum:
        """The row's channel, after the change; None if it has none."""
        table = self._tables[table_id]
        info = table.infos[table.at(version)]
        column = next((column for column in info.columns if column.name.lower() == CHANNEL), None)
        if column is None:
            return None
        if kind == INSERT:
            return decode_insert(info, row)[1].get(column.id)
        values = decode_delete(info, row) if kind == DELETE else decode_update(row)[1]
        return values.get(column.id)


class PayloadCollector(LoopbackFilter):
    """Collects served binlogs without those of the channel, and uses those that come in order up whenever they have
    `flush_bytes`: the memory of a message is then reused for the next one."""

    def __init__(self, marks: MarkTables | None, flush_bytes: int) -> None:
        super().__init__(marks)
        self._payloads: list[bytes] = []
        self._bytes = 0  # of the binlogs added in order
        self._flush_bytes = flush_bytes

    def add_all(self, payloads: Iterable[bytes]) -> None:
        """Add served binlogs, in any order. If a transaction is added twice, one copy is used (rule 19)."""
        self._payloads.extend(self.keep(payloads))

    def add_in_order(self, payloads: Iterable[bytes], size: int) -> None:
        """Add binlogs that come after all that were added before, as one pump serves them, of `size` bytes together.
        Raises as `cut` of the subclass, and may raise ValueError for binlogs that are out of order."""
        self.add_all(payloads)
        self._bytes += size
        if self._bytes >= self._flush_bytes and self._payloads:
            self._flush()

    def _flush(self) -> None:
        """Use the collected binlogs up."""
        raise NotImplementedError
