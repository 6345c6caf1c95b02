"""The fields each kind of binlog carries, and real ones rebuilt byte for byte."""

from __future__ import annotations

from binlog.envelope import BinlogType
from binlog.pb import binlog_pb2

from pumpclient.payload import (
    DdlFields,
    commit_payload,
    ddl_prewrite_payload,
    prewrite_payload,
    rollback_payload,
)
from tests.support.capture import GOLDEN, CaptureSet


def test_recorded_tidb_writes_are_rebuilt_byte_for_byte() -> None:
    """What TiDB sent, field for field: P with rows, P with a DDL, C and R (X-01, X-02, X-03)."""
    kinds: set[tuple[int, bool]] = set()
    for payload in CaptureSet(GOLDEN / "keys").writes:
        binlog = binlog_pb2.Binlog.FromString(payload)
        ddl = None
        if binlog.ddl_job_id:
            ddl = DdlFields(binlog.ddl_job_id, binlog.ddl_query, binlog.ddl_schema_state)
        kinds.add((binlog.tp, ddl is not None))
        if binlog.tp == BinlogType.COMMIT:
            made = commit_payload(binlog.start_ts, binlog.commit_ts, binlog.prewrite_key, ddl)
        elif binlog.tp == BinlogType.ROLLBACK:
            made = rollback_payload(binlog.start_ts, binlog.prewrite_key)
        elif ddl is not None:
            made = ddl_prewrite_payload(binlog.start_ts, binlog.prewrite_key, ddl)
        else:
            made = prewrite_payload(binlog.start_ts, binlog.prewrite_key, binlog.prewrite_value)
        assert made == payload
    assert kinds == {(0, False), (0, True), (1, False), (1, True), (2, False)}
