"""Types of settings: sizes, durations, addresses, URLs."""

from __future__ import annotations

import ipaddress
from datetime import timedelta

import pytest
from binlog.runtime.fields import (
    check_host_port,
    check_zone,
    default_host,
    parse_bytes,
    parse_go_duration,
    parse_loose_urls,
    parse_names,
    parse_retention,
    parse_seconds,
    parse_urls,
    split_host_port,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("42 MB", 42_000_000),
        ("42 mib", 44_040_192),
        ("10 gib", 10 << 30),
        ("", 0),
        ("7", 7),
        (7, 7),
        ("1.5k", 1500),
        ("1,000 B", 1000),
        ("2TiB", 2 << 40),
    ],
)
def test_parse_bytes_reads_sizes_with_units(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["x", "-1", "1 parsec", "1.2.3", "MB", -1, True, "1e6"])
def test_parse_bytes_refuses_text_that_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28800),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("0", 0),
        ("-3s", -3),
        ("10µs", 0.00001),
        (".5h", 1800),
    ],
)
def test_parse_go_duration_reads_durations_with_units(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "8", "h", "8 h", "8hh", "1d", "--1s", "1h junk", "9" * 30 + "h"])
def test_parse_go_duration_refuses_text_that_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_go_duration(text)


def test_parse_retention_reads_days_or_duration() -> None:
    """A plain number is days (K-11)."""
    assert parse_retention("7") == timedelta(days=7)
    assert parse_retention(7) == timedelta(days=7)
    assert parse_retention("7h") == timedelta(hours=7)
    for bad in ("", "seven", "7d", "9" * 30):
        with pytest.raises(ValueError, match=f"unsupported gc time {bad}, etc: use 7 for 7 day, 7h for 7 hour"):
            parse_retention(bad)


def test_parse_urls_trims_and_sorts_urls() -> None:
    """And binlogctl and the client take host:port (K-05)."""
    assert parse_urls(" http://b:2 ,https://a:1") == ("http://b:2", "https://a:1")
    assert parse_urls(["unix://x:1"]) == ("unix://x:1",)
    assert parse_loose_urls("b:2, http://a:1") == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
        ("a:1", "URL scheme must be http, https, unix, or unixs: a:1"),
        ("http://a", 'URL address does not have the form "host:port": http://a'),
        ("http://a:b", 'URL address does not have the form "host:port": http://a:b'),
        ("http://a:1/", "URL must not contain a path: http://a:1/"),
        ("http://a:1,,", "URL scheme must be"),
        ("", "no URL is given"),
    ],
)
def test_parse_urls_refuses_invalid_url(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_urls(text)


@pytest.mark.parametrize("value", [7, [1], {"a": 1}, None])
def test_parse_urls_refuses_other_types(value: object) -> None:
    with pytest.raises(ValueError, match="was expected"):
        parse_urls(value)


@pytest.mark.parametrize("text", ["Atlantis/Capital", "", "../../etc/passwd", "Europe\0", "Europe"])
def test_check_zone_refuses_unknown_time_zone(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone that this machine knows; write for example Europe/Berlin"):
        check_zone(text)


def test_check_zone_accepts_known_time_zone() -> None:
    assert check_zone("UTC") == "UTC"
    assert check_zone("Europe/Berlin") == "Europe/Berlin"


def test_split_host_port_reads_host_and_port() -> None:
    assert split_host_port("10.0.0.1:80") == ("10.0.0.1", 80)
    assert split_host_port("[::1]:80") == ("::1", 80)
    assert split_host_port(":80") == ("", 80)
    assert check_host_port(" h:1 ") == "h:1"
    for bad in ("h", "h:", "h:x", "h:65536", "::1:80", "h:-1", "h:²"):
        with pytest.raises(ValueError, match="does not have the form host:port"):
            split_host_port(bad)


@given(st.text(max_size=30))
def test_field_parsers_return_value_or_raise_value_error_for_any_text(text: str) -> None:
    for parse in (parse_bytes, parse_go_duration, parse_retention, parse_urls, parse_loose_urls, split_host_port):
        try:
            parse(text)
        except ValueError:
            continue


def test_parse_names_splits_and_trims_list() -> None:
    assert parse_names("a, b,,c ") == ("a", "b", "c")
    assert parse_names(["a"]) == ["a"]


def test_default_host_is_ipv4_address() -> None:
    """Of an interface, or 127.0.0.1 (K-06)."""
    assert ipaddress.IPv4Address(default_host())


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("0", 0)])
def test_parse_seconds_reads_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1d", "-1s", "1.5h"])
def test_parse_seconds_refuses_text_that_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 5m, 1h, or seconds were expected"):
        parse_seconds(text)
