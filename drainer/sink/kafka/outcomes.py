"""How transactions are to be ended that brokers have decided and never end, at which readers stand still. Pure.

Brokers up to 4.4 take a partition without a leader for a deleted one (KAFKA-20734): they never write the marker of a
transaction there that was being committed or aborted when its broker died. Who has its transactional id still holds its
outcome: the next transaction of that id in the same partition ends both, with the outcome of the second one. So a
commit that was acknowledged would be undone by a later abort, and what was aborted would be seen after a later commit.
Neither may happen: they are ended (hanging.py), each with its own outcome, before anything else is written.

No client is told the outcome. What is based on a transaction tells it: one whose intent slots have written, a slot's
that the position covers, one that this driver was acknowledged. Nobody has seen any other one, or acted on it, and what
it wrote is written again: it is aborted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from drainer.sink.base import Intent
from drainer.sink.document_position import Document
from drainer.sink.kafka.control_records import POSITION_PARTITION, document_of, mark_of
from drainer.sink.kafka.reader import Record
from drainer.sink.position import Stored


@dataclass(frozen=True, slots=True)
class Basis:
    """What is known of outcomes. `before`: the position that readers of committed records find; `acknowledged`: the one
    whose commit this driver was acknowledged; `finished`: the range whose slots are all acknowledged."""

    acknowledged: Stored | None = None
    finished: Intent | None = None
    before: Document = field(default_factory=Document)

    def on(self, before: Document) -> Basis:
        return replace(self, before=before)


def outcomes(
    tails: Mapping[int, Sequence[Record]], marks: Sequence[Intent | None], basis: Basis, label: str
) -> tuple[dict[int, bool], int]:
    """For each partition of the control topic where a transaction hangs, whether it is to be committed; and the
    commit_ts of the position behind that, 0: there is none. `tails`: what was written there from its beginning on;
    `marks`: the last one of every slot, ended or not. Raises DestinationRefused for records of others."""
    found: dict[int, bool] = {}
    position = basis.before.stored
    if POSITION_PARTITION in tails:
        hanging = document_of(tails[POSITION_PARTITION], label).stored
        acted_on = hanging is not None and (
            hanging == basis.acknowledged or (hanging.intent is not None and hanging.intent in marks)
        )
        found[POSITION_PARTITION] = acted_on
        if acted_on:
            position = hanging
    for partition, records in tails.items():
        if partition != POSITION_PARTITION:
            mark = mark_of(records, label)
            covered = mark is not None and position is not None and mark.until_ts <= position.commit_ts
            found[partition] = covered or (mark is not None and mark == basis.finished)
    return found, position.commit_ts if position is not None else 0
