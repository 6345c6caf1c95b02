"""The position of a destination that is a directory: one document, whose epoch is taken at `open` and compared before
every write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from drainer.sink.base import FirstStart, Identity, Position, TableName
from drainer.sink.document_position import POSITION, DocumentPositionStore, PositionFile
from drainer.sink.errors import DestinationRefused
from drainer.sink.position import Stored, refusal


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
                self._epoch = store.take_epoch(stored.epoch, identity.node_id)
                self.notes: dict[str, Any] = store.document.notes
        except BaseException:
            self.close()
            raise
        self.position = Position(stored.commit_ts, stored.schema_version, stored.intent, fresh, missing=missing)
        self.commit_ts = stored.commit_ts

    def check(self, after_ts: int, until_ts: int) -> None:
        """Check epoch and position before anything is written, so that another drainer's files are not changed. Raises
        Fenced and PositionMoved."""
        with self._file.transaction() as store:
            stored = store.read()
            wanted = (self._epoch, after_ts, None)
            if stored is None or (stored.epoch, stored.commit_ts, stored.intent) != wanted:
                raise refusal(store, epoch=self._epoch, after_ts=after_ts, until_ts=until_ts)

    def record(
        self,
        notes: dict[str, Any],
        after_ts: int,
        until_ts: int,
        schema_version: int,
        also: Callable[[DocumentPositionStore], None] = lambda store: None,
    ) -> None:
        """Record position and notes together."""
        with self._file.transaction() as store:
            store.move(epoch=self._epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version)
            also(store)
            store.document.notes = notes
        self.notes, self.commit_ts = notes, until_ts

    def job_done(self, job_id: int) -> bool:
        with self._file.transaction() as store:
            return store.job(job_id) is not None

    def close(self) -> None:
        self._file.close()


def _check_empty(found: Path | None) -> None:
    """Raise DestinationRefused if there are files without a position: they must be neither truncated nor continued."""
    if found is not None:
        raise DestinationRefused(
            f"{found} exists, and {POSITION} does not: restore {POSITION}, or empty the directory and start anew"
        )
