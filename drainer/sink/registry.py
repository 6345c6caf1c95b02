"""The one table that chooses a destination. Nothing else asks for its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from binlog.errors import ConfigError

from drainer.sink.base import Destination
from drainer.sink.memory import MemoryDestination
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.sink import MySQLDestination
from drainer.sink.recycle_names import KEEP_MS_DEFAULT
from drainer.sink.sqlite.sink import SQLiteDestination


@dataclass(frozen=True, slots=True)
class DestinationConfig:
    """What every kind may need; each takes what it knows. `path`: SQLite's file; `recycle_keep_ms`: how long it keeps
    what upstream drops (a server's is in `server`)."""

    server: ServerConfig = field(default_factory=ServerConfig)
    path: Path = Path("downstream.sqlite")
    recycle_keep_ms: int = KEEP_MS_DEFAULT


def _mysql(config: DestinationConfig) -> Destination:
    return MySQLDestination(config.server)


# db-type (upstream's names first) → what makes it.
DESTINATIONS: Final[Mapping[str, Callable[[DestinationConfig], Destination]]] = {
    "mysql": _mysql,
    "tidb": _mysql,
    "mariadb": _mysql,
    "sqlite": lambda config: SQLiteDestination(config.path, recycle_keep_ms=config.recycle_keep_ms),
    "memory": lambda config: MemoryDestination(),
}


def destination(db_type: str, config: DestinationConfig) -> Destination:
    """Raises ConfigError naming the kinds there are."""
    make = DESTINATIONS.get(db_type)
    if make is None:
        raise ConfigError(f"db-type {db_type!r}: must be one of {', '.join(DESTINATIONS)}")
    return make(config)
