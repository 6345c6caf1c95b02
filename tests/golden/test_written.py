"""What is written of every row of a real TiDB, beside digests that were taken when each layout had programs of its own,
generated as Python source: texts of SQL (D-TR-06) and values of SQLite, row by row and in columns."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from drainer.batch.work import SegmentWork
from tests.golden.test_columns import segments
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.fold_model import work_of
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


def digests(works: Iterable[SegmentWork]) -> dict[str, str]:
    """Of each table, over all segments."""
    found: dict[str, hashlib._Hash] = {}
    for work in works:
        for name, line in lines(work):
            found.setdefault(name, hashlib.sha256()).update(line.encode() + b"\n")
    return {name: one.hexdigest()[:16] for name, one in sorted(found.items())}


@pytest.mark.parametrize("capture", SETS, ids=[found.name for found in SETS])
@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_recorded_rows_written_as_text_match_stored_digests(capture: CaptureSet, dialect: str) -> None:
    expected = json.loads(gzip.decompress(DIGESTS.read_bytes()))[capture.name][dialect]
    assert len(expected) > 10
    for rows_min in (1 << 60, 0):
        works = (work_of(step.view, payloads, FORMATS[dialect], rows_min) for step, payloads in segments(capture))
        assert digests(works) == expected, rows_min
