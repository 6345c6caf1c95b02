"""Tables that upsert and are applied in order: the row that each change removes, and the one it writes (rule 21).
Pure."""

from __future__ import annotations

from typing import NamedTuple

from drainer.batch.work import KeyChange, Kind, Literals, TableShape


class Upsert(NamedTuple):
    """First the row `gone` is deleted, if it exists, then `put` replaces every row that shares a unique key with it.
    Either may be None."""

    gone: Literals | None
    put: Literals | None


def upsert(change: KeyChange) -> Upsert:
    """A row that keeps its key is replaced by the new row, so that many fit into one statement."""
    if change.kind is Kind.INSERT:
        return Upsert(None, change.new)
    if change.kind is Kind.DELETE:
        return Upsert(change.old, None)
    old, new, key = change.old or (), change.new or (), change.shape.row_key
    stays = bool(key) and all(old[at] == new[at] for at in key)
    return Upsert(None if stays else change.old, change.new)


def replaces(shape: TableShape) -> bool:
    """Whether a new row may replace others; without a unique key it is written with INSERT."""
    return bool(shape.unique or shape.secondary_unique)
