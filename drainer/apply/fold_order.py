"""How reading tasks decode rows and divide them into slots; picklable values for executors. A sink needs net rows
(FoldOrder) or every change (ChangesOrder).
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from drainer.batch.work import SegmentWork
from drainer.changes.change_segment import ChangeSegment
from drainer.order.slot import GROUPS_VERSION, HASH_VERSION
from drainer.row.format import Format
from drainer.schema.view import SchemaView
from drainer.sink.base import Segment, Slotting

if TYPE_CHECKING:
    from drainer.changes.segment import SegmentCutter, SegmentDecoder
    from drainer.changes.stream import StreamCutter, StreamDecoder


@dataclass(frozen=True, slots=True)
class PackedView:
    """A schema view pickled once for all tasks. `token` identifies it, so that a worker that has used it before neither
    unpickles it nor creates its decoders again."""

    token: str
    pickled: bytes

    @classmethod
    def of(cls, view: SchemaView) -> PackedView:
        return cls(uuid.uuid4().hex, pickle.dumps(view, pickle.HIGHEST_PROTOCOL))

    def opened(self) -> SchemaView:
        found: SchemaView = pickle.loads(self.pickled)  # noqa: S301  our driver's
        return found


class PartBuilder(Protocol):
    """Collects the binlogs of one part of a batch."""

    def add_all(self, payloads: Iterable[bytes]) -> None: ...

    def add_in_order(self, payloads: Iterable[bytes], size: int) -> None:
        """`size`: bytes of the payloads together."""
        ...

    @property
    def left_out(self) -> int:
        """How many of the added binlogs loopback-control leaves out."""
        ...


class ReadOrder(Protocol):
    """How tasks process a part of a distributed batch, and a slot. Picklable. A task takes the decoder that its worker
    keeps for `view.token`, and gives it to the other methods."""

    @property
    def view(self) -> PackedView: ...

    @property
    def slots(self) -> int: ...

    @property
    def cut_version(self) -> int:
        """The version of the assignment of changes to slots (rule 16)."""
        ...

    def decoder(self) -> Any: ...

    def builder(self, decoder: Any) -> PartBuilder: ...

    def cut(self, builder: Any) -> dict[int, bytes]:
        """The blobs of the added binlogs by slot, for slots that have rows. Raises as decoding."""
        ...

    def merge(self, decoder: Callable[[], Any], blobs: Iterable[bytes], after_ts: int, until_ts: int) -> Segment:
        """Return one slot's segment, from the blobs of all parts."""
        ...

    def last_change(self, blobs: Sequence[bytes], table_id: int, identity: bytes) -> int:
        """Return the commit_ts of the last change of a key in a slot's blobs; 0: not known."""
        ...


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """Decode with `view` for a destination that writes rows in `format`, fold, and divide into `slots`. `whole`: when
    all parts have been read, the slots are divided again, so that each has complete groups of transactions (rule
    33)."""

    view: PackedView
    format: Format
    slots: int
    whole: bool = False

    @property
    def cut_version(self) -> int:
        return GROUPS_VERSION if self.whole else HASH_VERSION

    def decoder(self) -> SegmentDecoder:
        from drainer.changes.segment import SegmentDecoder

        return SegmentDecoder(self.view.opened(), self.format, whole=self.whole)

    def builder(self, decoder: SegmentDecoder) -> SegmentCutter:
        from drainer.changes.segment import SegmentCutter

        return SegmentCutter(decoder)

    def cut(self, builder: SegmentCutter) -> dict[int, bytes]:
        return builder.cut(self.slots)

    def groups(self, blobs: Iterable[bytes]) -> bytes:
        """Assign the groups of transactions to slots, from all blobs of LINKS_SLOT. Empty: the slots need not be
        divided again."""
        from drainer.changes.slots import groups_of

        return groups_of(blobs, self.slots)

    def divide(self, blobs: Iterable[bytes], groups: bytes) -> dict[int, bytes]:
        """Divide one slot's blobs of all parts again."""
        from drainer.changes.slots import divide

        return divide(blobs, self.slots, groups)

    def merge(
        self, decoder: Callable[[], SegmentDecoder], blobs: Iterable[bytes], after_ts: int, until_ts: int
    ) -> SegmentWork:
        from drainer.changes.slots import merge_slot

        return merge_slot(blobs, self.format, after_ts, until_ts)

    def last_change(self, blobs: Sequence[bytes], table_id: int, identity: bytes) -> int:
        from drainer.changes.slots import last_change

        return last_change(blobs, table_id, identity)


@dataclass(frozen=True, slots=True)
class ChangesOrder:
    """Divide all changes into `slots` by `slotting`, in upstream's order within a slot. `stored_generated`: rows
    include stored generated columns."""

    view: PackedView
    slots: int
    slotting: Slotting
    stored_generated: bool = False

    @property
    def cut_version(self) -> int:
        return self.slotting.version

    def decoder(self) -> StreamDecoder:
        from drainer.changes.stream import StreamDecoder

        return StreamDecoder(self.view.opened(), stored_generated=self.stored_generated)

    def builder(self, decoder: StreamDecoder) -> StreamCutter:
        return decoder.cutter(self.slots, self.slotting.slots_of)

    def cut(self, builder: StreamCutter) -> dict[int, bytes]:
        return builder.cut()

    def merge(
        self, decoder: Callable[[], StreamDecoder], blobs: Iterable[bytes], after_ts: int, until_ts: int
    ) -> ChangeSegment:
        from drainer.changes.stream import merge

        return merge(decoder(), blobs, after_ts, until_ts)

    def last_change(self, blobs: Sequence[bytes], table_id: int, identity: bytes) -> int:
        return 0
