"""What an answer says about where a prewrite may be."""

from __future__ import annotations

import pytest
from binlog.envelope import BinlogType
from binlog.errors import ClusterMismatch, NoSpace, NotOnline, PumpError
from binlog.pb import binlog_pb2

from pumpclient.answer import Answer, Outcome, classify, lost, not_sent
from pumpclient.writer import (
    NO_DDL,
    DdlFields,
    commit_payload,
    prewrite_payload,
    rollback_payload,
)
from tests.support.capture import GOLDEN, CaptureSet


@pytest.mark.parametrize(
    ("code", "message", "outcome"),
    [
        (0, "", Outcome.ACKED),
        (2, str(NotOnline("paused")), Outcome.REFUSED),
        (2, str(ClusterMismatch.of(1, 2)), Outcome.REFUSED),
        (2, str(NoSpace(1, 2)), Outcome.REFUSED),
        (8, "Received message larger than max (9 vs. 4)", Outcome.TOO_LARGE),
        (9, "anything", Outcome.REFUSED),
        (6, "rolled back before", Outcome.CONFLICT),
        (2, "write failed: no such file", Outcome.UNKNOWN),
        (1, "", Outcome.UNKNOWN),
        (4, "deadline", Outcome.UNKNOWN),
        (13, "the log is broken", Outcome.UNKNOWN),
        (14, "connection reset", Outcome.UNKNOWN),
        (15, "", Outcome.UNKNOWN),
        (99, "a code of the future", Outcome.UNKNOWN),
    ],
)
def test_classify_maps_grpc_code_and_message_to_outcome(code: int, message: str, outcome: Outcome) -> None:
    answer = classify(code, message)
    assert answer.outcome is outcome
    assert answer.acked is (outcome is Outcome.ACKED)
    assert message in answer.detail


def test_answer_counts_as_heard_only_if_pump_answered() -> None:
    assert not lost("x").heard
    assert not not_sent("x").heard
    assert classify(9, "").heard
    assert classify(0, "").heard


@pytest.mark.parametrize("code", [2, 8, 9])
@pytest.mark.parametrize("kind", PumpError)
def test_what_our_pump_names_is_a_refusal_whatever_its_text(code: int, kind: PumpError) -> None:
    """The codes of the original's service and of the extension. One full disk is no limit of a binlog's size."""
    answer = classify(code, "in other words", kind)
    assert (answer.outcome, answer.refusal) == (Outcome.REFUSED, kind)
    assert answer.passes is (kind is not PumpError.CLUSTER_MISMATCH)


def test_a_kind_of_a_later_pump_is_known_by_its_status() -> None:
    assert classify(8, "no online: paused", "of-later") == Answer(
        Outcome.TOO_LARGE, "RESOURCE_EXHAUSTED: no online: paused"
    )


def test_texts_of_a_go_pump_say_whether_it_may_accept_later() -> None:
    """It answers every error with UNKNOWN."""
    texts = {str(error): error for error in (NotOnline("paused"), NoSpace(1, 2), ClusterMismatch.of(1, 2))}
    passing = [classify(2, text).passes for text in texts]
    assert passing == [True, True, False]
    assert not classify(2, "write failed: no such file").passes


# The fields each kind of binlog carries, and real ones rebuilt byte for byte.


def test_recorded_tidb_writes_are_rebuilt_byte_for_byte() -> None:
    """What TiDB sent, field for field: P with rows, P with a DDL, C and R (X-01, X-02, X-03)."""
    kinds: set[tuple[int, bool]] = set()
    for payload in CaptureSet(GOLDEN / "keys").writes:
        binlog = binlog_pb2.Binlog.FromString(payload)
        ddl = NO_DDL
        if binlog.ddl_job_id:
            ddl = DdlFields(binlog.ddl_job_id, binlog.ddl_query, binlog.ddl_schema_state)
        kinds.add((binlog.tp, ddl is not NO_DDL))
        if binlog.tp == BinlogType.COMMIT:
            made = commit_payload(binlog.start_ts, binlog.commit_ts, binlog.prewrite_key, ddl)
        elif binlog.tp == BinlogType.ROLLBACK:
            made = rollback_payload(binlog.start_ts, binlog.prewrite_key)
        else:
            value = binlog.prewrite_value if ddl is NO_DDL else None
            made = prewrite_payload(binlog.start_ts, binlog.prewrite_key, value, ddl=ddl)
        assert made == payload
    assert kinds == {(0, False), (0, True), (1, False), (1, True), (2, False)}
