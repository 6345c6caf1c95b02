"""What was planned for a range is what was pulled (correctness rule 22): the numbers, and the comparison. Pure.

    plan: the pump counts its index ──► PumpRange.planned ──► pull: compared with what came over the wire
                                                         └──► apply: compared with what came through Spark

Fakes do not count, for a pull leaves them out; a transaction that two pumps hold counts on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlog.errors import BinlogError


class RangeDiffers(BinlogError):
    """More or less came of a range than was planned for it. Nothing of it has been applied."""


@dataclass(frozen=True, slots=True)
class Counted:
    """So many binlogs with payloads of so many bytes; `size` None: nobody has counted them exactly."""

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
    """None where one of them is not known."""
    total = Counted()
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def check(planned: Counted | None, found: Counted, *, who: str, after_ts: int, until_ts: int, where: str) -> None:
    """RangeDiffers unless `found` is what was planned, as far as that is known. `where`: who received them."""
    if planned is None or (planned.count == found.count and planned.size in (None, found.size)):
        return
    raise RangeDiffers(
        f"{who}: the range ({after_ts}, {until_ts}] was planned with {planned}, but {found} came {where}. The position "
        f"does not move; the range is planned anew, and where that ends in the same way the drainer stops: keep the "
        f"pump's data-dir, its log may hold binlogs that it does not serve"
    )
