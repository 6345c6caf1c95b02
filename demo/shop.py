"""A small shop that embeds the SDK: it writes transactions and remembers what it wrote.

The SDK is a writer, not a database: it reads no rows and takes no locks. Therefore the shop itself locks the rows that
a transaction changes, while the transaction is open. This makes the order of commits per row known.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from binlog.tidb.types import Tp

from demo.model import RowDict, TableModel
from pumpclient.sdk import (
    JSON,
    BigInt,
    Column,
    Date,
    DateTime,
    Enum,
    Int,
    NumericType,
    Service,
    Table,
    Timestamp,
    Transaction,
    VarChar,
)

SCHEMA = "shop"
STATUSES = ("new", "paid", "shipped")
METHODS = ("card", "cash", "transfer")


def tables() -> list[Table]:
    """The shop's tables: unique keys, a composite key, and one table without any key."""
    return [
        Table(
            "customers",
            Column("id", BigInt(), primary_key=True),
            Column("email", VarChar(120), nullable=False),
            Column("name", VarChar(80)),
            Column("born", Date()),
            unique={"by_email": ["email"]},
        ),
        Table(
            "products",
            Column("id", BigInt(), primary_key=True),
            Column("shelf", Int(), nullable=False),
            Column("name", VarChar(80), nullable=False),
            Column("price", NumericType(10, 2), nullable=False),
            Column("stock", Int(unsigned=True), nullable=False),
            unique={"by_shelf": ["shelf"]},
        ),
        Table(
            "orders",
            Column("id", BigInt(), primary_key=True),
            Column("customer", BigInt(), nullable=False),
            Column("status", Enum(*STATUSES), nullable=False),
            Column("placed", DateTime(6), nullable=False),
            Column("total", NumericType(12, 2), nullable=False),
        ),
        Table(
            "order_lines",
            Column("order_id", BigInt(), primary_key=True),
            Column("line", Int(), primary_key=True),
            Column("product", BigInt(), nullable=False),
            Column("quantity", Int(), nullable=False),
            Column("price", NumericType(10, 2), nullable=False),
        ),
        Table(
            "payments",
            Column("id", BigInt(), primary_key=True),
            Column("order_id", BigInt(), nullable=False),
            Column("method", Enum(*METHODS), nullable=False),
            Column("amount", NumericType(12, 2), nullable=False),
            Column("paid_at", Timestamp(), nullable=False),
            unique={"by_order": ["order_id"]},
        ),
        Table("events", Column("at", DateTime(3)), Column("kind", VarChar(20)), Column("detail", JSON())),
    ]


@dataclass
class Counts:
    """The numbers of operations committed so far."""

    transactions: int = 0
    rows: int = 0
    last_commit_ts: int = 0
    by_action: dict[str, int] = field(default_factory=dict)

    def told(self) -> str:
        """Return the counts in one line."""
        actions = ", ".join(f"{name} {count:,}" for name, count in sorted(self.by_action.items()))
        return f"{self.transactions:,} transactions, {self.rows:,} row changes: {actions}"


class Shop:
    """Writes while `open`. `models`: the content that the destination must have at the end.

    There is one table handle per name. An ALTER TABLE replaces the handle; open transactions keep the old one.
    """

    def __init__(self, service: Service, rng: random.Random) -> None:
        self._service = service
        self._rng = rng
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._schema_gate = asyncio.Lock()
        self._next_id = 0
        self._handles: dict[str, Table] = {}
        self.models: dict[str, TableModel] = {}
        self.counts = Counts()

    async def create(self, products: int) -> None:
        await self._service.create_database(SCHEMA)
        for table in tables():
            handle = await self._service.create_table(SCHEMA, table)
            self._handles[table.name] = handle
            columns = [column.name for column in table.columns]
            key = tuple(c.name for c in table.columns if c.primary_key)
            fsp = {c.name: c.type.decimal for c in table.columns if c.type.tp in (Tp.DATETIME, Tp.TIMESTAMP)}
            enums: dict[str, Sequence[str]] = {c.name: c.type.elems for c in table.columns if c.type.tp is Tp.ENUM}
            self.models[table.name] = TableModel(table.name, columns, key, fsp, enums)
        for shelf in range(products):
            row: RowDict = {
                "id": self._id(),
                "shelf": shelf,
                "name": f"product {shelf} \N{SNOWMAN}",
                "price": Decimal(self._rng.randint(100, 99_999)).scaleb(-2),
                "stock": 1_000_000,
            }
            async with self._writing("products") as write:
                write.insert("products", row)

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    @contextlib.asynccontextmanager
    async def _locked(self, keys: Iterable[tuple[str, int]]) -> AsyncIterator[None]:
        """Hold these rows' locks. They are taken in one global order, so that writers never deadlock."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    @contextlib.asynccontextmanager
    async def _writing(self, action: str) -> AsyncIterator[_Write]:
        """Open one transaction. The models change only once it has committed."""
        async with self._service.transaction() as txn:
            write = _Write(txn, dict(self._handles))
            yield write
        write.remember(self.models)
        self.counts.transactions += 1
        self.counts.rows += len(write.steps)
        self.counts.last_commit_ts = max(self.counts.last_commit_ts, txn.commit_ts or 0)
        self.counts.by_action[action] = self.counts.by_action.get(action, 0) + 1

    # --- what happens in a shop -----------------------------------------------------------------------------

    async def register(self) -> None:
        number = self._id()
        born = datetime(1950, 1, 1, tzinfo=UTC) + timedelta(days=self._rng.randint(0, 20_000))
        row: RowDict = {
            "id": number,
            "email": f"c{number}@example.com",
            "name": None if number % 17 == 0 else f"O'Customer \\{number}",
            "born": born.date(),
        }
        async with self._writing("register") as write:
            write.insert("customers", row)

    async def place_order(self) -> None:
        """Write an order, its lines, the stock and an event, in one transaction over four tables."""
        customers = list(self.models["customers"].rows.values())
        if not customers:
            return
        order_id, now = self._id(), datetime.now(UTC).replace(tzinfo=None)
        ids = self._rng.sample(list(self.models["products"].rows), self._rng.randint(1, 4))
        async with self._locked(("products", int(str(i[0]))) for i in ids), self._writing("order") as write:
            total = Decimal("0.00")
            for line, identity in enumerate(ids, 1):
                product = self.models["products"].rows[identity]
                quantity, price = self._rng.randint(1, 5), product["price"]
                assert isinstance(price, Decimal)
                total += quantity * price
                write.insert(
                    "order_lines",
                    {
                        "order_id": order_id,
                        "line": line,
                        "product": product["id"],
                        "quantity": quantity,
                        "price": price,
                    },
                )
                stock = product["stock"]
                assert isinstance(stock, int)
                write.update("products", product, {**product, "stock": stock - quantity})
            order: RowDict = {
                "id": order_id,
                "customer": self._rng.choice(customers)["id"],
                "status": "new",
                "placed": now,
                "total": total,
            }
            if "note" in self.models["orders"].columns and write.knows("orders", "note"):
                order["note"] = self._rng.choice([None, "gift", "leave at the door"])
            write.insert("orders", order)
            write.insert("events", _event(now, "order", order_id))

    @contextlib.asynccontextmanager
    async def _unpaid_order(self) -> AsyncIterator[tuple[int, RowDict | None]]:
        """Return the number and row of an order in state `new`, with its lock held; None if there is none."""
        order = self._pick("orders", "new")
        if order is None:
            yield 0, None
            return
        number = int(str(order["id"]))
        async with self._locked([("orders", number)]):
            current = self.models["orders"].rows.get((number,))
            yield number, current if current is not None and current["status"] == "new" else None

    async def pay(self) -> None:
        """Write a payment and the order's new status, in one transaction."""
        async with self._unpaid_order() as (number, current):
            if current is None:
                return
            now = datetime.now(UTC).replace(microsecond=0)
            async with self._writing("pay") as write:
                write.insert(
                    "payments",
                    {
                        "id": self._id(),
                        "order_id": number,
                        "method": self._rng.choice(METHODS),
                        "amount": current["total"],
                        "paid_at": now,
                    },
                )
                write.update("orders", current, {**current, "status": "paid"})

    async def cancel(self) -> None:
        """Delete an unpaid order and its lines."""
        async with self._unpaid_order() as (number, current):
            if current is None:
                return
            async with self._writing("cancel") as write:
                for row in [r for k, r in self.models["order_lines"].rows.items() if k[0] == number]:
                    write.delete("order_lines", row)
                write.delete("orders", current)

    async def swap_shelves(self) -> None:
        """Swap the unique shelves of two products in one transaction: any order of single-row changes would have a
        conflict.
        """
        a, b = self._rng.sample([int(str(k[0])) for k in self.models["products"].rows], 2)
        async with self._locked([("products", a), ("products", b)]), self._writing("swap") as write:
            first, second = self.models["products"].rows[(a,)], self.models["products"].rows[(b,)]
            write.update("products", first, {**first, "shelf": -1})
            write.update("products", second, {**second, "shelf": first["shelf"]})
            write.update("products", {**first, "shelf": -1}, {**first, "shelf": second["shelf"]})

    async def log_visit(self) -> None:
        """Insert rows, equal ones among them, into the table without a key, and delete one of them now and then."""
        at = datetime(2026, 1, 1) + timedelta(milliseconds=self._rng.randint(0, 50))
        async with self._locked([("events", 0)]), self._writing("visit") as write:
            for _ in range(self._rng.randint(1, 3)):
                write.insert("events", _event(at, "visit", 0))
            loose = [row for row in self.models["events"].loose if row["kind"] == "visit"]
            if len(loose) > 40:
                write.delete("events", self._rng.choice(loose))

    async def add_note_column(self, default: str | None = "none") -> None:
        """Run an ALTER TABLE while orders continue. Existing rows read `default`."""
        column = Column("note", VarChar(40)) if default is None else Column("note", VarChar(40), default=default)
        async with self._schema_gate:
            self._handles["orders"] = await self._service.alter_table(self._handles["orders"], add=[column])
            self.models["orders"].add_column("note", default)

    def _pick(self, table: str, status: str) -> RowDict | None:
        rows = [row for row in self.models[table].rows.values() if row["status"] == status]
        return self._rng.choice(rows) if rows else None


def _event(at: datetime, kind: str, number: int) -> RowDict:
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    return {"at": at, "kind": kind, "detail": {"id": number, "tags": ["demo", None]}}


class _Write:
    """One open transaction: passes each step to the SDK and keeps it for the models."""

    def __init__(self, txn: Transaction, handles: dict[str, Table]) -> None:
        self._txn = txn
        self._handles = handles
        self.steps: list[tuple[str, str, RowDict, RowDict | None]] = []

    def knows(self, table: str, column: str) -> bool:
        return any(c.name == column for c in self._handles[table].columns)

    def insert(self, table: str, row: RowDict) -> None:
        self._txn.insert(self._handles[table], self._known(table, row))
        self.steps.append(("insert", table, row, None))

    def update(self, table: str, old: RowDict, new: RowDict) -> None:
        self._txn.update(self._handles[table], old=self._known(table, old), new=self._known(table, new))
        self.steps.append(("update", table, old, new))

    def delete(self, table: str, row: RowDict) -> None:
        self._txn.delete(self._handles[table], self._known(table, row))
        self.steps.append(("delete", table, row, None))

    def _known(self, table: str, row: RowDict) -> RowDict:
        """Return the row as this transaction's schema has it: a transaction opened before an ALTER does not know its
        column.
        """
        names = {c.name for c in self._handles[table].columns}
        return {name: value for name, value in row.items() if name in names}

    def remember(self, models: dict[str, TableModel]) -> None:
        for kind, table, row, new in self.steps:
            model = models[table]
            if kind == "insert":
                model.insert(dict(row))
            elif kind == "delete":
                model.delete(row)
            else:
                assert new is not None
                model.update(row, dict(new))
