"""One batch as Spark holds it, and what is asked of it. Values and protocols; drainer.spark.query has the real one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlog import envelope

from drainer.pumps.pull import payloads
from drainer.reading import FoldOrder
from drainer.sink.protocol import Intent, SlotResult, SpreadTarget
from drainer.step import Merged


@dataclass(frozen=True, slots=True)
class SpreadJob:
    """What executors need to know. Picklable. `folded`: the tasks that read the batch have carried out `order`."""

    order: FoldOrder
    intent: Intent
    target: SpreadTarget
    folded: bool


class Feed(Protocol):
    """One batch as Spark holds it."""

    def messages(self) -> Iterable[tuple[str, bytes]]:
        """(pump, message of a pull) of the whole batch, in any order, brought to the driver."""
        ...

    def check(self, order: FoldOrder) -> None:
        """Fold the whole batch on executors and throw it away. Raises what decoding raises."""
        ...

    def spread(self, job: SpreadJob) -> Sequence[SlotResult]:
        """Fold on executors, bring slots together, and run `job.target` on every slot."""
        ...


def binlogs(pump: str, message: bytes) -> Iterable[Merged]:
    """The binlogs of one message of a pull."""
    for payload in payloads(message):
        found = envelope.scan(payload)
        yield Merged(found.commit_ts, found.start_ts, pump, payload)
