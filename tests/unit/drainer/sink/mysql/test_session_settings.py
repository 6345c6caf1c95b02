"""Which session variables must hold, and which versions may lack them."""

from __future__ import annotations

import pytest

from drainer.sink.mysql.session_settings import SQL_MODE, WARNINGS_MAX, takes_files, wrong

GOOD = {
    "autocommit": "ON",
    "foreign_key_checks": "OFF",
    "unique_checks": "ON",
    "max_error_count": str(WARNINGS_MAX),
    "sql_notes": "ON",
    "completion_type": "NO_CHAIN",
    "sql_select_limit": "18446744073709551615",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "sql_mode": SQL_MODE,
    "tx_isolation": "READ-COMMITTED",
}
TIDB = {
    **GOOD,
    "tidb_txn_mode": "pessimistic",
    "tidb_disable_txn_auto_retry": "ON",
    "tidb_retry_limit": "0",
    "tidb_constraint_check_in_place_pessimistic": "ON",
    "tidb_batch_insert": "OFF",
    "tidb_batch_delete": "OFF",
    "tidb_batch_commit": "OFF",
    "tidb_dml_batch_size": "0",
    "tidb_dml_type": "STANDARD",
    "tidb_snapshot": "",
    "tidb_read_staleness": "0",
    "tidb_low_resolution_tso": "OFF",
}


def test_session_variables_as_set_are_accepted() -> None:
    assert list(wrong("mariadb", GOOD)) == []
    assert list(wrong("tidb", TIDB)) == []
    assert list(wrong("tidb", {name.upper(): value for name, value in TIDB.items()})) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("autocommit", "OFF"),
        ("foreign_key_checks", "ON"),
        ("unique_checks", "0"),
        ("max_error_count", "64"),
        ("sql_notes", "OFF"),
        ("completion_type", "CHAIN"),
        ("completion_type", "2"),
        ("sql_select_limit", "1"),
        ("character_set_client", "latin1"),
        ("character_set_connection", "latin1"),
        ("sql_mode", ""),
        ("sql_mode", "NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES"),
        ("sql_mode", "NO_AUTO_VALUE_ON_ZERO,EMPTY_STRING_IS_NULL"),
        ("tx_isolation", "READ-UNCOMMITTED"),
        ("transaction_isolation", "READ-UNCOMMITTED"),
        ("tidb_txn_mode", "optimistic"),
        ("tidb_txn_mode", ""),
        ("tidb_constraint_check_in_place_pessimistic", "OFF"),
        ("tidb_batch_insert", "ON"),
        ("tidb_batch_delete", "1"),
        ("tidb_batch_commit", "ON"),
        ("tidb_dml_batch_size", "100"),
        ("tidb_dml_type", "bulk"),
        ("tidb_snapshot", "2026-01-01 00:00:00"),
        ("tidb_read_staleness", "-5"),
        ("tidb_low_resolution_tso", "ON"),
    ],
)
def test_session_variable_with_wrong_value_is_named(name: str, value: str) -> None:
    assert [text.partition(" ")[0] for text in wrong("tidb", {**TIDB, name: value})] == [name]


@pytest.mark.parametrize("name", [name for name in TIDB if name.startswith("tidb_")])
def test_missing_tidb_variable_is_accepted(name: str) -> None:
    """Older and newer versions know other ones."""
    assert list(wrong("tidb", {known: value for known, value in TIDB.items() if known != name})) == []


def test_old_tidb_needs_transaction_retries_disabled() -> None:
    assert list(wrong("tidb", {**GOOD, "tidb_disable_txn_auto_retry": "1"})) == []
    assert list(wrong("tidb", {**GOOD, "tidb_retry_limit": "0"})) == []
    for shown in ({}, {"tidb_disable_txn_auto_retry": "OFF", "tidb_retry_limit": "10"}):
        (text,) = wrong("tidb", {**GOOD, **shown})
        assert "tidb_retry_limit" in text
    assert list(wrong("mariadb", GOOD)) == []


@pytest.mark.parametrize("flavour", ["mysql", "mariadb", "tidb"])
@pytest.mark.parametrize("shown", [{"local_infile": "ON"}, {"LOCAL_INFILE": "1"}, {"local_infile": "OFF"}, {}])
def test_local_infile_is_used_on_mysql_and_mariadb_where_enabled(flavour: str, shown: dict[str, str]) -> None:
    """TiDB takes them, and reads them by rules of its own."""
    assert takes_files(flavour, shown) == (flavour != "tidb" and list(shown.values()) in (["ON"], ["1"]))
