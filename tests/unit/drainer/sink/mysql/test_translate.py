"""What a server is told to do a job: from its TableInfos, and upstream's text where they do not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, PartitionDefinition, PartitionInfo, PartitionType, TableInfo
from binlog.tidb.types import FieldType, Tp

from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.mysql.ddl.job_plan import CANNOT_SAY, Server, Translation, translate, why_not
from tests.support.ddl_case import STAMP, column, foreign_key, table

A, B = column(1, "a"), column(2, "b")
T = table(A)
MARIADB, MYSQL, TIDB = Server("mariadb"), Server("mysql"), Server("tidb")
TEXT = "UPSTREAM`S OWN WORDS` /*!999999 IN THE OPEN */"

Pair = tuple[TableInfo | None, TableInfo | None]


def step(
    kind: ActionType, *pairs: Pair, text: str = TEXT, rewritten: bool = False, database: DBInfo | None = None
) -> Ddl:
    def place(info: TableInfo | None) -> Located | None:
        return None if info is None else Located(info.id, "d", info)

    changes = tuple(TableChange(place(before), place(after)) for before, after in pairs)
    job = Job(7, kind, db_info=database)
    sql = (text,) if text else ()
    return Ddl(job, 1, False, "d", "here", sql, text, 1, changes, rewritten=rewritten)


def told(wanted: Ddl, server: Server = MARIADB, zone: str = "") -> Translation:
    return translate(wanted, server, server.dialect(zone))


OPEN = "UPSTREAM`S OWN WORDS`   IN THE OPEN"
WHOLE = Translation((OPEN,), use="here")


@pytest.mark.parametrize("server", [MARIADB, MYSQL])
def test_create_and_alter_table_follow_table_info_qualified(server: Server) -> None:
    """Whatever the text; names are qualified, so no current database is needed."""
    made = told(step(ActionType.CREATE_TABLE, (None, T)), server)
    assert made.sql[0].startswith("CREATE TABLE `d`.`t` (`a` INT)")
    assert (made.use, made.instead) == ("", None)
    assert told(step(ActionType.ADD_COLUMN, (T, table(A, B))), server).sql == (
        "ALTER TABLE `d`.`t` ADD COLUMN `b` INT",
    )
    two = replace(T, id=11, name="u")
    assert len(told(step(ActionType.CREATE_TABLES, (None, T), (None, two)), server).sql) == 2


def test_foreign_key_is_left_out_where_server_refuses_it() -> None:
    with_key = replace(T, rest={"fk_info": [foreign_key(1, "own")]})
    made = told(step(ActionType.ADD_FOREIGN_KEY, (T, with_key)))
    assert "FOREIGN KEY" in made.sql[0]
    assert (made.instead, made.codes) == ((), CANNOT_SAY)
    created = told(step(ActionType.CREATE_TABLE, (None, with_key)))
    assert created.instead is not None
    assert "FOREIGN KEY" in created.sql[0]
    assert "FOREIGN KEY" not in created.instead[0]


def test_ddl_of_tidb_storage_only_gives_no_statement() -> None:
    assert told(step(ActionType.ALTER_TTL_INFO, (T, T))) == Translation(())


def test_truncate_rename_drop_and_database_ddl_name_their_objects() -> None:
    moved = replace(T, name="z")
    assert told(step(ActionType.TRUNCATE_TABLE, (T, replace(T, id=11)))).sql == ("TRUNCATE TABLE `d`.`t`",)
    made = "RENAME TABLE `d`.`t` TO `d`.`z`"  # as schema/job_policy.py makes it of the changes
    for server in (MARIADB, MYSQL, TIDB):
        assert told(step(ActionType.RENAME_TABLE, (T, moved), text=made), server).sql == (made,)
    info = DBInfo(2, "d", "utf8mb4", "utf8mb4_bin")
    options = "`d` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    for server in (MARIADB, TIDB):
        assert told(step(ActionType.CREATE_SCHEMA, database=info), server).sql == (f"CREATE DATABASE {options}",)
        changed = step(ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE, database=info)
        assert told(changed, server).sql == (f"ALTER DATABASE {options}",)
    assert told(step(ActionType.DROP_SCHEMA)).sql == ("DROP DATABASE `d`",)


@pytest.mark.parametrize(
    "wanted",
    [
        step(ActionType.ADD_COLUMN, (None, table(A, B))),
        step(ActionType.CREATE_TABLE, (None, table(column(1, "v", FieldType(Tp.VECTOR, flen=3))))),
        step(ActionType.CREATE_SCHEMA),
        step(ActionType.CREATE_VIEW, (None, replace(T, rest={"view": {}}))),
        step(ActionType.EXCHANGE_TABLE_PARTITION, (T, T)),
    ],
    ids=["not known before", "a type MySQL has not", "no DBInfo", "no select", "no partition"],
)
def test_ddl_not_told_by_table_infos_runs_upstream_text(wanted: Ddl) -> None:
    """Without its comments: servers differ in what they take for code."""
    assert told(wanted) == WHOLE


@pytest.mark.parametrize("server", [MARIADB, TIDB])
def test_ddl_rewritten_by_operator_runs_unchanged(server: Server) -> None:
    wanted = step(ActionType.ADD_COLUMN, (T, table(A, B)), rewritten=True)
    assert told(wanted, server) == Translation((TEXT,), use="here")


def test_unknown_ddl_kind_runs_its_text_or_table_difference() -> None:
    """So its text runs; where the server cannot read it, the difference does."""
    made = told(step(ActionType(250), (T, table(A, B))))
    assert (made.sql, made.use) == ((OPEN,), "here")
    assert (made.instead, made.codes) == (("ALTER TABLE `d`.`t` ADD COLUMN `b` INT",), CANNOT_SAY)


def test_sequence_ddl_is_made_from_table_info() -> None:
    """Where one stands is in no TableInfo: the text of an ALTER may say it (RESTART)."""
    said = {"sequence_start": 10, "sequence_cache": True, "sequence_cycle": True, "sequence_min_value": 1,
            "sequence_max_value": 99, "sequence_increment": 5, "sequence_cache_value": 7,
            "sequence_comment": "c"}  # fmt: skip
    one = replace(T, rest={"sequence": said})
    words = "START WITH 10 INCREMENT BY 5 MINVALUE 1 MAXVALUE 99 CACHE 7 CYCLE"
    assert told(step(ActionType.CREATE_SEQUENCE, (None, one))).sql == (
        f"CREATE SEQUENCE `d`.`t` {words} COMMENT = 'c'",
    )
    altered = told(step(ActionType.ALTER_SEQUENCE, (one, one)))
    assert (altered.sql, altered.use) == ((OPEN,), "here")
    assert altered.instead == (f"ALTER SEQUENCE `d`.`t` {words}",)
    for kind in (ActionType.CREATE_SEQUENCE, ActionType.ALTER_SEQUENCE, ActionType.DROP_SEQUENCE):
        assert told(step(kind, (None, one)), MYSQL) == Translation(())


def test_view_ddl_falls_back_to_sql_security_invoker() -> None:
    """For whoever looks where its DEFINER is not to be had, and left out where the server cannot have it."""
    definer = {"Username": "ro`ot", "Hostname": "%", "CurrentUser": False}
    said = {"view_select": "SELECT 1", "view_definer": definer, "view_security": 0, "view_algorithm": 1}
    view = replace(T, rest={"view": said})
    named = step(ActionType.CREATE_VIEW, (None, view), text="CREATE DEFINER = `root`@`%` VIEW …")
    made = told(named)
    head, tail = "CREATE OR REPLACE ALGORITHM = MERGE", "VIEW `d`.`t` (`a`) AS SELECT 1"
    assert made.sql == (f"{head} DEFINER = `ro``ot`@`%` SQL SECURITY DEFINER {tail}",)
    assert made.instead == (f"{head} SQL SECURITY INVOKER {tail}",)
    assert made.optional
    assert told(named, TIDB).sql == made.sql
    for text in (
        "CREATE VIEW …",
        "CREATE DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW …",
        "CREATE DEFINER=current_user() …",
    ):
        mine = step(ActionType.CREATE_VIEW, (None, view), text=text)
        assert told(mine).sql == told(mine, TIDB).sql == (f"{head} SQL SECURITY DEFINER {tail}",)


def test_temporary_table_ddl_gives_no_statement() -> None:
    info = replace(T, rest={"temp_table_type": 1})
    assert told(step(ActionType.CREATE_TABLE, (None, info))) == Translation(())
    assert told(step(ActionType.DROP_TABLE, (info, None))) == Translation(())


def test_exchange_partition_skips_validation_where_supported() -> None:
    """Upstream has looked at the rows or was told not to; MariaDB cannot be told."""
    parts = PartitionInfo(PartitionType.RANGE, "`a`", definitions=(PartitionDefinition(11, "p", less_than=("9",)),))
    normal = replace(T, id=12, name="n")
    wanted = step(
        ActionType.EXCHANGE_TABLE_PARTITION, (replace(T, partition=parts),) * 2, (normal, replace(normal, id=11))
    )
    text = "ALTER TABLE `d`.`t` EXCHANGE PARTITION `p` WITH TABLE `d`.`n`"
    assert told(wanted).sql == (text,)
    assert told(wanted, MYSQL).sql == (f"{text} WITHOUT VALIDATION",)
    assert told(wanted).instead is not None


def test_timestamp_default_is_converted_to_session_time_zone() -> None:
    """The text gives it in the writer's time zone, the TableInfo in UTC."""
    new = column(2, "s", STAMP, default="2020-06-01 07:00:00")
    added = step(ActionType.ADD_COLUMN, (T, table(A, new)), text="ALTER … DEFAULT '2020-06-01 12:00:00'")
    words = "ALTER TABLE `d`.`t` ADD COLUMN `s` TIMESTAMP NULL DEFAULT '%s'"
    for server in (MARIADB, MYSQL, TIDB):
        assert told(added, server).sql == (words % "2020-06-01 07:00:00",)
    assert told(added, MARIADB, "+05:00").sql == (words % "2020-06-01 12:00:00",)
    assert told(added, TIDB, "+05:00").sql == added.sql
    assert told(added, MARIADB, "Mars/Olympus") == Translation(added.sql, use="here")
    in_utc = replace(added, query="ALTER … DEFAULT '2020-06-01 07:00:00'", sql=("x",))
    assert told(in_utc, TIDB).sql == ("x",)
    created = replace(added, job=Job(7, ActionType.CREATE_TABLE), changes=(TableChange(None, added.changes[0].after),))
    assert told(created, TIDB).sql == (
        *added.sql, "ALTER TABLE `d`.`t` ALTER COLUMN `s` SET DEFAULT '2020-06-01 07:00:00'",
    )  # fmt: skip


def test_tidb_runs_upstream_text() -> None:
    """It knows its own clauses; a collation that an older one lacks is replaced."""
    made = told(step(ActionType.ADD_COLUMN, (T, table(A, B))), TIDB)
    assert (made.sql, made.use) == ((TEXT,), "here")
    assert (made.instead, made.codes) == (("ALTER TABLE `d`.`t` ADD COLUMN `b` INT",), (1115, 1273))
    silent = step(ActionType.CREATE_TABLE, (None, T), text="")
    assert told(silent, TIDB).sql[0].startswith("CREATE TABLE `d`.`t`")
    assert told(replace(silent, rewritten=True), TIDB) == Translation((), use="here")


def test_create_table_names_its_collation_where_tidb_database_has_another() -> None:
    """A CREATE TABLE that names none would get that one."""
    other = replace(TIDB, database_collation="utf8mb4_general_ci")
    plain = step(ActionType.CREATE_TABLE, (None, T))
    assert told(plain, other).sql[0].endswith("DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    assert told(plain, replace(TIDB, database_collation="UTF8MB4_BIN")).sql == (TEXT,)
    assert told(replace(plain, query=f"{TEXT} COLLATE = utf8mb4_bin"), other).sql == (TEXT,)
    assert told(step(ActionType.ADD_COLUMN, (T, table(A, B))), other).sql == (TEXT,)


def test_ddl_impossible_downstream_is_refused_with_reason() -> None:
    back = step(ActionType.FLASHBACK_CLUSTER)
    assert "load it anew" in why_not(back, TIDB)
    keyed = replace(T, partition=PartitionInfo(PartitionType.KEY, columns=("a",), num=2))
    emptied = step(ActionType.TRUNCATE_TABLE_PARTITION, (keyed, keyed))
    assert "PARTITION BY KEY" in why_not(emptied, MARIADB)
    assert why_not(emptied, TIDB) == why_not(replace(emptied, rewritten=True), MARIADB) == ""


def test_job_made_of_a_message_runs_its_text_and_else_what_its_table_infos_show() -> None:
    def of_message(wanted: Ddl) -> Ddl:
        return replace(wanted, job=replace(wanted.job, by_text=True))

    added = of_message(step(ActionType.ADD_COLUMN, (T, table(A, B))))
    assert told(added) == Translation((OPEN,), ("ALTER TABLE `d`.`t` ADD COLUMN `b` INT",), CANNOT_SAY, "here")
    created = of_message(step(ActionType.CREATE_TABLE, (None, T)))
    assert told(created, replace(TIDB, database_collation="utf8mb4_general_ci")) == Translation((TEXT,), use="here")
    emptied = of_message(step(ActionType.TRUNCATE_TABLE_PARTITION, (T, T)))
    assert "ddl-rewrite" in why_not(emptied, MARIADB)
    assert why_not(emptied, TIDB) == ""
