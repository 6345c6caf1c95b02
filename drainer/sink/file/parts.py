"""Parts: files of their own in which executors write the lines of a batch. The driver commits those that the receipts
name, and they get a file's name; all others are removed."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import sync_directory
from binlog.runtime.log import get_logger

from drainer.changes.change_segment import ChangeSegment
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.file.files import of_disk
from drainer.sink.file.lines import lines_in_order

_SUFFIX: Final = ".part"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LineSlotWriter:
    """See base.SlotWriter. Every attempt has its own file names, so that attempts, also of an older driver, do not
    conflict. A receipt's `detail`: the parts and their lengths."""

    directory: Path
    epoch: int
    intent: Intent
    rotate_bytes: int

    @property
    def stem(self) -> str:
        """Return the text that is in the names of all parts of this batch by this driver."""
        return f"{self.intent.until_ts}-{self.epoch}"

    def write(self, slot: int, segment: ChangeSegment, retry_for_s: float = math.inf) -> Receipt:
        parts = write_parts(self.directory, f"{slot:03d}-{self.stem}", lines_in_order(segment), self.rotate_bytes)
        return Receipt(slot, segment.change_count, len(parts), 0, json.dumps(parts))


def write_parts(directory: Path, stem: str, lines: Iterable[bytes], rotate_bytes: int) -> list[tuple[str, int]]:
    """Write lines as synced parts with unique names; returns (name, length) of each. If the disk refuses one, all are
    removed, so that further attempts do not fill the disk. Raises DestinationDown."""
    found: list[tuple[str, int]] = []
    begun: list[Path] = []
    try:
        for data in _cut(lines, rotate_bytes):
            name = f"{stem}-{len(found)}-{uuid.uuid4().hex}{_SUFFIX}"
            begun.append(directory / name)
            with begun[-1].open("xb") as file:
                file.write(data)
                crash_point("file.part_written")
                file.flush()
                os.fsync(file.fileno())
            found.append((name, len(data)))
        sync_directory(directory)
    except OSError as error:
        _remove(begun)
        raise DestinationDown(f"{directory}: {error}") from error
    return found


def _cut(lines: Iterable[bytes], rotate_bytes: int) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= rotate_bytes:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def check_part(directory: Path, name: str, length: int) -> None:
    """Raises DestinationRefused if the driver does not see a part with its written length."""
    try:
        found = (directory / name).stat().st_size
    except OSError as error:
        raise DestinationRefused(
            f"{directory / name}, which an executor has written, is not there ({error.strerror}): all executors and "
            f"the driver must see one directory under this path; or set distributed = false in [syncer]"
        ) from error
    if found != length:
        raise DestinationRefused(f"{directory / name} has {found} bytes, and an executor has written {length}")


def rename_parts(directory: Path, renames: Sequence[tuple[str, str]]) -> None:
    """May be repeated. Raises DestinationRefused if neither a part nor its file exists."""
    if not renames:
        return
    with of_disk(directory):
        for part, name in renames:
            try:
                (directory / part).rename(directory / name)
            except FileNotFoundError as error:
                if not (directory / name).exists():
                    raise DestinationRefused(
                        f"{directory / name} is committed, and neither it nor {part} is there: restore it, or empty "
                        f"the directory and start anew"
                    ) from error
            crash_point("file.renamed")
        sync_directory(directory)


def remove_parts(directory: Path, stem: str = "*-*") -> None:
    """Remove the parts of other attempts of a committed batch, by default of all batches."""
    _remove(directory.glob(f"[0-9][0-9][0-9]-{stem}-*{_SUFFIX}"))


def _remove(parts: Iterable[Path]) -> None:
    """Remove parts; an error is only logged, because the parts do no harm and the next start tries again."""
    try:
        for path in parts:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove a file that was not committed; the next start tries again", error=str(error))
