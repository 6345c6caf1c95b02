"""The interface of a batch of the Spark query, and its arguments. Implemented in drainer.spark.query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from binlog import envelope

from drainer.apply.fold_order import ReadOrder
from drainer.batch.served import ServedBinlog
from drainer.pumps.binlog_parts import PartJoiner
from drainer.pumps.watermark import Counted
from drainer.sink.base import Intent, Receipt, SlotWriter
from drainer.sink.retry import TASK_RETRY_S


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
