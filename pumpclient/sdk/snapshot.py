"""The rows that a service has, written again for destinations that lack them: what `Service.snapshot` does.

Each row is an INSERT with all its columns. Drainers write the rows of a service so that the later commit_ts wins
(rule 21: one outcome wherever a stream is cut): an INSERT replaces every row with one of its unique values, and readers
of Kafka and files get the kind of event that a first load gives them. An UPDATE would not do: whatever runs it as an
UPDATE finds no missing row. Neither would DELETE and INSERT: readers of events would see deletions that never happened.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from binlog.tidb.types import UNSPECIFIED

from pumpclient.sdk.arguments import of_kind
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.errors import BadDeclaration, RowRejected, SchemaConflict
from pumpclient.sdk.rows import RowValues
from pumpclient.sdk.table import Table
from pumpclient.sdk.transaction import Transaction

if TYPE_CHECKING:
    from pumpclient.sdk.service import Service

Page = Sequence[RowValues]


def _check_key(table: Table) -> None:
    """Raise BadDeclaration if no key makes a row replace itself: a table without one would have each row twice."""
    parts = {(column.name, UNSPECIFIED) for column in table.columns if not column.is_nullable}
    keys = (table.primary_key, *(key for key in table.keys if key.unique))
    if not any(key.columns and parts.issuperset(key.columns) for key in keys):
        raise BadDeclaration(
            f"{table.name}: a snapshot needs a primary key, or a unique key of whole, NOT NULL columns"
        )


async def taken(pages: AsyncIterable[Page] | Iterable[Page]) -> AsyncGenerator[Page]:
    """Yield the pages. A generator is closed when this is, so that what it holds at a `yield` is released."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(pages, AsyncGenerator):
            stack.push_async_callback(pages.aclose)
        elif isinstance(pages, Generator):
            stack.callback(pages.close)
        if isinstance(pages, AsyncIterable):
            async for page in pages:
                yield page
        else:
            for page in pages:
                yield page


async def page_writer(service: Service, table: Table, within_s: float) -> Callable[[Page], Coroutine[Any, Any, int]]:
    """Return a function that writes one page and returns the number of its rows. Raises as Service.snapshot does."""
    _check_key(of_kind("table", table, Table))
    await service.refresh()

    async def write(page: Page) -> int:
        rows = list(page)
        fill = functools.partial(_insert, catalog=service.catalog, table=table, rows=rows)
        await service.run(fill, within_s=within_s)
        return len(rows)

    return write


def _insert(txn: Transaction, catalog: Catalog, table: Table, rows: Sequence[RowValues]) -> None:
    """Insert complete rows. Raises RowRejected for a row that lacks a column, whose default would replace the value
    that a destination has; SchemaConflict if the table was altered, truncated or dropped since the handle was made."""
    for row in rows:
        missing = txn.insert(table, row).keys() - row.keys()
        if missing:
            raise RowRejected(f"{table.name}.{min(missing)}: missing; a row of a snapshot must contain every column")
    if table.bound is not None and catalog.good_until(table.bound) < catalog.version:
        raise SchemaConflict(f"{table.name} has changed since version {table.bound.version}: get the handle again")
