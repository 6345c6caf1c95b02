"""A segment's rows cut into its transactions, and how the rows of one are shown in an error (rule 21). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter

from drainer.apply.large_transaction import Section
from drainer.batch.work import SegmentWork

_KEYS_SHOWN_MAX = 3
_KEY_CHARS_MAX = 200


def each_commit(section: Section) -> Iterator[Section]:
    """The binlogs of one commit_ts after another; together they cover what the section covers."""
    groups = [tuple(group) for _, group in groupby(section.binlogs, key=attrgetter("commit_ts"))]
    after_ts = section.after_ts
    for number, binlogs in enumerate(groups, start=1):
        until_ts = section.until_ts if number == len(groups) else binlogs[0].commit_ts
        yield replace(section, after_ts=after_ts, until_ts=until_ts, binlogs=binlogs)
        after_ts = until_ts


def shown_keys(work: SegmentWork, schema: str, table: str) -> str:
    """The first rows that a transaction writes to a table, or the keys it takes away."""
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
    """As people read it, not at length."""
    if isinstance(row, tuple):
        values = [value.decode(errors="replace") if isinstance(value, bytes) else repr(value) for value in row]
        text = "(" + ",".join(values) + ")"
    else:
        text = row.decode(errors="replace") if isinstance(row, bytes) else str(row)
    return text if len(text) <= _KEY_CHARS_MAX else text[:_KEY_CHARS_MAX] + "…"
