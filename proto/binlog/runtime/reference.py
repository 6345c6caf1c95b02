"""Describes settings: flags, kinds and defaults, for -h and docs/configuration.md (scripts/write_configuration.py).

Both are made from the models and flags that config.py reads, so they always match the code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from binlog.errors import ConfigError
from binlog.runtime.fields import parse_bytes, parse_go_duration, parse_retention, parse_seconds

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag. `key`: the TOML key it sets, dotted if in a section; by default the flag's name.

    `ignored`: the flag is accepted for compatibility with the original and does nothing. `repeated`: each occurrence
    adds a value to a list; of other flags the last one counts.
    """

    name: str
    key: str = ""
    help: str = ""
    ignored: bool = False
    repeated: bool = False

    @property
    def path(self) -> Key:
        return tuple((self.key or self.name).split("."))


@dataclass(frozen=True, slots=True)
class Variants:
    """Metadata for a section that has several variants. `sections` returns them by their display names.

    It is a function because a program may import the modules of its variants late.
    """

    sections: Callable[[], Mapping[str, type[BaseModel]]]


def variable(prefix: str, flag: str) -> str:
    """Return the environment variable of a flag (`K-01`)."""
    return f"{prefix.rstrip('_')}_{flag.upper().replace('-', '_')}"


def settings(model: type[BaseModel], above: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Yield every setting below a model with its TOML path. Sections are entered; lists of tables are not."""
    for name, info in model.model_fields.items():
        path = (*above, info.alias or name)
        section = _section_of(info.annotation)
        variants = next((data for data in info.metadata if isinstance(data, Variants)), None)
        if variants is not None:
            yield from _settings_of(variants, path)
        elif section is not None:
            yield from settings(section, path)
        else:
            yield path, info


def _settings_of(variants: Variants, above: Key) -> Iterator[tuple[Key, FieldInfo]]:
    """Yield the settings of each variant. Their descriptions begin with the variant's name."""
    for name, section in variants.sections().items():
        for path, info in settings(section, above):
            named = copy(info)
            named.description = f"{name}: {info.description}"
            yield path, named


def find(model: type[BaseModel], path: Key) -> FieldInfo:
    """Return the setting at a path. Raises ConfigError if there is none, which is a mistake in the program."""
    for found, info in settings(model):
        if found == path:
            return info
    raise ConfigError(f"a flag sets {'.'.join(path)}, which {model.__name__} does not have")


def is_bool(model: type[BaseModel], flag: Flag) -> bool:
    return not flag.ignored and find(model, flag.path).annotation is bool


def _section_of(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        for inner in get_args(annotation):
            found = _section_of(inner)
            if found is not None:
                return found
    return None


# Values in the form in which people write them.


def size_text(count: int) -> str:
    """Format a size: 10737418240 → 10 GiB. A size that is not a multiple of a unit stays a number of bytes."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return str(count)


def duration_text(span: timedelta, *, days: bool) -> str:
    """Format a duration: 7 days → 7 if a plain number means days (`K-11`), otherwise in Go's units: 8h, 1m30s."""
    seconds = int(span.total_seconds())
    if days and seconds and seconds % 86400 == 0:
        return f"{seconds // 86400}"
    parts = [(seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0"


def _has(info: FieldInfo, parser: object) -> bool:
    return any(getattr(data, "func", None) is parser for data in info.metadata)


def default_text(info: FieldInfo) -> str:
    """Return the default as an operator would write it; empty if there is none.

    A default that depends on the machine is described in `json_schema_extra={"default": …}`.
    """
    extra = info.json_schema_extra
    if isinstance(extra, dict) and "default" in extra:
        return str(extra["default"])
    if info.is_required():
        return "required"
    value: Any = info.get_default(call_default_factory=True, validated_data={})
    if value is None or (isinstance(value, dict | tuple | list) and not value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return duration_text(value, days=_has(info, parse_retention))
    if isinstance(value, int) and _has(info, parse_bytes):
        return size_text(value)
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value)


def kind_text(info: FieldInfo) -> str:
    """Return a word for the kind of value that a flag accepts; empty for a bool."""
    if info.annotation is bool:
        return ""
    if get_origin(info.annotation) is Literal:
        return "|".join(map(str, get_args(info.annotation)))
    if isinstance(info.annotation, type) and issubclass(info.annotation, Enum):
        return "|".join(str(member.value) for member in info.annotation)
    kinds = {
        parse_bytes: "size",
        parse_retention: "days|duration",
        parse_go_duration: "duration",
        parse_seconds: "seconds|duration",
    }
    for parser, word in kinds.items():
        if _has(info, parser):
            return word
    names = {int: "number", float: "number", str: "text"}
    if isinstance(info.annotation, type):
        return "path" if issubclass(info.annotation, PurePath) else names.get(info.annotation, "value")
    return "list" if get_origin(info.annotation) is tuple else "text"
