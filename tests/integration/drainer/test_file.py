"""The whole daemon into pb files, killed again and again; then what it writes as Parquet, read by Spark."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drainer.protocol.event import Change
from drainer.sink.file.parquet import ParquetFormat
from tests.integration.drainer.lives import Lives
from tests.integration.drainer.writer import Writer, two_pumps
from tests.integration.pumpclient.conftest import Cluster
from tests.support.file_case import binlogs
from tests.support.servers import require_java

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

READ_BY_SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.parquet(sys.argv[1] + "/tables/k/keyed")
rows = frame.where("kind <> 'delete'").select("after.id", "commit_ts").collect()
ddls = spark.read.parquet(sys.argv[1] + "/ddl").where("query like 'CREATE TABLE%'").count()
print("read", len(rows), sum(row.id for row in rows), ddls, dict(frame.dtypes)["commit_ts"])
"""


@dataclass
class World(Lives):
    cluster: Cluster
    writer: Writer
    directory: Path
    lives: int = 0
    deadline_s: float = 400
    form: str = "pb"

    @property
    def files(self) -> Path:
        return self.directory / self.form

    @property
    def syncer(self) -> str:
        return (
            f'[syncer]\ndb-type = "file"\n[syncer.to]\ndir = "{self.files}"\nformat = "{self.form}"\n'
            f"rotate-bytes = {3000 if self.form == 'pb' else 1}\n"
        )

    def configuration(self, data_dir: Path) -> str:
        """Each changefeed has its own data-dir."""
        return super().configuration(data_dir if self.form == "pb" else data_dir.with_name(f"drainer-{self.form}"))

    def check(self) -> None:
        """Records replayed make what was written, and say every row that was put and taken once."""
        keyed: dict[object, tuple[object, object]] = {}
        puts: Counter[object] = Counter()
        takes: Counter[object] = Counter()
        columns = 3
        found = binlogs(self.files)
        assert [one.commit_ts for one in found] == sorted(one.commit_ts for one in found)
        for one in found:
            columns += (one.query or "").count("ALTER TABLE")
            for event in one.events():
                if event.table == "bag":
                    if event.change is not Change.INSERT:
                        takes[event.old["tag"]] += 1
                    if event.change is not Change.DELETE:
                        puts[event.new["tag"]] += 1
                    continue
                assert len(event.columns) == columns
                if event.change is not Change.INSERT:
                    assert keyed.pop(event.old["id"]) == (event.old["u"], event.old["note"])
                if event.change is not Change.DELETE:
                    keyed[event.new["id"]] = (event.new["u"], event.new["note"])
        writer = self.writer
        assert keyed == {key: (u, note.encode()) for key, (u, note) in writer.keyed.items()}
        assert (puts, takes) == (encoded(writer.puts), encoded(writer.takes))


def encoded(tags: Counter[str]) -> Counter[object]:
    return Counter({tag.encode(): count for tag, count in tags.items()})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_java()
    directory = tmp_path_factory.mktemp("files")
    with two_pumps(directory) as (cluster, writer):
        made = World(cluster, writer, directory)
        made.writer.create()
        yield made


def test_pb_files_have_every_record_once_after_drainer_is_killed(world: World) -> None:
    """Every other place where it may die: tests/integration/sink/test_file.py."""
    world.die_around_ddl(["file.synced:5"], before=40)
    world.drain_and_check()
    assert len(list(world.files.glob("binlog-*"))) > 4


def test_parquet_files_are_read_by_spark(world: World) -> None:
    parquet = World(world.cluster, world.writer, world.directory, lives=50, form="parquet")
    world.writer.write(10)
    parquet.drain()
    form = ParquetFormat()
    for path in sorted(form.files_directory(parquet.files).iterdir()):  # what it did not put away before it ended
        form.complete(parquet.files, path, lambda: False)
    world.drain()
    images = [
        event.new["id"]
        for one in binlogs(world.files)
        for event in one.events()
        if event.table == "keyed" and event.change is not Change.DELETE
    ]
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_SPARK, str(parquet.files)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("read ")]
    _, count, total, ddls, kind = line.split()
    assert (int(count), int(total), int(ddls), kind) == (
        len(images),
        sum(int(str(image)) for image in images),
        2,
        "bigint",
    )
