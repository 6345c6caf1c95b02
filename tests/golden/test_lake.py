"""The recordings in a lake: its mirrors are TiDB's tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from drainer.schema.filter import Filter
from drainer.schema.job_policy import Policy, RewriteRules
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import record
from tests.support.lake_case import delta_session, differences, lake, read_otherwise

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with delta_session(tmp_path_factory.mktemp("delta")) as session:
        yield session


@pytest.mark.parametrize("name", ["keys", "types"])
def test_recorded_tables_come_out_as_upstreams(spark: Any, tmp_path: Path, name: str) -> None:
    capture = CaptureSet(GOLDEN / name)
    sink = lake(tmp_path / "lake", spark)
    with mock.patch.object(sink, "close", lambda clean: None):
        record(capture, sink, tmp_path / "jobs.json", Policy(Filter.create(), RewriteRules([])))
    sink.merge_now()
    sink.close(clean=True)
    assert differences(spark, tmp_path / "lake", capture) == []
    unlike, alike = read_otherwise(spark, tmp_path / "lake")
    assert unlike == []
    assert alike > 10
