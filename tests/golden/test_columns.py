"""Every row of a real TiDB: read in step and one by one it has the same decoded values, and folds to the same text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.batch.work import SegmentWork
from drainer.changes.decode import ColumnDecoder
from drainer.changes.scan import scan_all
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.schema.steps import Rows
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.fold_model import folded_by_rule
from tests.support.recorded_steps import steps_of
from tests.unit.drainer.changes.cases import images


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capture" in metafunc.fixturenames:
        paths: list[Path] = metafunc.config.getoption("--captures") or [GOLDEN]
        sets = [found for path in paths for found in find_sets(path) if found.has("binlogs.bin")]
        metafunc.parametrize("capture", sets, ids=[found.name for found in sets])


def segments(capture: CaptureSet) -> Iterator[tuple[Rows, list[bytes]]]:
    """The rows between two DDLs, again and again."""
    for step in steps_of(capture)[1]:
        if isinstance(step, Rows):
            yield step, [bytes(binlog.payload) for binlog in step.binlogs]


def shown(work: SegmentWork) -> tuple[object, ...]:
    folded = [(one.shape, [tuple(row) for row in one.rows]) for one in work.folded]
    return folded, work.ordered, work.change_count


def test_recorded_rows_decoded_as_columns_equal_those_one_by_one(capture: CaptureSet) -> None:
    count = 0
    for step, payloads in segments(capture):
        rows = scan_all(payloads[::-1]).rows
        in_step = images(list(ColumnDecoder(step.view, vector_rows_min=1).decode(rows)))
        assert in_step == images(list(ColumnDecoder(step.view, vector_rows_min=1 << 40).decode(rows)))
        count += len(in_step)
    assert count > 50


def test_recorded_rows_folded_as_columns_equal_those_one_by_one(capture: CaptureSet) -> None:
    folded = 0
    for step, payloads in segments(capture):
        expected = folded_by_rule(step.view, payloads, SQL_TEXT)
        for rows_min in (0, 1 << 60):
            decoder = SegmentDecoder(step.view, SQL_TEXT, columns_rows_min=rows_min)
            decoder.columns = ColumnDecoder(step.view, vector_rows_min=1, decoder=decoder.rows)
            assert shown(decoder.segment(payloads[::-1], step.after_ts, step.until_ts)) == shown(expected)
            cutter = SegmentCutter(decoder)
            cutter.add_all(payloads)
            assert shown(merge_slot(cutter.cut(1).values(), SQL_TEXT)) == shown(expected)
        folded += len(expected.folded)
    assert folded > 5
