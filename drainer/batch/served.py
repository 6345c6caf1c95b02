"""A batch of served binlogs, classified as rows (with schema version) or DDLs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from binlog import envelope
from binlog.errors import DecodeError
from binlog.tidb.types import SchemaState

# A binlog as a pump serves it.


@dataclass(frozen=True, slots=True)
class ServedBinlog:
    """One served binlog (prewrite and commit merged, P-PULL-02) and the pump it came from. A large one is a view of a
    file (drainer.pumps.pull)."""

    commit_ts: int
    start_ts: int
    pump: str
    payload: bytes | memoryview

    @property
    def is_large(self) -> bool:
        return isinstance(self.payload, memoryview)


_ORDER = attrgetter("commit_ts", "start_ts")
_SEQUENCE_VALUE = "select setval"


@dataclass(frozen=True, slots=True)
class DdlBinlog:
    """The DDL part of a binlog. `announces_drop`: the first of the two binlogs of a DROP COLUMN, at delete-only
    (X-06), which produces no SQL."""

    job_id: int
    query: str
    commit_ts: int
    announces_drop: bool


class Item(NamedTuple):
    """One binlog of a batch; `schema_version` is 0 for a DDL. A tuple for speed: one per transaction."""

    commit_ts: int
    schema_version: int
    binlog: ServedBinlog
    ddl: DdlBinlog | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything in (after_ts, until_ts] in commit_ts order, without fakes, sequence values and duplicates.

    `ddl_texts`: the DDL binlogs by job id, for a DDL that must run before its binlog.
    """

    after_ts: int
    until_ts: int
    items: tuple[Item, ...]
    ddl_texts: Mapping[int, DdlBinlog]
    duplicates: int

    @property
    def greatest_version(self) -> int:
        return max((i.schema_version for i in self.items), default=0)

    def after(self, after_ts: int) -> Batch:
        """The rest of the batch after `after_ts`."""
        return replace(self, after_ts=after_ts, items=tuple(i for i in self.items if i.commit_ts > after_ts))


def read_batch(binlogs: Iterable[ServedBinlog], *, after_ts: int, until_ts: int) -> Batch:
    """Read a batch given in any order. A binlog served twice counts once (rule 19: one transaction on several
    pumps).

    Raises DecodeError naming the pump and commit_ts of a payload that is not a binlog.
    """
    items: list[Item] = []
    texts: dict[int, DdlBinlog] = {}
    duplicates = 0
    last_commit_ts = last_start_ts = 0
    for binlog in sorted(binlogs, key=_ORDER):
        if not after_ts < binlog.commit_ts <= until_ts:
            raise ValueError(f"binlog of commit_ts {binlog.commit_ts} outside the batch ({after_ts}, {until_ts}]")
        if binlog.commit_ts == last_commit_ts and binlog.start_ts == last_start_ts:
            duplicates += 1
            continue
        last_commit_ts, last_start_ts = binlog.commit_ts, binlog.start_ts
        item = _read(binlog)
        if item is None:
            continue
        items.append(item)
        if item.ddl is not None and not item.ddl.announces_drop:
            texts[item.ddl.job_id] = item.ddl
    return Batch(after_ts, until_ts, tuple(items), texts, duplicates)


def _read(binlog: ServedBinlog) -> Item | None:
    """None for a fake (start_ts = commit_ts) and for a sequence's value (D-CO-06)."""
    if binlog.start_ts == binlog.commit_ts:
        return None
    payload = binlog.payload
    try:
        found = envelope.scan(payload)  # type: ignore[arg-type]  # it only reads single bytes and slices
        query = bytes(payload[found.query_at : found.query_end]).decode() if found.ddl_job_id else ""
    except (DecodeError, UnicodeDecodeError) as error:
        what = f"binlog of commit_ts {binlog.commit_ts} from pump {binlog.pump}"
        raise DecodeError(what, offset=getattr(error, "offset", 0), detail=str(error)) from error
    if not found.ddl_job_id:
        return Item(binlog.commit_ts, found.schema_version, binlog, None)
    if query.lstrip()[: len(_SEQUENCE_VALUE)].lower() == _SEQUENCE_VALUE:
        return None
    announces_drop = found.ddl_schema_state == SchemaState.DELETE_ONLY
    return Item(binlog.commit_ts, 0, binlog, DdlBinlog(found.ddl_job_id, query, binlog.commit_ts, announces_drop))
