"""Pass over one damaged binlog on an operator's request (`binlogctl pass-over`): serve it without its rows.

The binlog keeps its commit_ts and still counts, so that existing plans of the range stay valid (correctness rule 22:
planned binlogs are pulled); other pumps do not take it as evidence that its transaction was committed. A readable
binlog is not skipped.
"""

from __future__ import annotations

from binlog.envelope import BinlogType, encode_binlog
from binlog.pb.pump_ext_pb2 import PassOverResp
from binlog.runtime.log import get_logger
from binlog.runtime.metrics import counter

from pump.errors import DamagedRecord, NoSuchBinlog, NotDamaged
from pump.index.keys import FLAG_DDL, FLAG_FAKE, FLAG_SKIPPED, Complete
from pump.index.leveldb import Index
from pump.pull.ranges import Reader

SKIPPED_BINLOGS = counter(
    "pump_passed_over_binlogs_count", "Damaged binlogs that were skipped on an operator's request"
)
PART_BYTES = 1 << 20

_log = get_logger("pump.pull.skip")


def skip_binlog(index: Index, reader: Reader, commit_ts: int, *, dry_run: bool = False) -> PassOverResp:
    """Serve the binlog at `commit_ts` without its rows from now on; with `dry_run` only return what would be done.
    `why` in the answer: the error of reading it; "" if it had been skipped before.

    Raises NoSuchBinlog, NotDamaged if it is readable, PurgedPosition.
    """
    complete = index.complete(commit_ts)
    if complete is None or complete.flags & FLAG_FAKE:
        raise NoSuchBinlog(f"no binlog of commit_ts {commit_ts} is served here")
    if complete.flags & FLAG_SKIPPED:
        return PassOverResp(start_ts=complete.start_ts, ddl_job_id=complete.ddl_job_id)
    why = _read_error(reader, commit_ts)
    if not dry_run:
        batch = index.batch()
        batch.complete(commit_ts, without_rows(commit_ts, complete))
        index.write(batch)
        SKIPPED_BINLOGS.inc()
        _log.error(
            "a damaged binlog is skipped on an operator's request; drainers that read it from this pump do not "
            "get its rows",
            commit_ts=commit_ts,
            start_ts=complete.start_ts,
            ddl_job_id=complete.ddl_job_id,
            why=why,
        )
    return PassOverResp(start_ts=complete.start_ts, ddl_job_id=complete.ddl_job_id, why=why)


def without_rows(commit_ts: int, complete: Complete) -> Complete:
    """The index entry that serves the transaction's start_ts, commit_ts and DDL job id without its payload."""
    payload = encode_binlog(
        tp=BinlogType.COMMIT, start_ts=complete.start_ts, commit_ts=commit_ts, ddl_job_id=complete.ddl_job_id
    )
    flags = FLAG_SKIPPED | (complete.flags & FLAG_DDL)
    return complete._replace(length=0, tail_at=0, flags=flags, head=payload)


def _read_error(reader: Reader, commit_ts: int) -> str:
    chunks = reader.pull(commit_ts - 1, commit_ts, bytes_max=PART_BYTES, fakes=False, part_bytes_max=PART_BYTES)
    try:
        for _ in chunks:
            pass
    except DamagedRecord as error:
        return str(error)
    raise NotDamaged(
        f"the binlog of commit_ts {commit_ts} is readable and is not skipped. To skip a transaction that a "
        "destination refuses, use the drainer's ignore-txn-commit-ts"
    )
