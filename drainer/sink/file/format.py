"""What a directory of records asks of the format of their payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from drainer.changes.change_segment import ChangeSegment
from drainer.schema.steps import Ddl

Put = Callable[[Iterable[bytes], int], None]  # the parts of one payload, and how many bytes they have


class RecordWriter(Protocol):
    """What is applied in one step, as records."""

    def add(self, segment: ChangeSegment) -> None:
        """Segments follow one another in upstream's order; a large transaction may be in several."""
        ...

    def finish(self) -> None:
        """Nothing more comes: what is held back is given."""
        ...

    def abandon(self) -> None:
        """What was given is not wanted, nor what is held back. May follow `finish`."""
        ...


class FileFormat(Protocol):
    """One kind of payload, and what becomes of complete files."""

    @property
    def stored_generated(self) -> bool:
        """As of base.ChangeSink."""
        ...

    def records_directory(self, directory: Path) -> Path:
        """Where files of records lie, under the destination's directory."""
        ...

    def writer(self, scratch: Path, put: Put) -> RecordWriter:
        """`scratch`: a directory for temporary files without names."""
        ...

    def ddl(self, step: Ddl) -> list[bytes]:
        """Payloads."""
        ...

    def complete(self, directory: Path, file: Path, stopped: Callable[[], bool]) -> None:
        """Done once with each file that nothing is appended to any more; may be cut short anywhere and is then done
        again. `stopped`: whether the drainer is ending, and it should rather be done another time. Raises OSError."""
        ...

    def kept(self, directory: Path) -> Iterable[Path]:
        """Files that the retention time is of."""
        ...
