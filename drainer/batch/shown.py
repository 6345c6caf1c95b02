"""Abbreviated rows and keys for error texts. Pure."""

from __future__ import annotations

from itertools import chain

from drainer.batch.work import SegmentWork

_KEYS_SHOWN_MAX = 3
_KEY_CHARS_MAX = 200


def shown_keys(work: SegmentWork, schema: str, table: str) -> str:
    """The first rows that a transaction writes to a table, and keys that it deletes, as text."""
    rows = chain.from_iterable(
        row.stale if row.row is None else (row.row,)
        for folded in work.folded
        if (folded.shape.schema, folded.shape.table) == (schema, table)
        for row in folded.rows
    )
    changes = (
        change.old if change.new is None else change.new
        for change in work.ordered.changes
        if (change.shape.schema, change.shape.table) == (schema, table)
    )
    found = [shown_row(row) for row in chain(rows, changes)]
    more = f" and {len(found) - _KEYS_SHOWN_MAX} more" if len(found) > _KEYS_SHOWN_MAX else ""
    return ", ".join(found[:_KEYS_SHOWN_MAX]) + more


def shown_row(row: object) -> str:
    """A row or key as text, at most _KEY_CHARS_MAX characters."""
    if isinstance(row, tuple):
        values = [value.decode(errors="replace") if isinstance(value, bytes) else repr(value) for value in row]
        text = "(" + ",".join(values) + ")"
    else:
        text = row.decode(errors="replace") if isinstance(row, bytes) else str(row)
    return text if len(text) <= _KEY_CHARS_MAX else text[:_KEY_CHARS_MAX] + "…"
