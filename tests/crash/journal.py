"""What writers sent and what they were answered, and whether what pumps serve and hold agrees with it.

Every transaction is written to one pump. `faults` is the rule of all crash tests: nothing acknowledged is lost, nothing
is served twice, out of order, with other bytes, or without having been sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from binlog.envelope import scan

from tests.unit.pump.build import commit, merged, prewrite, rollback

SHOWN_MAX = 5
TS_MAX = (1 << 63) - 1


class Served(NamedTuple):
    """A binlog as a pump served it."""

    start_ts: int
    commit_ts: int
    payload: bytes

    @classmethod
    def of(cls, payload: bytes) -> Served:
        envelope = scan(payload)
        return cls(envelope.start_ts, envelope.commit_ts, bytes(payload))


@dataclass(slots=True)
class Transaction:
    """What was sent of a transaction (`commit_ts` -1: no outcome yet, 0: a rollback) and what was acknowledged."""

    start_ts: int
    row: bytes
    commit_ts: int = -1
    prewrite_acked: bool = False
    outcome_acked: bool = False

    @property
    def prewrite(self) -> bytes:
        return prewrite(self.start_ts, row=self.row)

    @property
    def outcome(self) -> bytes:
        return commit(self.start_ts, self.commit_ts) if self.commit_ts else rollback(self.start_ts)

    @property
    def merged(self) -> bytes:
        return merged(self.start_ts, self.commit_ts, row=self.row)


@dataclass
class Journal:
    """All transactions that were sent to one pump, by start_ts."""

    pump: str
    sent: dict[int, Transaction] = field(default_factory=dict)

    def begin(self, start_ts: int) -> Transaction:
        assert start_ts not in self.sent, f"start_ts {start_ts} was given out twice"
        row = b"\x08\x01\x12" + bytes([len(text := b"row of %d" % start_ts)]) + text
        self.sent[start_ts] = made = Transaction(start_ts, row)
        return made

    def unfinished(self) -> list[Transaction]:
        """Those whose writer does not know how they ended."""
        return [each for each in self.sent.values() if not each.outcome_acked]

    def faults(self, served: Sequence[Served], pending: Iterable[int], *, read_until_ts: int = TS_MAX) -> list[str]:
        """What is wrong with this pump's stream and its pending prewrites; empty: nothing. What commits above
        `read_until_ts` was not asked for yet."""
        of_stream = self._of_stream(served, set(pending), read_until_ts)
        return [f"{self.pump}: {fault}" for fault in (*_of_order(served), *of_stream)]

    def _of_stream(self, served: Sequence[Served], pending: set[int], read_until_ts: int) -> Iterable[str]:
        found: dict[int, Served] = {}
        for binlog in served:
            sent = self.sent.get(binlog.start_ts)
            if binlog.start_ts in found:
                yield f"start_ts {binlog.start_ts} is served twice"
            found[binlog.start_ts] = binlog
            if sent is None or sent.commit_ts != binlog.commit_ts:
                yield f"{binlog.start_ts} → {binlog.commit_ts} is served and was never sent: {sent}"
            elif binlog.payload != sent.merged:
                yield f"{binlog.start_ts} → {binlog.commit_ts} is served with other bytes than were sent"
        for each in self.sent.values():
            start_ts, read = each.start_ts, each.commit_ts <= read_until_ts
            if read and each.outcome_acked and each.commit_ts > 0 and start_ts not in found:
                yield f"the acknowledged commit {start_ts} → {each.commit_ts} is lost"
            if each.outcome_acked and start_ts in pending:
                yield f"{start_ts} is pending, and its outcome {each.commit_ts} was acknowledged"
            # A rollback, or a commit above what was read, may have been stored without its answer.
            ended = each.outcome_acked or each.commit_ts == 0 or not read
            if each.prewrite_acked and not ended and start_ts not in pending and start_ts not in found:
                yield f"the acknowledged prewrite {start_ts} is neither pending nor served"
        for start_ts in pending - self.sent.keys():
            yield f"{start_ts} is pending and was never sent"
        for start_ts in pending & found.keys():
            yield f"{start_ts} is pending and served"


def _of_order(served: Sequence[Served]) -> Iterable[str]:
    for before, after in itertools.pairwise(served):
        if after.commit_ts <= before.commit_ts:
            yield f"out of order: commit_ts {after.commit_ts} comes after {before.commit_ts}"


def check(faults: Sequence[str], what: object = "") -> None:
    """AssertionError with the first faults."""
    assert not faults, f"{what}: {len(faults)} faults, among them: " + "; ".join(faults[:SHOWN_MAX])
