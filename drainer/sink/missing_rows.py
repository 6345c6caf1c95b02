"""Missing rows that a stream of a service deletes (rule 21): nothing to do, but a warning is logged."""

from __future__ import annotations

from binlog.runtime.log import get_logger

from drainer.batch.work import TableShape

_log = get_logger(__name__)


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
