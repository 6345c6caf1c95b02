"""Gives the pipeline's thread access to the SchemaProvider, which reads its sources on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from drainer.batch.served import Batch
from drainer.schema.errors import JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.provider import SchemaProvider
from drainer.schema.state import Schema

T = TypeVar("T")


class LoopSchemaProvider:
    """Implements drainer.apply.in_driver.BlockingSchemaProvider. Every call blocks until the event loop has finished
    it."""

    def __init__(self, provider: SchemaProvider, loop: asyncio.AbstractEventLoop) -> None:
        self._provider = provider
        self._loop = loop

    @property
    def schema(self) -> Schema:
        return self._provider.schema

    @property
    def complete(self) -> bool:
        return self._provider.complete

    def prepare(self, batch: Batch) -> None:
        known = self._provider.schema
        unknown = any(known.job(job_id) is None for job_id in batch.ddl_texts)
        if unknown or batch.greatest_version > known.settled_version:
            self._wait(self._provider.prepare(batch))

    def missing(self, error: JobUnknown) -> bool:
        return self._wait(self._provider.missing(error))

    def resolve_column(self, error: UnknownColumn) -> bool:
        return self._wait(self._provider.resolve_column(error))

    def verify(self, error: TableUnverified) -> bool:
        return self._wait(self._provider.verify(error))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
