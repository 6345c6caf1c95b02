"""The documentation is true to the code where a machine can tell: generated pages, links, names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.scripts import write_configuration

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "pump" / "FORMAT.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path for name in ("proto/binlog", "pump", "pumpclient", "drainer") for path in (ROOT / name).rglob("*.py")]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """GitHub's: lower case, punctuation gone, spaces to dashes."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_generated_pages_equal_what_the_code_gives() -> None:
    script = write_configuration()
    assert (ROOT / "docs" / "configuration.md").read_text() == script.page(), "run `make docs`"
    compatibility = (ROOT / "docs" / "compatibility.md").read_text()
    assert compatibility == script.with_table(compatibility), "run `make docs`"
    assert "| `syncer.txn-batch` | accepted, without effect: txn-rows-max" in compatibility


def test_every_setting_in_configuration_page_has_a_meaning() -> None:
    for line in (ROOT / "docs" / "configuration.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if line.startswith("| `"):
            assert cells[-2], f"no meaning: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_pages_have_existing_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target} ({sorted(anchors(file))})"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_modules_named_in_text_exist(page: Path) -> None:
    top = "proto|pump|pumpclient|drainer|demo|bench|tests|scripts|docs"
    for name in re.findall(rf"`((?:{top})/[\w./-]*)`", prose(page)):
        assert (ROOT / name).exists(), f"{page.name}: {name}"
    for module in re.findall(r"^\s*(?:from|import) ((?:binlog|pump|pumpclient|drainer)[\w.]*)", page.read_text(), re.M):
        assert importlib.util.find_spec(module) is not None, f"{page.name}: {module}"


def test_metrics_page_lists_exactly_the_metrics_in_code() -> None:
    code = "\n".join(path.read_text() for path in SOURCES if path != ROOT / "proto/binlog/runtime/metrics.py")
    named = set(re.findall(r'\b(?:gauge|counter|histogram|HotHistogram|ShownCounter)\(\s*"(\w+)"', code))
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"`((?:pump|drainer|sdk|arbiter)_\w+)(?:\{[\w,]+\})?`", page))
    assert len(named) > 15
    assert named - listed == set(), "not in docs/operations.md"
    tables = {"drainer_position", "drainer_mark", "drainer_ddl", "drainer_load", "drainer_check"}
    assert listed - named - tables == set(), "in docs/operations.md, not in the code"


def test_operations_page_lists_options_and_columns_of_spark_source() -> None:
    pytest.importorskip("pyspark")
    from drainer.spark.source.data_source import KNOWN, SCHEMA

    section = (ROOT / "docs" / "operations.md").read_text().split("## The stream as a Spark source")[1]
    for option in KNOWN - {"planner", "planner-key", "error-secret", "blob-folder"}:
        assert f"`{option}`" in section, option
    for column in SCHEMA.split(", "):
        name, kind = column.split()
        assert f"| `{name}` | {kind} |" in section, column


def test_changes_page_lists_columns_of_change_stream() -> None:
    pytest.importorskip("pyspark")
    from drainer.spark.typed.fields import Fields, change_schema

    page = (ROOT / "docs" / "changes.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for column in change_schema(Fields((), (), {}), collect=True):
        assert any(f"`{column.name}`" in row.split("|")[1] for row in rows), column.name


def test_api_source_page_lists_every_option_and_column() -> None:
    pytest.importorskip("pyspark")
    from drainer.spark.source.data_source import KNOWN, SCHEMA
    from drainer.spark.typed.fields import Fields, change_schema, changelog_schema

    page = (ROOT / "docs" / "api-source.md").read_text()
    listed = set(re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`[^|]+) \|", page.split("## Columns")[0], re.M))))
    assert listed == KNOWN - {"planner", "planner-key", "error-secret", "blob-folder"}
    typed = {column.name: type(column.dataType).__name__ for column in change_schema(Fields((), (), {}), collect=True)}
    plain = {name: f"{kind.title()}Type" for name, kind in (column.split() for column in SCHEMA.split(", "))}
    flat = {column.name: type(column.dataType).__name__ for column in changelog_schema(Fields((), (), {}))}
    for part, columns in (("typed", typed), ("changelog", flat), ("plain", plain)):
        table = page.split(f"<!-- {part} -->")[1].split("\n\n")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| (\w+)", table, re.M))
        assert rows == columns
