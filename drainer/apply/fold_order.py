"""What a reading task may do beside pulling: fold the rows and cut them into slots. Values that travel to executors."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainer.row.format import Format
from drainer.schema.view import SchemaView

if TYPE_CHECKING:
    from drainer.changes.segment import SegmentBuilder


@dataclass(frozen=True, slots=True)
class PackedView:
    """A schema view pickled once for all tasks. `token` names it, so that a worker which has met it before neither
    unpickles it nor makes its decoders anew."""

    token: str
    pickled: bytes

    @classmethod
    def of(cls, view: SchemaView) -> PackedView:
        return cls(uuid.uuid4().hex, pickle.dumps(view, pickle.HIGHEST_PROTOCOL))


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """Decode with `view` for a destination that writes rows in `format`, fold, and cut into `slots`. `ahead`: ids of
    tables that slots get no rows of, for these go ahead. `examined`: behind the slots come as many with claims, and one
    with the rows that go ahead; all of it is looked at before anything is applied (rule 21)."""

    view: PackedView
    format: Format
    slots: int
    ahead: frozenset[int] = frozenset()
    examined: bool = False

    @property
    def blobs(self) -> int:
        """How many a part gives."""
        return 2 * self.slots + 1 if self.examined else self.slots

    def cut(self, builder: SegmentBuilder) -> dict[int, bytes]:
        """The blobs of what was added, by slot, none for those that get nothing."""
        parts = builder.parts(self.slots, goes_ahead=self.ahead.__contains__)
        if not self.examined:
            return parts.slots
        claims = {self.slots + slot: blob for slot, blob in parts.claims.items()}
        return {**parts.slots, **claims, **({2 * self.slots: parts.ahead} if parts.ahead else {})}
