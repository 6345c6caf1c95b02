"""Tables that upsert and are applied in order: the row that each change removes, and the one it writes (rule 21). A row
to remove may be missing: nothing to do, but a warning is logged."""

from __future__ import annotations

from typing import NamedTuple

from binlog.runtime.log import get_logger

from drainer.batch.work import KeyChange, Kind, Literals, TableShape

_log = get_logger(__name__)


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


class MissingRows:
    """Warns once for each table while the destination is open."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self.count = 0

    def note(self, shape: TableShape, rows: int) -> None:
        self.count += rows
        table = (shape.schema, shape.table)
        if rows and table not in self._told:
            self._told.add(table)
            _log.warning(
                "a row to update or delete is missing in the destination; its table has no key, so other rows may "
                "differ too",
                table=f"{shape.schema}.{shape.table}",
                rows=rows,
            )
