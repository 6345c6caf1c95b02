"""The tables that a recording's rows make, as bags of rows: one change after another, without folding."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from binlog.tidb.table import TableInfo

from drainer.batch.work import KeyChange
from drainer.row.codec import Decoder
from drainer.schema.state import Schema
from drainer.schema.steps import Ddl, Rows
from tests.support.capture import CaptureSet
from tests.support.recorded_steps import steps_of
from tests.support.row_case import changes_of


@dataclass
class Model:
    """Tables as bags of rows; a row that is deleted or updated must be there, cell for cell."""

    bags: dict[int, Counter[tuple[object, ...]]] = field(default_factory=dict)
    altered: set[int] = field(default_factory=set)

    def ddl(self, step: Ddl) -> None:
        """Tables whose rows or columns a DDL changes are for tests with a real database."""
        for change in step.changes:
            ids = {t.table_id for t in (change.before, change.after) if t is not None}
            same = change.before and change.after and _columns(change.before.info) == _columns(change.after.info)
            partitions = int(step.job.type) in (19, 20, 23, 42, 64, 71, 72)
            if not (change.before is None or change.after is None or (same and not partitions)):
                self.altered |= ids

    def change(self, change: KeyChange) -> None:
        if change.shape.table_id in self.altered:
            return
        bag = self.bags.setdefault(change.shape.table_id, Counter())
        if change.old is not None:
            assert bag[change.old] > 0, f"{change.shape.table}: no row {change.old} at {change.commit_ts}"
            bag[change.old] -= 1
        if change.new is not None:
            bag[change.new] += 1


def _columns(info: TableInfo) -> tuple[list[int], list[str]]:
    """What a model that knows no DDL depends on: the columns and the unique keys."""
    return [c.id for c in info.columns], [i.name for i in info.unique_indexes()]


def replay(capture: CaptureSet) -> tuple[Model, Schema]:
    """Return the tables after every change of a recording, as MySQL's texts of values, and the schema then."""
    schema, steps = steps_of(capture)
    model = Model()
    for step in steps:
        if isinstance(step, Ddl):
            model.ddl(step)
        if not isinstance(step, Rows):
            continue
        payloads = [bytes(b.payload) for b in step.binlogs]
        for change in changes_of(Decoder(step.view), payloads):
            model.change(change)
    return model, schema
