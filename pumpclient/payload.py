"""Encodes the binlogs that a writer sends, with the fields that TiDB sets in each kind (X-01, X-02, X-03). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.envelope import BinlogType, encode_binlog


@dataclass(frozen=True, slots=True)
class DdlFields:
    """The DDL fields of a prewrite and of its commit. `schema_state` (X-06): 0 for drops, 5 otherwise."""

    job_id: int
    query: bytes | None
    schema_state: int


NO_DDL = DdlFields(0, None, 0)


def prewrite_payload(
    start_ts: int, prewrite_key: bytes, prewrite_value: bytes | None, writer: bytes = b"", ddl: DdlFields = NO_DDL
) -> bytes:
    """Encode a prewrite. `prewrite_value`: a serialized PrewriteValue, None for a DDL. `writer`: the writer's id if it
    has a lease.
    """
    return encode_binlog(
        tp=BinlogType.PREWRITE,
        start_ts=start_ts,
        prewrite_key=prewrite_key,
        prewrite_value=prewrite_value,
        ddl_query=ddl.query,
        ddl_job_id=ddl.job_id,
        ddl_schema_state=ddl.schema_state,
        writer=writer,
    )


def commit_payload(start_ts: int, commit_ts: int, prewrite_key: bytes, ddl: DdlFields = NO_DDL) -> bytes:
    """Encode a commit. It repeats the prewrite's key and all DDL fields, but not the rows (X-01)."""
    return encode_binlog(
        tp=BinlogType.COMMIT,
        start_ts=start_ts,
        commit_ts=commit_ts,
        prewrite_key=prewrite_key or None,
        ddl_query=ddl.query,
        ddl_job_id=ddl.job_id,
        ddl_schema_state=ddl.schema_state,
    )


def rollback_payload(start_ts: int, prewrite_key: bytes) -> bytes:
    """Encode a rollback: commit_ts 0 and the prewrite's key (X-02)."""
    return encode_binlog(tp=BinlogType.ROLLBACK, start_ts=start_ts, commit_ts=0, prewrite_key=prewrite_key or None)
