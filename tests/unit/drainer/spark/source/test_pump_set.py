"""What a query that reads everything waits for: a Go pump's stream begins with the oldest binlogs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
from binlog.errors import ConfigError
from pyspark.sql.streaming.datasource import ReadAllAvailable

from drainer.pumps.go_pump import cut, received
from drainer.pumps.watermark import BatchLimits, PumpMark, Watermark
from drainer.spark.source import stream
from drainer.spark.source.data_source import SourceOptions
from drainer.spark.source.stream import caught_up

OURS = replace(cut(received(()), BatchLimits(1), node_id="a", host="a:1", resolved_ts=100), extension=True)


def go(resolved_ts: int) -> PumpMark:
    return cut(received(()), BatchLimits(1), node_id="go", host="go:1", resolved_ts=resolved_ts)


@pytest.mark.parametrize(
    ("seen", "patience", "surveys"),
    [
        pytest.param([10, 20, 30, 30, 40], 9, 4, id="until it does not rise"),
        pytest.param([10, 20, 90, 95], 9, 3, id="until it is enough"),
        pytest.param([10, 20, 30, 40], 2, 3, id="until its time is up"),
        pytest.param([90, 95], 9, 1, id="enough at once"),
    ],
)
async def test_bounded_query_waits_for_go_pumps_stream_to_catch_up(
    seen: list[int], patience: int, surveys: int
) -> None:
    asked: list[int] = []
    pauses = 0

    async def survey() -> Watermark:
        asked.append(seen[len(asked)])
        return Watermark(asked[-1], (OURS, go(asked[-1])))

    async def pause() -> bool:
        nonlocal pauses
        pauses += 1
        return pauses <= patience

    found = await caught_up(survey, pause, enough_ts=90)
    assert (found.ts, asked) == (seen[surveys - 1], seen[:surveys])


async def test_bounded_query_does_not_wait_for_pumps_with_watermark() -> None:
    async def survey() -> Watermark:
        return Watermark(10, (OURS,))

    async def pause() -> bool:
        raise AssertionError("it waits")

    assert (await caught_up(survey, pause, enough_ts=90)).ts == 10


def test_offset_that_query_of_available_rows_reports_is_that_of_its_target() -> None:
    """Started again from a checkpoint that has reached the target, it plans no micro-batch."""
    pumps = SimpleNamespace(survey_everything=lambda *_: Watermark(100, (OURS,)))
    with mock.patch.object(stream.StreamReader, "_connected", lambda _: pumps):
        reader = stream.StreamReader(SourceOptions.parse({"pd-urls": "http://x"}))
        assert reader.reportLatestOffset() is None
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset({"commit_ts": 100}, ReadAllAvailable()) == {"commit_ts": 100}
        assert reader.reportLatestOffset() == {"commit_ts": 100}


# Options of the data source: every refusal names the option.


URLS = {"pd-urls": "http://a:1, http://b:2"}


def test_source_options_have_their_defaults() -> None:
    found = SourceOptions.parse(URLS)
    assert found.pd_urls == ("http://a:1", "http://b:2")
    assert (found.start_ts, found.end_ts, found.packed, found.batch_bytes_max) == (0, 0, False, 32 << 20)
    assert not found.security.enabled


def test_source_option_names_ignore_case() -> None:
    assert SourceOptions.parse({"PD-URLS": "http://a:1", "Start-TS": "7", "PACKED": "TRUE"}).start_ts == 7


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "pd-urls"),
        ({**URLS, "start-ts": "-1"}, "start-ts"),
        ({**URLS, "end-ts": "tomorrow"}, "end-ts"),
        ({**URLS, "packed": "yes"}, "packed: Input should be a valid boolean"),
        ({**URLS, "batch-bytes-max": "32 MB"}, "batch-bytes-max: Input should be a valid integer"),
        ({**URLS, "topic": "x"}, "topic"),
        ({**URLS, "start_ts": "7"}, r"unknown option start_ts \(did you mean start-ts\?\)"),
        (
            {**URLS, "start-ts": "-1h", "end-ts": "2020-01-01 10:00Z"},
            r"end-ts \d+ \(2020-01-01 10:00:00.000 UTC\) is before",
        ),
        ({**URLS, "table": "orders"}, "table: it must be database.table"),
        ({**URLS, "table": "shop.orders,"}, "table: it must be database.table"),
        ({**URLS, "table": "a.b.c"}, "table: it must be database.table"),
        ({**URLS, "history-file": "x"}, "history-file goes with the option table"),
        ({**URLS, "rules-file": "x"}, "rules-file goes with the option table"),
        ({**URLS, "table": "a.b", "packed": "true"}, "packed and table exclude each other"),
        ({**URLS, "shape": "changelog"}, "shape goes with the option table"),
        ({**URLS, "table": "a.b,a.c", "shape": "changelog"}, "shape = changelog is for one table"),
        ({**URLS, "table": "a.b", "shape": "changelog", "schema-changes": "collect"}, "excludes schema-changes"),
        ({**URLS, "table": "a.b", "schema-changes": "add"}, "schema-changes: Input should be 'fail' or 'collect'"),
        ({**URLS, "table": "a.b", "zero-dates": "x"}, "zero-dates: Input should be 'null' or 'fail'"),
    ],
)
def test_invalid_source_option_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SourceOptions.parse(options)


def test_table_option_lists_quoted_and_plain_names() -> None:
    found = SourceOptions.parse({**URLS, "table": " Shop.Orders , shop.`a.b,``c`, shop.orders "})
    assert found.tables == (("shop", "orders"), ("shop", "a.b,`c"))
    assert (found.schema_changes, found.zero_dates, found.history_file, found.history_url) == ("fail", "null", "", "")
    assert SourceOptions.parse(URLS).tables == ()
