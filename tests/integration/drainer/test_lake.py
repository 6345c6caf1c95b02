"""The whole daemon into a lake, killed among its commits: each change is there once, and mirrors are upstream's
tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drainer.lake.at import at, position_of
from tests.integration.drainer.lives import Lives
from tests.integration.drainer.writer import Writer, two_pumps
from tests.integration.pumpclient.conftest import Cluster
from tests.support.lake_case import delta_session, jars
from tests.support.servers import require_java

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


@dataclass
class World(Lives):
    cluster: Cluster
    writer: Writer
    directory: Path
    lives: int = 0
    deadline_s: float = 400

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    @property
    def syncer(self) -> str:
        return (
            f'[syncer]\ndb-type = "delta"\n[syncer.to]\ndir = "{self.lake}"\nmerge-interval = "1s"\n'
            f'[spark.conf]\n"spark.jars" = "{jars()}"\n"spark.sql.shuffle.partitions" = "2"\n'
        )

    def check(self) -> None:
        """Every change is in a history once, and the newest state of the lake is what was written."""
        writer, columns = self.writer, ["id", "u", "note"]
        with delta_session(self.directory / "reader") as spark:
            tables = at(spark, self.lake, position_of(spark, self.lake))
            keyed = {row.id: (row.u, row.note) for row in tables["k", "keyed"].select(*columns).collect()}
            assert keyed == writer.keyed
            assert Counter(row.tag for row in tables["k", "bag"].collect()) == Counter(writer.bag)
            assert tables["k", "keyed"].columns == [*columns, *(f"c{n + 1}" for n in range(writer.added))]
            history = spark.read.format("delta").load(str(self.lake / "k" / "bag__changes")).collect()
        assert Counter(row.after.tag for row in history if row.after is not None) == writer.puts
        assert Counter(row.before.tag for row in history if row.before is not None) == writer.takes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_java()
    directory = tmp_path_factory.mktemp("lake")
    with two_pumps(directory) as (cluster, writer):
        made = World(cluster, writer, directory)
        made.writer.create()
        yield made


def test_lake_has_every_change_once_after_drainer_is_killed(world: World) -> None:
    """Every place where it may die: tests/unit/drainer/lake/test_kills.py."""
    world.die_around_ddl(["lake.history_committed:4", "lake.slot_written:2", "lake.merged"], before=40)
    world.drain_and_check()
