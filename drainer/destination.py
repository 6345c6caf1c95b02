"""Which destination a configuration means: the one table that chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drainer.config import SyncerSection
from drainer.sink.protocol import Destination


def _server(syncer: SyncerSection) -> Destination:
    from drainer.sink.mysql.config import ServerConfig
    from drainer.sink.mysql.destination import MySQLDestination

    to = syncer.to
    return MySQLDestination(
        ServerConfig(
            host=to.host,
            port=to.port,
            user=to.user,
            password=to.password,
            params=tuple(to.params.items()),
            ssl_ca=to.security.ssl_ca,
            ssl_cert=to.security.ssl_cert,
            ssl_key=to.security.ssl_key,
            spread=syncer.spread,
        )
    )


def _sqlite(syncer: SyncerSection) -> Destination:
    from drainer.sink.sqlite.destination import SQLiteDestination

    return SQLiteDestination(syncer.to.path)


DESTINATIONS: Mapping[str, Callable[[SyncerSection], Destination]] = {
    "mysql": _server,
    "tidb": _server,
    "mariadb": _server,
    "sqlite": _sqlite,
}


def destination_for(syncer: SyncerSection) -> Destination:
    """Not opened yet."""
    return DESTINATIONS[syncer.db_type](syncer)
