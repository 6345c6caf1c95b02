"""The position of a destination that is a directory: one document, whose epoch is taken at `open` and compared before
every write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from drainer.sink.base import FirstStart, Identity, Intent, Position, TableName
from drainer.sink.document_position import POSITION, DocumentPositionStore, PositionFile
from drainer.sink.errors import DestinationRefused, PositionMoved
from drainer.sink.position import Stored, refusal

_STAGE: Final = "write"

Also = Callable[[DocumentPositionStore], None]


def nothing(store: DocumentPositionStore) -> None:
    """Record nothing else."""


class FencedDirectory:
    """Holds the directory's lock from the constructor until `close`. `notes`: data that the sink keeps with its
    position.

    The constructor takes the directory over as base.Sink.open does. `occupied`: returns a file that must not exist if
    there is no position, or None."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        initial_ts: int,
        first: FirstStart,
        occupied: Callable[[], Path | None],
    ) -> None:
        self._file = PositionFile(directory / POSITION, identity)
        try:
            missing: tuple[TableName, ...] = ()
            with self._file.transaction() as store:
                stored = store.read()
                fresh = stored is None
                if stored is None:
                    _check_empty(occupied())
                    missing = first.missing(())
                    stored = Stored(first.begin_ts(initial_ts, missing), 0, 0)
                    store.create(stored.commit_ts)
                self.epoch = store.take_epoch(stored.epoch, identity.node_id)
                self.notes: dict[str, Any] = store.document.notes
        except BaseException:
            self.close()
            raise
        self.position = Position(stored.commit_ts, stored.schema_version, stored.intent, fresh, missing=missing)
        self.commit_ts = stored.commit_ts

    def transaction(self) -> AbstractContextManager[DocumentPositionStore]:
        return self._file.transaction()

    def check(self, after_ts: int, until_ts: int) -> None:
        """Check epoch and position before anything is written, so that another drainer's files are not changed. Raises
        Fenced and PositionMoved."""
        with self.transaction() as store:
            stored = store.read()
            wanted = (self.epoch, after_ts, None)
            if stored is None or (stored.epoch, stored.commit_ts, stored.intent) != wanted:
                raise refusal(store, epoch=self.epoch, after_ts=after_ts, until_ts=until_ts)

    def record(
        self,
        notes: dict[str, Any],
        after_ts: int,
        until_ts: int,
        schema_version: int,
        also: Also = nothing,
    ) -> None:
        """Record position and notes together."""
        with self.transaction() as store:
            store.move(epoch=self.epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version)
            also(store)
            store.document.notes = notes
        self.notes, self.commit_ts = notes, until_ts

    def note(self, notes: dict[str, Any], work: Callable[[], None]) -> None:
        """Record the notes after `work`, which runs only if nobody has taken over. Raises Fenced, and what `work`
        raises."""
        with self.transaction() as store:
            store.hold(self.epoch)
            work()
            store.document.notes = notes
        self.notes = notes

    def begin(self, intent: Intent) -> None:
        """Record the intent, or continue with the open one. See base.ParallelSink."""
        with self.transaction() as store:
            stored = store.read()
            if stored is not None and stored.intent not in (None, intent):
                raise PositionMoved(
                    f"{store.label}: range {stored.intent} is open and must be finished as it was cut, not {intent}"
                )
            store.write_intent(epoch=self.epoch, intent=intent, stage=_STAGE)

    def commit(self, notes: dict[str, Any], intent: Intent, schema_version: int, work: Callable[[], None]) -> None:
        """Close the intent, and record position and notes together, after `work`, which runs only if this drainer's
        intent is open. Raises Fenced, PositionMoved, and what `work` raises."""
        with self.transaction() as store:
            store.clear_intent(epoch=self.epoch, intent=intent, schema_version=schema_version)
            work()
            store.document.notes = notes
        self.notes, self.commit_ts = notes, intent.until_ts

    def job_done(self, job_id: int) -> bool:
        with self.transaction() as store:
            return store.job(job_id) is not None

    def close(self) -> None:
        self._file.close()


def _check_empty(found: Path | None) -> None:
    """Raise DestinationRefused if there are files without a position: they must be neither truncated nor continued."""
    if found is not None:
        raise DestinationRefused(
            f"{found} exists, and {POSITION} does not: restore {POSITION}, or empty the directory and start anew"
        )
