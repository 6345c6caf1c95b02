"""The lake demo must see every difference, and its reader is the one that docs/lake.md shows."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from demo.lake import compare_read, delta_jars, read_back, totals
from demo.model import TableModel
from demo.processes import DemoError
from tests.support.servers import ROOT

LINES: list[dict[str, Any]] = [
    {"id": 1, "price": 1.50, "born": "1990-01-02", "at": "2026-01-02T03:04:05.120000", "doc": '{"b": [1], "a": null}'},
    {"id": 2, "price": 10.25},
]


def model(key: tuple[str, ...] = ("id",)) -> TableModel:
    found = TableModel("t", ["id", "price", "born", "at", "doc"], key, fsp={"at": 3})
    at = datetime(2026, 1, 2, 3, 4, 5, 120_000)
    found.insert({"id": 1, "price": Decimal("1.5"), "born": date(1990, 1, 2), "at": at, "doc": {"a": None, "b": [1]}})
    found.insert({"id": 2, "price": Decimal("10.25"), "born": None, "at": None, "doc": None})
    return found


def put(directory: Path, *rows: dict[str, Any]) -> Path:
    (directory / "t").mkdir(exist_ok=True)
    (directory / "t" / "part-0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_equal_rows_in_any_order_and_files_are_equal(tmp_path: Path) -> None:
    put(tmp_path, LINES[1])
    (tmp_path / "t" / "part-1.json").write_text(json.dumps(LINES[0]))
    assert compare_read(tmp_path, model()).ok
    assert compare_read(tmp_path, model(key=())).ok


@pytest.mark.parametrize(
    "change",
    [
        {"id": 3},
        {"price": 1.51},
        {"born": "1990-01-03"},
        {"at": "2026-01-02T03:04:05.121000"},
        {"doc": '{"b": [2], "a": null}'},
        {"doc": None},
    ],
)
def test_one_changed_value_is_a_difference(tmp_path: Path, change: dict[str, Any]) -> None:
    found = compare_read(put(tmp_path, {**LINES[0], **change}, LINES[1]), model())
    assert (found.ok, found.equal, len(found.missing), len(found.unexpected)) == (False, 1, 1, 1)


def test_missing_repeated_and_absent_rows_are_differences(tmp_path: Path) -> None:
    assert compare_read(tmp_path, model()).problem == "not in the lake"
    assert not compare_read(put(tmp_path, LINES[0]), model()).ok
    assert not compare_read(put(tmp_path, *LINES, LINES[1]), model(key=())).ok


def test_totals_are_of_customers_with_orders() -> None:
    customers = TableModel("customers", ["id", "name"], ("id",))
    orders = TableModel("orders", ["id", "customer", "total"], ("id",))
    for number, name in ((1, "Ann"), (2, None), (3, "Eve")):
        customers.insert({"id": number, "name": name})
    for number, customer, total in ((7, 1, "1.10"), (8, 2, "5.00"), (9, 1, "2.20")):
        orders.insert({"id": number, "customer": customer, "total": Decimal(total)})
    assert totals(customers, orders).all_rows() == [
        {"id": 1, "name": "Ann", "orders": 2, "total": Decimal("3.30")},
        {"id": 2, "name": None, "orders": 1, "total": Decimal("5.00")},
    ]


def test_reader_that_fails_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # so that Spark does not start
    with pytest.raises(DemoError, match=r"demo.read_lake ended with exit code 1:(.|\n)*java"):
        read_back(tmp_path, "", tmp_path / "read-back")


@pytest.mark.usefixtures("java_without_jars")
def test_demo_without_jars_names_command_to_install_them() -> None:
    with pytest.raises(DemoError, match=r"run `scripts/need.sh delta`, or `make demo-lake`"):
        delta_jars()


def test_page_shows_the_reader() -> None:
    page = (ROOT / "docs" / "lake.md").read_text()
    block = page[page.index("```python\nfrom pyspark.sql") :].split("```")[1].splitlines()[1:]
    reader = {line.strip() for line in (ROOT / "demo" / "read_lake.py").read_text().splitlines()}
    other = [line for line in block if line.strip() and line.strip() not in reader]
    assert [line.split(".config")[0] for line in other] == ['lake = "/var/lib/lake"', "    SparkSession.builder"]
