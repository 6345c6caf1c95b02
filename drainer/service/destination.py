"""The destination that the configuration means, as drainer.sink.registry makes it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from drainer.config import SyncerSection
from drainer.sink.base import Destination
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.registry import DestinationConfig, destination


def destination_for(syncer: SyncerSection) -> Destination:
    """Not opened yet."""
    to = syncer.to
    keep_ms = syncer.recycle_bin // timedelta(milliseconds=1)
    server = ServerConfig(
        host=to.host,
        port=to.port,
        user=to.user,
        password=to.password,
        params=tuple(to.params.items()),
        ssl_ca=to.security.ssl_ca,
        ssl_cert=to.security.ssl_cert,
        ssl_key=to.security.ssl_key,
        skip_verify=to.security.skip_verify,
        spread=syncer.spread,
        takeover=to.takeover,
        allow_triggers=to.allow_triggers,
        recycle_keep_ms=keep_ms,
    )
    return destination(syncer.db_type, DestinationConfig(server, Path(to.path), keep_ms))
