"""Converts the binlogs between two DDLs to the segment that a sink needs: net rows or all changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from drainer.apply.fold_order import ChangesOrder, FoldOrder, PackedView, ReadOrder
from drainer.batch.work import SegmentWork, shown_keys
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.changes.stream import StreamDecoder
from drainer.order.slot import GROUPS_VERSION, HASH_VERSION
from drainer.row.format import Format
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, ChangeSink, Segment, Wants

Piece = Callable[[bytes, int, int], Segment]  # a piece of a transaction, after_ts and until_ts to its segment


class Builder(Protocol):
    """Collects binlogs, then returns their segment, once. `left_out`: how many loopback-control leaves out."""

    @property
    def left_out(self) -> int: ...

    def add_all(self, payloads: Iterable[bytes]) -> None: ...

    def finish(self, after_ts: int, until_ts: int) -> Segment: ...


class RowDecoder(Protocol):
    """Decodes with one view. Not thread-safe."""

    @property
    def view(self) -> SchemaView: ...

    def builder(self) -> Builder: ...

    def transaction(self) -> Piece:
        """Return a function that converts the pieces of one large transaction, called in their order."""
        ...


class Segments(Protocol):
    """How rows are converted for a sink. `cut_version`: version of the assignment of rows to slots (rule 16)."""

    @property
    def cut_version(self) -> int: ...

    @property
    def slots(self) -> int | None:
        """The number of slots of a batch; None: it is derived from the executors."""
        ...

    @property
    def slots_max(self) -> int | None:
        """The maximum number of slots of a batch if `slots` is None. None: no maximum."""
        ...

    def decoder(self, view: SchemaView) -> RowDecoder: ...

    def order(self, view: PackedView, slots: int) -> ReadOrder:
        """Return the order for executors."""
        ...

    def shown_keys(self, segment: Any, schema: str, table: str) -> str:
        """Return the keys of a table's rows in a segment, as text for an error."""
        ...


def segments_for(sink: AnySink, *, whole: bool = False) -> Segments:
    """`whole`: executors write net rows so that only complete transactions can be seen (rule 33)."""
    if sink.wants is Wants.NET:
        return NetSegments(sink.format, whole)
    return ChangeSegments(sink)


@dataclass(frozen=True)
class _NetDecoder:
    """`decoder`: keeps what it has made."""

    decoder: SegmentDecoder

    @property
    def view(self) -> SchemaView:
        return self.decoder.view

    def builder(self) -> SegmentBuilder:
        return SegmentBuilder(self.decoder)

    def transaction(self) -> Piece:
        def piece(payload: bytes, after_ts: int, until_ts: int) -> SegmentWork:
            builder = self.builder()
            builder.add_all([payload])
            return builder.finish(after_ts, until_ts)

        return piece


@dataclass(frozen=True)
class NetSegments:
    """The last state of each key."""

    format: Format
    whole: bool = False
    slots: int | None = None
    slots_max: int | None = None

    @property
    def cut_version(self) -> int:
        return GROUPS_VERSION if self.whole else HASH_VERSION

    def decoder(self, view: SchemaView) -> RowDecoder:
        return _NetDecoder(SegmentDecoder(view, self.format))

    def order(self, view: PackedView, slots: int) -> ReadOrder:
        return FoldOrder(view, self.format, slots, self.whole)

    def shown_keys(self, segment: SegmentWork, schema: str, table: str) -> str:
        return shown_keys(segment, schema, table)


@dataclass(frozen=True)
class ChangeSegments:
    """Every change. The sink's slotting is read for each batch, because the sink may have learned of more partitions
    since."""

    sink: ChangeSink

    @property
    def cut_version(self) -> int:
        return self.sink.slotting.version

    @property
    def slots(self) -> int | None:
        slotting = self.sink.slotting
        return slotting.count if slotting.is_fixed else None

    @property
    def slots_max(self) -> int | None:
        return self.sink.slotting.count

    def decoder(self, view: SchemaView) -> RowDecoder:
        return StreamDecoder(view, stored_generated=self.sink.stored_generated)

    def order(self, view: PackedView, slots: int) -> ReadOrder:
        return ChangesOrder(view, slots, self.sink.slotting, stored_generated=self.sink.stored_generated)

    def shown_keys(self, segment: ChangeSegment, schema: str, table: str) -> str:
        return ""
