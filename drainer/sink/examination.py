"""What a sink that enforces upstream's constraints must check before a batch is spread (rule 21). Pure."""

from __future__ import annotations

from drainer.row.claimed import other_keys
from drainer.row.key import choose_key
from drainer.schema.view import SchemaView
from drainer.sink.base import Examination, Examiner


def strict(view: SchemaView, examiner: Examiner) -> Examination | None:
    """Return the examination of these tables, or None if none of them needs one. Some conflicts show only when rows are
    written: those of tables whose changes stay in order, and of keys on a prefix or on a generated column. Such tables
    are written ahead of the slots; the unique values of all others are checked by `examiner`."""
    tables = [(table_id, at.current) for table_id, at in view.tables.items() if not at.current.upserts]
    ahead = [id_ for id_, info in tables if not choose_key(info).columns or not other_keys(info).all_followed]
    followed = any(other_keys(info).followed for _, info in tables)
    return Examination(frozenset(ahead), examiner) if ahead or followed else None
