"""The recordings as files, and reparo into databases: the tables that come out are TiDB's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.reparo.__main__ import main
from drainer.schema.filter import Filter
from drainer.schema.job_policy import Policy, RewriteRule, RewriteRules
from drainer.sink.base import Identity
from tests.golden.compare import compare_sqlite, differences
from tests.support.capture import GOLDEN, CaptureSet, find_sets
from tests.support.file_case import binlogs, parquet_rows, record, settle, sink
from tests.support.servers import MariaDB, running_mariadb

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def policy(capture: CaptureSet) -> Policy:
    """DDL that MariaDB cannot run is replaced as the recording says."""
    rules = []
    for entry in capture.meta.get("drainer_skipped_commit_ts", []):
        sql = entry["replacement"]
        rules.append(RewriteRule(tuple([sql] if isinstance(sql, str) else sql or ()), entry["job_id"]))
    return Policy(Filter.create(), RewriteRules(rules))


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    """Files have upstream's text of a DDL, which leaves character sets to the server's defaults."""
    with running_mariadb("--character-set-server=utf8mb4", "--collation-server=utf8mb4_nopad_bin") as server:
        yield server


@pytest.mark.parametrize(("name", "form"), [("keys", "pb"), ("types", "pb-gzip")])
def test_recorded_files_replayed_into_mariadb_give_upstreams_tables(
    mariadb: MariaDB, tmp_path: Path, name: str, form: str
) -> None:
    capture = CaptureSet(GOLDEN / name)
    files = tmp_path / "files"
    destination = sink(files, form, rotate_bytes=30_000)
    record(capture, destination, tmp_path / "jobs.json", policy(capture))
    config = tmp_path / "reparo.toml"
    config.write_text(
        f'data-dir = "{files}"\ndest-type = "mysql"\n[dest-db]\nhost = "127.0.0.1"\nport = {mariadb.port}\n'
        f'user = "{mariadb.user}"\npassword = "{mariadb.password}"\n'
    )
    assert main(["-config", str(config), "-name", name]) == 0
    assert differences(mariadb, capture) == []
    assert main(["-config", str(config), "-name", name]) == 0, "nothing is applied twice"
    assert differences(mariadb, capture) == []


def test_recorded_files_replayed_into_sqlite_give_upstreams_tables(tmp_path: Path) -> None:
    capture = CaptureSet(GOLDEN / "keys")
    files = tmp_path / "files"
    record(capture, sink(files, "pb", rotate_bytes=30_000), tmp_path / "jobs.json", policy(capture))
    config = tmp_path / "reparo.toml"
    config.write_text(f'data-dir = "{files}"\ndest-type = "sqlite"\n[dest-db]\npath = "{tmp_path / "db"}"\n')
    assert main(["-config", str(config)]) == 0
    assert compare_sqlite(tmp_path / "db", capture) > 50


@pytest.mark.parametrize("capture", find_sets(GOLDEN), ids=lambda capture: capture.name)
def test_recorded_parquet_files_have_every_change_of_pb_files_once(capture: CaptureSet, tmp_path: Path) -> None:
    """And says as many changes as there are in upstream's files, each in its place once."""
    for form in ("parquet", "pb"):
        record(capture, sink(tmp_path / form, form, rotate_bytes=1 << 20), tmp_path / "jobs.json", policy(capture))
    destination = sink(tmp_path / "parquet", "parquet", rotate_bytes=1)
    destination.open(Identity(capture.meta["cluster_id"], "golden", "golden"), 1)
    settle(destination)
    destination.close(clean=True)
    rows = [row for _, row in parquet_rows(tmp_path / "parquet") if "kind" in row]
    wanted = [(one.commit_ts, event) for one in binlogs(tmp_path / "pb") for event in one.events()]
    assert len(rows) == len(wanted) > 100
    places = [(row["commit_ts"], row["start_ts"], row["place"]) for row in rows]
    assert len(set(places)) == len(places)
    in_order = sorted(rows, key=lambda row: (row["commit_ts"], row["start_ts"], row["place"]))
    assert [(row["commit_ts"], row["kind"]) for row in in_order] == [(ts, str(event.change)) for ts, event in wanted]
    for row, (_, event) in zip(in_order, wanted, strict=True):
        image = row["after"] or row["before"]
        cells = event.new or event.old or {}
        assert cells.keys() <= image.keys()
        assert "id" not in cells or (cells["id"].value is None) == (image["id"] is None)
