"""Makes the messages of a pull by range: the log is read in small chunks and sent in messages of the requested size.

The Python objects of a chunk (index entries and records) take about five times its size. With chunks of READ_BYTES they
stay in a processor's cache until they are bytes of a message. With chunks of 1 MiB, each of them a message, a pull took
an eighth more CPU, and even more on a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from binlog.errors import BinlogError

from pump.pull.binlog_parts import BinlogPart
from pump.pull.ranges import Chunk
from pump.rpc.messages import Pulled, last_ts_field, payload_fields, pulled_part

READ_BYTES = 128 << 10


def read_bytes(message_bytes_max: int) -> int:
    """Return the size in bytes of the chunks for messages of `message_bytes_max` bytes."""
    return min(message_bytes_max, READ_BYTES)


def range_messages(pieces: Iterable[Chunk | BinlogPart], *, message_bytes_max: int) -> Iterator[Pulled]:
    """Collect chunks of `read_bytes` into messages of about `message_bytes_max` bytes. A message ends before a large
    binlog, each part of which is a message. If `pieces` raises, for example DamagedRecord, the collected message is
    yielded before the error is raised."""
    chunks_max = message_bytes_max // read_bytes(message_bytes_max)
    gathered = _Gathered()
    try:
        for piece in pieces:
            if not isinstance(piece, BinlogPart):
                gathered.add(piece)
                if gathered.chunks >= chunks_max or gathered.size >= message_bytes_max:
                    yield gathered.take()
                continue
            if gathered.chunks:
                yield gathered.take()
            yield pulled_part(piece)
    except BinlogError:
        if gathered.chunks:
            yield gathered.take()
        raise
    if gathered.chunks:
        yield gathered.take()


class _Gathered:
    """The message that is being collected. `size`: bytes of its binlogs."""

    def __init__(self) -> None:
        self._fields: list[bytes] = []
        self._binlogs = self._last_ts = self.size = 0

    @property
    def chunks(self) -> int:
        return len(self._fields)

    def add(self, chunk: Chunk) -> None:
        self._fields.append(payload_fields(chunk.payloads))
        self._binlogs += len(chunk.payloads)
        self.size += sum(map(len, chunk.payloads))
        self._last_ts = chunk.last_ts

    def take(self) -> Pulled:
        """Return the message and begin the next one."""
        found = Pulled(b"".join((*self._fields, last_ts_field(self._last_ts))), self._binlogs, self.size)
        self._fields.clear()
        self._binlogs = self.size = 0
        return found
