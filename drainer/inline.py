"""The inline way: a batch in the driver, its DDLs in their places, each segment of rows in one transaction."""

from __future__ import annotations

import threading
from typing import Protocol

from binlog.crashpoint import crash_point
from binlog.log import get_logger

from drainer.batch import Batch, read_batch
from drainer.coordinator import Plan
from drainer.feed import Feed, binlogs
from drainer.order.fold import FoldBuilder
from drainer.progress import Progress, Wait
from drainer.row.decode import Decoder
from drainer.schema.errors import ColumnGoing, JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.schema import Schema
from drainer.schema.view import SchemaView
from drainer.segment import walk
from drainer.sink.errors import UniqueConflict
from drainer.sink.protocol import Destination
from drainer.step import Ddl, Fence, Rows, Step

_log = get_logger(__name__)


class SchemaSupply(Protocol):
    """The schema keeper as a synchronous caller sees it (drainer.schema.keeper.SchemaKeeper)."""

    @property
    def schema(self) -> Schema: ...

    @property
    def complete(self) -> bool: ...

    def prepare(self, batch: Batch) -> None: ...

    def missing(self, error: JobUnknown) -> bool: ...

    def judge(self, error: UnknownColumn) -> bool: ...

    def verify(self, error: TableUnverified) -> bool: ...


class Inline:
    """Applies one batch after another from the driver. Errors that a schema read again can mend are waited out."""

    def __init__(
        self, destination: Destination, supply: SchemaSupply, progress: Progress, stop: threading.Event
    ) -> None:
        self._destination = destination
        self._supply = supply
        self._progress = progress
        self._stop = stop
        self._decoder: Decoder | None = None

    def run(self, plan: Plan, feed: Feed) -> None:
        """Apply the whole batch, or raise; what was applied before stays, and the position says how far."""
        merged = [binlog for pump, message in feed.messages() for binlog in binlogs(pump, message)]
        batch = read_batch(merged, after_ts=plan.after_ts, until_ts=plan.until_ts)
        self._progress.duplicates += batch.duplicates
        wait = Wait(self._stop, self._progress)
        while True:
            batch = batch.after(self._progress.position_ts)
            self._supply.prepare(batch)
            try:
                for step in walk(batch, self._supply.schema, job_done=self._destination.job_done):
                    self._apply(step)
            except JobUnknown as error:
                wait.unless(self._supply.missing(error), error)
            except UnknownColumn as error:
                wait.unless(self._supply.judge(error), error)
            except TableUnverified as error:
                wait.unless(self._supply.verify(error), error)
            except ColumnGoing as error:
                job = self._supply.schema.dropper(error.table_id, error.column_id)
                if job is None:
                    raise
                self._supply.schema.bring_forward(job, error.schema_version)
            except UniqueConflict as error:
                wait.unless(self._drop_first(error, batch.after(self._progress.position_ts)), error)
            else:
                wait.over()
                return

    def _drop_first(self, error: UniqueConflict, rest: Batch) -> bool:
        """Upstream is dropping the key that refuses rows of `rest`: that job runs before them (rule 12). False: it may
        be a job that is running, which no source shows yet. Raises the error where no job drops the key."""
        place = {"schema": error.schema, "table": error.table, "key": error.key}
        schema = self._supply.schema
        job = schema.job_that_drops(**place)
        if job is None:
            unknown = JobUnknown(job_id=None, version=None, commit_ts=rest.until_ts, final_ts=rest.after_ts)
            job = schema.job_that_drops(**place) if self._supply.missing(unknown) else None
        if job is None:
            if not self._supply.complete and rest.greatest_version > schema.view().known_version:
                return False
            raise error
        _log.warning("a unique key is dropped before its DDL's place", job_id=job.id, why=str(error))
        first = min(item.schema_version for item in rest.items if item.ddl is None)
        schema.bring_forward(job, first)
        return True

    def _apply(self, step: Step) -> None:
        version = self._supply.schema.applied_version
        match step:
            case Rows():
                builder = FoldBuilder(self._decoder_for(step.view))
                builder.add_all(binlog.payload for binlog in step.binlogs)
                work = builder.finish(step.after_ts, step.until_ts)
                self._destination.apply(work, version)
                self._progress.rows += work.change_count
                self._progress.position_ts = step.until_ts
                crash_point("drainer.after_apply")
            case Ddl():
                self._destination.ddl(step, may_exist=step.may_exist)
                self._progress.ddls += 1
                self._progress.last_ddl = step.query[:200]
                self._progress.position_ts = step.commit_ts
                _log.info("DDL applied", query=step.query[:500], job_id=step.job.id, commit_ts=step.commit_ts)
                crash_point("drainer.after_ddl")
            case Fence():
                self._destination.advance(step.until_ts, version)
                self._progress.position_ts = step.until_ts

    def _decoder_for(self, view: SchemaView) -> Decoder:
        """A schema gives the same view until it changes, and a decoder's codecs are worth keeping."""
        if self._decoder is None or self._decoder.view is not view:
            self._decoder = Decoder(view, self._destination.dialect)
        return self._decoder
