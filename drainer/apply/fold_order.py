"""How tasks process a part of a distributed batch, and a slot: picklable values for executors. A sink needs net rows
(FoldOrder) or every change (ChangesOrder). And the interface of a batch that they process, which drainer.spark.query
implements.

A task takes the decoder that its worker keeps for `view.token`, and gives it to the other methods.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from binlog import envelope

from drainer.batch.served import ServedBinlog
from drainer.batch.work import SegmentWork
from drainer.changes import ChangeSegment
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slot_blob import GROUPS_VERSION, HASH_VERSION
from drainer.changes.slots import last_change, merge_slot
from drainer.changes.stream import StreamCutter, StreamDecoder, merge
from drainer.pumps.client import PartJoiner
from drainer.pumps.watermark import Counted
from drainer.row.codec import Format
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Intent, Receipt, Slotting, SlotWriter, Wants
from drainer.sink.retry import TASK_RETRY_S


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
        """The version of the assignment of changes to slots (rule 16)."""
        return GROUPS_VERSION if self.whole else HASH_VERSION

    def decoder(self) -> SegmentDecoder:
        return SegmentDecoder(self.view.opened(), self.format, whole=self.whole)

    def builder(self, decoder: SegmentDecoder) -> SegmentCutter:
        return SegmentCutter(decoder)

    def cut(self, builder: Any) -> dict[int, bytes]:
        """The blobs of the added binlogs by slot, for slots that have rows. Raises as decoding."""
        found: dict[int, bytes] = builder.cut(self.slots)
        return found

    def merge(
        self, decoder: Callable[[], SegmentDecoder], blobs: Iterable[bytes], after_ts: int, until_ts: int
    ) -> SegmentWork:
        """Return one slot's segment, from the blobs of all parts."""
        return merge_slot(blobs, self.format, after_ts, until_ts)

    def last_change(self, blobs: Sequence[bytes], table_id: int, identity: bytes) -> int:
        """Return the commit_ts of the last change of a key in a slot's blobs; 0: not known."""
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
        return StreamDecoder(self.view.opened(), stored_generated=self.stored_generated)

    def builder(self, decoder: StreamDecoder) -> StreamCutter:
        return decoder.cutter(self.slots, self.slotting.slots_of)

    def cut(self, builder: Any) -> dict[int, bytes]:
        found: dict[int, bytes] = builder.cut()
        return found

    def merge(
        self, decoder: Callable[[], StreamDecoder], blobs: Iterable[bytes], after_ts: int, until_ts: int
    ) -> ChangeSegment:
        return merge(decoder(), blobs, after_ts, until_ts)

    def last_change(self, blobs: Sequence[bytes], table_id: int, identity: bytes) -> int:
        return 0


ReadOrder: TypeAlias = FoldOrder | ChangesOrder


RowDecoder: TypeAlias = SegmentDecoder | StreamDecoder


def row_decoder(sink: AnySink, view: SchemaView) -> RowDecoder:
    """Converts the binlogs between two DDLs to the segment that a sink needs, in the driver."""
    if sink.wants is Wants.NET:
        return SegmentDecoder(view, sink.format)
    return StreamDecoder(view, stored_generated=sink.stored_generated)


def read_order(sink: AnySink, view: PackedView, slots: int, *, whole: bool = False) -> ReadOrder:
    """Return the order for executors. `whole`: they write net rows so that only complete transactions can be seen (rule
    33). A slotting is read for each batch, because the sink may have learned of more partitions since."""
    if sink.wants is Wants.NET:
        return FoldOrder(view, sink.format, slots, whole)
    return ChangesOrder(view, slots, sink.slotting, stored_generated=sink.stored_generated)


def cut_version(sink: AnySink, *, whole: bool = False) -> int:
    """The version of the assignment of rows or changes to slots (rule 16)."""
    if sink.wants is Wants.NET:
        return GROUPS_VERSION if whole else HASH_VERSION
    return sink.slotting.version


def slots_of_batch(sink: AnySink, wanted: int) -> int:
    """Return the number of slots of a batch for which so many are wanted."""
    if sink.wants is Wants.NET:
        return wanted
    return sink.slotting.count if sink.slotting.is_fixed else min(wanted, sink.slotting.count)


@dataclass(frozen=True, slots=True)
class DistributedJob:
    """Parameters of the tasks that apply slots. Picklable. `folded`: the tasks that read the batch have carried out
    `order`; `planned`: what all of them together must have read, where it is known (rule 22); `retry_for_s`: for how
    long a task retries before it gives up."""

    order: ReadOrder
    intent: Intent
    writer: SlotWriter[Any]
    folded: bool
    planned: Counted | None = None
    retry_for_s: float = TASK_RETRY_S


class MicroBatch(Protocol):
    """A batch of the Spark query."""

    def messages(self) -> Iterable[tuple[str, bytes]]:
        """(pump, message of a pull) of the whole batch, in any order, brought to the driver."""
        ...

    def check(self, order: ReadOrder) -> None:
        """Fold the whole batch on executors and discard the result. Raises what decoding raises."""
        ...

    def read(self, order: ReadOrder, *, folded: bool) -> None:
        """Pull and fold the whole batch now; later calls use the result. Changes nothing in the destination. Raises
        what pulling and decoding raise."""
        ...

    def distribute(self, job: DistributedJob) -> Sequence[Receipt]:
        """Fold on executors, shuffle by slot, and run `job.writer` on every slot. Raises DestinationDown if the writer
        of a slot did, after all slots have been tried."""
        ...


def binlogs(messages: Iterable[tuple[str, bytes]]) -> Iterable[ServedBinlog]:
    """The binlogs of the messages of pulls; the parts of a large one follow one another."""
    joiner = PartJoiner()
    for pump, message in messages:
        for payload in joiner.add(message):
            found = envelope.scan(payload)
            yield ServedBinlog(found.commit_ts, found.start_ts, pump, payload)
    joiner.end()
