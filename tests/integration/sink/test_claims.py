"""Rows that are too large for a message, through a whole sink into Kafka and out of it by `kafka-consumer`: the claims
lie in a directory, or in an S3."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest

from drainer.kafka_consumer.__main__ import main
from drainer.protocol.large import ClaimStoreError, open_store
from tests.integration.sink.test_kafka import EDGES, settings
from tests.support import kafka_case
from tests.support.kafka import Broker
from tests.support.kafka_case import seen
from tests.support.object_store import ObjectStore, running_s3

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# Some rows of the recording are longer than this leaves; no DDL is, and no handle key with a claim of a short name.
TOPIC_BYTES = 588


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with running_s3("claims") as store:
        yield store


@pytest.fixture
def short_path() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def contents(path: Path) -> dict[str, list[str]]:
    connection = sqlite3.connect(path)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        tables = [name for name in names if not name.startswith("tidb_binlog.")]
        return {name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"'))) for name in tables}
    finally:
        connection.close()


def consumed(broker: Broker, topic: str, path: Path, *more: str, store: str = "") -> int:
    assert broker.settle(topic), "a transaction is open"
    claims = f"&claim-check-storage-uri={quote(store, safe='')}" if store else ""
    uri = f"kafka://{broker.address}/{topic}?protocol=open-protocol{claims}"
    return main([uri, "--to", f"sqlite:{path}", "--once", *more])


@pytest.fixture(scope="module")
def whole(kafka_server: Broker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a topic without a limit says."""
    topic = kafka_server.topic(2)
    kafka_case.run(settings(kafka_server, topic), EDGES)
    path = tmp_path_factory.mktemp("whole") / "rows.db"
    assert consumed(kafka_server, topic, path) == 0
    return contents(path)


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_claim_checks_in_directory_and_s3_are_written_and_resolved(
    kafka: Broker, s3: ObjectStore, whole: dict[str, list[str]], tmp_path: Path, short_path: Path, kind: str
) -> None:
    store = str(short_path / "c") if kind == "directory" else s3.uri("rows")
    topic = kafka.topic(2, max_message_bytes=str(TOPIC_BYTES))
    given = settings(kafka, topic, large_message_handle_option="claim-check", claim_check_storage_uri=store)
    kafka_case.run(given, EDGES)
    claims = [row.claim for partition in seen(kafka, topic) for row in partition.rows if row.claim]
    assert len(claims) >= 3
    assert not [claim for claim in claims if "?" in claim or "@" in claim], "keys of the store stand in no message"
    path = tmp_path / "rows.db"
    assert consumed(kafka, topic, path, store=store) == 0
    assert contents(path) == whole
    assert consumed(kafka, topic, tmp_path / "other.db") == 2, "nobody said where claims are"


def test_handle_key_only_rows_are_refused_or_skipped_by_consumer(
    kafka: Broker, whole: dict[str, list[str]], tmp_path: Path
) -> None:
    topic = kafka.topic(2, max_message_bytes=str(TOPIC_BYTES))
    kafka_case.run(settings(kafka, topic, large_message_handle_option="handle-key-only"), EDGES)
    assert consumed(kafka, topic, tmp_path / "stopped.db") == 2
    path = tmp_path / "rows.db"
    assert consumed(kafka, topic, path, "--skip-handle-only") == 0
    assert contents(path) != whole


def test_claim_check_missing_in_s3_is_reported_with_its_location(s3: ObjectStore) -> None:
    store = open_store(s3.uri("gone"))
    store.put("a.json", b"x" * 100_000)
    assert store.location("a.json") == "s3://claims/gone/a.json"
    assert store.get("a.json") == b"x" * 100_000
    store.put("a.json", b"y")
    assert store.get("a.json") == b"y"
    s3.remove("gone/a.json")
    with pytest.raises(ClaimStoreError, match=r"the claim s3://claims/gone/a\.json cannot be read"):
        store.get("a.json")


def test_missing_s3_bucket_is_reported_on_write(s3: ObjectStore) -> None:
    store = open_store(ObjectStore(s3.address, "nosuch").uri("x"))
    with pytest.raises(ClaimStoreError, match=r"the claim s3://nosuch/x/a\.json cannot be written"):
        store.put("a.json", b"x")
