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
    fields: list[bytes] = []  # of the message that is being collected
    binlogs = size = last_ts = 0

    def taken() -> Pulled:
        """Return the message and begin the next one."""
        nonlocal binlogs, size
        found = Pulled(b"".join((*fields, last_ts_field(last_ts))), binlogs, size)
        fields.clear()
        binlogs = size = 0
        return found

    try:
        for piece in pieces:
            if isinstance(piece, BinlogPart):
                if fields:
                    yield taken()
                yield pulled_part(piece)
                continue
            fields.append(payload_fields(piece.payloads))
            binlogs += len(piece.payloads)
            size += sum(map(len, piece.payloads))
            last_ts = piece.last_ts
            if len(fields) >= chunks_max or size >= message_bytes_max:
                yield taken()
    except BinlogError:
        if fields:
            yield taken()
        raise
    if fields:
        yield taken()
