"""The rows that a service has, written again for destinations that lack them: what `Service.snapshot` does.

Each row is an INSERT with all its columns. Drainers write the rows of a service so that the later commit_ts wins
(rule 21: one outcome wherever a stream is cut): an INSERT replaces every row with one of its unique values, and readers
of Kafka and files get the kind of event that a first load gives them. An UPDATE would not do: whatever runs it as an
UPDATE finds no missing row. Neither would DELETE and INSERT: readers of events would see deletions that never happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sequence

from binlog.tidb.types import UNSPECIFIED

from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.errors import BadDeclaration, RowRejected, SchemaConflict
from pumpclient.sdk.rows import RowValues
from pumpclient.sdk.table import Bound, Table
from pumpclient.sdk.transaction import Transaction

Page = Sequence[RowValues]
Pages = AsyncIterable[Page] | Iterable[Page]


def check_key(bound: Bound) -> None:
    """Raise BadDeclaration if no key makes a row replace itself: a table without one would have each row twice."""
    info = bound.info
    for index in info.unique_indexes():
        whole = all(part.length == UNSPECIFIED for part in index.columns)
        if whole and (index.primary or all(column.is_not_null for column in info.index_columns(index))):
            return
    raise BadDeclaration(
        f"a snapshot of {bound.schema}.{info.name} needs a primary key, or a unique key whose columns are complete and "
        f"not nullable: by it a row replaces the one that a destination has"
    )


async def taken(pages: Pages) -> AsyncGenerator[list[RowValues]]:
    """Yield the pages. A generator is closed when this is, so that what it holds at a `yield` is released."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(pages, AsyncGenerator):
            stack.push_async_callback(pages.aclose)
        elif isinstance(pages, Generator):
            stack.callback(pages.close)
        if isinstance(pages, AsyncIterable):
            async for page in pages:
                yield list(page)
        else:
            for page in pages:
                yield list(page)


def insert(txn: Transaction, catalog: Catalog, table: Table, bound: Bound, rows: Sequence[RowValues]) -> None:
    """Insert complete rows. Raises RowRejected for a row that lacks a column, whose default would replace the value
    that a destination has; SchemaConflict if the table was altered, truncated or dropped since the handle was made."""
    name = f"{bound.schema}.{bound.info.name}"
    if catalog.good_until(bound) < catalog.version:
        raise SchemaConflict(f"{name} has changed since version {bound.version}: get the handle again")
    for row in rows:
        missing = txn.insert(table, row).keys() - row.keys()
        if missing:
            raise RowRejected(f"{name}.{min(missing)}: missing; a row of a snapshot must contain every column")
