"""The command: what it prints, what it writes into SQLite, how it ends."""

from __future__ import annotations

import sqlite3
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from binlog.errors import ConfigError
from binlog.runtime import log
from binlog.tidb.time import parse_datetime
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from drainer.batch.work import Kind
from drainer.protocol.pb_file import EventEncoder, ddl_binlog, ddl_text, dml_head
from drainer.protocol.table import RowChanges, Table
from drainer.reparo.__main__ import main, parse
from drainer.reparo.config import ReparoConfig
from drainer.reparo.stream import ReparoError
from tests.support.any_changes import BIG, KINDS
from tests.support.file_case import framed
from tests.support.row_changes import make_changes, make_table

T = make_table("shop", "orders", [("id", BIG), ("state", KINDS["name"])], primary=["id"])
U = make_table("shop", "users", [("id", BIG), ("at", KINDS["stamp"])], table_id=101)
TS = 449_000_000_000_000_000


def events(one: RowChanges) -> bytes:
    columns = [(column.name, column.column_type) for column in one.table.columns]
    encoder = EventEncoder(one.table.schema, one.table.name, columns, UTC)
    return b"".join(encoder.encode(one.kind, one.commit_ts, one.old, one.new))


def transaction(commit_ts: int, *rows: bytes) -> bytes:
    data = b"".join(rows)
    return framed(dml_head(commit_ts, len(data)), data)


def insert(table: Table, *rows: tuple[Any, ...]) -> bytes:
    return events(make_changes(table, Kind.INSERT, new=rows))


def update(table: Table, old: tuple[Any, ...], new: tuple[Any, ...]) -> bytes:
    return events(make_changes(table, Kind.UPDATE, old=[old], new=[new]))


def delete(table: Table, row: tuple[Any, ...]) -> bytes:
    return events(make_changes(table, Kind.DELETE, old=[row]))


def ddl(commit_ts: int, query: str) -> bytes:
    return framed(ddl_binlog(commit_ts, query))


RECORDS = [
    ddl(TS, "create database `shop`;"),
    ddl(TS + 1, "use `shop`; create table orders (id bigint primary key, state varchar(400));"),
    transaction(TS + 2, insert(T, (1, b"new"), (2, None)), insert(U, (7, 0))),
    transaction(TS + 3, update(T, (1, b"new"), (1, b"pa'id")), delete(T, (2, None))),
    ddl(TS + 4, "use `shop`; rename table orders to sales;"),
    transaction(TS + 5, insert(U, (8, 0))),
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / "binlog-0000000000000000-20240101000000").write_bytes(b"".join(RECORDS[:3]))
    (directory / "binlog-0000000000000001-20240101000000").write_bytes(b"".join(RECORDS[3:]))
    return directory


def run(tmp_path: Path, files: Path, *args: str) -> int:
    config = tmp_path / "reparo.toml"
    config.write_text(f'data-dir = "{files}"\n[dest-db]\npath = "{tmp_path / "db"}"\n')
    return main(["-config", str(config), *args])


def contents(tmp_path: Path) -> dict[str, list[Any]]:
    connection = sqlite3.connect(tmp_path / "db")
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]
    found = {name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr) for name in names}
    connection.close()
    return {name: rows for name, rows in found.items() if not name.startswith("tidb_binlog")}


def test_reparo_prints_one_line_for_each_event(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, files) == 0
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"{TS}  ddl     create database `shop`;",
        f"{TS + 1}  ddl     use `shop`; create table orders (id bigint primary key, state varchar(400));",
        f"{TS + 2}  insert  shop.orders  id=1  state='new'",
        f"{TS + 2}  insert  shop.orders  id=2  state=NULL",
        f"{TS + 2}  insert  shop.users  id=7  at=0000-00-00 00:00:00",
        f"{TS + 3}  update  shop.orders  id=1  state='new' → \"pa'id\"",
        f"{TS + 3}  delete  shop.orders  id=2  state=NULL",
        f"{TS + 4}  ddl     use `shop`; rename table orders to sales;",
        f"{TS + 5}  insert  shop.users  id=8  at=0000-00-00 00:00:00",
    ]


def test_reparo_prints_only_events_of_its_range_and_filter(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "r.toml"
    config.write_text(f'data-dir = "{files}"\n[[replicate-do-table]]\ndb-name = "SHOP"\ntbl-name = "~^user"\n')
    assert main(["-config", str(config), "-start-tso", str(TS + 2), "-stop-tso", str(TS + 4)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{TS + 2}  insert  shop.users  id=7" in line
    assert main(["-config", str(config)]) == 0
    out = capsys.readouterr().out
    assert "orders" not in out and out.count("shop.users") == 2


def test_reparo_replays_files_into_sqlite_tables(tmp_path: Path, files: Path) -> None:
    assert run(tmp_path, files, "-dest-type", "sqlite") == 0
    assert contents(tmp_path) == {
        "shop.sales": [(1, "pa'id")],
        "shop.users": [(7, "0000-00-00 00:00:00"), (8, "0000-00-00 00:00:00")],
    }


def test_reparo_continues_after_its_stored_position(tmp_path: Path, files: Path) -> None:
    """Nothing twice, although nothing has a key; also when a file grows meanwhile."""
    last = files / "binlog-0000000000000001-20240101000000"
    whole = last.read_bytes()
    for size in range(0, len(whole) + 1, 9):
        last.write_bytes(whole[:size])
        assert run(tmp_path, files, "-dest-type", "sqlite", "-txn-batch", "1") == 0
    last.write_bytes(whole)
    assert run(tmp_path, files, "-dest-type", "sqlite") == 0
    assert contents(tmp_path)["shop.users"] == [(7, "0000-00-00 00:00:00"), (8, "0000-00-00 00:00:00")]
    assert run(tmp_path, files, "-dest-type", "sqlite", "-name", "another", "-start-tso", str(TS + 5)) == 0
    assert len(contents(tmp_path)["shop.users"]) == 3


def test_reparo_refuses_change_of_missing_row_and_applies_nothing(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, files, "-dest-type", "sqlite", "-stop-tso", str(TS + 2)) == 0
    connection = sqlite3.connect(tmp_path / "db")
    connection.execute('DELETE FROM "shop.orders" WHERE id=2')
    connection.commit()
    connection.close()
    assert run(tmp_path, files, "-dest-type", "sqlite") == 2
    assert contents(tmp_path)["shop.orders"] == [(1, "new")]
    error = capsys.readouterr().err
    assert (
        f"binlog-0000000000000001-20240101000000, record at byte 0, commit_ts {TS + 3}: `shop`.`orders`: no such row"
        in error
    )
    assert run(tmp_path, files, "-dest-type", "sqlite", "-safe-mode") == 0
    assert contents(tmp_path)["shop.sales"] == [(1, "pa'id")]


def test_reparo_safe_mode_replays_again_to_the_same_rows(tmp_path: Path, files: Path) -> None:
    assert run(tmp_path, files, "-dest-type", "sqlite") == 0
    before = contents(tmp_path)
    assert run(tmp_path, files, "-dest-type", "sqlite", "-safe-mode", "-name", "b", "-start-tso", str(TS + 5)) == 0
    assert contents(tmp_path) == before


def test_reparo_writes_timestamps_in_utc(tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    kind = FieldType(Tp.TIMESTAMP, Flag.NOT_NULL, 22, 2)
    table = make_table("s", "t", [("at", kind)])
    rows = insert(table, (parse_datetime("2024-07-01 12:00:00.25"),), (0,))
    (directory / "binlog-0").write_bytes(transaction(TS, rows))
    assert run(tmp_path, directory, "-dest-type", "sqlite", "-time-zone", "Europe/Berlin") == 0
    assert contents(tmp_path)["s.t"] == [("0000-00-00 00:00:00.00",), ("2024-07-01 10:00:00.25",)]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-dest-type", "oracle"], 1, "dest-type 'oracle': must be print or one of mysql, tidb, mariadb, sqlite"),
        (["-dest-type", "jsonl"], 1, "must be print or one of"),
        (["-stop-tso", "1", "-start-tso", "2"], 1, "is before the start"),
        (["-start-datetime", "yesterday"], 1, "neither a TSO nor a time"),
        (["-data-dir", "/nowhere/x"], 1, "is no directory"),
    ],
)
def test_reparo_refuses_invalid_settings_with_code_and_message(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str
) -> None:
    assert run(tmp_path, files, *args) == code
    assert message in capsys.readouterr().err


def test_reparo_names_missing_setting_as_in_its_own_config(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-data-dir", str(files), "-dest-type", "sqlite"]) == 1
    assert capsys.readouterr().err == "reparo: dest-db.path: a sqlite destination needs the path of its file\n"


def test_start_datetime_is_local_time_and_overrides_start_tso() -> None:
    config = ReparoConfig.model_validate({"start-datetime": "2024-02-29 13:05:06", "start-tso": 5, "stop-tso": 7})
    assert config.start_ts >> 18 == pytest.approx(1709211906000, abs=15 * 3600 * 1000)
    assert config.stop_ts == 7
    with pytest.raises(ConfigError, match="data-dir is empty"):
        config.check()


def test_reparo_follows_added_dropped_and_renamed_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    big, text = BIG, KINDS["name"]
    more = make_table("shop", "orders", [("id", big), ("state", text), ("n", big), ("s", text), ("z", big)])
    less = make_table("shop", "orders", [("key", big), ("s", text)])
    added = "alter table orders add n int not null default -5, add column s varchar(9) default 'x', add z bigint"
    taken = "alter table orders drop column state, drop n, drop z, rename column id to `key`, add index (s)"
    data = [
        *RECORDS[:3],
        ddl(TS + 3, f"use `shop`; {added};"),
        transaction(TS + 4, update(more, (1, b"new", -5, b"x", None), (1, b"new", 3, b"y", 4))),
        ddl(TS + 5, f"use `shop`; {taken};"),
        transaction(TS + 6, delete(less, (2, b"x"))),
        ddl(TS + 7, "use `shop`; truncate table users;"),
        ddl(TS + 8, "use `shop`; alter table nothing modify c int;"),
    ]
    path = directory / "binlog-0"
    path.write_bytes(b"".join(data))
    assert run(tmp_path, directory, "-dest-type", "sqlite") == 0
    assert contents(tmp_path) == {"shop.orders": [(1, "y")], "shop.users": []}
    path.write_bytes(b"".join([*data, ddl(TS + 9, "use `shop`; alter table orders modify s int;")]))
    assert run(tmp_path, directory, "-dest-type", "sqlite") == 2
    assert f"put {TS + 9} into ignore-txn-commit-ts" in capsys.readouterr().err
    path.write_bytes(b"".join([*data, ddl(TS + 10, "use `shop`; drop database shop;")]))
    assert run(tmp_path, directory, "-dest-type", "sqlite") == 0
    assert contents(tmp_path) == {}


def test_interrupt_of_reparo_logs_one_line_and_exits_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("drainer.reparo.__main__.run", interrupted)
    monkeypatch.setattr(log, "setup", lambda *_: None)  # it would take the log away from here
    with capture_logs() as logs:
        assert main(["-data-dir", str(tmp_path)]) == 130
    assert [line["event"].split(";")[0] for line in logs] == ["interrupted"]


def test_reparo_reports_failure_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whether the log goes to a file or to standard error, in this order: the last one stays."""
    for more in (["-log-file", str(tmp_path / "log")], []):
        assert main(["-data-dir", str(tmp_path), *more]) == 2
        assert capfd.readouterr().err.count("has no files of a drainer") == 1


# What a DDL's text is about, by which it is filtered, and the database it runs in.


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("use `d`; create table t (id int);", ("d", "d", "t")),
        ("use `d`; create table if not exists `a;b`.`t``x` (id int);", ("a;b", "d", "t`x")),
        ("use `d;``e`; alter table t add c int comment ';';", ("d;`e", "d;`e", "t")),
        ("create database if not exists `d`;", ("d", "", "")),
        ("use `d`; drop database `d`;", ("d", "d", "")),
        ("use `d`; drop table if exists a, b;", ("d", "d", "a")),
        ("use `d`; drop view v;", ("d", "d", "v")),
        ("use `d`; create or replace view v as select 1;", ("d", "d", "v")),
        ("use `d`; rename table a to b;", ("d", "d", "a")),
        ("use `d`; truncate t;", ("d", "d", "t")),
        ("use `d`; truncate table x.t", ("x", "d", "t")),
        ("use `d`; create unique index i on t (c);", ("d", "d", "t")),
        ("use `d`; drop index i on x.t;", ("x", "d", "t")),
        ("use `d`; /* a */ ALTER /*T![clustered_index] x */ TABLE t ADD INDEX (a);", ("d", "d", "t")),
        ("use `d`; create sequence s;", ("d", "d", "s")),
        ("flush tables", ("", "", "")),
    ],
)
def test_ddl_text_gives_schema_current_database_and_table(query: str, wanted: tuple[str, str, str]) -> None:
    found = parse(query, TS)
    assert (found.schema, found.use, found.table) == wanted
    assert not found.statements[0].startswith("use ")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10))
def test_database_name_of_any_text_is_parsed_back(name: str) -> None:
    found = parse(ddl_text(name, "drop table t", 4), TS)
    assert (found.schema, found.use, found.statements) == (name, name, ("drop table t",))


@pytest.mark.parametrize("query", ["", ";", "use `d`; drop table a; drop table b", "drop table a; drop table b"])
def test_ddl_text_without_exactly_one_statement_is_refused(query: str) -> None:
    with pytest.raises(ReparoError, match="statements where one is expected"):
        parse(query, TS)
