"""Changes in TiDB-Binlog's file format: one record for each transaction and each DDL, in commit order."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import tzinfo
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Final

import numpy as np
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory

from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes
from drainer.protocol.errors import MessageError
from drainer.protocol.pb_file import (
    PAYLOAD_BYTES_MAX,
    EventEncoder,
    RecordDamaged,
    compressed_name,
    ddl_binlog,
    ddl_text,
    decode,
    dml_head,
    parse_name,
    records,
)
from drainer.schema.steps import Ddl
from drainer.sink.errors import DestinationRefused
from drainer.sink.file.files import Add, Put, RecordFiles, put_record

# The most bytes of a transaction's events that are held in memory; the others are in a temporary file.
HELD_BYTES_MAX: Final = 64 << 20
_STEP: Final = 1 << 20
_TEMPORARY: Final = ".tmp"


class PbFormat(RecordFiles):
    """See files.FileFormat. `zone`: in which TIMESTAMPs are shown. Stored generated columns are left out: upstream's
    inserts and deletes have them, its updates do not (`D-TR-02`), and its reparo ignores them."""

    def __init__(self, zone: tzinfo, *, compresses: bool = False, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._zone = zone
        self._compresses = compresses
        self._held_bytes_max = held_bytes_max

    @contextmanager
    def writer(self, scratch: Path, put: Put) -> Iterator[Add]:
        writer = TransactionWriter(scratch, put, self._zone, self._held_bytes_max)
        try:
            yield writer.add
            writer.finish()
        finally:
            writer.abandon()

    def ddl(self, step: Ddl, place: int, put: Put) -> None:
        """Write the statements that would run downstream. If there are none, write upstream's text, unless an
        operator's rule removed the statements."""
        statements = step.sql if step.sql or step.rewritten else (step.query,)
        schema = step.use or step.schema
        for text in statements:
            payload = ddl_binlog(step.commit_ts, ddl_text(schema, text, step.job.type))
            put_record(put, (payload,), len(payload))

    def complete(self, directory: Path, file: Path, stopped: Callable[[], bool]) -> None:
        if not self._compresses:
            return
        name = parse_name(file.name)
        if name is None or name.is_compressed:
            return
        packed = file.with_name(compressed_name(file.name, _first_ts(file)))
        beside = packed.with_name(packed.name + _TEMPORARY)
        if not _compress(file, beside, stopped):
            return
        crash_point("file.compressed")
        beside.rename(packed)
        sync_directory(directory)
        crash_point("file.compressed_renamed")
        file.unlink()

    def kept(self, directory: Path) -> Iterable[Path]:
        return [path for path in sorted(directory.iterdir()) if parse_name(path.name) is not None]


def _first_ts(file: Path) -> int:
    """Return the commit_ts of a file's first record; 0 if it cannot be read, an error that reading the complete file
    reports."""
    with suppress(RecordDamaged, MessageError):
        for one in records(file):
            return decode(one.payload).commit_ts
    return 0


def _compress(file: Path, into: Path, stopped: Callable[[], bool]) -> bool:
    """Compress and sync a file, with the original's modification time. Return False, and leave no file, if stopped."""
    with file.open("rb") as source, into.open("wb") as raw:
        with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
            while data := source.read(_STEP):
                if stopped():
                    break
                packed.write(data)
        raw.flush()
        os.fsync(raw.fileno())
    if stopped():
        into.unlink()
        return False
    shutil.copystat(file, into)
    return True


class TransactionWriter:
    """A transaction is written when the next one begins, so that a transaction in several
    segments becomes one record."""

    def __init__(self, scratch: Path, put: Put, zone: tzinfo, held_bytes_max: int) -> None:
        self._scratch = scratch
        self._put = put
        self._zone = zone
        self._held_bytes_max = held_bytes_max
        self._which: tuple[int, int] | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._spilled: IO[bytes] | None = None
        self._spilled_bytes = 0

    def add(self, segment: ChangeSegment) -> None:
        for which, events in transactions(segment, self._zone):
            if which != self._which or which[0] == which[1]:  # rows of a first load are no transaction
                self.finish()
                self._which = which
            self._held += events
            self._held_bytes += sum(map(len, events))
            if self._held_bytes > self._held_bytes_max:
                self._spill()

    def finish(self) -> None:
        """Write the data that is held back."""
        if self._which is None:
            return
        length = self._spilled_bytes + self._held_bytes
        before = dml_head(self._which[0], length)
        if len(before) + length > PAYLOAD_BYTES_MAX:
            raise DestinationRefused(
                f"the transaction of commit_ts {self._which[0]} has {length:,} bytes of rows, and a record of a file "
                f"holds at most {PAYLOAD_BYTES_MAX:,}: put {self._which[0]} into syncer.ignore-txn-commit-ts"
            )
        parts = chain((before,), self._spilled_parts(), self._held)
        put_record(self._put, parts, len(before) + length)
        self.abandon()

    def abandon(self) -> None:
        """Discard the data that is held back. May be called after `finish`."""
        if self._spilled is not None:
            with suppress(OSError):  # data that a full disk did not accept is not needed
                self._spilled.close()
        self._which, self._held, self._held_bytes, self._spilled, self._spilled_bytes = None, [], 0, None, 0

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115  open until `abandon`
        self._spilled.writelines(self._held)
        self._spilled_bytes += self._held_bytes
        self._held, self._held_bytes = [], 0

    def _spilled_parts(self) -> Iterator[bytes]:
        if self._spilled is not None:
            self._spilled.seek(0)
            while data := self._spilled.read(_STEP):
                yield data


def transactions(segment: ChangeSegment, zone: tzinfo) -> Iterator[tuple[tuple[int, int], list[bytes]]]:
    """Yield (commit_ts, start_ts) of each transaction of a segment, with its events, in upstream's order.

    Raises EncodeError."""
    if not segment.changes:
        return
    events = [event for changes in segment.changes for event in _events(changes, zone)]
    by_order = np.argsort(np.concatenate([changes.order for changes in segment.changes]), kind="stable")
    commit_ts = np.concatenate([changes.commit_ts for changes in segment.changes])[by_order]
    start_ts = np.concatenate([changes.start_ts for changes in segment.changes])[by_order]
    another = (commit_ts[1:] != commit_ts[:-1]) | (start_ts[1:] != start_ts[:-1])
    edges = [0, *(np.flatnonzero(another) + 1).tolist(), len(events)]
    indexes = by_order.tolist()
    for begin, end in pairwise(edges):
        which = int(commit_ts[begin]), int(start_ts[begin])
        yield which, [events[index] for index in indexes[begin:end]]


def _events(changes: Changes, zone: tzinfo) -> list[bytes]:
    shape = changes.shape
    encoder = EventEncoder(shape.schema, shape.table, list(zip(shape.columns, changes.column_types, strict=True)), zone)
    return encoder.encode(changes.kind, changes.commit_ts, changes.old, changes.new)
