"""Splits a section of a batch into its transactions, for sections that must be applied one by one (rule 21: one outcome
wherever a stream is cut). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from drainer.apply.large_transaction import Section


def each_commit(section: Section) -> Iterator[Section]:
    """A section for each commit_ts, in order; together they cover the same range."""
    groups = [tuple(group) for _, group in groupby(section.binlogs, key=attrgetter("commit_ts"))]
    after_ts = section.after_ts
    for number, binlogs in enumerate(groups, start=1):
        until_ts = section.until_ts if number == len(groups) else binlogs[0].commit_ts
        yield replace(section, after_ts=after_ts, until_ts=until_ts, binlogs=binlogs)
        after_ts = until_ts
