"""Options of the data source: every refusal names the option."""

from __future__ import annotations

import pytest
from binlog.errors import ConfigError

from drainer.spark.source.options import SourceOptions

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
        ({**URLS, "packed": "yes"}, "packed"),
        ({**URLS, "topic": "x"}, "topic"),
        ({**URLS, "start_ts": "7"}, r"unknown option start_ts \(did you mean start-ts\?\)"),
        (
            {**URLS, "start-ts": "-1h", "end-ts": "2020-01-01 10:00Z"},
            r"end-ts \d+ \(2020-01-01 10:00:00.000 UTC\) is before",
        ),
        ({**URLS, "table": "orders"}, "table must be database.table"),
        ({**URLS, "table": "shop.orders,"}, "table must be database.table"),
        ({**URLS, "table": "a.b.c"}, "table must be database.table"),
        ({**URLS, "history-file": "x"}, "history-file goes with the option table"),
        ({**URLS, "table": "a.b", "packed": "true"}, "packed and table exclude each other"),
        ({**URLS, "table": "a.b", "schema-changes": "add"}, "schema-changes must be fail or collect"),
        ({**URLS, "table": "a.b", "zero-dates": "x"}, "zero-dates must be null or fail"),
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
