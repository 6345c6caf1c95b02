"""What published jobs make of the schema, and which version a transaction may carry."""

from __future__ import annotations

import pytest
from binlog.tidb.job import ActionType, Job, JobState
from binlog.tidb.table import DBInfo, TableInfo

from pumpclient.sdk import schema
from pumpclient.sdk import types as t
from pumpclient.sdk.catalog import FOREVER, Catalog
from pumpclient.sdk.errors import SchemaConflict, SchemaExists, SchemaNotFound
from pumpclient.sdk.table import Bound, Column, Table


def info(table_id: int, name: str = "orders") -> TableInfo:
    return schema.build_table(Table(name, Column("id", t.Int(), primary_key=True)), table_id=table_id, start_ts=1)


def job(
    version: int, action: ActionType, *, table: TableInfo | None = None, table_id: int = 0, schema_id: int = 1
) -> Job:
    return Job(
        id=100 + version,
        type=action,
        schema_id=schema_id,
        table_id=table_id or (table.id if table else 0),
        schema_version=version,
        table_info=table,
        db_info=DBInfo(schema_id, "Shop") if action is ActionType.CREATE_SCHEMA else None,
    )


def catalog(*jobs: Job) -> Catalog:
    made = Catalog()
    for one in (job(1, ActionType.CREATE_SCHEMA), *jobs):
        made.apply(one)
    return made


def test_catalog_finds_names_in_any_case() -> None:
    made = catalog(job(2, ActionType.CREATE_TABLE, table=info(5)))
    assert made.databases() == ("Shop",)
    assert made.tables("SHOP") == ("orders",)
    assert made.bound("shop", "ORDERS").version == 2
    with pytest.raises(SchemaExists, match=r"SHOP\.Orders already exists"):
        made.must_be_free("SHOP", "Orders")
    with pytest.raises(SchemaNotFound, match=r"no table shop\.x"):
        made.table("shop", "x")
    with pytest.raises(SchemaNotFound, match="no database nope"):
        made.tables("nope")


def test_catalog_applies_each_version_once_and_only_counts_failed_jobs() -> None:
    made = catalog(job(2, ActionType.CREATE_TABLE, table=info(5)))
    made.apply(job(2, ActionType.DROP_TABLE, table=info(5)))
    assert made.tables("shop") == ("orders",)
    failed = Job(id=9, type=ActionType.DROP_TABLE, state=JobState.ROLLBACK_DONE, table_id=5, schema_version=3)
    made.apply(failed)
    assert made.tables("shop") == ("orders",)
    assert made.version == 3


def test_catalog_follows_rename_truncate_and_drop() -> None:
    made = catalog(
        job(2, ActionType.CREATE_TABLE, table=info(5)),
        job(3, ActionType.RENAME_TABLE, table=info(5, "bills")),
        job(4, ActionType.TRUNCATE_TABLE, table=info(6, "bills"), table_id=5),
    )
    assert made.tables("shop") == ("bills",)
    assert made.bound("shop", "bills").info.id == 6
    made.apply(job(5, ActionType.DROP_TABLE, table=info(6, "bills")))
    assert made.tables("shop") == ()
    made.apply(job(6, ActionType.DROP_SCHEMA))
    assert made.databases() == ()


def test_catalog_follows_rename_into_another_database() -> None:
    other = Job(id=50, type=ActionType.CREATE_SCHEMA, schema_id=9, schema_version=2, db_info=DBInfo(9, "archive"))
    made = catalog(other, job(3, ActionType.CREATE_TABLE, table=info(5)))
    made.apply(job(4, ActionType.RENAME_TABLE, table=info(5, "old"), schema_id=9))
    assert made.tables("shop") == ()
    assert made.bound("archive", "old").schema == "archive"


def handles() -> tuple[Catalog, Bound, Bound, Bound]:
    """orders as of 2, altered in 4; lines as of 3."""
    first, lines, second = info(5), info(6, "lines"), info(5)
    made = catalog(
        job(2, ActionType.CREATE_TABLE, table=first),
        job(3, ActionType.CREATE_TABLE, table=lines),
        job(4, ActionType.ADD_COLUMN, table=second),
    )
    return made, Bound("Shop", first, 2), Bound("Shop", lines, 3), Bound("Shop", second, 4)


def test_version_for_returns_version_valid_for_all_handles() -> None:
    made, old, lines, new = handles()
    assert made.good_until(old) == 3
    assert made.good_until(new) == made.good_until(lines) == FOREVER - 1
    assert made.version_for([old], preferred=2) == 2
    assert made.version_for([old], preferred=4) == 3  # opened later, but written as of before the ALTER
    assert made.version_for([old, lines], preferred=4) == 3
    assert made.version_for([new, lines], preferred=4) == 4
    assert made.version_for([new], preferred=2) == 4  # opened before the ALTER, written with its result
    assert made.version_for([lines], preferred=10) == 10


def test_version_for_refuses_handles_never_valid_together() -> None:
    made, old, _, new = handles()
    with pytest.raises(SchemaConflict, match=r"Shop.orders as of version 2 was changed in version 4"):
        made.version_for([old, new], preferred=4)


def test_truncate_table_ends_validity_of_handles() -> None:
    made, _, _, new = handles()
    made.apply(job(5, ActionType.TRUNCATE_TABLE, table=info(7), table_id=5))
    assert made.good_until(new) == 4
