"""The command lines of all programs: flags in Go's syntax, positional arguments, and the text for -h.

A program describes itself as a `Program`; `binlog.runtime.config.load` reads its command line. -h and
docs/configuration.md (scripts/write_configuration.py) are made from the same models and flags.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from binlog.errors import BinlogError, ConfigError
from binlog.runtime.fields import parse_bytes, parse_go_duration, parse_retention, parse_seconds
from binlog.runtime.version import version_text

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


WIDTH = 110
INTERRUPTED = 130  # the exit code that shells give a command that SIGINT ended
# What an error shows of a command line. Other texts may be a URI with a password at the wrong place.
_SHOWN = re.compile(r"[A-Za-z0-9_.-]{1,40}")

Model = TypeVar("Model", bound=BaseModel)


class UsageError(ConfigError):
    """The command line is invalid, or a flag's value is not of its kind: exit code 2 (`K-03`)."""


class InfoRequested(BinlogError):
    """-h or -V was given. `text` is the output; the exit code is 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class Program(Generic[Model]):
    """A program: its settings, and where their values come from.

    `env_prefix`: what the names of its environment variables begin with; empty if it reads neither the environment nor
    a file. `words`: the settings that positional arguments fill, in this order. `commands`, `exit_codes`: tables for
    -h.
    """

    name: str
    model: type[Model]
    flags: Sequence[Flag] = ()
    env_prefix: str = ""
    words: Sequence[str] = ()
    about: str = ""
    examples: Sequence[str] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    exit_codes: Mapping[int, str] = field(default_factory=dict)


def flags_of(model: type[BaseModel]) -> tuple[Flag, ...]:
    """Return a flag for each setting. That of a list may be given repeatedly, unless a parser splits its text."""
    return tuple(
        Flag(
            ".".join(path),
            repeated=get_origin(info.annotation) is tuple
            and not any(isinstance(data, BeforeValidator) for data in info.metadata),
        )
        for path, info in settings(model)
    )


def parse(program: Program[Model], argv: Sequence[str]) -> dict[str, str | list[str]]:
    """Return the values by the names of their flags, or of the settings that positional arguments fill.

    Flags have one or two dashes: `-flag value`, `-flag=value`, or `-flag` for a bool. After `--` everything is
    positional. The values are in the order of the command line; of a flag that is given again, at its last place.
    Raises InfoRequested for -h and -V, UsageError for an unknown flag or one without its value.
    """
    known = {flag.name: flag for flag in program.flags}
    names = [*(["config"] if program.env_prefix else []), *known]
    given: dict[str, str | list[str]] = {}
    rest = list(argv)
    flags_end = False
    while rest:
        word = rest.pop(0)
        if word == "--" and not flags_end:
            flags_end = True
            continue
        if flags_end or not word.startswith("-") or word == "-":
            given[_positional(program, word, given)] = word
            continue
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name in ("h", "help"):
            raise InfoRequested(usage(program))
        if name in ("V", "version") and name not in known:
            raise InfoRequested(version_text())
        if name not in names:
            raise UsageError(_undefined(name, names))
        if not equals:
            value = "true" if name in known and is_bool(program.model, known[name]) else _argument(name, rest, names)
        before = given.pop(name, [])
        repeated = name in known and known[name].repeated and isinstance(before, list)
        given[name] = [*before, value] if repeated else value
    return given


def _undefined(name: str, names: Sequence[str]) -> str:
    """Return the error of an unknown flag."""
    if not _SHOWN.fullmatch(name):
        return "flag provided but not defined: a word that begins with a dash is no flag's name"
    close = closest(name, names)
    return f"flag provided but not defined: -{name}" + (f" (did you mean -{close}?)" if close else "")


def _argument(name: str, rest: list[str], names: Sequence[str]) -> str:
    """Remove and return the value of a flag, which is the next word. Raises UsageError if there is none: a word that is
    another flag was not meant as the value."""
    if not rest:
        raise UsageError(f"flag needs an argument: -{name}")
    dashes = re.match("--?", rest[0])
    following = rest[0][dashes.end() :].partition("=")[0] if dashes else ""
    if following in names:
        raise UsageError(
            f"flag needs an argument: -{name} (-{following} is a flag; a value like it goes behind -{name}=)"
        )
    return rest.pop(0)


def _positional(program: Program[Model], word: str, given: Iterable[str]) -> str:
    """Return the setting that a positional argument fills. Raises UsageError if the program takes no further one."""
    for name in program.words:
        if name not in given:
            return name
    if program.words:
        taken = ", ".join(name.upper() for name in program.words)
        raise UsageError(f"an argument too many: without a flag's name {program.name} takes only {taken}")
    raise UsageError(f"'{word}' is not a valid flag" if _SHOWN.fullmatch(word) else "an argument is not a valid flag")


def closest(name: str, known: Sequence[str]) -> str:
    """Return the known name that is closest to the given one or the only one that begins with it, or an empty text."""
    last = {key.rpartition(".")[2]: key for key in known}
    wanted = name.replace("_", "-")
    longer = [key for key in known if key.startswith(wanted)]
    if len(longer) == 1:
        return longer[0]
    for among in (known, list(last)):  # a similar full path is a better match than a similar last part
        close = difflib.get_close_matches(wanted, among, n=1, cutoff=0.75)
        if close:
            return last.get(close[0], close[0])
    return ""


def usage(program: Program[Model]) -> str:
    """Return the text for -h."""
    lines = [textwrap.fill(program.about, WIDTH), ""] if program.about else []
    words = [
        f" {word.upper()}" if find(program.model, (word,)).is_required() else f" [{word}]" for word in program.words
    ]
    lines.append(f"Usage of {program.name}:" + (f" {program.name}{''.join(words)} [flags]" if words else ""))
    if program.commands:
        lines += [*_table("Commands", program.commands), "", "Flags:"]
    if program.env_prefix:
        lines += ["  -config path", "        the TOML file; flags override the environment, which overrides the file"]
    for flag in sorted((f for f in program.flags if not f.ignored), key=lambda flag: flag.name.lower()):
        lines += _explained(program, flag)
    lines += ["  -V", "        print the version and exit", "  -h", "        print this text and exit"]
    ignored = [flag.name for flag in program.flags if flag.ignored]
    if ignored:
        lines += ["", f"Accepted and ignored: {', '.join('-' + name for name in ignored)}"]
    if program.env_prefix and program.flags:
        first = program.flags[0].name
        lines += ["", f"Each flag is also a variable: {variable(program.env_prefix, first)} for -{first}."]
    lines += _table("Exit codes", program.exit_codes)
    if program.examples:
        lines += ["", "Examples:", *(f"  {example}" for example in program.examples)]
    return "\n".join(lines)


def _explained(program: Program[Model], flag: Flag) -> list[str]:
    """Return the lines of -h for a flag. Raises ConfigError if it has no setting, which is a mistake in the program."""
    info = find(program.model, flag.path)
    default = default_text(info)
    switch = "[=false]" if default == "true" else ""
    shown = {"": "", "false": "", "required": " (required)"}.get(default, f" (default {default})")
    text = f"{flag.help or info.description or ''}{'; may be given repeatedly' if flag.repeated else ''}{shown}"
    indent = " " * 8
    return [
        f"  -{flag.name}{switch} {'text' if flag.repeated else kind_text(info)}".rstrip(),
        *textwrap.wrap(
            text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ),
    ]


def _table(title: str, rows: Mapping[str, str] | Mapping[int, str]) -> list[str]:
    width = max((len(str(name)) for name in rows), default=0)
    return ["", f"{title}:", *(f"  {name!s:{width}}  {text}" for name, text in rows.items())] if rows else []


def discard_stdout() -> None:
    """Discard what is still to be written to standard output, because its reader has closed it, as `head` does.

    Python writes what is buffered when it exits, and would fail again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
