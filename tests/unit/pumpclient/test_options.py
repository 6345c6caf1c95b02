"""What a caller leaves out has the documented default; what it says arrives."""

from __future__ import annotations

import inspect

import pytest
from binlog.errors import ConfigError

from pumpclient.client import PumpsClient
from pumpclient.options import limits_of, upstream, upstream_of
from pumpclient.sdk.service import Service
from pumpclient.sdk.sync import SyncService
from pumpclient.sync import SyncPumpsClient
from pumpclient.writer import Limits


def test_options_left_out_have_documented_defaults() -> None:
    section = upstream_of("10.0.0.9:2379", {})
    assert section == upstream("http://10.0.0.9:2379")
    assert section.tso_source == "auto" and not section.pd_addr
    assert limits_of({}) == Limits()


def test_given_options_reach_upstream_section_and_limits() -> None:
    section = upstream_of(["http://a:1", "http://b:2"], {"tso_source": "own", "pd_addr": "pd:9"})
    assert (len(section.pd_urls), section.tso_source, section.pd_addr) == (2, "own", "pd:9")
    assert limits_of({"write_timeout_s": 0.5}) == Limits(write_timeout_s=0.5)
    assert limits_of({"limits": Limits(detect_s=1), "write_timeout_s": 0.5}) == Limits(detect_s=1)


@pytest.mark.parametrize("urls", ["", "ftp://a:1", "http://a"])
def test_upstream_refuses_invalid_pd_urls(urls: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"(?i)pd-urls|url|host"):
        upstream(urls)


@pytest.mark.parametrize(("face", "inner"), [(SyncPumpsClient, PumpsClient), (SyncService, Service)])
def test_blocking_connect_has_same_parameters_as_async_one(face: type, inner: type) -> None:
    def parameters(of: type) -> list[tuple[str, object, object]]:
        found = inspect.signature(of.connect).parameters.values()  # type: ignore[attr-defined]
        return [(p.name, p.default, p.annotation) for p in found]

    assert parameters(face) == parameters(inner)
