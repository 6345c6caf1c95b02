"""Where a lake is: what addresses mean to Arrow and to Spark, and files in a store, with an S3 of this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from binlog.errors import ConfigError

from drainer.lake import files
from drainer.lake.control import control_path
from drainer.lake.files import Remote, place
from drainer.lake.section import PACKAGE, LakeSection
from drainer.sink.errors import DestinationDown, DestinationRefused
from tests.support.object_store import ObjectStore, running_s3

VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return monkeypatch


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with running_s3("lake") as found:
        yield found


@pytest.mark.parametrize(
    ("given", "spark", "arrow"),
    [
        ("s3://b/x/y/", "s3a://b/x/y/_control/a%20b", "b/x/y/_control/a%20b"),
        ("s3a://b", "s3a://b/_control/a%20b", "b/_control/a%20b"),
        ("hdfs://h:8020/x", "hdfs://h:8020/x/_control/a%20b", "/x/_control/a%20b"),
        ("hdfs:///x", "hdfs:///x/_control/a%20b", "/x/_control/a%20b"),
    ],
)
def test_place_has_the_names_of_spark_and_of_arrow(given: str, spark: str, arrow: str) -> None:
    found = place(given) / "_control" / "a%20b"
    assert isinstance(found, Remote)
    assert (str(found), found.inside) == (spark, arrow)


def test_place_without_scheme_is_a_path() -> None:
    assert place("x") == Path("x").absolute()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("gs://b/x", "gs://b/x: a lake is in a directory, or at one of s3://, s3a://, hdfs://"),
        ("s3://key:secret@b/x", "s3://b/x: it takes"),
        ("s3://b/x?access-key=secret", "s3://b/x: it takes"),
        ("s3:///x", "s3:///x names no bucket"),
    ],
)
def test_address_that_is_not_understood_is_refused_without_its_secrets(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=r"^syncer\.to\.dir: ") as found:
        LakeSection(dir=given).check()
    assert why in str(found.value)
    assert "secret" not in str(found.value)


def test_spark_gets_s3a_with_the_endpoint_of_the_address_or_the_environment(environment: pytest.MonkeyPatch) -> None:
    def settings(of: str) -> dict[str, str]:
        given = LakeSection(dir=of).spark_settings({})
        return {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in given.items()}

    assert "endpoint" not in settings("s3://b/x")
    environment.setenv("AWS_ENDPOINT_URL", "http://e:1")
    environment.setenv("AWS_REGION", "eu-1")
    found = settings("s3://b/x")
    assert (found["endpoint"], found["path.style.access"], found["endpoint.region"]) == ("http://e:1", "true", "eu-1")
    assert settings("s3://b/x?endpoint=http%3A%2F%2Fo:2")["endpoint"] == "http://o:2"
    assert found["spark.jars.packages"].startswith(f"{PACKAGE},org.apache.hadoop:hadoop-aws:")
    assert "software.amazon.awssdk:bundle" in found["spark.jars.excludes"]
    for other in ("x", "hdfs://h/x"):
        assert settings(other)["spark.jars.packages"] == PACKAGE
        assert not settings(other).keys() & {"spark.jars.excludes", "endpoint"}
    assert "spark.jars.packages" not in LakeSection(dir="s3://b/x").spark_settings({"spark.jars": "a.jar"})


def test_file_in_a_store_is_written_by_another_process_too(store: ObjectStore) -> None:
    lake = place(f"s3://lake/x?endpoint=http%3A%2F%2F{store.address}&region=us-east-1")
    of = pickle.loads(pickle.dumps(control_path(lake, "default")))
    assert files.claim(of) is None
    assert not files.exists(of)
    files.make(of)
    size = files.write(of, "a.parquet", pa.table({"n": [1, 2]}))
    assert store.names() == ["x/_control/default/a.parquet"]
    assert files.exists(of)
    with files._store_of(of).open_input_file(f"{of.inside}/a.parquet") as file:
        assert (file.size(), pq.read_table(file).to_pylist()) == (size, [{"n": 1}, {"n": 2}])


def test_missing_bucket_and_a_store_that_does_not_answer_are_named(store: ObjectStore) -> None:
    at = f"endpoint=http%3A%2F%2F{store.address}&region=us-east-1"
    with pytest.raises(DestinationRefused, match="s3a://other/x: there is no bucket other"):
        files.claim(place(f"s3://other/x?{at}"))
    with pytest.raises(DestinationDown, match="s3a://other/x"):
        files.write(place(f"s3://other/x?{at}"), "a.parquet", pa.table({"n": [1]}))
    with pytest.raises(DestinationDown, match="s3a://lake/x"):
        files.claim(place("s3://lake/x?endpoint=http%3A%2F%2F127.0.0.1:1&region=us-east-1"))
