"""`python -m demo.lake`: the shop of `python -m demo`, whose tables the drainer writes into a lake of Delta tables. In
the end a program of its own (`demo/read_lake.py`) reads them and a JOIN of two of them back, and both are compared with
what the shop wrote.

Exit code 0 when all of it is equal, 1 on any difference or failure.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

from demo.command import Options, main
from demo.compare import Comparison, canonical, comparison, written_rows
from demo.model import TableModel, Value
from demo.processes import DemoError, Program, jars_folder
from demo.run import shop_downstream, started
from demo.screen import Screen
from demo.shop import SCHEMA, Shop

MERGE_DEADLINE_S = 180.0
READ_DEADLINE_S = 300.0


def delta_jars() -> str:
    """Return Delta's jars, as Spark's setting spark.jars. Raises DemoError if they are missing."""
    return ",".join(str(jar) for jar in sorted(jars_folder("delta", "demo-lake").glob("*.jar")))


def into_lake(directory: Path, jars: str) -> str:
    """Return the sections of a drainer that writes into a lake. Its mirrors are merged often, for a run of a minute."""
    return (
        f'[syncer]\ndb-type = "delta"\n\n[syncer.to]\ndir = "{directory / "lake"}"\nmerge-interval = "5s"\n\n'
        f'[spark.conf]\n"spark.jars" = "{jars}"\n"spark.sql.shuffle.partitions" = "2"\n'
    )


def totals(customers: TableModel, orders: TableModel) -> TableModel:
    """Return the rows that the JOIN in demo/read_lake.py must return for these tables: for each customer with orders,
    their number and the sum of their totals."""
    found = TableModel("totals", ["id", "name", "orders", "total"], ("id",))
    sums: dict[Value, list[Decimal]] = {}
    for order in orders.all_rows():
        sums.setdefault(order["customer"], []).append(Decimal(str(order["total"])))
    for number, each in sums.items():
        name = customers.rows[(number,)]["name"]
        found.insert({"id": number, "name": name, "orders": len(each), "total": sum(each)})
    return found


def compare_read(output: Path, model: TableModel) -> Comparison:
    """Compare the rows that demo/read_lake.py has written with the model."""
    written, json_columns = written_rows(model)
    files = sorted((output / model.name).glob("part-*.json"))
    if not files:
        return Comparison(model.name, written.total(), 0, 0, [], [], problem="not in the lake")
    found: Counter[tuple[Value, ...]] = Counter()
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line, parse_float=Decimal)  # has no NULLs
                found[tuple(_found(model, c, row.get(c), i in json_columns) for i, c in enumerate(model.columns))] += 1
    return comparison(model.name, written, found)


def _found(model: TableModel, column: str, value: Value, as_json: bool) -> Value:
    if as_json and isinstance(value, str):
        return json.dumps(json.loads(value), sort_keys=True)
    if column in model.fsp and isinstance(value, str):
        value = datetime.fromisoformat(value)
    return canonical(value, model.fsp.get(column, 0))


def versions(lake: Path, table: str) -> int:
    """Return how many versions a mirror has: the first one has no rows, and each merge makes one or two more."""
    return len(list((lake / SCHEMA / table / "_delta_log").glob("*[0-9].json")))


async def merged(lake: Path, shop: Shop) -> None:
    """Wait until rows have been merged into each mirror. What comes later is read from the histories."""
    end = time.monotonic() + MERGE_DEADLINE_S
    while late := [name for name, model in shop.models.items() if model.all_rows() and versions(lake, name) < 2]:
        if time.monotonic() > end:
            raise DemoError(f"the mirrors of {', '.join(late)} are still empty after {MERGE_DEADLINE_S:.0f} s")
        await asyncio.sleep(0.2)


def read_back(directory: Path, jars: str, output: Path) -> str:
    """Run demo/read_lake.py as a process and return its standard output. Raises DemoError if its exit code is not 0."""
    printed = directory / "read_lake.txt"
    argv = [sys.executable, "-m", "demo.read_lake", str(directory / "lake"), str(output), jars]
    program = Program("demo.read_lake", argv, directory / "read_lake.log", printed)
    program.start()
    try:
        code = program.finished(READ_DEADLINE_S)
    finally:
        program.kill()
    if code != 0:
        raise DemoError(f"{program.name} ended with exit code {code}:\n{program.tail()}")
    return printed.read_text().rstrip()


async def run(options: Options, screen: Screen) -> bool:
    """Run the demo. Return True if every mirror and the JOIN equal what the shop wrote."""
    jars = delta_jars()
    async with started(options, screen, partial(into_lake, jars=jars)) as chain:
        lake, output = chain.directory / "lake", chain.directory / "read-back"
        shop = await shop_downstream(chain, options, screen, partial(merged, lake))
        screen.say("the drainer has stopped; reading the lake back, in a Spark session of its own")
        screen.say(await asyncio.to_thread(read_back, chain.directory, jars, output))
    models = [*shop.models.values(), totals(shop.models["customers"], shop.models["orders"])]
    results = [compare_read(output, model) for model in models]
    screen.compare(
        results, f"lake: {lake}, read back: {output}", title="the lake's mirrors, and their JOIN, against the shop's"
    )
    told = ", ".join(f"{name} {versions(lake, name)}" for name in shop.models)
    screen.say(f"versions of the mirrors: {told}")
    screen.say(shop.counts.told())
    return all(result.ok for result in results)


if __name__ == "__main__":
    sys.exit(main(run, Screen, prog="python -m demo.lake", about=__doc__, seconds=45.0, rate=150.0))
