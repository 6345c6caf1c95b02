"""The check of queries against what is exported finds what it is for."""

from __future__ import annotations

import pytest

from tests.support.metric_names import Exported, faults, label_faults, queries

PUMP = Exported.of(
    """# HELP binlog_pump_read bytes
# TYPE binlog_pump_read counter
binlog_pump_read 4
# TYPE binlog_pump_age gauge
binlog_pump_age 1.5
# TYPE binlog_pump_disk gauge
binlog_pump_disk{type="available"} 7
# TYPE binlog_pump_took histogram
binlog_pump_took_bucket{method="Write",le="1.0"} 1
binlog_pump_took_count{method="Write"} 1
"""
)
JOBS = {"pump": PUMP, "drainer": Exported()}


@pytest.mark.parametrize(
    "query",
    [
        'rate(binlog_pump_read{job="pump",instance=~"$pump"}[1m])',
        "binlog_pump_age > 60 and delta(binlog_pump_age[2m]) > 1",
        'sum by (instance, type) (binlog_pump_disk{type="available"}) + sum(up{job="pump"})',
        'histogram_quantile(0.9, sum by (instance, le) (rate(binlog_pump_took_bucket{method=~"Write|Read"}[5m])))',
    ],
)
def test_valid_metric_query_has_no_faults(query: str) -> None:
    assert faults(query, JOBS) == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("binlog_pump_gone", "binlog_pump_gone is not exported by pump or drainer"),
        ('binlog_pump_age{job="drainer"}', "binlog_pump_age is not exported by drainer"),
        ("rate(binlog_pump_age[1m])", "rate() of the gauge binlog_pump_age"),
        ("delta(binlog_pump_read[1m])", "delta() of the counter binlog_pump_read"),
        ('binlog_pump_disk{type="free"}', "binlog_pump_disk has no sample with type='free'"),
        ('binlog_pump_disk{kind="free"}', "binlog_pump_disk has no sample with kind='free'"),
        ("sum by (node) (binlog_pump_age)", "no label node"),
        ("binlog_pump_took", "binlog_pump_took is not exported by pump or drainer"),
        (
            "histogram_quantile(0.9, sum by (instance) (rate(binlog_pump_took_bucket[5m])))",
            "histogram_quantile not of rates of buckets by le",
        ),
        (
            "histogram_quantile(0.9, sum by (le) (rate(binlog_pump_took_count[5m])))",
            "histogram_quantile not of rates of buckets by le",
        ),
    ],
)
def test_metric_query_without_result_is_reported(query: str, fault: str) -> None:
    assert fault in faults(query, JOBS)


def test_alert_text_with_label_absent_from_series_is_reported() -> None:
    rule = {"alert": "A", "annotations": {"summary": "{{ $labels.instance }} {{ $labels.type }}"}}
    assert label_faults({**rule, "expr": "binlog_pump_disk > 1"}, JOBS) == []
    assert label_faults({**rule, "expr": "binlog_pump_age > 1"}, JOBS) == ["A names the label type"]
    assert label_faults({**rule, "expr": "sum by (type) (binlog_pump_disk)"}, JOBS) == ["A names the label instance"]


def test_queries_are_found_in_rules_and_dashboard() -> None:
    assert len(queries()) > 40
