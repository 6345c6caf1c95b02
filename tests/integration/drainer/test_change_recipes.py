"""The recipes of docs/changes.md for the shape "changelog", in a Spark session with Delta, as a user would run them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from binlog.tidb.job import ActionType

from tests.integration.drainer.stubs import Stubs
from tests.support.lake_case import delta_session
from tests.support.row_case import INT, table, transaction
from tests.support.schema_case import job, ts
from tests.support.servers import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "changes.md").read_text()
RECIPES = dict(re.findall(r"<!-- recipe (\w+) -->\n```python\n(.*?)```", PAGE, re.S))
MINUTES = PAGE.split("changes.printSchema()\n")[1].split("query.awaitTermination()")[0]
INFO = table([("id", INT), ("price", INT)], handle="id", name="orders")
JOBS = (
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(1, "shop")),
    job(2, ActionType.CREATE_TABLE, 2, schema_id=1, table_id=INFO.id, table_info=INFO),
)


@pytest.fixture(scope="module")
def delta(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("delta")
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",  # which RocksDB's store needs
    }
    with delta_session(folder, **conf) as session:
        yield session


class Orders:
    """Random transactions of a table. `rows`: what it has; `versions`: (id, price, valid_from, valid_to) of rows."""

    def __init__(self, seed: int) -> None:
        self._chance, self._ts = random.Random(seed), 10
        self.rows: dict[int, int | None] = {}
        self.versions: list[tuple[int, int | None, int, int | None]] = []

    def transactions(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            self._ts += 1
            before, changes = dict(self.rows), list[Any]()
            if len(self.rows) > 1 and self._chance.random() < 0.3:  # two keys are exchanged
                one, other = self._chance.sample(sorted(self.rows), 2)
                if before[one] != before[other]:
                    self._update(changes, one, other, before[one])
                    self._update(changes, other, one, before[other])
                    self.rows |= {one: before[other], other: before[one]}
            id_, price = self._chance.randrange(12), self._chance.choice((None, 0, 1, 2, 3))
            if not changes:
                if id_ not in before:
                    changes.append((INFO, ("insert", {}, {1: id_, 2: price})))
                    self.rows[id_] = price
                elif self._chance.random() < 0.3:
                    changes.append((INFO, ("delete", {1: id_, 2: before[id_]}, {})))
                    del self.rows[id_]
                else:
                    changes.append((INFO, ("update", {1: id_, 2: before[id_]}, {1: id_, 2: price})))
                    self.rows[id_] = price
            self._note(before, {change[1][side].get(1) for change in changes for side in (1, 2)} - {None})
            yield transaction(changes, commit_ts=ts(self._ts), start_ts=ts(self._ts) - 1, version=2)

    @staticmethod
    def _update(changes: list[Any], old: int, new: int, price: int | None) -> None:
        changes.append((INFO, ("update", {1: old, 2: price}, {1: new, 2: price})))

    def _note(self, before: dict[int, int | None], touched: set[Any]) -> None:
        at = ts(self._ts)
        self.versions = [(*one[:3], at) if one[3] is None and one[0] in touched else one for one in self.versions]
        self.versions += [(id_, self.rows[id_], at, None) for id_ in sorted(touched) if id_ in self.rows]

    @property
    def resolved(self) -> int:
        return ts(self._ts)


def run(code: str, spark: Any, stubs: Stubs, folder: Path, orders: Orders, printed: Any = print, **more: Any) -> Any:
    """Run a recipe's query until it has everything, twice, from its checkpoint the second time. Return its last
    progress. `more`: `shape`, and `rounds` in place of twice."""
    from pyspark.sql import functions

    history, pump = folder / "history.json", stubs.add("a")
    history.write_text(json.dumps([each.to_json() for each in JOBS]))
    progress = None
    for _ in range(more.get("rounds", 2)):
        pump.put(*orders.transactions(30))
        stubs.resolve(orders.resolved)
        source = spark.readStream.format("binlog").option("pd-urls", stubs.etcd.endpoint).option("tso-source", "own")
        source = source.option("history-file", str(history)).option("table", "shop.orders")
        source = source.option("shape", more.get("shape", "changelog"))
        names = {
            "spark": spark,
            "changes": source.option("batch-bytes-max", 4096).load(),
            "print": printed,
            **vars(functions),
        }
        exec(code.replace("/tmp/", f"{folder}/"), names)
        query: Any = names["query"]
        try:
            query.processAllAvailable()
            progress = query.lastProgress or progress
        finally:
            query.stop()
    return progress


def test_mirror_in_delta_equals_table_and_progress_shows_newest_offset(
    delta: Any, stubs: Stubs, tmp_path: Path
) -> None:
    delta.sql("CREATE TABLE orders (id INT, price INT) USING delta")
    orders = Orders(1)
    progress = run(RECIPES["mirror"], delta, stubs, tmp_path, orders)
    assert {row.id: row.price for row in delta.table("orders").collect()} == orders.rows
    (source,) = progress["sources"]
    assert [json.loads(source[at]) for at in ("endOffset", "latestOffset")] == [{"commit_ts": orders.resolved}] * 2


def test_versions_in_delta_are_those_of_each_transaction(delta: Any, stubs: Stubs, tmp_path: Path) -> None:
    delta.sql("CREATE TABLE orders_versions (id INT, price INT, valid_from BIGINT, valid_to BIGINT) USING delta")
    orders = Orders(2)
    run(RECIPES["versions"], delta, stubs, tmp_path, orders)
    found = [tuple(row) for row in delta.table("orders_versions").collect()]
    assert sorted(found, key=repr) == sorted(orders.versions, key=repr)


def test_state_of_each_order_counts_its_changes_of_price(delta: Any, stubs: Stubs, tmp_path: Path) -> None:
    orders = Orders(3)
    newest: dict[int, int] = {}
    run(RECIPES["state"], delta, stubs, tmp_path, orders, newest.__setitem__)
    prices: dict[int, list[int | None]] = {}
    for id_, price, *_ in orders.versions:
        prices.setdefault(id_, []).append(price)
    assert newest == {id_: sum(a != b for a, b in pairwise(of)) for id_, of in prices.items()}


def test_orders_per_minute_are_those_that_were_inserted(delta: Any, stubs: Stubs, tmp_path: Path) -> None:
    orders = Orders(4)
    counted = MINUTES.replace('"console"', '"memory"').replace(".start()", '.queryName("minutes").start()')
    run(counted, delta, stubs, tmp_path, orders, shape="images", rounds=1)
    first = {(id_, at) for id_, _, at, _ in orders.versions} - {(id_, to) for id_, _, _, to in orders.versions}
    assert max(row["count"] for row in delta.table("minutes").collect()) == len(first)  # all in one minute
