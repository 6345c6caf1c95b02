"""Which TableInfo a row is decoded with."""

import pickle

import pytest

from drainer.schema.errors import JobUnknown, TableUnknown, UnknownColumn
from drainer.schema.view import SYSTEM_TABLE_ID_MIN, VERSIONS_KEPT, SchemaView, SkipReason, TableAt, TableVersions
from tests.support.schema_case import table


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
    with pytest.raises(TableUnknown, match=r"table id 12 \(row of commit_ts 4711, schema version 7\)") as caught:
        view.lookup(12, 7, 4711)
    assert (caught.value.table_id, caught.value.commit_ts) == (12, 4711)


def test_pickled_view_is_equal_and_can_be_reduced_to_tables() -> None:
    view = view_of(versions(5, 9), {(10, 3): 7})
    again = pickle.loads(pickle.dumps(view))
    assert again == view
    assert again.only([11]).tables == {}


def test_unknown_column_is_skipped_only_with_complete_sources_or_result() -> None:
    assert view_of(versions(5)).skips_column(10, 3, 8)
    view = view_of(versions(5), {(10, 3): 7})
    assert view.skips_column(10, 3, 7)
    assert not view.skips_column(10, 3, 8)
    assert not view.skips_column(10, 4, 7)


@pytest.mark.parametrize(
    "error",
    [
        TableUnknown(table_id=1, schema_version=2, commit_ts=3),
        UnknownColumn(table_id=1, column_id=4, schema_version=2, commit_ts=3),
        JobUnknown(job_id=None, version=2, commit_ts=3, final_ts=2),
    ],
)
def test_schema_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
