"""The interface of the formats of record payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from drainer.changes.change_segment import ChangeSegment
from drainer.schema.steps import Ddl

Put = Callable[[Iterable[bytes], int], None]  # the parts of one payload, and how many bytes they have


class RecordWriter(Protocol):
    """Turns the changes of one step into records."""

    def add(self, segment: ChangeSegment) -> None:
        """Write the changes of a segment. Segments are passed in upstream's order; a large transaction may be in
        several."""
        ...

    def finish(self) -> None:
        """Write the data that is held back. Called after the last segment."""
        ...

    def abandon(self) -> None:
        """Discard the data that is held back; what was written is discarded, too. May be called after `finish`."""
        ...


class FileFormat(Protocol):
    """One kind of payload, and what is done with complete files."""

    @property
    def stored_generated(self) -> bool:
        """See base.ChangeSink."""
        ...

    def records_directory(self, directory: Path) -> Path:
        """Return the directory of record files, under the destination's directory."""
        ...

    def writer(self, scratch: Path, put: Put) -> RecordWriter:
        """Return a writer that passes payloads to `put`. `scratch`: a directory for unnamed temporary files."""
        ...

    def ddl(self, step: Ddl) -> list[bytes]:
        """Return the payloads of a DDL."""
        ...

    def complete(self, directory: Path, file: Path, stopped: Callable[[], bool]) -> None:
        """Convert or compress a complete file. Called once for each file, and again if it was interrupted at any point.
        `stopped`: returns True if the drainer is ending, and the work should be left for the next start. Raises
        OSError."""
        ...

    def kept(self, directory: Path) -> Iterable[Path]:
        """Return the files that are removed after the retention time."""
        ...
