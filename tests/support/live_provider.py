"""The schema provider for a pipeline under test, without an event loop beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from drainer.batch.served import Batch
from drainer.schema.errors import JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.provider import SchemaProvider
from drainer.schema.state import Schema


@dataclass
class LiveProvider:
    """A drainer.schema.provider.LoopSchemaProvider over a SchemaProvider."""

    provider: SchemaProvider

    @property
    def complete(self) -> bool:
        return self.provider.complete

    @property
    def schema(self) -> Schema:
        return self.provider.schema

    def prepare(self, batch: Batch) -> None:
        asyncio.run(self.provider.prepare(batch))

    def missing(self, error: JobUnknown) -> bool:
        return asyncio.run(self.provider.missing(error))

    def resolve_column(self, error: UnknownColumn) -> bool:
        return asyncio.run(self.provider.resolve_column(error))

    def verify(self, error: TableUnverified) -> bool:
        return asyncio.run(self.provider.verify(error))
