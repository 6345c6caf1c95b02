"""Session variables: what is set on every connection, and what must hold when all is set. Pure.

A server may refuse or forget a variable, an `init_connect` or the configuration's `params` may set it otherwise: so
those on which rows and the fence depend are read back, on every connection that applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

# Non-strict, because strict refuses upstream's ENUM value 0; statements that write check warnings instead.
SQL_MODE: Final = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
WARNINGS_MAX: Final = 65535
ROWS_MAX: Final = (1 << 64) - 1

_TRUE: Final = frozenset({"1", "on", "true"})
_FALSE: Final = frozenset({"0", "off", "false", "no_chain"})  # the last is what servers show of completion_type


class Variable(NamedTuple):
    """`value`: what is set, as SQL. The server must show it, where it knows the variable, or rows go wrong as `why`
    says; '': they do not."""

    name: str
    value: str
    why: str = ""

    @property
    def shown(self) -> frozenset[str]:
        """The value as servers show it, in lower case."""
        return {"1": _TRUE, "0": _FALSE}.get(self.value, frozenset({self.value.strip("'").lower()}))


SETTINGS: Final = (
    Variable("autocommit", "1", "what is written outside a transaction would stay uncommitted"),
    Variable("sql_mode", f"'{SQL_MODE}'"),
    Variable("time_zone", "'+00:00'"),
    # Rule 13 (what is switched off): upstream wrote cascaded rows itself.
    Variable("foreign_key_checks", "0", "rows would be refused or cascaded a second time"),
    Variable("unique_checks", "1", "a row could stand twice under a unique key"),
    # A note is all that some changed values get, and every warning of a 500-row statement must be seen.
    Variable("sql_notes", "1", "values could be changed unseen"),
    Variable("max_error_count", str(WARNINGS_MAX), "warnings about changed values would be missed"),
)
# Tried one by one, and left out where the server does not know them (D-LD-01); lc_messages because warnings are read.
OPTIONAL: Final = (
    Variable("lc_messages", "'en_US'"),
    Variable("allow_auto_random_explicit_insert", "1"),
    Variable("tidb_placement_mode", "'ignore'"),
    Variable("innodb_lock_wait_timeout", "50"),
    # Or a new TIMESTAMP NOT NULL holds the moment at which it is added here.
    Variable("explicit_defaults_for_timestamp", "1"),
    # Or COMMIT begins the next transaction, or ends the connection.
    Variable("completion_type", "0", "what follows a COMMIT would stay uncommitted"),
    # What is asked about a table must be answered whole.
    Variable("sql_select_limit", str(ROWS_MAX), "columns and unique keys of tables would be overlooked"),
    Variable("check_constraint_checks", "0"),  # TiDB parses CHECK and, by default, does not enforce it
)
# Set by SET NAMES.
_CHARSETS: Final = (
    Variable("character_set_client", "utf8mb4", "strings would be changed"),
    Variable("character_set_connection", "utf8mb4", "strings would be changed"),
)
_CUT: Final = "a transaction would be committed in parts"
_RETRIED: Final = "TiDB would run a transaction again by itself, past the fence against a second drainer"
_OLD: Final = "position and marks would be read as they were some time ago"
_LATE: Final = "a duplicate key would be reported by COMMIT, which does not name the row"
# TiDB alone, tried one by one: versions differ in which of them they know.
TIDB: Final = (
    # TiDB may repeat an optimistic transaction after a conflict by itself, statement by statement. The fence's UPDATE
    # then changes no row, the drainer is not informed, and the rows after it are written although another drainer has
    # taken over.
    Variable("tidb_txn_mode", "'pessimistic'", _RETRIED),
    Variable("tidb_disable_txn_auto_retry", "1"),
    Variable("tidb_retry_limit", "0"),
    Variable("tidb_constraint_check_in_place", "1"),
    Variable("tidb_constraint_check_in_place_pessimistic", "1", _LATE),
    # Each of these cuts one transaction, or one statement, into several that commit on their own.
    Variable("tidb_batch_insert", "0", _CUT),
    Variable("tidb_batch_delete", "0", _CUT),
    Variable("tidb_batch_commit", "0", _CUT),
    Variable("tidb_dml_batch_size", "0", _CUT),
    Variable("tidb_dml_type", "'standard'", _CUT),
    Variable("tidb_snapshot", "''", _OLD),
    Variable("tidb_read_staleness", "0", _OLD),
    Variable("tidb_low_resolution_tso", "0", _OLD),
)
_NO_DIRTY_READS: Final = ("tx_isolation", "transaction_isolation")
_MODES_WANTED: Final = frozenset({"NO_AUTO_VALUE_ON_ZERO"})
_MODES_WRONG: Final = frozenset({"NO_BACKSLASH_ESCAPES", "EMPTY_STRING_IS_NULL"})
_LOCAL_INFILE: Final = "local_infile"
_RETRIES: Final = ("tidb_txn_mode", "tidb_disable_txn_auto_retry", "tidb_retry_limit")

_ANYWHERE: Final = tuple(one for one in (*SETTINGS, *OPTIONAL, *_CHARSETS) if one.why)
_ON_TIDB: Final = tuple(one for one in TIDB if one.why)
READ_BACK: Final = tuple(
    dict.fromkeys(
        (*(one.name for one in (*_ANYWHERE, *_ON_TIDB)), *_NO_DIRTY_READS, *_RETRIES, "sql_mode", _LOCAL_INFILE)
    )
)


def wrong(flavour: str, shown: Mapping[str, str]) -> Iterator[str]:
    """Return a text for each variable whose value, as the server shows it, is not acceptable. Variables that are not
    shown do not exist on that server."""
    found = {name.lower(): value for name, value in shown.items()}
    for one in (*_ANYWHERE, *(_ON_TIDB if flavour == "tidb" else ())):
        value = found.get(one.name)
        if value is not None and value.lower() not in one.shown:
            yield f"{one.name} = {value!r}: {one.why}"
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
