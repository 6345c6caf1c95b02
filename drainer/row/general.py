"""The general decoder: reads rows in any valid encoding, column by column, into carriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.row import decode_delete, decode_insert, decode_update
from binlog.tidb.table import ROWID

from drainer.row.carrier import Carrier
from drainer.row.layout import Layout, Target

# Called with (column id, row). Raises UnknownColumn for an id that is in no known TableInfo, and ColumnGoing for a
# column that the row lacks because it is being dropped.
CheckColumn = Callable[[int, Mapping[int, Datum]], None]


class GeneralReader:
    """Decodes rows of one layout. DecodeError says what is wrong; the caller adds table and commit_ts.

    `lax`: the row's schema_version is not that of the TableInfo, so a DDL may be running, and an update may lack a
    public column that is being dropped. Otherwise a missing column is an error (D-TR-04)."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known = frozenset(s.id for s in layout.stored) | {t.id for t in layout.targets} | {ROWID}
        self._written = frozenset(s.id for s in layout.stored if s.in_insert)

    def insert(self, row: bytes, check: CheckColumn, lax: bool) -> list[Carrier]:
        values = decode_insert(self._layout.at, row)[1]
        return self._cells(values, check)

    def update(self, row: bytes, check: CheckColumn, lax: bool) -> tuple[list[Carrier], list[Carrier]]:
        old, new = decode_update(row)
        if not old:
            raise DecodeError("updated row", offset=0, detail="no columns")
        for target in self._layout.targets:
            if target.id in self._written and (target.id not in old or target.id not in new):
                check(target.id, old)
                if not lax:
                    detail = f"row data is corrupted: column {target.name} (id {target.id}) is missing"
                    raise DecodeError("updated row", offset=len(row), detail=detail)
        return self._cells(old, check), self._cells(new, check)

    def delete(self, row: bytes, check: CheckColumn, lax: bool) -> list[Carrier]:
        values = decode_delete(self._layout.at, row)
        for place in self._layout.key.columns:
            target = self._layout.targets[place]
            if target.id in self._written and target.id not in values:
                detail = f"key column {target.name} (id {target.id}) is missing"
                raise DecodeError("deleted row", offset=len(row), detail=detail)
        for target in self._layout.targets:
            if target.id in self._written and target.id not in values:
                check(target.id, values)  # older servers do not write a column that is being dropped
        return self._cells(values, check)

    def _cells(self, values: Mapping[int, Datum], check: CheckColumn) -> list[Carrier]:
        for column_id in values.keys() - self._known:
            check(column_id, values)
        return [_cell(target, values) for target in self._layout.targets]


def _cell(target: Target, values: Mapping[int, Datum]) -> Carrier:
    try:
        if target.id not in values:
            if target.old_column_id is not None and target.old_column_id[0] in values:
                return target.inherit(values[target.old_column_id[0]])
            return target.default
        return target.form.carrier(values[target.id])
    except DecodeError as err:
        detail = f"{err.what}: {err.detail}"
        raise DecodeError(f"column {target.name} (id {target.id})", offset=err.offset, detail=detail) from None
