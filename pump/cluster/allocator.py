"""Timestamp allocation without PD: which timestamps the elected pump may return, and until when. Pure.

Invariant over processes, restarts and failovers: *a later request gets a larger timestamp* (correctness rule 7: one
allocator of timestamps).

* Restarts and failovers: etcd holds an upper bound above every allocated timestamp. A successor starts at the bound, so
  it is above its predecessor whatever either clock says.
* Two leaders: a leader that was suspended still believes that it leads. So a timestamp is allocated first and the lease
  is checked *afterwards*, just before the answer: a request that was read while another pump already led is refused.
  The lease counts from before its renewal was requested, on a clock that also runs while the machine is suspended. It
  is shortened by a margin for clock drift.

A bound far ahead of the clock is refused: a leader that started there would give every transaction a ts of that time,
which cannot be undone. A ts in the pump's own log proves less than the bound, because writers supply it. If a bound is
stored, a ts of the log that is far ahead is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from binlog.cluster.timestamp import BOUND_KEY
from binlog.cluster.tso import LOGICAL_MAX, compose, format_local, physical_ms

from pump.errors import AbsurdBound

BOUND_AHEAD_MAX_S = 86_400  # a day, more than any time zone error
TS_MAX = (1 << 63) - 1
WINDOW_MS = 3000
LEASE_MARGIN = 0.2  # of the lease's length


@dataclass(slots=True)
class Term:
    """How long this pump may answer as leader. Seconds of CLOCK_BOOTTIME."""

    until_s: float = 0.0

    def renewed(self, *, asked_s: float, ttl_s: float) -> None:
        """The lease was granted or renewed for `ttl_s`, by a request sent at `asked_s`."""
        self.until_s = max(self.until_s, asked_s + ttl_s * (1 - LEASE_MARGIN))

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s

    def end(self) -> None:
        self.until_s = 0.0


def start_after(
    *, bound_ms: int | None, clock_ms: int, log_ts_until: Callable[[int], int], ahead_max_s: int = BOUND_AHEAD_MAX_S
) -> int:
    """Return the ts of this pump's own log above which a leader starts. Raises AbsurdBound if it must not start.

    `bound_ms`: None if none is stored. `log_ts_until(ts)`: returns the largest ts of the log that is not above `ts`.
    """
    limit_ms = clock_ms + ahead_max_s * 1000
    clock = f"this machine's clock ({format_local(compose(clock_ms))}) by more than bound-ahead-max ({ahead_max_s} s)"
    remedy = (
        "Correct the clock if it is wrong. Otherwise a timestamp of another source was accepted: stop the writers and "
        "run `binlogctl reset-tso-bound -dry-run`"
    )
    if bound_ms is not None and bound_ms > limit_ms:
        shown = format_local(compose(bound_ms))
        raise AbsurdBound(
            f"this pump allocates no timestamps: etcd key {BOUND_KEY} says {bound_ms} ({shown}), which is ahead of "
            f"{clock}. {remedy}"
        )
    newest_ts = log_ts_until(TS_MAX)
    if physical_ms(newest_ts) <= limit_ms:
        return newest_ts
    if bound_ms is None:
        raise AbsurdBound(
            f"this pump allocates no timestamps: its log holds ts {newest_ts} ({format_local(newest_ts)}), which is "
            f"ahead of {clock}, and etcd key {BOUND_KEY} is absent: whether that timestamp was allocated is unknown. "
            f"{remedy}"
        )
    return log_ts_until(compose(limit_ms, LOGICAL_MAX))


@dataclass(slots=True)
class Allocator:
    """Allocates timestamps after `begin_term`. `bound_ms`: the bound in etcd; every allocated timestamp is below it."""

    bound_ms: int = 0
    _physical_ms: int = 0
    _logical: int = -1

    def begin_term(self, *, bound_ms: int, clock_ms: int, log_max_ts: int) -> None:
        """Start a term above every timestamp of predecessors and of this pump's own log, because etcd may have lost its
        data. Nothing can be allocated before `granted`."""
        start_ms = max(bound_ms, clock_ms, physical_ms(log_max_ts) + 1)
        if start_ms > self._physical_ms:
            self._physical_ms, self._logical = start_ms, -1
        self.bound_ms = min(bound_ms, self._physical_ms)

    def wanted_bound(self, clock_ms: int) -> int | None:
        """Return the bound to store in etcd now, in ms; None while the stored bound is far enough ahead."""
        at_ms = max(clock_ms, self._physical_ms)
        return at_ms + WINDOW_MS if self.bound_ms - at_ms < WINDOW_MS // 2 else None

    def granted(self, bound_ms: int) -> None:
        """Record that etcd holds this bound, stored by this pump as leader."""
        self.bound_ms = max(self.bound_ms, bound_ms)

    def allocate(self, count: int, clock_ms: int) -> int | None:
        """Allocate `count` consecutive timestamps of one millisecond. Return the last, or None if the bound is
        reached."""
        assert 0 < count <= LOGICAL_MAX + 1
        physical, logical = self._physical_ms, self._logical
        if clock_ms > physical:
            physical, logical = clock_ms, -1
        if logical + count > LOGICAL_MAX:
            physical, logical = physical + 1, -1
        if physical >= self.bound_ms:
            return None
        self._physical_ms, self._logical = physical, logical + count
        return compose(physical, self._logical)
