"""Passing over one binlog whose bytes are lost, at an operator's word: it is served without its rows from then on.

It keeps its place and counts as before, so that plans that were made of the range stay right (correctness rule 22); it
is no evidence of its transaction for other pumps. Nothing else is passed over: a binlog that can be read is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from binlog.envelope import BinlogType, encode_binlog
from binlog.runtime.log import get_logger
from binlog.runtime.metrics import counter

from pump.errors import DamagedRecord, NoSuchBinlog, NotDamaged
from pump.index import Index
from pump.keys import FLAG_DDL, FLAG_FAKE, FLAG_PASSED, Complete
from pump.pull import Reader

PASSED = counter("pump_passed_over_binlogs_count", "Binlogs with damaged bytes that an operator had passed over")
PART_BYTES = 1 << 20

_log = get_logger("pump.passing")


class Passed(NamedTuple):
    """`why`: what cannot be read, as the pull says it; "" where it was passed over before."""

    start_ts: int
    ddl_job_id: int
    why: str


def pass_over(index: Index, reader: Reader, commit_ts: int, *, dry_run: bool = False) -> Passed:
    """Serve the binlog at `commit_ts` without its rows. With `dry_run` only say what that would be.

    NoSuchBinlog, NotDamaged, PurgedPosition.
    """
    complete = index.complete(commit_ts)
    if complete is None or complete.flags & FLAG_FAKE:
        raise NoSuchBinlog(f"no binlog of commit_ts {commit_ts} is served here")
    if complete.flags & FLAG_PASSED:
        return Passed(complete.start_ts, complete.ddl_job_id, "")
    why = _why_unreadable(reader, commit_ts)
    if not dry_run:
        batch, raw = index.batch()
        batch.complete(commit_ts, without_rows(commit_ts, complete))
        index.write(raw)
        PASSED.inc()
        _log.error(
            "a damaged binlog is passed over as an operator asked: drainers that read it here do not get its rows",
            commit_ts=commit_ts,
            start_ts=complete.start_ts,
            ddl_job_id=complete.ddl_job_id,
            why=why,
        )
    return Passed(complete.start_ts, complete.ddl_job_id, why)


def without_rows(commit_ts: int, complete: Complete) -> Complete:
    """The entry that serves nothing but that there was such a transaction, or DDL job."""
    payload = encode_binlog(
        tp=BinlogType.COMMIT, start_ts=complete.start_ts, commit_ts=commit_ts, ddl_job_id=complete.ddl_job_id
    )
    flags = FLAG_PASSED | (complete.flags & FLAG_DDL)
    return complete._replace(length=0, tail_at=0, flags=flags, head=payload)


def _why_unreadable(reader: Reader, commit_ts: int) -> str:
    chunks = reader.pull(commit_ts - 1, commit_ts, bytes_max=PART_BYTES, fakes=False, part_bytes_max=PART_BYTES)
    try:
        for _ in chunks:
            pass
    except DamagedRecord as error:
        return str(error)
    raise NotDamaged(
        f"the binlog of commit_ts {commit_ts} can be read: nothing is passed over. What a destination refuses is "
        f"passed over by the drainer, with ignore-txn-commit-ts"
    )
