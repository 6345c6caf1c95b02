"""When the schema of a table is due."""

from __future__ import annotations

from dataclasses import replace

from drainer.protocol.registry import ProtocolOptions
from drainer.sink.kafka.publication import IDLE_MAX_S, BootstrapSchedule
from tests.support.typed_columns import typed_table

TABLE = typed_table()
OPTIONS = ProtocolOptions("simple")


def asked(schedule: BootstrapSchedule, now_s: float, rows: int = 1, topic: str = "t") -> list[int]:
    return list(schedule.due(topic, TABLE, rows=rows, partitions=3, now_s=now_s))


def test_bootstrap_is_due_for_first_rows_of_table_in_topic() -> None:
    schedule = BootstrapSchedule(OPTIONS)
    assert asked(schedule, 1000.0) == [0, 1, 2]
    assert asked(schedule, 1000.0) == []
    assert asked(schedule, 1000.0, topic="other") == [0, 1, 2]


def test_bootstrap_is_due_after_each_interval() -> None:
    schedule = BootstrapSchedule(OPTIONS)
    assert [now for now in range(0, 400, 10) if asked(schedule, float(now))] == [0, 120, 240, 360]


def test_bootstrap_is_due_after_configured_number_of_rows() -> None:
    """The count is of rows since the last message, not of calls."""
    schedule = BootstrapSchedule(replace(OPTIONS, send_bootstrap_in_msg_count=100))
    assert [call for call in range(8) if asked(schedule, 0.0, rows=40)] == [0, 3, 6]


def test_bootstrap_is_due_at_once_for_changed_table() -> None:
    schedule = BootstrapSchedule(OPTIONS)
    asked(schedule, 0.0)
    changed = typed_table(version=2)
    assert list(schedule.due("t", changed, rows=1, partitions=3, now_s=1.0)) == [0, 1, 2]
    assert list(schedule.due("t", changed, rows=1, partitions=3, now_s=2.0)) == []
    renamed = typed_table(name="other", version=2)
    assert list(schedule.due("t", renamed, rows=1, partitions=3, now_s=3.0)) == [0, 1, 2]


def test_bootstrap_is_due_in_one_partition_when_configured() -> None:
    schedule = BootstrapSchedule(replace(OPTIONS, send_bootstrap_to_all_partition=False))
    assert asked(schedule, 0.0) == [0]


def test_bootstrap_is_disabled_by_interval_or_count_of_zero() -> None:
    assert asked(BootstrapSchedule(replace(OPTIONS, send_bootstrap_interval_in_sec=0)), 0.0) == []
    assert asked(BootstrapSchedule(replace(OPTIONS, send_bootstrap_in_msg_count=0)), 0.0) == []


def test_bootstrap_schedule_forgets_idle_table() -> None:
    schedule = BootstrapSchedule(replace(OPTIONS, send_bootstrap_interval_in_sec=10**9))
    asked(schedule, 0.0)
    assert asked(schedule, IDLE_MAX_S) == []
    assert asked(schedule, 2 * IDLE_MAX_S) == []
    assert asked(schedule, 3 * IDLE_MAX_S + 1) == [0, 1, 2]
    assert len(schedule._sent) == 1
