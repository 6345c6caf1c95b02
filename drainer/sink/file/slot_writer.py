"""Writes one slot's lines in an executor to separate files, which are valid after the driver has committed them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from drainer.changes.change_segment import ChangeSegment
from drainer.sink.base import Intent, Receipt
from drainer.sink.file.lines import lines_in_order
from drainer.sink.file.parts import write_parts


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

    def write(self, slot: int, segment: ChangeSegment) -> Receipt:
        parts = write_parts(self.directory, f"{slot:03d}-{self.stem}", lines_in_order(segment), self.rotate_bytes)
        return Receipt(slot, segment.change_count, len(parts), 0, json.dumps(parts))
