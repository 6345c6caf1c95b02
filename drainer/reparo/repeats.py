"""Recognise records that an original drainer wrote again after it was killed. Pure.

It appends to the file with which it ended, from an earlier commit_ts on, and a record has nothing that tells the second
copy from the first. So a record is a repeat if its commit_ts is below the highest one. At the highest commit_ts it is
one if as many records with the same bytes were received as this stretch of records has. A stretch begins where the
commit_ts went back, and with another copy of the commit_ts's first record.
"""

from __future__ import annotations

from collections import Counter


class Repeats:
    """The records of the highest commit_ts so far, by the CRC-32C of their payload."""

    def __init__(self) -> None:
        self._highest_ts = 0
        self._received: list[int] = []
        self._stretch: Counter[int] = Counter()

    def is_repeat(self, commit_ts: int, crc: int) -> bool:
        """Return whether this record was received before; if not, it counts as received."""
        if commit_ts < self._highest_ts:
            self._stretch.clear()
            return True
        if commit_ts > self._highest_ts:
            self._highest_ts, self._received = commit_ts, []
        if self._received[:1] in ([], [crc]):
            self._stretch.clear()
        self._stretch[crc] += 1
        if self._stretch[crc] <= self._received.count(crc):
            return True
        self._received.append(crc)
        return False
