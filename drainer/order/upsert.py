"""Tables that upsert and stay in order: what each change takes away, and what it puts (rule 21). Pure."""

from __future__ import annotations

from typing import NamedTuple

from drainer.batch.work import Change, Kind, Literals, TableShape


class Upsert(NamedTuple):
    """First the row `gone` goes, if it is there, then `put` comes in the place of every row that shares a unique key
    with it. Either may be None."""

    gone: Literals | None
    put: Literals | None


def upsert(change: Change) -> Upsert:
    """A row that keeps its key is taken away by the row that comes, so that many of them fit into one statement."""
    if change.kind is Kind.INSERT:
        return Upsert(None, change.new)
    if change.kind is Kind.DELETE:
        return Upsert(change.old, None)
    old, new, key = change.old or (), change.new or (), change.shape.row_key
    stays = bool(key) and all(old[at] == new[at] for at in key)
    return Upsert(None if stays else change.old, change.new)


def replaces(shape: TableShape) -> bool:
    """Whether a row that comes may take others away; where there is no unique key it is inserted plainly."""
    return bool(shape.unique or shape.secondary_unique)
