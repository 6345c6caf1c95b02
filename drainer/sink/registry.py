"""The one table that chooses a destination. Nothing else outside a destination's own package asks for its kind.

What a kind consists of is named, not imported: who reads the configuration imports its section, who drains its sink,
and a worker what it writes with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from binlog.errors import ConfigError

if TYPE_CHECKING:
    from drainer.row.format import Format
    from drainer.sink.base import AnySink
    from drainer.sink.settings import SyncerSettings, ToSection


@dataclass(frozen=True, slots=True)
class Kind:
    """`section`: the model of `[syncer.to]`, a ToSection; `make`: a function of that and of SyncerSettings that gives
    the sink; both as module:name. `writer`: modules that executors write with; `format`: with what they make rows
    (row.format.Format), as module:name."""

    section: str
    make: str
    writer: tuple[str, ...] = ()
    format: str = ""


_SERVER: Final = Kind(
    "drainer.sink.mysql.section:MySQLSection",
    "drainer.sink.mysql.sink:make",
    ("drainer.sink.mysql.rows.slot_writer", "drainer.sink.mysql.rows.examine"),
    "drainer.sink.mysql.rows.format:SQL_TEXT",
)

# db-type (upstream's names first) → what it is made of.
KINDS: Final[Mapping[str, Kind]] = {
    "mysql": _SERVER,
    "tidb": _SERVER,
    "mariadb": _SERVER,
    "sqlite": Kind("drainer.sink.sqlite.section:SQLiteSection", "drainer.sink.sqlite.sink:make"),
    "jsonl": Kind(
        "drainer.sink.jsonl.section:JsonlSection", "drainer.sink.jsonl.sink:make", ("drainer.sink.jsonl.slot_writer",)
    ),
    "file": Kind("drainer.sink.file.section:FileSection", "drainer.sink.file.sink:make"),
}


def kind(db_type: str) -> Kind:
    """Raises ConfigError naming the kinds there are."""
    found = KINDS.get(db_type)
    if found is None:
        raise ConfigError(f"db-type {db_type!r}: must be one of {', '.join(KINDS)}")
    return found


def section(db_type: str) -> type[ToSection]:
    return cast("type[ToSection]", _named(kind(db_type).section))


def sink(db_type: str, to: ToSection, syncer: SyncerSettings) -> AnySink:
    """Not opened yet."""
    make = cast("Callable[[ToSection, SyncerSettings], AnySink]", _named(kind(db_type).make))
    return make(to, syncer)


def import_writers() -> None:
    """For a worker, before it forks: what any kind writes with."""
    for name in dict.fromkeys(name for one in KINDS.values() for name in one.writer):
        import_module(name)


def formats() -> list[Format]:
    """Those that executors make rows with, to be tried once before there are any (changes.warm)."""
    return [_named(place) for place in dict.fromkeys(one.format for one in KINDS.values()) if place]


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
