"""Ends of value log files that are not there any more: a file that was cut where a record ends has no damaged byte.

Three things tell of it: the index's head lies behind the end of the newest file; an older file has no footer; recovery
would begin in a file that is gone. What the index knows behind the end is lost. An index that was made anew from that
log knows nothing of what was there.
"""

from __future__ import annotations

from typing import NamedTuple

from pump.index import Index
from pump.log import ValueLog
from pump.record import Pointer

END_UNKNOWN = 1 << 62  # how long the missing part was


class Missing(NamedTuple):
    """Records from `begin` to the offset `end` of the same file are not there; `path` is that of the file."""

    begin: Pointer
    end: int
    path: str
    reason: str


def missing_ends(log: ValueLog, index: Index, *, start: Pointer | None) -> list[Missing]:
    """`start`: where recovery begins to read; None: the index is not trusted, and the whole log is read."""
    candidates = [
        Missing(Pointer(file.fid, file.size), END_UNKNOWN, str(file.path), "the file has no footer")
        for file in log.files()
        if not file.finished and file.fid != log.tail.fid
    ]
    if start is not None and start.fid < log.tail.fid and not log.has(start.fid):
        candidates.append(Missing(start, END_UNKNOWN, str(log.path(start.fid)), "the file is missing"))
    if not candidates or start is None:
        return candidates
    last: dict[int, int] = {}
    for _, pointer in index.pointers(0):
        last[pointer.fid] = max(last.get(pointer.fid, 0), pointer.offset)
    return [
        each._replace(reason=f"{each.reason}, and the index knows records up to byte {last[each.begin.fid]}")
        for each in candidates
        if last.get(each.begin.fid, -1) >= each.begin.offset
    ]
