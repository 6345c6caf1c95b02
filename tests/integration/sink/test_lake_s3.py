"""A lake in S3, with Spark, Delta and Hadoop's S3A: exactly once and maintained, as in a directory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from binlog.cluster import tso

from drainer.lake import merging
from drainer.lake.at import at, position_of
from drainer.lake.files import place
from drainer.sink.errors import DestinationRefused, Fenced
from tests.integration.sink.test_lake import EDGES, STORY, dies_at, live, state
from tests.support.change_replay import WHO
from tests.support.killing import Killed
from tests.support.lake_case import delta_session, lake
from tests.support.object_store import ObjectStore, running_s3
from tests.support.schema_case import ts

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch, running_s3("lake") as found:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{found.address}")
        patch.setenv("AWS_REGION", "us-east-1")
        yield found


@pytest.fixture(scope="module")
def spark(java: None, store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with delta_session(tmp_path_factory.mktemp("delta"), "s3://lake") as session:
        yield session


def test_lake_in_s3_of_a_killed_drainer_is_as_upstream_was_and_is_maintained(spark: Any, store: ObjectStore) -> None:
    uri = "s3://lake/of/killed"
    edges = EDGES[1::4]
    with dies_at("lake.merged"), contextlib.suppress(Killed):
        live(spark, uri, edges)
    live(spark, uri, [edges[0] + 1, *edges[1:]])
    assert position_of(spark, uri) == edges[-1]
    for commit_ts in [sorted(STORY.states)[8], edges[-1]]:
        assert state(at(spark, uri, commit_ts)) == STORY.states[commit_ts], commit_ts
    sink = lake(uri, spark, compaction_share=1.0)
    sink.open(WHO, 1)
    sink.advance(now_ts := tso.compose(int(time.time() * 1000) + 3_600_000), 9)
    paths = [place(uri) / "shop" / name for name in ("orders", "orders__changes", "notes", "notes__changes")]
    merger = sink._merging()
    merger._tables.delta.new_files.update(dict.fromkeys(paths, merging._FILES_MIN))
    merger._keep = timedelta(0)
    for _ in range(8):  # old files of one table each time
        sink.maintain_now()
    sink.close(clean=True)
    names = [name for name in store.names("of/killed/shop/orders/") if name.endswith(".parquet")]
    assert len([name for name in names if "_delta_log" not in name]) == 1
    assert state(at(spark, uri, now_ts)) == STORY.states[edges[-1]]


def test_drainer_in_s3_ends_when_another_one_has_taken_over(spark: Any) -> None:
    first, second = (lake("s3://lake/of/two", spark) for _ in range(2))
    first.open(WHO, 1)
    second.open(WHO, 1)
    with pytest.raises(Fenced):
        first.advance(ts(1), 1)
    second.advance(ts(1), 1)
    second.close(clean=True)
    first.close(clean=False)


def test_lake_in_a_bucket_that_is_missing_is_refused(spark: Any) -> None:
    with pytest.raises(DestinationRefused, match="s3a://other/x/_control/default: there is no bucket other"):
        lake("s3://other/x", spark).open(WHO, 1)
