"""A client of two pumps whose rows show every change that a drainer loses or repeats."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pumpclient.sdk import BigInt, Column, Int, SyncService, Table, VarChar
from pumpclient.sdk.sync import SyncTransaction
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import running_etcd


@dataclass
class Writer:
    """Writes through the SDK and knows what must stand downstream in the end."""

    service: SyncService
    rng: random.Random = field(default_factory=lambda: random.Random(20261121))
    keyed: dict[int, tuple[int, str]] = field(default_factory=dict)
    bag: list[str] = field(default_factory=list)
    puts: Counter[str] = field(default_factory=Counter)
    takes: Counter[str] = field(default_factory=Counter)
    added: int = 0

    def create(self) -> None:
        self.service.create_database("k")
        self.keyed_table = self.service.create_table(
            "k",
            Table(
                "keyed",
                Column("id", BigInt(), primary_key=True),
                Column("u", Int(), nullable=False),
                Column("note", VarChar(40)),
                unique={"by_u": ["u"]},
            ),
        )
        self.bag_table = self.service.create_table("k", Table("bag", Column("tag", VarChar(40))))

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            with self.service.transaction() as txn:
                self._one(txn)

    def _one(self, txn: SyncTransaction) -> None:
        number = len(self.keyed)
        row = (number, f"n{number}")
        self.keyed[number] = row
        txn.insert(self.keyed_table, self._row(number, row))
        if number > 4:  # two rows trade their unique values through a third
            first, second = self.rng.sample(range(number), 2)
            a, b = self.keyed[first], self.keyed[second]
            steps = ((first, a, (-1, "moved")), (second, b, (a[0], "moved")), (first, (-1, "moved"), (b[0], "moved")))
            for key, old, new in steps:
                txn.update(self.keyed_table, old=self._row(key, old), new=self._row(key, new))
                self.keyed[key] = new
        tag = f"tag {self.rng.randrange(5)}"
        for _ in range(2):
            txn.insert(self.bag_table, {"tag": tag})
            self.bag.append(tag)
            self.puts[tag] += 1
        gone = self.bag.pop(self.rng.randrange(len(self.bag)))
        txn.delete(self.bag_table, {"tag": gone})
        self.takes[gone] += 1

    def _row(self, key: int, values: tuple[int, str]) -> dict[str, object]:
        added = {f"c{number + 1}": None for number in range(self.added)}
        return {"id": key, "u": values[0], "note": values[1], **added}

    def alter(self) -> None:
        self.added += 1
        self.keyed_table = self.service.alter_table(self.keyed_table, add=[Column(f"c{self.added}", Int())])


@contextlib.contextmanager
def two_pumps(directory: Path) -> Iterator[tuple[Cluster, Writer]]:
    """A cluster of its own with its writer, until the block ends."""
    with running_etcd() as etcd, contextlib.ExitStack() as stack:
        cluster = Cluster(etcd, directory)
        for name in ("p1", "p2"):
            stack.callback(cluster.add(name).server.kill)
        service = SyncService.connect(cluster.url)
        stack.callback(service.close)
        yield cluster, Writer(service)
