"""Converts the binlogs between two DDLs to the segment that a sink needs: net rows or all changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from drainer.apply.fold_order import ChangesOrder, FoldOrder, PackedView, ReadOrder
from drainer.changes.segment import SegmentDecoder
from drainer.changes.slot_blob import GROUPS_VERSION, HASH_VERSION
from drainer.changes.stream import StreamDecoder
from drainer.row.format import Format
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, ChangeSink, Wants


def segments_for(sink: AnySink, *, whole: bool = False) -> Segments:
    """`whole`: executors write net rows so that only complete transactions can be seen (rule 33)."""
    if sink.wants is Wants.NET:
        return NetSegments(sink.format, whole)
    return ChangeSegments(sink)


@dataclass(frozen=True)
class NetSegments:
    """The last state of each key."""

    format: Format
    whole: bool = False

    @property
    def cut_version(self) -> int:
        """The version of the assignment of rows to slots (rule 16)."""
        return GROUPS_VERSION if self.whole else HASH_VERSION

    def slots(self, wanted: int) -> int:
        """Return the number of slots of a batch for which so many are wanted."""
        return wanted

    def decoder(self, view: SchemaView) -> RowDecoder:
        return SegmentDecoder(view, self.format)

    def order(self, view: PackedView, slots: int) -> ReadOrder:
        """Return the order for executors."""
        return FoldOrder(view, self.format, slots, self.whole)


@dataclass(frozen=True)
class ChangeSegments:
    """Every change. The sink's slotting is read for each batch, because the sink may have learned of more partitions
    since."""

    sink: ChangeSink

    @property
    def cut_version(self) -> int:
        return self.sink.slotting.version

    def slots(self, wanted: int) -> int:
        slotting = self.sink.slotting
        return slotting.count if slotting.is_fixed else min(wanted, slotting.count)

    def decoder(self, view: SchemaView) -> RowDecoder:
        return StreamDecoder(view, stored_generated=self.sink.stored_generated)

    def order(self, view: PackedView, slots: int) -> ReadOrder:
        return ChangesOrder(view, slots, self.sink.slotting, stored_generated=self.sink.stored_generated)


RowDecoder: TypeAlias = SegmentDecoder | StreamDecoder
Segments: TypeAlias = NetSegments | ChangeSegments
