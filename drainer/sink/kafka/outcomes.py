"""How transactions are to be ended that brokers have decided and never end. Pure.

Read-committed consumers cannot read past an open transaction.

Brokers up to 4.4 take a partition without a leader for a deleted one (KAFKA-20734): they never write the marker of a
transaction there that was being committed or aborted when its broker died. Who has its transactional id still holds its
outcome: the next transaction of that id in the same partition ends both, with the outcome of the second one. So a
commit that was acknowledged would be undone by a later abort, and what was aborted would be seen after a later commit.
Neither may happen: they are ended (hanging.py), each with its own outcome, before anything else is written.

No client is told the outcome. What is based on a transaction tells it: one whose intent slots have written, a slot's
that the position covers, one that this driver was acknowledged. So do other partitions of it, which have their marker:
it is written down where each partition ended before it, and whatever read-committed consumers find behind that is of
it. Nobody has seen any other one, or acted on it, and what it wrote is written again: it is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from drainer.sink.base import Intent
from drainer.sink.document_position import Document
from drainer.sink.kafka.control_records import (
    POSITION_PARTITION,
    Place,
    document_of,
    is_same_position,
    mark_of,
    slots_of,
    wrote_of,
)
from drainer.sink.kafka.reader import Record


@dataclass(frozen=True, slots=True)
class Basis:
    """What is known of outcomes. `before`: the position that read-committed consumers find; `acknowledged`: the one
    whose commit this driver was acknowledged; `finished`: the range whose slots are all acknowledged."""

    acknowledged: Document = field(default_factory=Document)
    finished: Intent | None = None
    before: Document = field(default_factory=Document)

    def on(self, before: Document) -> Basis:
        return replace(self, before=before)


# Of partitions and where they ended before a transaction: whether read-committed consumers find what it wrote.
IsCommitted = Callable[[Mapping[Place, int]], bool]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of transactions that hang. `control`: for each partition of the control topic whether its transaction is to be
    committed; `driver` and `slots`: likewise for partitions of rows, by whose transaction may hang there; what is in
    none of them must be left to somebody who knows. `document`: what readers will find then."""

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
    """`tails`: of each partition of the control topic where a transaction hangs what was written there from its
    beginning on; `open_rows`: partitions of rows where one hangs, and from which offset on; `marks`: of every slot all
    that was ever written, ended or not; `committed_marks`: what readers find of the slots whose partition has no
    transaction that hangs; `is_settled_behind`: whether readers find anything of a partition from an offset on, None:
    that was deleted. Raises DestinationRefused for records of others, and what `is_committed` raises."""
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
    """Of the driver's last transaction, which hangs in the control topic, too, with the outcome `decided`; or else of
    that of the position that is there, or of one behind it that was aborted before it had a position."""
    wrote = wrote_of(document)
    if decided is not None:
        return {place: decided and (wrote is None or place in wrote) for place in open_rows}
    found: dict[Place, bool] = {}
    for place, offset in open_rows.items() if wrote is not None else ():
        begin = (wrote or {}).get(place)
        if begin is None:
            found[place] = False  # that of the position wrote nothing there
        elif begin <= offset:
            settled = is_settled_behind(place, begin)
            if settled is not None:
                found[place] = not settled
    return found
