"""What a sink that enforces upstream's constraints must check before a batch is spread (rule 21). Pure."""

from __future__ import annotations

from drainer.row.claimed import other_keys
from drainer.schema.view import SchemaView
from drainer.sink.base import Examination, Examiner


def strict(view: SchemaView, examiner: Examiner) -> Examination | None:
    """Return the examination of these tables, or None if none of them needs one."""
    followed = any(other_keys(at.current).followed for at in view.tables.values())
    return Examination(examiner) if followed else None
