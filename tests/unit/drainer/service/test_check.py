"""`drainer check`: the whole command, with etcd in memory, an SQLite file, and a TiDB of some rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import re
import sqlite3
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from binlog.errors import ConfigError, TimestampUnavailable

from drainer.__main__ import NOT_EQUAL, main
from drainer.batch.work import Kind
from drainer.config import Config
from drainer.ranges.check import RowDifference, Table
from drainer.ranges.upstream import Source
from drainer.service import check as module
from drainer.service import first_load
from drainer.service.check import CheckOptions, TableCheck, check, shown, sources_of
from drainer.service.first_load import GC_TTL_S
from drainer.sink.base import Identity, Verification
from drainer.sink.errors import DestinationDown, PositionMoved, RowsRefused, SchemaMoved
from drainer.sink.mysql.connection import ConnectionLost
from drainer.sink.sqlite.rows import create_table
from drainer.sink.sqlite.sink import FileSnapshot, SQLiteSink
from tests.support.memory_etcd import MemoryEtcd
from tests.support.row_case import INT, TEXT, table, view_of
from tests.support.row_packets import packet
from tests.support.upstream_case import FakeUpstream

TS = 1 << 40
ORDERS, ITEMS = (table([("id", INT), ("name", TEXT)], handle="id", table_id=n, name=f"t{n}") for n in (5, 6))
ROWS = [(1, "a"), (2, "b")]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file has all rows of shop.t5 and none of shop.t6."""
    jobs = [
        {
            "id": 10 + info.id, "type": 3, "schema_id": 2, "table_id": info.id, "schema_name": "shop", "state": 6,
            "binlog": {"SchemaVersion": info.id, "FinishedTS": info.id, "TableInfo": info.to_json()},
        }
        for info in (ORDERS, ITEMS)
    ]  # fmt: skip
    (tmp_path / "history.json").write_text(json.dumps(jobs))
    path = tmp_path / "drainer.toml"
    path.write_text(
        f'node-id = "d"\n[schema]\nhistory-file = "{tmp_path / "history.json"}"\n[upstream]\nhost = "tidb"\n'
        f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "{tmp_path / "x.sqlite"}"\n'
    )
    sink = SQLiteSink(tmp_path / "x.sqlite")
    sink.open(Identity(7, "default", "d"), TS)
    sink.advance(TS + 1, 9)
    sink.close(clean=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "x.sqlite")) as file:
        for info in (ORDERS, ITEMS):
            file.execute(create_table(f"shop.{info.name}", info))
        file.executemany('INSERT INTO "shop.t5" VALUES (?, ?)', ROWS)
        file.commit()
    return path


def settings(path: Path) -> Config:
    return Config.model_validate(tomllib.loads(path.read_text()))


def rows(config: Path, name: str = "t6") -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(config.with_name("x.sqlite"))) as file:
        return file.execute(f'SELECT * FROM "shop.{name}" ORDER BY id').fetchall()


@contextlib.contextmanager
def cluster(upstream: FakeUpstream | None = None) -> Iterator[mock.AsyncMock]:
    """Yields what stands for PD's GC."""
    upstream = upstream or FakeUpstream({number: (b"%d" % number, name.encode()) for number, name in ROWS})
    hold_gc = mock.AsyncMock()
    with (
        mock.patch.multiple(first_load, ask_first=mock.AsyncMock(), hold_gc=hold_gc),
        mock.patch.multiple(
            module,
            connect_etcd=lambda *_: MemoryEtcd(),
            cluster_id=mock.AsyncMock(return_value=7),
            open_snapshot=lambda _, ts: upstream.connect(ts),
            _PAUSE_S=0,
        ),
    ):
        yield hold_gc


def run(config: Path, *arguments: str) -> int:
    with mock.patch("sys.argv", ["drainer", "check", *arguments, "-config", str(config)]), cluster():
        return main()


def checked(
    config: Path, options: CheckOptions | None = None, upstream: FakeUpstream | None = None
) -> list[TableCheck]:
    with cluster(upstream):
        return asyncio.run(check(settings(config), options or CheckOptions(), asyncio.Event()))


def test_differences_are_printed_and_end_with_a_code_of_their_own(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config) == NOT_EQUAL
    assert capsys.readouterr().out.splitlines() == [
        f"shop.t5: equal (2 rows upstream at {TS + 1})",
        f"shop.t6: 2 rows differ (2 rows upstream at {TS + 1})",
        "    missing: id = 1, name = 'a'",
        "    missing: id = 2, name = 'b'",
    ]
    assert rows(config) == []


def test_repair_writes_what_differs_and_compares_again(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "-repair", "-json") == 0
    found = {one["table"]: one for one in json.loads(capsys.readouterr().out)}
    assert [row["key"] for row in found["shop.t6"]["repaired"]] == [{"id": "1"}, {"id": "2"}]
    assert [(one["equal"], one["differences"], one["rows"]) for one in found.values()] == [(True, [], 2)] * 2
    assert rows(config) == rows(config, "t5") == ROWS


def test_tables_are_compared_by_tasks_that_have_some_of_them_each(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups: list[Sequence[str]] = []

    def on_executors(_: Any, work: Any, values: list[Sequence[str]], *others: Any) -> list[Any]:
        groups.extend(values)
        of = pickle.loads(pickle.dumps(work))
        return pickle.loads(pickle.dumps([of(value) for value in values]))

    session = mock.MagicMock()
    session.return_value.__enter__.return_value.sparkContext.defaultParallelism = 2
    with mock.patch.multiple(module, spark_session=session, on_executors=on_executors):
        assert run(config, "-executors", "-table", "shop.*") == NOT_EQUAL
        assert groups == [["shop.t5"], ["shop.t6"]]
        assert "shop.t5: equal (2 rows" in (text := capsys.readouterr().out)
        assert "shop.t6: 2 rows differ (2 rows" in text
        assert run(config, "-executors", "-repair", "-table", "*6") == 0
        assert run(config, "-executors", "-table", "nothing") == 1
    assert rows(config) == rows(config, "t5") == ROWS


def test_chosen_tables_alone_are_compared(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "-table", "shop.t5", "-table", "*5") == 0
    assert "t6" not in capsys.readouterr().out
    assert run(config, "-table", "shop.*", "-table", "other.*") == 1
    assert "-table other.*: no replicated table has such a name" in capsys.readouterr().err


def test_help_is_that_of_the_command(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(config, "-help")
    assert ended.value.code == 0
    assert "-repair" in capsys.readouterr().out


def test_upstream_of_another_cluster_is_refused_and_nothing_is_repaired(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch.object(FakeUpstream, "packets", lambda *_: (1, iter([[packet([b"7"])]]))):
        assert run(config, "-repair") == 2
    assert "2 tables, such as `shop`.`t5`, are not there" in capsys.readouterr().err
    assert rows(config) == []


def test_table_of_which_kinds_of_changes_are_left_out_is_not_compared() -> None:
    """A repair would delete rows that it is to keep."""
    view = replace(view_of(ORDERS, ITEMS), ignored_kinds={5: frozenset({Kind.DELETE})})
    assert [*sources_of(view, {5: "shop", 6: "shop"})] == [f"{view.tables[6].schema}.t6"]


def test_files_of_the_drainer_are_left_alone_and_what_was_opened_is_closed(config: Path) -> None:
    log_file, data_dir = config.with_name("drainer.log"), config.with_name("data")
    config.write_text(f'log-file = "{log_file}"\ndata-dir = "{data_dir}"\n' + config.read_text())
    spies = [mock.patch.object(of, "close", autospec=True, side_effect=of.close) for of in (FileSnapshot, MemoryEtcd)]
    with spies[0] as there, spies[1] as etcd:
        assert run(config) == NOT_EQUAL
    assert (there.call_count, etcd.call_count) == (1, 1)
    assert not log_file.exists()
    assert not data_dir.exists()


def test_redacted_report_has_keys_and_column_names_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "-redact") == NOT_EQUAL
    assert "    missing: id = 1, name = ?" in capsys.readouterr().out
    assert run(config, "-redact", "-json") == NOT_EQUAL
    (row, _) = json.loads(capsys.readouterr().out)[1]["differences"]
    assert row == {"key": {"id": "1"}, "upstream": {"id": "1", "name": "?"}, "destination": None}


def test_table_that_cannot_be_compared_does_not_keep_others_from_it(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(config.with_name("x.sqlite"))) as file:
        file.execute('DROP TABLE "shop.t5"')
    assert run(config) == 2
    out = capsys.readouterr().out
    assert "shop.t5: not compared: shop.t5 of the destination cannot be read" in out
    assert "shop.t6: 2 rows differ" in out


def test_definition_that_differs_is_shown_with_what_mends_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(sqlite3.connect(config.with_name("x.sqlite"))) as file:
        file.execute('ALTER TABLE "shop.t5" ADD COLUMN more INTEGER')
    assert run(config, "-table", "*.t5", "-repair") == NOT_EQUAL
    assert capsys.readouterr().out.splitlines() == [
        f"shop.t5: equal (2 rows upstream at {TS + 1})",
        "    schema: column more: INTEGER there, not wanted; to mend it: ALTER TABLE `shop.t5` DROP COLUMN `more`",
    ]


def test_lost_connection_is_tried_again(config: Path) -> None:
    answers: Sequence[ConnectionLost] = [ConnectionLost("gone")] * 3
    upstream = FakeUpstream({number: (b"%d" % number, name.encode()) for number, name in ROWS}, *answers)
    found = checked(config, CheckOptions(repair=True), upstream)
    assert [(one.is_equal, one.error) for one in found] == [(True, "")] * 2


def test_lost_connection_is_an_error_in_the_end(config: Path) -> None:
    with mock.patch.object(module, "ROUNDS", 2), mock.patch.object(Table, "compared", side_effect=DestinationDown("x")):
        assert [one.error for one in checked(config)] == ["x", "x"]


def test_destination_that_does_not_answer_before_a_later_round_is_waited_for(config: Path) -> None:
    real, answers = SQLiteSink.snapshot, iter([None, DestinationDown("gone"), None])

    def snapshot(sink: SQLiteSink, identity: Identity) -> Any:
        if error := next(answers):
            raise error
        return real(sink, identity)

    with mock.patch.object(SQLiteSink, "snapshot", snapshot):
        assert [one.is_equal for one in checked(config, CheckOptions(repair=True))] == [True, True]


def test_table_that_was_renamed_meanwhile_is_compared_under_its_new_name(config: Path) -> None:
    real, left = Table.compared, [SchemaMoved("renamed")]

    def compared(of: Table) -> Any:
        if left:
            raise left.pop()
        return real(of)

    def sources(*of: Any) -> dict[str, list[Source]]:
        found = real_sources(*of)
        return found if left else {"shop.t7": found["shop.t5"], "shop.t6": found["shop.t6"]}

    real_sources = module.sources_of
    with mock.patch.object(Table, "compared", compared), mock.patch.object(module, "sources_of", sources):
        found = checked(config)
    assert [(one.table, one.is_equal) for one in found] == [("shop.t6", False), ("shop.t7", True)]


def recorded(config: Path, at: int = TS + 1) -> list[Verification]:
    """What the next drainer finds. Moves the position."""
    sink = SQLiteSink(config.with_name("x.sqlite"))
    found = sink.open(Identity(7, "default", "d"), 0).verifications
    sink.advance(at + 1, 9)
    sink.close(clean=True)
    return list(found)


def test_destination_has_the_last_comparison_of_each_table(config: Path) -> None:
    assert run(config) == NOT_EQUAL
    assert recorded(config) == [
        Verification(5, "shop.t5", TS + 1, TS + 1),
        Verification(6, "shop.t6", 0, TS + 1, 2),
    ]
    assert run(config, "-repair") == 0
    assert recorded(config, TS + 2)[1] == Verification(6, "shop.t6", TS + 2, TS + 2)
    with contextlib.closing(sqlite3.connect(config.with_name("x.sqlite"))) as file:
        file.execute('DELETE FROM "shop.t6" WHERE id = 1')
        file.commit()
    assert run(config, "-table", "*6") == NOT_EQUAL
    assert recorded(config, TS + 3) == [
        Verification(5, "shop.t5", TS + 2, TS + 2),
        Verification(6, "shop.t6", TS + 2, TS + 3, 1),
    ]


def test_comparison_of_a_table_that_is_no_longer_there_is_forgotten(config: Path) -> None:
    run(config)
    jobs = json.loads(config.with_name("history.json").read_text())
    config.with_name("history.json").write_text(json.dumps(jobs[:1]))
    assert run(config) == 0
    assert [one.table for one in recorded(config)] == ["shop.t5"]


def test_table_that_was_not_compared_keeps_what_is_stored(config: Path) -> None:
    run(config)
    with mock.patch.object(Table, "compared", side_effect=RowsRefused("no", schema="shop", table="t5")):
        assert run(config) == 2
    assert [one.checked_ts for one in recorded(config)] == [TS + 1, TS + 1]


def test_comparison_that_cannot_be_stored_is_reported_all_the_same(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch.object(FileSnapshot, "record", side_effect=DestinationDown("read-only")):
        assert run(config) == NOT_EQUAL
    assert "2 rows differ" in capsys.readouterr().out


def test_difference_of_a_table_that_a_ddl_may_have_exchanged_is_looked_for_again(config: Path) -> None:
    moved = mock.patch.object(FileSnapshot, "schema_moved", side_effect=[True, True, False])
    with moved, mock.patch.object(Table, "compared", autospec=True, side_effect=Table.compared) as compared:
        assert [one.is_equal for one in checked(config)] == [True, False]
    assert compared.call_count == 4


def test_repair_that_is_refused_keeps_the_differences_and_is_not_tried_again(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = RowsRefused("triggers", schema="shop", table="t6")
    with mock.patch.object(Table, "repair", side_effect=refused) as repair:
        assert run(config, "-repair") == 2
    assert repair.call_count == 1
    out = capsys.readouterr().out.splitlines()
    assert out[1:3] == ["shop.t6: 2 rows differ, not repaired: triggers", "    missing: id = 1, name = 'a'"]


def test_report_as_text_has_one_short_line_for_each_of_some_rows() -> None:
    wide = RowDifference(b"", {"id": "1"}, {"v": "'a\n\x1b[2J'"}, {"v": "x" * 1000})
    surplus = RowDifference(b"", {"id": "2"}, None, {"id": "2"})
    one = TableCheck("s.t", at=7, rows=90, differences=(wide, *[surplus] * 40), is_cut=True)
    lines = shown([one], CheckOptions()).splitlines()
    assert lines[0] == "s.t: at least 41 rows differ (90 rows upstream at 7)"
    assert lines[1] == rf"    different: id = 1: upstream v = 'a\n\x1b[2J'; here v = {'x' * 200}…"
    assert lines[2:] == ["    surplus: id = 2"] * 19


def test_difference_that_a_repair_does_not_end_remains_one(config: Path) -> None:
    with mock.patch.object(module, "ROUNDS", 3), mock.patch.object(Table, "repair", return_value=0) as repair:
        found = checked(config, CheckOptions(repair=True))
    assert repair.call_count == 3
    assert [one.is_equal for one in found] == [True, False]


def test_batch_that_is_being_distributed_is_waited_for(config: Path) -> None:
    real, left = SQLiteSink.snapshot, [PositionMoved("on the way")] * 2

    def snapshot(sink: SQLiteSink, identity: Identity) -> Any:
        if left:
            raise left.pop()
        return real(sink, identity)

    with mock.patch.object(SQLiteSink, "snapshot", snapshot):
        assert len(checked(config)) == 2
    left += [PositionMoved("on the way")]
    impatient = mock.patch.object(module, "_OPEN_S", 0)
    with mock.patch.object(SQLiteSink, "snapshot", snapshot), impatient, pytest.raises(PositionMoved):
        checked(config)


def test_gc_is_held_at_the_position_and_check_goes_on_without_it(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster() as hold_gc:
        hold_gc.side_effect = TimestampUnavailable("no PD")
        found = asyncio.run(check(settings(config), CheckOptions(), asyncio.Event()))
    assert [one.error for one in found] == ["", ""]
    calls = [call.args[1:4] for call in hold_gc.await_args_list]
    name = calls[0][0]
    assert re.fullmatch("drainer-check-d-[0-9a-f]{8}", name), "two checks at a time do not end each other's"
    assert (calls[0], calls[-1]) == ((name, TS + 1, GC_TTL_S), (name, TS + 1, 0))
    assert "tidb_gc_life_time" in caplog.text


def test_stopped_check_reports_what_it_has_done(config: Path) -> None:
    real = Table.compared

    async def stopped() -> list[TableCheck]:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def compared(of: Table) -> Any:
            if of.sources[0].info.id == 6:
                loop.call_soon_threadsafe(stop.set)
                assert of.stop.wait(60)
            return real(of)

        with mock.patch.object(Table, "compared", compared), cluster():
            return await check(settings(config), CheckOptions(), stop)

    assert [(one.is_equal, one.error) for one in asyncio.run(stopped())] == [(True, ""), (False, "stopped")]


def test_destination_without_tables_is_refused(config: Path) -> None:
    config.write_text(config.read_text().replace('"sqlite"', '"jsonl"').replace("path =", "path ="))
    with pytest.raises(ConfigError, match=r"jsonl:.* has no typed tables to compare"):
        checked(config)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-consumer=sqlite:x.db"], "sqlite:x.db has no typed tables to compare"),
        (["-consumer=mysql://h:1/?nosuch=1"], "not understood: nosuch"),
        (["-consumer=mysql://h:1", "-repair"], "what kafka-consumer wrote is not repaired"),
    ],
)
def test_what_cannot_be_done_with_tables_of_a_consumer_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    assert run(config, *arguments) == 1
    assert why in capsys.readouterr().err
