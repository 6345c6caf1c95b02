"""What is written of every row of a real TiDB, beside digests that were taken when each layout had programs of its own,
generated as Python source: texts of SQL (D-TR-06) and values of SQLite, row by row and in columns."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.batch.work import SegmentWork
from drainer.changes.segment import SegmentBuilder, SegmentDecoder
from drainer.row.format import Format
from tests.golden.test_columns import segments
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.row_case import FORMATS

DIGESTS = Path(__file__).parent / "vectors" / "written_rows.json.gz"
SETS = [found for found in find_sets(GOLDEN) if found.has("binlogs.bin")]


def lines(work: SegmentWork) -> Iterator[tuple[str, str]]:
    """(table, what is done to it), each change of a key by its kind, row and images to delete, in any order; then the
    ordered changes in theirs."""
    for folded in work.folded:
        name = f"{folded.shape.schema}.{folded.shape.table}"
        for line in sorted(repr((int(row.first), row.row, row.stale)) for row in folded.rows):
            yield name, line
    for change in work.ordered.changes:
        yield f"{change.shape.schema}.{change.shape.table}", repr((int(change.kind), change.old, change.new))


def digests(works: list[SegmentWork]) -> dict[str, str]:
    """Of each table, over all segments."""
    found: dict[str, hashlib._Hash] = {}
    for work in works:
        for name, line in lines(work):
            found.setdefault(name, hashlib.sha256()).update(line.encode() + b"\n")
    return {name: one.hexdigest()[:16] for name, one in sorted(found.items())}


def by_rows(capture: CaptureSet, format_: Format) -> list[SegmentWork]:
    found = []
    for step, payloads in segments(capture):
        builder = SegmentBuilder(SegmentDecoder(step.view, format_, columns_rows_min=1 << 60))
        builder.add_all(payloads)
        found.append(builder.finish(step.after_ts, step.until_ts))
    return found


def by_columns(capture: CaptureSet, format_: Format) -> list[SegmentWork]:
    found = []
    for step, payloads in segments(capture):
        builder = SegmentBuilder(SegmentDecoder(step.view, format_, columns_rows_min=0))
        builder.add_all(payloads)
        found.append(builder.finish(step.after_ts, step.until_ts))
    return found


@pytest.mark.parametrize("capture", SETS, ids=[found.name for found in SETS])
@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_recorded_rows_written_as_text_match_stored_digests(capture: CaptureSet, dialect: str) -> None:
    expected = json.loads(gzip.decompress(DIGESTS.read_bytes()))[capture.name][dialect]
    assert len(expected) > 10
    assert digests(by_rows(capture, FORMATS[dialect])) == expected
    assert digests(by_columns(capture, FORMATS[dialect])) == expected
