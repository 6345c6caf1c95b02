"""What a sink that enforces upstream's constraints must check before a batch is spread (rule 21). Pure."""

from __future__ import annotations

from drainer.row.claimed import other_keys
from drainer.row.key import choose_key
from drainer.schema.view import SchemaView
from drainer.sink.base import Examination, Examiner


def strict(view: SchemaView, examiner: Examiner) -> Examination | None:
    """Of tables of TiDB's: those that go ahead, and `examiner` for the unique values of the others; None where there
    is neither. Whether a row is there of a table that stays in order, or what a key on a prefix or a generated column
    holds, shows only when it is tried: such tables go ahead."""
    tables = [(table_id, at.current) for table_id, at in view.tables.items() if not at.current.upserts]
    ahead = [id_ for id_, info in tables if not choose_key(info).columns or not other_keys(info).all_followed]
    followed = any(other_keys(info).followed for _, info in tables)
    return Examination(frozenset(ahead), examiner) if ahead or followed else None
