"""A binlog as a pump serves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedBinlog:
    """One served binlog (prewrite and commit merged, P-PULL-02) and the pump it came from. A large one is a view of a
    file (drainer.pumps.spool)."""

    commit_ts: int
    start_ts: int
    pump: str
    payload: bytes | memoryview

    @property
    def is_large(self) -> bool:
        return isinstance(self.payload, memoryview)
