"""The table of destination kinds. Outside a destination's own package only this module depends on the kind.

Modules are named here, not imported: the configuration imports a kind's section, the driver its sink, and a worker its
writers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from binlog.errors import ConfigError
from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from drainer.extras import KAFKA, ExtraMissing, install
from drainer.sink.settings import ToSection

if TYPE_CHECKING:
    from drainer.sink.base import AnySink
    from drainer.sink.replay import Replayer, ReplaySettings
    from drainer.sink.settings import SyncerSettings


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of destination. `section`: the model of `[syncer.to]`, a ToSection; `make`: a function that takes the
    section and SyncerSettings and returns the sink; each as module:name. `writer`: modules that executors need to
    write. `replay`: a function that takes the section and ReplaySettings and returns reparo's Replayer, as module:name;
    "" if reparo does not support this kind. `has_tables`: it is a database, whose readers see the rows of tables."""

    section: str
    make: str
    writer: tuple[str, ...] = ()
    replay: str = ""
    has_tables: bool = False


_SERVER: Final = Kind(
    "drainer.sink.mysql.config:MySQLSection",
    "drainer.sink.mysql.sink:make",
    ("drainer.sink.mysql.rows.slot_writer", "drainer.sink.mysql.rows.format"),
    "drainer.sink.mysql.replay.destination:make",
    has_tables=True,
)

# db-type (upstream's names first) → what it is made of.
KINDS: Final[Mapping[str, Kind]] = {
    "mysql": _SERVER,
    "tidb": _SERVER,
    "mariadb": _SERVER,
    "sqlite": Kind(
        "drainer.sink.sqlite.file:SQLiteSection",
        "drainer.sink.sqlite.sink:make",
        replay="drainer.sink.sqlite.replay:make",
        has_tables=True,
    ),
    "jsonl": Kind(
        "drainer.sink.file.section:JsonlSection", "drainer.sink.file.sink:make_jsonl", ("drainer.sink.file.lines",)
    ),
    "file": Kind("drainer.sink.file.section:FileSection", "drainer.sink.file.sink:make"),
    "delta": Kind("drainer.lake.section:LakeSection", "drainer.lake.sink:make", ("drainer.lake.history",)),
    "kafka": Kind(
        "drainer.sink.kafka.settings.section:KafkaSection",
        "drainer.sink.kafka.sink:make",
        ("drainer.sink.kafka.slot_writer",),
    ),
}


def kind(db_type: str) -> Kind:
    """Raises ConfigError naming the existing kinds."""
    found = KINDS.get(db_type)
    if found is None:
        raise ConfigError(f"db-type {db_type!r}: must be one of {', '.join(KINDS)}")
    return found


def section(db_type: str) -> type[ToSection]:
    return cast("type[ToSection]", _named(kind(db_type).section))


def sink(db_type: str, to: ToSection, syncer: SyncerSettings) -> AnySink:
    """Return the sink, not opened yet. Raises ExtraMissing if a library that this kind needs is not installed."""
    try:
        make = cast("Callable[[ToSection, SyncerSettings], AnySink]", _named(kind(db_type).make))
    except ModuleNotFoundError as error:
        extra = "spark,kafka" if error.name in KAFKA.modules else "spark"
        raise ExtraMissing(f"db-type {db_type!r} needs the Python module {error.name}: {install(extra)}") from error
    return make(to, syncer)


def origin(text: str, changefeed: str, at_ts: int | None) -> Any:
    """Return the lake that `drainer load -from` names (ranges.load.Origin). Raises ConfigError."""
    db_type, _, directory = text.partition(":")
    if db_type != "delta" or not directory:
        raise ConfigError(f"-from {text!r}: must be delta:DIRECTORY")
    return _named("drainer.lake.at:LakeTables")(directory, changefeed, at_ts)


def replayer(db_type: str, values: Mapping[str, object], settings: ReplaySettings) -> Replayer:
    """reparo's destination, not opened yet. `values`: of any kind, of which it takes its own. Raises ConfigError."""
    able = [name for name, one in KINDS.items() if one.replay]
    if db_type not in able:
        raise ConfigError(f"dest-type {db_type!r}: must be print or one of {', '.join(able)}")
    model = section(db_type)
    keys = _keys(model)
    to = model.model_validate({key: value for key, value in values.items() if key in keys}, by_alias=True)
    try:
        to.check()
    except ConfigError as error:  # reparo has the same settings in another section
        raise ConfigError(str(error).replace("syncer.to.", "dest-db.")) from None
    make = cast("Callable[[ToSection, ReplaySettings], Replayer]", _named(KINDS[db_type].replay))
    return make(to, settings)


def consumer_replayer(text: str, zone: str = "UTC") -> Replayer:
    """Return the destination of `kafka-consumer --to`, not opened yet. `zone`: of TIMESTAMPs. Raises ConfigError."""
    from drainer.sink.replay import consumer_settings

    scheme, _, rest = text.partition(":")
    if scheme == "sqlite" and rest:
        return replayer("sqlite", {"path": rest}, consumer_settings("kafka-consumer"))
    parts = urlsplit(text)
    if KINDS.get(scheme) is not _SERVER or not parts.hostname:
        raise ConfigError("consumer --to: expected sqlite:FILE or mysql://USER@HOST:PORT (also mariadb://, tidb://)")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = given.pop("name", "kafka-consumer")
    unknown = sorted(given)
    if unknown or parts.path.strip("/"):
        raise ConfigError(f"--to {scheme}: not understood: {', '.join([*unknown, *filter(None, [parts.path])])}")
    try:
        port = parts.port or 3306
    except ValueError as error:
        raise ConfigError(f"--to {scheme}: {error}") from None
    password = unquote(parts.password) if parts.password is not None else os.environ.get("MYSQL_PWD", "")
    server = {"host": parts.hostname, "port": port, "user": unquote(parts.username or "root"), "password": password}
    return replayer(scheme, server, consumer_settings(name, zone=zone))


def import_writers(*others: str) -> None:
    """Import the writers of all kinds of destinations, and the modules `others`, before worker processes are forked. A
    module is skipped if a library that it needs is not installed."""
    for name in dict.fromkeys([*(name for one in KINDS.values() for name in one.writer), *others]):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("drainer"):
                raise


def _named(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


# `[syncer.to]` as a union discriminated by db-type: one section for each kind of destination.


def sections() -> Mapping[str, type[BaseModel]]:
    """Every section, each once, by the db-types that have it."""
    found: dict[type[BaseModel], list[str]] = {}
    for db_type in KINDS:
        found.setdefault(section(db_type), []).append(db_type)
    return {", ".join(names): one for one, names in found.items()}


def taken(db_type: str, value: Any) -> ToSection:
    """The section of this kind. Raises ValidationError, which says of a key of another kind whose it is."""
    model = section(db_type)
    if isinstance(value, Mapping):
        details = [_foreign(key, given, db_type) for key, given in value.items() if key not in _keys(model)]
        refused = [one for one in details if one is not None]
        if refused:
            raise ValidationError.from_exception_data("to", refused)
    return model.model_validate(value, by_alias=True, by_name=False)


def _keys(model: type[BaseModel]) -> set[str]:
    return {info.alias or name for name, info in model.model_fields.items()}


def _foreign(key: str, given: object, db_type: str) -> InitErrorDetails | None:
    """None for a key that no kind has: that is refused as unknown, like any other."""
    owners = [names for names, model in sections().items() if key in _keys(model)]
    if not owners:
        return None
    text = f"a destination of db-type {db_type} has no {key}; it is a setting of {' and '.join(owners)}: remove it"
    return InitErrorDetails(type=PydanticCustomError("value_error", "{text}", {"text": text}), loc=(key,), input=given)
