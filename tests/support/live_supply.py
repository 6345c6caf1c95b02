"""The schema keeper for a pipeline under test, without an event loop beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from drainer.batch.served import Batch
from drainer.schema.errors import JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.keeper import SchemaKeeper
from drainer.schema.state import Schema


@dataclass
class LiveSupply:
    """drainer.apply.inline.SchemaSupply over a keeper."""

    keeper: SchemaKeeper

    @property
    def complete(self) -> bool:
        return self.keeper.complete

    @property
    def schema(self) -> Schema:
        return self.keeper.schema

    def prepare(self, batch: Batch) -> None:
        asyncio.run(self.keeper.prepare(batch))

    def missing(self, error: JobUnknown) -> bool:
        return asyncio.run(self.keeper.missing(error))

    def resolve_column(self, error: UnknownColumn) -> bool:
        return asyncio.run(self.keeper.resolve_column(error))

    def verify(self, error: TableUnverified) -> bool:
        return asyncio.run(self.keeper.verify(error))
