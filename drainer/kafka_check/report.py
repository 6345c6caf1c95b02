"""The result of a check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from drainer.kafka_reading.records import KafkaPartition

VIOLATIONS_KEPT: Final = 100


class Broken(StrEnum):
    """The rules that are checked."""

    ROW_ORDER = "row-order"
    PARTITION_ORDER = "partition-order"
    ROW_IN_TWO_PARTITIONS = "row-in-two-partitions"
    ROW_BEHIND_RESOLVED = "row-behind-resolved"
    ROW_BEHIND_DDL = "row-behind-ddl"
    ROW_TWICE = "row-twice"
    DDL_ORDER = "ddl-order"
    DDL_BEHIND_RESOLVED = "ddl-behind-resolved"
    DDL_TWICE = "ddl-twice"
    DDL_MISSING = "ddl-missing"
    RESOLVED_BACK = "resolved-back"
    RESOLVED_MISSING = "resolved-missing"
    PARTITIONS_UNTOLD = "partitions-untold"
    PARTITIONS_LATE = "partitions-late"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation. `offset`: that of the message, -1 if a message is missing."""

    rule: Broken
    topic_partition: KafkaPartition
    offset: int
    text: str

    def __str__(self) -> str:
        where = f"{self.topic_partition} offset {self.offset}" if self.offset >= 0 else str(self.topic_partition)
        return f"{self.rule}: {where}: {self.text}"


@dataclass
class Report:
    """Counts of what was checked. `violations`: the first VIOLATIONS_KEPT; `broken`: the number of violations of each
    rule."""

    messages: int = 0
    rows: int = 0
    unidentified_rows: int = 0
    repeats: int = 0
    ddls: int = 0
    resolved: int = 0
    others: int = 0
    violations: list[Violation] = field(default_factory=list)
    broken: Counter[Broken] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        return not self.broken

    def add(self, violation: Violation) -> None:
        self.broken[violation.rule] += 1
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(violation)
