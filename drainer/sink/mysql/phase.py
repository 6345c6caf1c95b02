"""The order in which the net rows of a distributed batch are written (rule 12: REPLACE evicts only stale rows)."""

from __future__ import annotations

from enum import StrEnum

from drainer.sink.errors import DestinationRefused
from drainer.sink.position import Stored


class Phase(StrEnum):
    """A batch starts in DIRECT. If a row that it does not change conflicts in a unique key, all slots go through DELETE
    and then INSERT."""

    DIRECT = "direct"
    DELETE = "delete"
    INSERT = "insert"


def phase_of(stored: Stored, label: str) -> Phase:
    """Return the phase of the open range. Raises DestinationRefused."""
    try:
        return Phase(stored.stage)
    except ValueError:
        raise DestinationRefused(
            f"{label}: the open range in drainer_position has the phase {stored.stage!r}, which this version of "
            f"the drainer has not: start the one that wrote it once, to finish it"
        ) from None
