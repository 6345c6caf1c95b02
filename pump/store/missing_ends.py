"""Finds ends of value log files that are missing. A file that was truncated where a record ends has no damaged byte.

There are three signs: the index's head is after the end of the newest file; an older file has no footer; or the file in
which recovery would begin is missing. Records that the index locates after the end are lost. An index that was rebuilt
from the log does not know them.
"""

from __future__ import annotations

from typing import NamedTuple

from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import ValueLog

END_UNKNOWN = 1 << 62  # end offset of a missing part whose length is unknown


class Missing(NamedTuple):
    """The records from `begin` to the offset `end` of the same file are missing. `path`: the file's path."""

    begin: Pointer
    end: int
    path: str
    reason: str


def missing_ends(log: ValueLog, index: Index, *, start: Pointer | None) -> list[Missing]:
    """Return the missing ends of all files but the newest. `start`: the position from which recovery reads; None: the
    index is not trusted, and the complete log is read."""
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
