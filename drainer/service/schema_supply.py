"""Gives the pipeline's thread access to the SchemaKeeper, which reads its sources on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from drainer.batch.served import Batch
from drainer.schema.errors import JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.keeper import SchemaKeeper
from drainer.schema.state import Schema

T = TypeVar("T")


class Supply:
    """Implements drainer.pipeline.SchemaSupply. Every call blocks until the event loop has finished it."""

    def __init__(self, keeper: SchemaKeeper, loop: asyncio.AbstractEventLoop) -> None:
        self._keeper = keeper
        self._loop = loop

    @property
    def schema(self) -> Schema:
        return self._keeper.schema

    @property
    def complete(self) -> bool:
        return self._keeper.complete

    def prepare(self, batch: Batch) -> None:
        known = self._keeper.schema
        unknown = any(known.job(job_id) is None for job_id in batch.ddl_texts)
        if unknown or batch.greatest_version > known.settled_version:
            self._wait(self._keeper.prepare(batch))

    def missing(self, error: JobUnknown) -> bool:
        return self._wait(self._keeper.missing(error))

    def resolve_column(self, error: UnknownColumn) -> bool:
        return self._wait(self._keeper.resolve_column(error))

    def verify(self, error: TableUnverified) -> bool:
        return self._wait(self._keeper.verify(error))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
