"""Compares the binlogs received for a range with those planned (correctness rule 22: planned binlogs are pulled). Pure.

    plan: the pump counts its index ──► PumpRange.planned ──► pull: compared with what was received over gRPC
                                                         └──► apply: compared with what was received through Spark

Fakes are not counted, because a pull omits them; a transaction that two pumps hold is counted on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlog.errors import BinlogError


class RangeDiffers(BinlogError):
    """More or fewer binlogs were received for a range than planned. None of them has been applied."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Number of binlogs and bytes of their payloads; `size` None: not known exactly."""

    count: int = 0
    size: int | None = 0

    def __add__(self, other: Counted) -> Counted:
        known = self.size is not None and other.size is not None
        return Counted(self.count + other.count, (self.size or 0) + (other.size or 0) if known else None)

    def __sub__(self, other: Counted) -> Counted:
        known = self.size is not None and other.size is not None
        return Counted(self.count - other.count, (self.size or 0) - (other.size or 0) if known else None)

    def __str__(self) -> str:
        found = f"{self.count} binlog{'' if self.count == 1 else 's'}"
        return f"{found} of {self.size} bytes" if self.size is not None else found

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Counted:
        return cls(len(payloads), sum(map(len, payloads)))


def together(parts: Iterable[Counted | None]) -> Counted | None:
    """Return the sum; None if one of them is unknown."""
    total = Counted()
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def check(planned: Counted | None, found: Counted, *, pump_name: str, after_ts: int, until_ts: int, where: str) -> None:
    """Raise RangeDiffers unless `found` equals `planned` (None: unknown). `where`: end of the error's first
    sentence."""
    if planned is None or (planned.count == found.count and planned.size in (None, found.size)):
        return
    raise RangeDiffers(
        f"{pump_name}: the range ({after_ts}, {until_ts}] was planned with {planned}, but {found} came {where}. The "
        "position does not move; the range is planned again, and if that fails in the same way the drainer stops: "
        "keep the "
        f"pump's data-dir, its log may hold binlogs that it does not serve"
    )
