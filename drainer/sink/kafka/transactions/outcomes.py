"""Decide how to end hanging transactions: brokers have decided their outcome and never write it. Pure.

Read-committed consumers cannot read past an open transaction.

Brokers up to 4.4 mistake a partition without a leader for a deleted one (KAFKA-20734). They then never write the marker
of a transaction that was being committed or aborted there when its broker died. The owner of its transactional id still
controls its outcome: the next transaction of that id in the same partition ends both, with the outcome of the second
one. So a later abort would undo a commit that was acknowledged, and a later commit would show messages that were
aborted. To prevent both, hanging transactions are ended (hanging.py), each with its own outcome, before anything else
is written.

Brokers report the outcome to no client. It follows from what is based on the transaction: an intent that slots have
written, a slot that the position covers, or an acknowledgement that this driver received. It also follows from the
transaction's other partitions, if these have their marker: the end offset that each partition had before the
transaction is recorded, and whatever read-committed consumers find from there on belongs to the transaction. No reader
has seen any other transaction, nothing is based on it, and its messages are written again: it is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from drainer.sink.base import Intent
from drainer.sink.document_position import Document
from drainer.sink.kafka.reader import Record
from drainer.sink.kafka.transactions.control_records import (
    POSITION_PARTITION,
    Place,
    document_of,
    is_same_position,
    mark_of,
    slots_of,
    wrote_of,
)


@dataclass(frozen=True, slots=True)
class Basis:
    """What is known about outcomes. `before`: the position that read-committed consumers find; `acknowledged`: the
    position whose commit was acknowledged to this driver; `finished`: the range whose slots are all acknowledged."""

    acknowledged: Document = field(default_factory=Document)
    finished: Intent | None = None
    before: Document = field(default_factory=Document)

    def on(self, before: Document) -> Basis:
        return replace(self, before=before)


# From partitions with their end offsets before a transaction: whether read-committed consumers find what it wrote.
IsCommitted = Callable[[Mapping[Place, int]], bool]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How to end each hanging transaction: True commits it, False aborts it. `control`: by partition of the control
    topic; `driver` and `slots`: by partition of rows, for the driver's transaction and for that of each slot. The
    outcome of a partition that is in none of them is not known: it must be left open, for an operator to end.
    `document`: the position that readers find afterwards."""

    control: Mapping[int, bool]
    driver: Mapping[Place, bool]
    slots: Mapping[int, Mapping[Place, bool]]
    document: Document


def outcomes(
    tails: Mapping[int, Sequence[Record]],
    open_rows: Mapping[Place, int],
    marks: Sequence[Sequence[Record]],
    committed_marks: Mapping[int, Sequence[Record]],
    basis: Basis,
    label: str,
    is_committed: IsCommitted,
    is_settled_behind: Callable[[Place, int], bool | None],
) -> Outcomes:
    """Return how to end each hanging transaction. `tails`: for each partition of the control topic with a hanging
    transaction, the records from the beginning of that transaction on; `open_rows`: for each partition of rows with a
    hanging transaction, the offset at which it begins; `marks`: for each slot, all records that were ever written,
    committed or not; `committed_marks`: for each slot whose partition has no hanging transaction, the committed
    records; `is_settled_behind`: whether readers find any record of a partition from an offset on, None if these were
    deleted. Raises DestinationRefused for records that no drainer wrote, and what `is_committed` raises."""
    control: dict[int, bool] = {}
    document = basis.before
    if POSITION_PARTITION in tails:
        hanging = document_of([*tails[POSITION_PARTITION]], label)
        stored = hanging.stored
        all_marks = [mark_of(of, label) for of in marks]
        control[POSITION_PARTITION] = stored is not None and (
            is_same_position(hanging, basis.acknowledged)
            or (stored.intent is not None and stored.intent in all_marks)
            or is_committed(wrote_of(hanging) or {})
        )
        if control[POSITION_PARTITION]:
            document = hanging
    position_ts = document.stored.commit_ts if document.stored is not None else 0
    places_of = slots_of(document)
    for partition, records in tails.items():
        if partition != POSITION_PARTITION:
            mark = mark_of(records, label)
            control[partition] = mark is not None and (
                mark.until_ts <= position_ts
                or mark == basis.finished
                or (_is_open(document, mark) and is_committed(places_of.get(partition - 1, {})))
            )
    driver = _driver_rows(control.get(POSITION_PARTITION), open_rows, document, is_settled_behind)
    slots: dict[int, Mapping[Place, bool]] = {}
    for slot, places in places_of.items():
        mine = [place for place in places if place in open_rows]
        if mine:
            commit = control.get(1 + slot)
            if commit is None:
                mark = mark_of(committed_marks.get(slot, ()), label)
                commit = mark is not None and (_is_open(document, mark) or mark == basis.finished)
            slots[slot] = dict.fromkeys(mine, commit)
    return Outcomes(control, driver, slots, document)


def _is_open(document: Document, mark: Intent) -> bool:
    return document.stored is not None and document.stored.intent == mark


def _driver_rows(
    decided: bool | None,
    open_rows: Mapping[Place, int],
    document: Document,
    is_settled_behind: Callable[[Place, int], bool | None],
) -> dict[Place, bool]:
    """Return, for each partition of rows, whether to commit the driver's transaction there. If that transaction hangs
    in the control topic, too, `decided` is its outcome. Otherwise it is the transaction of the present position, or a
    later one that was aborted before it had a position."""
    wrote = wrote_of(document)
    if decided is not None:
        return {place: decided and (wrote is None or place in wrote) for place in open_rows}
    found: dict[Place, bool] = {}
    for place, offset in open_rows.items() if wrote is not None else ():
        begin = (wrote or {}).get(place)
        if begin is None:
            found[place] = False  # the position's transaction wrote nothing there
        elif begin <= offset:
            settled = is_settled_behind(place, begin)
            if settled is not None:
                found[place] = not settled
    return found
