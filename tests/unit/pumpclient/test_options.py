"""What a caller leaves out has the documented default; what it says arrives."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from binlog.errors import ConfigError

from pumpclient.options import limits_of, upstream, upstream_of
from pumpclient.sdk.service import Service
from pumpclient.sdk.sync import SyncService
from pumpclient.writer import Limits
from tests.unit.docs.test_facts import ids_in


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


def test_blocking_connect_has_same_parameters_as_async_one() -> None:
    def parameters(of: type) -> dict[str, object]:
        hints = get_type_hints(of.connect)  # type: ignore[attr-defined]
        options = hints.pop("options")
        hints.pop("return")
        return hints | get_type_hints(get_args(options)[0])

    assert parameters(SyncService) == parameters(Service)


ROOT = Path(__file__).resolve().parents[3]
PLACES = ("pumpclient", "tests/unit/pumpclient", "tests/integration/pumpclient")


def test_every_fact_about_original_client_is_cited_or_explained() -> None:
    """Cited where the code or a test keeps it, or named with the difference in docs/compatibility.md."""
    facts = {fact for fact in ids_in((ROOT / "docs" / "facts.md").read_text()) if fact.startswith("C-")}
    texts = [file.read_text() for place in PLACES for file in (ROOT / place).rglob("*.py")]
    answered = {fact for text in texts for fact in ids_in(text)}
    assert facts and facts <= answered | ids_in((ROOT / "docs" / "compatibility.md").read_text())
