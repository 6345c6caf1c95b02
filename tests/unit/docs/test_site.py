"""The documentation as a site: it builds without a warning, its links lead somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import html.parser
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.support.servers import ROOT

pytestmark = pytest.mark.slow


class Page(html.parser.HTMLParser):
    """Links of a page, what it loads, and what can be linked to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.signatures: list[str] = []
        self._signature = 0  # depth of <div>s in the signature that is read

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "div" and (self._signature or "doc-signature" in str(given.get("class"))):
            self.signatures += [""] * (self._signature == 0)
            self._signature += 1
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("script", "img") and given.get("src"):
            self.loads.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "preload") and given.get("href"):
            self.loads.append(str(given["href"]))

    def handle_endtag(self, tag: str) -> None:
        self._signature -= tag == "div" and self._signature > 0

    def handle_data(self, data: str) -> None:
        if self._signature:
            self.signatures[-1] += data


def typed(signature: str) -> bool:
    """`f(x: int, *, y: str = "") -> None`, in one line or several; `name: int`; a type `Name = int | str`."""
    text = " ".join(signature.split())
    if "(" not in text.partition(":")[0]:
        return ":" in text or " = " in text
    inside = text[text.index("(") + 1 : text.rindex(")")]
    flat = re.sub(r"\[[^\[\]]*\]|\([^()]*\)|'[^']*'|\"[^\"]*\"", "", re.sub(r"\[[^\[\]]*\]", "", inside))
    given = [one.strip() for one in flat.split(",") if one.strip() and one.strip() not in ("*", "/", "self")]
    return all(":" in one for one in given)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Pages by name, built as `make site` builds them."""
    made = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    pages = {}
    for file in made.glob("*.html"):
        pages[file.name] = Page()
        pages[file.name].feed(file.read_text())
    return pages


def test_every_page_is_in_the_menu(site: dict[str, Page]) -> None:
    made = {path.name for path in (ROOT / "docs").glob("*.md")}
    text = (ROOT / "mkdocs.yml").read_text()
    assert [name for name in made if name not in text] == []
    assert {f"{Path(name).stem}.html" for name in made} <= site.keys()
    assert {"index.html", "deploy.html", "pump-format.html"} <= site.keys()


def test_site_links_have_existing_targets(site: dict[str, Page]) -> None:
    broken = []
    for name, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = unquote(parts.path) or name
            if target.endswith((".", "/")):
                continue
            if target not in site or (parts.fragment and unquote(parts.fragment) not in site[target].ids):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_site_loads_nothing_from_other_hosts(site: dict[str, Page]) -> None:
    assert [load for page in site.values() for load in page.loads if "//" in load] == []


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("api-sdk.html", "pumpclient.sdk.Service.begin"),
        ("api-sdk.html", "pumpclient.sdk.TransactionReport.pump"),
        ("api-source.html", "drainer.spark.register"),
        ("api-source.html", "binlog.envelope.Envelope.schema_version"),
        ("api-consumer.html", "drainer.kafka_consumer.consumer.Consumer.parts"),
        ("api-consumer.html", "drainer.kafka_consumer.core.Resume.applied_ts"),
        ("api-consumer.html", "drainer.protocol.event.RowEvent.handle_only"),
        ("api-consumer.html", "drainer.protocol.registry.make_decoder"),
    ],
)
def test_api_pages_show_typed_signatures(site: dict[str, Page], page: str, name: str) -> None:
    assert name in site[page].ids
    assert site[page].signatures
    assert [one for one in site[page].signatures if not typed(one)] == []


def test_api_pages_show_only_public_names(site: dict[str, Page]) -> None:
    shown = {
        one for page in ("api-sdk", "api-source", "api-consumer") for one in site[f"{page}.html"].ids if "." in one
    }
    assert len(shown) > 60
    assert [name for name in shown if any(part.startswith("_") for part in name.split("."))] == []


def test_sdk_api_page_contains_every_exported_name(site: dict[str, Page]) -> None:
    import pumpclient.sdk

    assert [name for name in pumpclient.sdk.__all__ if f"pumpclient.sdk.{name}" not in site["api-sdk.html"].ids] == []


def test_site_build_fails_on_link_to_missing_file() -> None:
    site_links = runpy.run_path(str(ROOT / "scripts/site_links.py"))
    place = ROOT / "docs/architecture.md"
    assert site_links["_linked"]("see [`store.py`](../pump/store/store.py)", place) == "see `store.py`"
    assert (
        site_links["_linked"]("see [the store](../pump/store/store.py)", place)
        == "see the store (`pump/store/store.py`)"
    )
    assert site_links["_linked"]("[start](../README.md#where)", place) == "[start](index.md#where)"
    with pytest.raises(Exception, match=r"docs/architecture.md links to \.\./pump/gone.py"):
        site_links["_linked"]("[gone](../pump/gone.py)", place)


def test_site_menu_names_existing_pages() -> None:
    class Loader(yaml.SafeLoader):
        """With the tags of MkDocs, which are not looked at."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python", lambda *_: None)
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    pages = str(config["nav"])
    assert pages.count(".md") >= 20 and config["strict"] is True
