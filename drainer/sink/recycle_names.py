"""Names in the recycle bin: what upstream dropped or truncated and may still bring back (FLASHBACK, RECOVER). Pure.

    <changefeed>_<commit_ts>_<job id>_<table id>_<beginning of its name>        everything is in the name

so a table and what is known of it move in one RENAME, and no crash can part them. Time is the stream's own: a
table is expired when the position has passed its drop by the retention, however long the drainer was down.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from binlog.cluster import tso

from drainer.schema.filter import OWN_SCHEMA
from drainer.sink.base import Identity

SCHEMA: Final = OWN_SCHEMA  # beside our other tables: a destination has one schema that upstream has not
KEEP_MS_DEFAULT: Final = 3_600_000

_NAME: Final = re.compile(r"([0-9a-f]{8})_(\d+)_(\d+)_(\d+)_([a-z0-9_]*)(\$)?")
_NAME_LENGTH_MAX: Final = 64
_FRESH: Final = "$"  # ids of TiDB have up to 15 digits: there is room for no more


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """A table in the bin. `fresh`: the empty one that a TRUNCATE was about to put in its place."""

    commit_ts: int
    job_id: int
    table_id: int
    name: str
    fresh: bool = False

    def is_expired(self, position_ts: int, keep_ms: int) -> bool:
        return tso.physical_ms(position_ts) - tso.physical_ms(self.commit_ts) > keep_ms


def tag(identity: Identity) -> str:
    """Two changefeeds may share a destination, and their ids may be the same."""
    return f"{zlib.crc32(f'{identity.cluster_id}/{identity.changefeed}'.encode()):08x}"


def name_for(owner: str, *, commit_ts: int, job_id: int, table_id: int, table: str) -> str:
    """The name of a table that `job_id` takes away."""
    head = f"{owner}_{commit_ts}_{job_id}_{table_id}_"
    room = _NAME_LENGTH_MAX - len(head) - len(_FRESH)
    return head + re.sub(r"[^a-z0-9]", "_", table.lower())[: max(room, 0)]


def fresh_name(name: str) -> str:
    return name + _FRESH


def kept(owner: str, names: Iterable[str]) -> list[Kept]:
    """Our tables among `names`, oldest first."""
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match[1] == owner:
            found.append(Kept(int(match[2]), int(match[3]), int(match[4]), name, bool(match[6])))
    return sorted(found)


def latest(tables: Iterable[Kept], table_id: int) -> Kept | None:
    """The table of this id that was taken away last."""
    return max((t for t in tables if t.table_id == table_id and not t.fresh), default=None)
