"""Session variables: what is set on every connection, and what must hold when all is set. Pure.

A server may refuse or forget a variable, an `init_connect` or the configuration's `params` may set it otherwise: so
those on which rows and the fence depend are read back, on every connection that applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

# Non-strict, because strict refuses upstream's ENUM value 0; statements that write check warnings instead.
SQL_MODE: Final = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
WARNINGS_MAX: Final = 65535
ROWS_MAX: Final = (1 << 64) - 1

SETTINGS: Final = (
    ("autocommit", "1"),
    ("sql_mode", f"'{SQL_MODE}'"),
    ("time_zone", "'+00:00'"),
    ("foreign_key_checks", "0"),  # rule 13 (what is switched off): upstream wrote cascaded rows itself
    ("unique_checks", "1"),
    ("sql_notes", "1"),  # a note is all that some changed values get
    ("max_error_count", str(WARNINGS_MAX)),  # every warning of a 500-row statement must be seen
)
# Tried one by one, and left out where the server does not know them (D-LD-01); lc_messages because warnings are read.
OPTIONAL: Final = (
    ("lc_messages", "'en_US'"),
    ("allow_auto_random_explicit_insert", "1"),
    ("tidb_placement_mode", "'ignore'"),
    ("innodb_lock_wait_timeout", "50"),
    ("explicit_defaults_for_timestamp", "1"),  # or a new TIMESTAMP NOT NULL holds the moment at which it is added here
    ("completion_type", "0"),  # or COMMIT begins the next transaction, or ends the connection
    ("sql_select_limit", str(ROWS_MAX)),  # what is asked about a table must be answered whole
    ("check_constraint_checks", "0"),  # TiDB parses CHECK and, by default, does not enforce it
)
# TiDB alone, tried one by one: versions differ in which of them they know.
TIDB: Final = (
    # TiDB may repeat an optimistic transaction after a conflict by itself, statement by statement. The fence's UPDATE
    # then changes no row, the drainer is not informed, and the rows after it are written although another drainer has
    # taken over.
    ("tidb_txn_mode", "'pessimistic'"),
    ("tidb_disable_txn_auto_retry", "1"),
    ("tidb_retry_limit", "0"),
    # A duplicate key is reported by its statement, not by COMMIT, which could not tell the row.
    ("tidb_constraint_check_in_place", "1"),
    ("tidb_constraint_check_in_place_pessimistic", "1"),
    # Each of these cuts one transaction, or one statement, into several that commit on their own.
    ("tidb_batch_insert", "0"),
    ("tidb_batch_delete", "0"),
    ("tidb_batch_commit", "0"),
    ("tidb_dml_batch_size", "0"),
    ("tidb_dml_type", "'standard'"),
    # Position and marks are read as they are now, not as they were.
    ("tidb_snapshot", "''"),
    ("tidb_read_staleness", "0"),
    ("tidb_low_resolution_tso", "0"),
)

_TRUE: Final = frozenset({"1", "on", "true"})
_FALSE: Final = frozenset({"0", "off", "false"})


@dataclass(frozen=True, slots=True)
class Must:
    """A variable must have one of these values (in lower case) where the server knows it, or rows go wrong as `why`
    says."""

    name: str
    values: frozenset[str]
    why: str


_ANYWHERE: Final = (
    Must("autocommit", _TRUE, "what is written outside a transaction would stay uncommitted"),
    Must("foreign_key_checks", _FALSE, "rows would be refused or cascaded a second time"),
    Must("unique_checks", _TRUE, "a row could stand twice under a unique key"),
    Must("max_error_count", frozenset({str(WARNINGS_MAX)}), "warnings about changed values would be missed"),
    Must("sql_notes", _TRUE, "values could be changed unseen"),
    Must("completion_type", frozenset({"no_chain", "0"}), "what follows a COMMIT would stay uncommitted"),
    Must("sql_select_limit", frozenset({str(ROWS_MAX)}), "columns and unique keys of tables would be overlooked"),
    Must("character_set_client", frozenset({"utf8mb4"}), "strings would be changed"),
    Must("character_set_connection", frozenset({"utf8mb4"}), "strings would be changed"),
)
_CUT: Final = "a transaction would be committed in parts"
_RETRIED: Final = "TiDB would run a transaction again by itself, past the fence against a second drainer"
_OLD: Final = "position and marks would be read as they were some time ago"
_LATE: Final = "a duplicate key would be reported by COMMIT, which does not name the row"
_TIDB: Final = (
    Must("tidb_txn_mode", frozenset({"pessimistic"}), _RETRIED),
    Must("tidb_constraint_check_in_place_pessimistic", _TRUE, _LATE),
    Must("tidb_batch_insert", _FALSE, _CUT),
    Must("tidb_batch_delete", _FALSE, _CUT),
    Must("tidb_batch_commit", _FALSE, _CUT),
    Must("tidb_dml_batch_size", _FALSE, _CUT),
    Must("tidb_dml_type", frozenset({"standard"}), _CUT),
    Must("tidb_snapshot", frozenset({""}), _OLD),
    Must("tidb_read_staleness", _FALSE, _OLD),
    Must("tidb_low_resolution_tso", _FALSE, _OLD),
)
_NO_DIRTY_READS: Final = ("tx_isolation", "transaction_isolation")
_MODES_WANTED: Final = frozenset({"NO_AUTO_VALUE_ON_ZERO"})
_MODES_WRONG: Final = frozenset({"NO_BACKSLASH_ESCAPES", "EMPTY_STRING_IS_NULL"})
_LOCAL_INFILE: Final = "local_infile"
_RETRIES: Final = ("tidb_txn_mode", "tidb_disable_txn_auto_retry", "tidb_retry_limit")

READ_BACK: Final = tuple(
    dict.fromkeys(
        (*(must.name for must in (*_ANYWHERE, *_TIDB)), *_NO_DIRTY_READS, *_RETRIES, "sql_mode", _LOCAL_INFILE)
    )
)


def wrong(flavour: str, shown: Mapping[str, str]) -> Iterator[str]:
    """Return a text for each variable whose value, as the server shows it, is not acceptable. Variables that are not
    shown do not exist on that server."""
    found = {name.lower(): value for name, value in shown.items()}
    for must in (*_ANYWHERE, *(_TIDB if flavour == "tidb" else ())):
        value = found.get(must.name)
        if value is not None and value.lower() not in must.values:
            yield f"{must.name} = {value!r}: {must.why}"
    modes = frozenset(found.get("sql_mode", SQL_MODE).upper().split(","))
    if not modes >= _MODES_WANTED or modes & _MODES_WRONG:
        yield (
            f"sql_mode = {','.join(sorted(modes))!r}: it must hold {','.join(_MODES_WANTED)} and none of "
            f"{', '.join(sorted(_MODES_WRONG))}, or values would be changed"
        )
    for name in _NO_DIRTY_READS:
        if found.get(name, "").upper() == "READ-UNCOMMITTED":
            yield f"{name} = 'READ-UNCOMMITTED': marks would be believed that are not committed"
    # One of three settings rules retries out; not all versions have all three. A mode that is shown was checked above.
    has_no_retries = (
        "tidb_txn_mode" in found
        or found.get("tidb_disable_txn_auto_retry", "").lower() in _TRUE
        or found.get("tidb_retry_limit") == "0"
    )
    if flavour == "tidb" and not has_no_retries:
        yield f"no variable of this TiDB switches its own retries off ({', '.join(_RETRIES)}): {_RETRIED}"


def takes_files(flavour: str, shown: Mapping[str, str]) -> bool:
    """Whether LOAD DATA LOCAL may be used. TiDB reads files by rules of its own, and some versions of it commit them
    in parts."""
    found = {name.lower(): value for name, value in shown.items()}
    return flavour != "tidb" and found.get(_LOCAL_INFILE, "").lower() in _TRUE
