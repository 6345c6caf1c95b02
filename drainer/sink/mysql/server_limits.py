"""Limits of a server that a large transaction may pass, and what an operator can do about each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from drainer.sink.errors import DestinationRefused, RowsRefused
from drainer.sink.mysql.connection import ServerError

# By error number: MySQL's and MariaDB's, TiDB's from 8000 on.
_SETTINGS: Final[Mapping[int, str]] = {
    1197: "max_binlog_cache_size",
    1206: "innodb_buffer_pool_size, which holds its locks",
    8004: "txn-total-size-limit",
    8025: "txn-entry-size-limit",
    8175: "tidb_mem_quota_query",
    8176: "tidb_server_memory_limit",
}


@contextlib.contextmanager
def explained(address: str, commit_ts: int) -> Iterator[None]:
    """Turns the server's refusal of a whole transaction into an error that names the transaction and the setting."""
    try:
        yield
    except (ServerError, RowsRefused) as error:
        refused = error if isinstance(error, ServerError) else error.__cause__
        if not isinstance(refused, ServerError) or refused.code not in _SETTINGS:
            raise
        raise DestinationRefused(
            f"{address}: the transaction of commit_ts {commit_ts} is too large for this server, raise "
            f"{_SETTINGS[refused.code]} there: {refused.detail}"
        ) from error
