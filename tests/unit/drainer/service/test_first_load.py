"""`drainer load`: the whole command, with etcd in memory, an SQLite file, and a TiDB of two rows."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sqlite3
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from binlog.cluster.registry import Registry, State
from binlog.errors import ConfigError, TimestampUnavailable
from binlog.tidb.job import ActionType, Job
from rich.console import Console

from drainer.__main__ import main
from drainer.apply.progress import LoadProgress
from drainer.config import Config
from drainer.ranges.upstream import UpstreamRefused
from drainer.service import daemon, first_load
from drainer.service.daemon import Upstream, _opened
from drainer.service.first_load import GC_TTL_S, load, load_sink, shown
from drainer.service.status import StartingPages
from drainer.sink.base import Identity
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.mysql.connection import ConnectionLost
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.memory_etcd import MemoryEtcd
from tests.support.row_case import INT, TEXT, table
from tests.support.row_packets import packet
from tests.support.schema_case import job
from tests.support.upstream_case import Answer, FakeSession, snapshot_of

ORDERS = table([("id", INT), ("name", TEXT)], handle="id", table_id=5, name="orders")
ROWS: Answer = [[b"1", b"a"], [b"2", None]]
IDS: Answer = [[b"5"]]
TS = 1 << 40


class Clock:
    async def get(self) -> int:
        return TS


@pytest.fixture
def config(tmp_path: Path) -> Path:
    job = {
        "id": 6, "type": 3, "schema_id": 2, "table_id": 5, "schema_name": "shop", "state": 6,
        "binlog": {"SchemaVersion": 2, "FinishedTS": 9, "TableInfo": ORDERS.to_json()},
    }  # fmt: skip
    (tmp_path / "history.json").write_text(json.dumps([job]))
    path = tmp_path / "drainer.toml"
    path.write_text(
        f'node-id = "d"\n[schema]\nhistory-file = "{tmp_path / "history.json"}"\n[upstream]\nhost = "tidb"\n'
        f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "{tmp_path / "x.sqlite"}"\n'
    )
    return path


def settings(path: Path) -> Config:
    return Config.model_validate(tomllib.loads(path.read_text()))


@contextlib.contextmanager
def cluster(etcd: MemoryEtcd, *sessions: FakeSession, jobs: list[list[Job]] | None = None) -> Iterator[mock.AsyncMock]:
    """Yields what stands for PD's GC. `jobs`: those in effect, at one timestamp after the other."""
    jobs = jobs or []
    left = iter(sessions or [FakeSession(IDS)])
    made: dict[str, Any] = {
        "connect_etcd": lambda *_: etcd,
        "cluster_id": mock.AsyncMock(return_value=7),
        "current_ts": lambda *_: Clock().get(),
        "open_snapshot": lambda _, ts: snapshot_of(next(left), ts),
        "ask_first": mock.AsyncMock(),
        "hold_gc": mock.AsyncMock(),
        "_SETTLE_S": 0,
        "_jobs_in_effect": lambda *_: jobs.pop(0) if jobs else [],
    }
    with mock.patch.multiple(first_load, **made):
        yield made["hold_gc"]


async def start(config: Path) -> int:
    """The position at which the stream would begin."""
    etcd = MemoryEtcd()
    upstream = Upstream(etcd, Registry(etcd), 7, TS + 1, mock.Mock(), None)
    async with _opened(settings(config), upstream, asyncio.Event(), mock.Mock()) as opened:
        return opened.position.commit_ts


def rows(config: Path) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(config.with_name("x.sqlite"))) as file:
        return file.execute('SELECT * FROM "shop.orders" ORDER BY id').fetchall()


def test_command_creates_and_loads_and_leaves_the_position_and_the_record_at_its_timestamp(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    etcd, reading = MemoryEtcd(), FakeSession(IDS, ROWS, [], ROWS)
    args = mock.patch("sys.argv", ["drainer", "load", "-config", str(config)])
    with args, cluster(etcd, reading) as hold_gc:
        assert main() == 0, capsys.readouterr().err
    assert [call.args[1:4] for call in hold_gc.await_args_list] == [("drainer-load-d", TS, n) for n in (GC_TTL_S, 0)]
    assert rows(config) == [(1, "a"), (2, None)]
    assert reading.said[1] == f"SET SESSION tidb_snapshot='{TS}'"
    sink = SQLiteSink(config.with_name("x.sqlite"))
    position = sink.open(Identity(7, "default", "d"), 0)
    sink.close(clean=True)
    assert (position.commit_ts, position.fresh, all(one.is_complete for one in position.loads)) == (TS, False, True)
    record = asyncio.run(Registry(etcd).get("drainers", "d"))
    assert record is not None
    assert (record.status.state, record.status.max_commit_ts) == (State.PAUSED, TS)


def test_command_that_is_stopped_early_ends_with_a_code_of_its_own(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = mock.patch("sys.argv", ["drainer", "load", "-config", str(config)])
    with args, mock.patch.object(first_load, "load", mock.AsyncMock(return_value=False)):
        assert main() == 130
    assert "stopped before everything was loaded; start it again to continue" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_bar_is_shown_at_a_terminal_alone(config: Path, is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=200)
    with cluster(MemoryEtcd(), FakeSession(IDS, ROWS, [], ROWS)), shown(console) as progress:
        assert asyncio.run(load(settings(config), asyncio.Event(), progress))
    assert isinstance(console.file, io.StringIO)
    assert ("2 rows, 7 B" in console.file.getvalue()) == is_terminal
    assert progress.document()["loaded"] == 1


async def test_pages_of_a_starting_drainer_show_its_first_load(config: Path) -> None:
    found: list[list[str]] = []
    loop, pages = asyncio.get_running_loop(), StartingPages("d", "x")

    class Watching(FakeSession):
        def packets(self, sql: bytes, block_bytes: int) -> tuple[int, Iterator[list[bytes]]]:
            asyncio.run_coroutine_threadsafe(self.look(), loop).result()
            return super().packets(sql, block_bytes)

        async def look(self) -> None:
            found.append([(await page()).body.decode() for page in (pages.status, pages.home, pages.ready)])

    with cluster(MemoryEtcd(), Watching(IDS, ROWS, [], ROWS)):
        assert await daemon._first_load(settings(config), asyncio.Event(), pages, mock.Mock())
    assert json.loads(found[1][0])["Phase"] == "first load: 0 of 1 tables divided, 0 ranges"
    status, page, ready = found[-1]
    assert json.loads(status)["Phase"] == ready.strip() == "first load: 0 of 1 ranges"
    assert [*json.loads(status)["FirstLoad"].values()] == [1, 1, 1, 0, 0, 0, 0, None]
    assert all(words in page for words in (ready.strip(), "ranges loaded", "of 1", "time left", "unknown"))
    assert pages.document()["Phase"] == "opening the destination"


async def test_stopped_load_is_continued_at_its_timestamp(config: Path) -> None:
    """The stop comes while a table is divided, which is finished; the second load reads its range."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    class Stopping(FakeSession):
        def packets(self, sql: bytes, block_bytes: int) -> tuple[int, Iterator[list[bytes]]]:
            if b"OFFSET" in sql:  # the end of the division
                asyncio.run_coroutine_threadsafe(self.stop(), loop).result()
            return super().packets(sql, block_bytes)

        async def stop(self) -> None:
            stop.set()
            await asyncio.sleep(0)

    with cluster(MemoryEtcd(), Stopping(IDS, ROWS, []), FakeSession(ROWS)):
        done = await load(settings(config), stop, LoadProgress())
        assert not done
        with pytest.raises(DestinationRefused, match="its first load is not complete; continue it: drainer load"):
            await start(config)
        while not done:
            stop.clear()
            done = await load(settings(config), stop, LoadProgress())
    assert rows(config) == [(1, "a"), (2, None)]
    assert await start(config) == TS


async def test_timestamp_close_to_the_effect_of_a_ddl_is_not_used(config: Path) -> None:
    """Its binlog may precede the timestamp, so the stream would not create the table, and the history has it later."""
    file = config.with_name("history.json")
    (job,) = json.loads(file.read_text())
    later = TS + (1 << 18)
    file.write_text(json.dumps([{**job, "start_ts": TS - 1, "binlog": {**job["binlog"], "FinishedTS": later}}]))
    reading = FakeSession(IDS, ROWS, [], ROWS)
    times = mock.patch.object(Clock, "get", mock.AsyncMock(side_effect=[TS, later]))
    with times, cluster(MemoryEtcd(), reading):
        assert await load(settings(config), asyncio.Event(), LoadProgress())
    assert rows(config) == [(1, "a"), (2, None)]
    assert reading.said[1] == f"SET SESSION tidb_snapshot='{later}'"
    assert await start(config) == later


async def test_drainer_is_registered_before_upstream_is_read(config: Path) -> None:
    """As paused: a pump that starts meanwhile expects no answer from it."""
    etcd, found = MemoryEtcd(), []
    loop = asyncio.get_running_loop()

    class Watching(FakeSession):
        def execute(self, sql: bytes) -> int:
            record = asyncio.run_coroutine_threadsafe(Registry(etcd).get("drainers", "d"), loop).result()
            assert record is not None
            found.append((record.status.state, record.status.max_commit_ts))
            return super().execute(sql)

    with cluster(etcd, Watching(IDS, ROWS, [], ROWS)):
        assert await load(settings(config), asyncio.Event(), LoadProgress())
    assert set(found) == {(State.PAUSED, TS)}


async def test_timestamp_at_which_a_ddl_waits_for_transactions_is_not_used(config: Path) -> None:
    """It took effect, and the history has it when the transactions that began before have ended."""
    waiting, later = job(7, ActionType.ADD_COLUMN, 3), TS + 5
    times = mock.patch.object(Clock, "get", mock.AsyncMock(side_effect=[TS, later]))
    with times, cluster(MemoryEtcd(), FakeSession(IDS, ROWS, [], ROWS), jobs=[[waiting]]):
        assert await load(settings(config), asyncio.Event(), LoadProgress())
    assert await start(config) == later


def test_databases_without_tables_are_created_if_they_are_replicated(config: Path) -> None:
    """A stream that creates a table there does not create the database."""
    file = config.with_name("history.json")
    made = enumerate(("empty", "left", "moved"))
    jobs = [job(7 + n, ActionType.CREATE_SCHEMA, 3 + n, schema=(8 + n, name), finished_ts=9) for n, name in made]
    file.write_text(json.dumps([*json.loads(file.read_text()), *(one.to_json() for one in jobs)]))
    route = '[[syncer.routes]]\nschema-pattern = "moved"\ntarget-schema = "x"\n'
    config.write_text(config.read_text().replace("[syncer]", '[syncer]\nignore-schemas = "mysql,left"') + route)
    spy = mock.patch.object(SQLiteSink, "ddl", autospec=True, side_effect=SQLiteSink.ddl)
    with spy as ran, cluster(MemoryEtcd(), FakeSession(IDS, ROWS, [], ROWS)):
        assert asyncio.run(load(settings(config), asyncio.Event(), LoadProgress()))
    assert [call.args[1].job.schema_name for call in ran.call_args_list] == ["shop", "empty", "shop"]


async def test_stop_while_the_destination_is_down_ends_the_load(config: Path) -> None:
    stop = asyncio.Event()

    def down(*_: object) -> None:
        stop.set()
        raise DestinationDown("told to stop while waiting")

    with cluster(MemoryEtcd()), mock.patch.object(SQLiteSink, "open", down):
        assert not await load(settings(config), stop, LoadProgress())


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('host = "tidb"', "", r"upstream\.host: name a TiDB to read"),
        ("[syncer]", "[syncer]\nsync-ddl = false", r"sync-ddl = false: a load creates the tables"),
    ],
)
def test_configuration_without_what_a_load_needs_is_refused(config: Path, old: str, new: str, text: str) -> None:
    config.write_text(config.read_text().replace(old, new))
    with cluster(MemoryEtcd()), pytest.raises(ConfigError, match=text):
        asyncio.run(load(settings(config), asyncio.Event(), LoadProgress()))


def test_destination_with_a_position_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = SQLiteSink(config.with_name("x.sqlite"))
    sink.open(Identity(7, "default", "d"), 5)
    sink.close(clean=True)
    with mock.patch("sys.argv", ["drainer", "load", "-config", str(config)]), cluster(MemoryEtcd()):
        assert main() == 2
    assert "it has a position already: a first load needs an empty destination" in capsys.readouterr().err


def test_upstream_that_refuses_ends_the_command_with_its_reason(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = FakeSession(IDS, [ConnectionLost("gone")])
    args, once = (
        mock.patch("sys.argv", ["drainer", "load", "-config", str(config)]),
        mock.patch("drainer.ranges.load.TRIES_MAX", 1),
    )
    with args, once, cluster(MemoryEtcd(), gone):
        assert main() == 2
    assert "drainer load: [upstream] does not answer: gone" in capsys.readouterr().err


async def test_load_goes_on_with_a_warning_if_pd_does_not_hold_gc(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(MemoryEtcd(), FakeSession(IDS, ROWS, [], ROWS)) as hold_gc:
        hold_gc.side_effect = TimestampUnavailable("no PD")
        assert await load(settings(config), asyncio.Event(), LoadProgress())
    assert rows(config) == [(1, "a"), (2, None)]
    assert "tidb_gc_life_time must be long enough" in caplog.text


async def test_destination_with_a_position_is_left_as_it_is_if_the_drainer_itself_asks(config: Path) -> None:
    sink = SQLiteSink(config.with_name("x.sqlite"))
    sink.open(Identity(7, "default", "d"), 5)
    sink.close(clean=True)
    etcd = MemoryEtcd()
    with cluster(etcd) as hold_gc:
        assert await load(settings(config), asyncio.Event(), LoadProgress(), unless_begun=True)
    assert await start(config) == 5
    assert not hold_gc.await_count
    assert await Registry(etcd).get("drainers", "d") is None


def test_heartbeats_count_from_the_end_of_the_load(config: Path) -> None:
    """If they counted from its begin, hours ago, pumps would take the drainer for one that was killed."""
    config.write_text(config.read_text().replace("[upstream]", "[upstream]\nfirst-load = true"))
    done: list[str] = []

    async def step(name: str) -> int:
        done.append(name)
        return 1

    made: dict[str, Any] = {
        "connect_etcd": lambda *_: MemoryEtcd(),
        "cluster_id": mock.AsyncMock(return_value=7),
        "keep_in_thread": mock.Mock(),
        "_serving": lambda *_: contextlib.nullcontext(),
        "_first_load": lambda *_: step("load"),
        "_now_ts": lambda *_: step("time"),
        "_opened": mock.Mock(side_effect=daemon._StoppedEarly),
    }
    with mock.patch.multiple(daemon, **made):
        asyncio.run(daemon.drain(settings(config), mock.Mock(), asyncio.Event()))
    assert done == ["load", "time"]


def test_standby_does_not_wait_for_the_lock_of_a_drainer_that_has_ended(config: Path) -> None:
    head, _, _ = config.read_text().replace('"sqlite"', '"mysql"').partition("[syncer.to]")
    config.write_text(f'{head}[syncer.to]\nhost = "127.0.0.1"\n')
    sinks: list[Any] = [load_sink(settings(config), former_has_ended=ended) for ended in (True, False)]
    assert sinks[0]._config.lock_wait_s < sinks[1]._config.lock_wait_s


async def test_host_of_another_cluster_is_refused_before_anything_is_created(config: Path) -> None:
    other = mock.patch.object(FakeSession, "packets", lambda *_: (1, iter([[packet([b"6"])]])))
    with cluster(MemoryEtcd()), other, pytest.raises(UpstreamRefused, match=r"such as `shop`.`orders`"):
        await load(settings(config), asyncio.Event(), LoadProgress())
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        rows(config)


class Lake:
    """A lake of the two rows, whose position is TS, that answers as a TiDB. `opened`: the TSOs."""

    address = "delta:/lake"
    session: Any = None

    def __init__(self, at_ts: int | None = None, *answers: Answer) -> None:
        self.at_ts, self.opened = at_ts, list[int]()
        self._snapshot = snapshot_of(FakeSession(*(answers or (IDS, ROWS, [], ROWS))))
        self.check_ids, self.divided, self.read = (
            getattr(self._snapshot, name) for name in ("check_ids", "divided", "read")
        )
        self.read_bytes = 0

    def spark_settings(self, given: Mapping[str, str]) -> Mapping[str, str]:
        return {"spark.jars.packages": "delta"}

    def open(self, ts: int | None) -> int:
        self.opened.append(ts or self.at_ts or TS)
        return self.opened[-1]

    @contextlib.contextmanager
    def at(self, ts: int) -> Iterator[Lake]:
        yield self


def from_lake(config: Path, lake: Lake) -> None:
    opening = mock.Mock(session="a session")
    assert asyncio.run(load(settings(config), asyncio.Event(), LoadProgress(), opening, origin=lake))
    assert lake.session == "a session"


def test_load_from_a_lake_begins_at_its_position_or_at_the_tso_and_asks_no_tidb(config: Path) -> None:
    config.write_text(config.read_text().replace('host = "tidb"', ""))
    for at_ts in (None, TS - 7):
        with cluster(MemoryEtcd()) as hold_gc:
            from_lake(config, Lake(at_ts))
        assert not hold_gc.await_count
        assert rows(config) == [(1, "a"), (2, None)]
        assert asyncio.run(start(config)) == (at_ts or TS)
        config.with_name("x.sqlite").unlink()


def test_readers_of_changes_get_the_rows_at_the_tso_and_the_tables_before(config: Path) -> None:
    head, _, _ = config.read_text().replace('"sqlite"', '"jsonl"').partition("[syncer.to]")
    config.write_text(f'{head}[syncer.to]\npath = "{config.with_name("out")}"\n')
    lake = Lake()
    with cluster(MemoryEtcd()):
        from_lake(config, lake)
    assert lake.opened == [TS, TS]
    assert asyncio.run(start(config)) == TS


def test_tso_close_to_a_ddl_is_refused_before_anything_is_written(config: Path) -> None:
    file = config.with_name("history.json")
    (made,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**made, "start_ts": TS - 1, "binlog": {**made["binlog"], "FinishedTS": TS + 5}}]))
    with cluster(MemoryEtcd()), pytest.raises(DestinationRefused, match="DDL job 6 took effect close to"):
        from_lake(config, Lake())
    assert not config.with_name("x.sqlite").exists()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-from", "mysql://x"], "must be delta:DIRECTORY"),
        (["-from", "delta:"], "must be delta:DIRECTORY"),
        (["-at", "7"], "-at: only a lake is read at a TSO that is given"),
    ],
)
def test_flags_that_name_no_lake_are_refused(
    config: Path, flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch("sys.argv", ["drainer", "load", *flags, "-config", str(config)]):
        assert main() == 1
    assert text in capsys.readouterr().err
