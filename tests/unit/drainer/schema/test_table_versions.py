"""Which table a row belonged to when it was written."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType, Job, JobState

from drainer.schema.errors import TableUnknown
from drainer.schema.history.base import JobHistory, Watched, watch
from drainer.schema.view import SYSTEM_TABLE_ID_MIN, VERSIONS_KEPT, SchemaView, SkipReason, TableAt, TableVersions
from tests.support.schema_case import job, table

SHOP = (1, "shop")


def watched(*jobs: Job, tables: tuple[str, ...] = ("orders",)) -> Watched:
    begin = job(1, ActionType.CREATE_SCHEMA, 1, schema=SHOP)
    return watch(JobHistory([begin, *jobs]), [("shop", name) for name in tables])


def created(version: int, table_id: int, name: str, *columns: str) -> Job:
    return job(
        version,
        ActionType.CREATE_TABLE,
        version,
        schema_id=1,
        table_id=table_id,
        table_info=table(table_id, name, columns or ("id",)),
    )


def changed(version: int, kind: ActionType, table_id: int, name: str, *columns: str, query: str = "") -> Job:
    info = table(table_id, name, columns)
    return job(version, kind, version, schema_id=1, table_id=table_id, table_info=info, query=query)


def columns_at(found: Watched, table_id: int, version: int) -> list[str] | None:
    written = found.at(table_id, version)
    return None if written is None or written.name is None else [c.name for c in written.info.columns]


def test_row_is_read_with_table_of_its_schema_version() -> None:
    found = watched(created(2, 10, "orders"), changed(5, ActionType.ADD_COLUMN, 10, "orders", "id", "price"))
    assert columns_at(found, 10, 2) == ["id"]
    assert columns_at(found, 10, 4) == ["id"]
    assert columns_at(found, 10, 5) == ["id", "price"]
    assert columns_at(found, 10, 99) == ["id", "price"]
    assert columns_at(found, 11, 5) is None
    assert found.version == 5
    assert [c.name for c in found.newest["shop", "orders"].columns] == ["id", "price"]


def test_watched_table_names_ignore_case() -> None:
    found = watch(
        JobHistory([job(1, ActionType.CREATE_SCHEMA, 1, schema=(1, "Shop")), created(2, 10, "Orders")]),
        [("shop", "ORDERS")],
    )
    assert list(found.newest) == [("Shop", "Orders")]


def test_rows_of_truncated_or_dropped_table_still_belong_to_it() -> None:
    found = watched(
        created(2, 10, "orders"),
        job(3, ActionType.TRUNCATE_TABLE, 3, schema_id=1, table_id=10, table_info=table(11, "orders")),
        job(4, ActionType.DROP_TABLE, 4, schema_id=1, table_id=11),
        created(5, 12, "orders", "id", "more"),
    )
    assert columns_at(found, 10, 2) == columns_at(found, 11, 3) == ["id"]
    assert columns_at(found, 12, 5) == ["id", "more"]
    assert [info.id for info in found.newest.values()] == [12]


def test_renamed_table_loses_or_gains_rows_at_its_version() -> None:
    found = watched(
        created(2, 10, "orders"),
        created(3, 11, "orders_new", "id", "more"),
        changed(4, ActionType.RENAME_TABLE, 10, "orders_old", "id"),
        changed(5, ActionType.RENAME_TABLE, 11, "orders", "id", "more"),
    )
    assert columns_at(found, 10, 3) == ["id"]
    assert columns_at(found, 10, 4) is None
    assert found.was(10, 4) == ("shop", "orders")
    assert columns_at(found, 11, 4) is None
    assert found.was(11, 4) is None
    assert columns_at(found, 11, 5) == ["id", "more"]
    assert found.newest["shop", "orders"].id == 11


def test_older_rows_are_read_with_first_known_table_version() -> None:
    found = watched(changed(7, ActionType.ADD_COLUMN, 10, "orders", "id", "price"))
    assert columns_at(found, 10, 3) == ["id", "price"]


def test_column_with_changed_type_has_ancestors_and_readded_one_none() -> None:
    """TiDB gives it another id; one that is dropped and added again under its name has none."""
    found = watched(
        created(2, 10, "orders", "id#1", "price#2"),
        changed(3, ActionType.MODIFY_COLUMN, 10, "orders", "id#1", "price#3"),
        changed(4, ActionType.MODIFY_COLUMN, 10, "orders", "id#1", "price#4"),
        changed(5, ActionType.DROP_COLUMN, 10, "orders", "id#1"),
        changed(12, ActionType.ADD_COLUMN, 10, "orders", "id#1", "price#5"),
    )
    assert found.ancestors(10, 4) == [3, 2]
    assert found.ancestors(10, 5) == []


def test_failed_jobs_and_unwatched_tables_are_ignored() -> None:
    failed = changed(3, ActionType.ADD_COLUMN, 10, "orders", "id", "never")
    found = watched(created(2, 10, "orders"), replace(failed, state=JobState(3)), created(4, 20, "items"))
    assert columns_at(found, 10, 9) == ["id"]
    assert found.at(20, 9) is None
    assert list(found.newest) == [("shop", "orders")]


# Which TableInfo a row is decoded with.


def versions(*numbers: int) -> TableVersions:
    made = TableVersions("d", 2, (numbers[0],), (table(10, f"v{numbers[0]}"),))
    for number in numbers[1:]:
        made = made.add(number, table(10, f"v{number}"))
    return made


def view_of(tables: TableVersions, unknown_columns: dict[tuple[int, int], int] | None = None) -> SchemaView:
    return SchemaView({10: tables}, {11: SkipReason.TRUNCATED}, 0, 99, unknown_columns)


@pytest.mark.parametrize(
    ("version", "at"), [(0, 5), (4, 5), (5, 5), (6, 5), (8, 5), (9, 9), (11, 9), (12, 12), (1000, 12)]
)
def test_lookup_returns_newest_version_not_after_row(version: int, at: int) -> None:
    found = view_of(versions(5, 9, 12)).lookup(10, version, 1)
    assert isinstance(found, TableAt)
    assert (found.at_version, found.at.name) == (at, f"v{at}")
    assert (found.current_version, found.current.name) == (12, "v12")


def test_table_keeps_bounded_number_of_versions() -> None:
    kept = versions(*range(1, 20))
    assert kept.versions == tuple(range(20 - VERSIONS_KEPT, 20))
    assert kept.current.name == "v19"


def test_older_version_added_late_is_sorted_by_version() -> None:
    late = versions(5, 12).add(9, table(10, "v9"))
    assert late.versions == (5, 9, 12)
    assert late.current.name == "v12"


def test_lookup_of_missing_table_is_truncated_system_or_unknown() -> None:
    view = view_of(versions(5))
    assert view.lookup(11, 7, 1) is SkipReason.TRUNCATED
    assert view.lookup(SYSTEM_TABLE_ID_MIN + 3, 7, 1) is SkipReason.SYSTEM
    with pytest.raises(TableUnknown, match=r"table id 12 \(row of commit_ts 4711, schema version 7\)"):
        view.lookup(12, 7, 4711)


def test_pickled_view_is_equal() -> None:
    view = view_of(versions(5, 9), {(10, 3): 7})
    again = pickle.loads(pickle.dumps(view))
    assert again == view


def test_unknown_column_is_skipped_only_with_complete_sources_or_result() -> None:
    assert view_of(versions(5)).skips_column(10, 3, 8)
    view = view_of(versions(5), {(10, 3): 7})
    assert view.skips_column(10, 3, 7)
    assert not view.skips_column(10, 3, 8)
    assert not view.skips_column(10, 4, 7)
