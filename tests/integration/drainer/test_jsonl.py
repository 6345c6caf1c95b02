"""The whole daemon into files of lines, whose executors are killed: every change is there once, and in its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.drainer.lives import Lives
from tests.integration.drainer.writer import Writer, two_pumps
from tests.integration.pumpclient.conftest import Cluster
from tests.support.jsonl_case import Line, in_order, lines_of
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
    def lines(self) -> Path:
        return self.directory / "lines"

    @property
    def syncer(self) -> str:
        return f'[syncer]\ndb-type = "jsonl"\n[syncer.to]\npath = "{self.lines}"\nfiles = 4\nrotate-bytes = 3000\n'

    def check(self) -> None:
        """The lines replayed make what was written, and say every row that was put and taken once."""
        keyed: dict[int, tuple[object, object]] = {}
        bag: Counter[str] = Counter()
        puts: Counter[str] = Counter()
        takes: Counter[str] = Counter()
        columns = 3
        for line in in_order(self.lines):
            if line["kind"] == "ddl":
                columns += line["query"].startswith("ALTER TABLE")
            elif line["table"] == "keyed":
                self._keyed(keyed, line, columns)
            else:
                for image, into in ((line["old"], takes), (line["new"], puts)):
                    into.update([image["tag"]] if image is not None else [])
        bag = puts - takes
        writer = self.writer
        assert keyed == writer.keyed
        assert bag == Counter(writer.bag)
        assert (puts, takes) == (writer.puts, writer.takes)
        assert columns == 3 + writer.added
        assert not list(self.lines.glob("*.part"))

    def _keyed(self, keyed: dict[int, tuple[object, object]], line: Line, columns: int) -> None:
        old, new = line["old"], line["new"]
        if old is not None:
            assert keyed.pop(old["id"]) == (old["u"], old["note"]), line
        if new is not None:
            assert len(new) == columns, line
            keyed[new["id"]] = (new["u"], new["note"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_java()
    directory = tmp_path_factory.mktemp("lines")
    with two_pumps(directory) as (cluster, writer):
        made = World(cluster, writer, directory)
        made.writer.create()
        yield made


def test_json_lines_have_every_change_once_after_executor_is_killed(world: World) -> None:
    """Every place where the drainer may die: tests/integration/sink/test_jsonl.py."""
    world.die_around_ddl(["file.part_written:3"], before=80)
    world.drain_and_check()
    assert len(list(world.lines.glob("*.jsonl"))) > 4
    assert set(lines_of(world.lines)) == {"000", "002", "003"}
