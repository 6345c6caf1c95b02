"""The order in which the net rows of a spread batch are written (rule 12)."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """A batch starts DIRECT; when an untouched row stands in the way of a unique key it goes through DELETE and INSERT,
    all slots together, one after the other."""

    DIRECT = "direct"
    DELETE = "delete"
    INSERT = "insert"
