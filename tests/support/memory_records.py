"""A partition's records in memory, and messages of Open Protocol with several events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drainer.kafka_reading.records import KafkaPartition, ReadError, Record
from drainer.protocol.open.framing import VERSION


def message(events: Iterable[tuple[object, object]]) -> tuple[bytes, bytes]:
    """The message of some events, each a key and a value, without spaces, as TiCDC writes them; None: no value."""
    parts = [
        [b"" if one is None else json.dumps(one, separators=(",", ":")).encode() for one in event] for event in events
    ]
    keys, values = (b"".join(len(part[at]).to_bytes(8, "big") + part[at] for part in parts) for at in (0, 1))
    return VERSION + keys, values


@dataclass
class RecordsReader:
    """`times_ms`: of the records; `low`: the first that retention has left; `end`: where the brokers go away."""

    records: Sequence[Record]
    times_ms: Sequence[int] = ()
    low: int = 0
    end: int = 1 << 40

    def ends(self, _: KafkaPartition) -> tuple[int, int]:
        return self.low, len(self.records)

    def offset_at(self, _: KafkaPartition, time_ms: int) -> int | None:
        times = self.times_ms or [0] * len(self.records)
        return next((at for at in range(self.low, len(times)) if times[at] >= time_ms), None)

    def begin(self, offsets: Mapping[KafkaPartition, int | None]) -> None:
        (self._next,) = (offset or 0 for offset in offsets.values())

    def poll(self, _: float) -> Sequence[Record]:
        begin, self._next = self._next, min(self._next + 3, len(self.records), self.end)
        if begin == self._next:
            raise ReadError("the brokers are away")
        return self.records[begin : self._next]

    def at_end(self) -> bool:
        return self._next == len(self.records)

    def close(self) -> None: ...
