"""Configuration: flag over environment over TOML over default (`K-01`), one clear error for anything else.

A program describes its settings as a model (a `Section`) and names its flags; `load` does the rest. Every refusal
names its source: the flag, the variable, or the file and key. Upstream only logs most bad variables; here they are
errors like all others.
"""

from __future__ import annotations

import os
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from binlog.errors import BinlogError, ConfigError
from binlog.fields import (
    ByteSize,
    Duration,
    HostPort,
    LooseUrls,
    Names,
    Retention,
    Section,
    SecuritySection,
    UpstreamSection,
    Urls,
    default_host,
    parse_go_duration,
    parse_retention,
    split_host_port,
)
from binlog.version import version_text

__all__ = [
    "ByteSize",
    "ConfigError",
    "Duration",
    "Flag",
    "HostPort",
    "InfoRequested",
    "LooseUrls",
    "Names",
    "Retention",
    "Section",
    "SecuritySection",
    "UpstreamSection",
    "Urls",
    "UsageError",
    "default_host",
    "load",
    "load_or_exit",
    "parse_go_duration",
    "parse_retention",
    "reference_markdown",
    "split_host_port",
]

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `key` is the TOML key it sets, dotted below a section; by default it is the flag's name.

    `ignored` flags are accepted for upstream's sake and do nothing.
    """

    name: str
    key: str = ""
    help: str = ""
    ignored: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return tuple((self.key or self.name).split("."))


class UsageError(ConfigError):
    """The command line cannot be read: exit code 2 (`K-03`)."""


class InfoRequested(BinlogError):
    """-h or -V was given; `text` is the answer, the exit code 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(slots=True)
class _Gathered:
    """The values as found so far, and where each came from."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[tuple[str, ...], str] = field(default_factory=dict)

    def set(self, path: tuple[str, ...], value: object, source: str) -> None:
        at = self.values
        for part in path[:-1]:
            inner = at.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{source}: {part} is not a section")
            at = inner
        at[path[-1]] = value
        self.sources[path] = source

    def source_of(self, path: tuple[str, ...]) -> str | None:
        for length in range(len(path), 0, -1):
            if path[:length] in self.sources:
                return self.sources[path[:length]]
        return None


def load(
    model: type[_M],
    *,
    component: str,
    argv: Sequence[str],
    env_prefix: str,
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str] | None = None,
) -> _M:
    """The program's settings. `argv` is without the program's name.

    Raises InfoRequested for -h and -V, UsageError for a command line that cannot be read, ConfigError for anything
    that is wrong in a value, a variable or the file.
    """
    environ = os.environ if environ is None else environ
    given = _parse_argv(model, component, argv, flags, env_prefix)
    prefix = env_prefix.rstrip("_")
    gathered = _Gathered()
    file = given.get("config") or environ.get(_variable(prefix, "config"), "")
    if file:
        gathered.values = _read_toml(file)
    for flag in flags:
        variable = _variable(prefix, flag.name)
        if flag.ignored:
            continue
        if flag.name in given:
            gathered.set(flag.path, given[flag.name], f"flag -{flag.name}")
        elif environ.get(variable):
            gathered.set(flag.path, environ[variable], f"environment variable {variable}")
    try:
        return model.model_validate(gathered.values, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _explained(error, component, file, gathered) from error


def load_or_exit(
    model: type[_M], *, component: str, argv: Sequence[str], env_prefix: str, flags: Sequence[Flag] = ()
) -> _M:
    """`load` for a `__main__`: prints and exits 0 for -h and -V, 2 for bad flags, 1 for bad values (`K-03`)."""
    try:
        return load(model, component=component, argv=argv, env_prefix=env_prefix, flags=flags)
    except InfoRequested as info:
        sys.stdout.write(f"{info.text}\n")
        raise SystemExit(0) from None
    except UsageError as error:
        sys.stderr.write(f"{component}: {error}\nrun {component} -h for the flags\n")
        raise SystemExit(2) from None
    except ConfigError as error:
        sys.stderr.write(f"{component}: {error}\n")
        raise SystemExit(1) from None


def _variable(prefix: str, flag: str) -> str:
    return f"{prefix}_{flag.upper().replace('-', '_')}"


def _parse_argv(
    model: type[BaseModel], component: str, argv: Sequence[str], flags: Sequence[Flag], env_prefix: str
) -> dict[str, str]:
    """Flag name → value, in Go's syntax: one or two dashes, `-flag value` or `-flag=value`, `-flag` alone if bool."""
    known = {flag.name: flag for flag in flags}
    given: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--" and not rest:
            break
        if word == "--" or not word.startswith("-") or word == "-":
            raise UsageError(f"'{rest[0] if word == '--' else word}' is not a valid flag")
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name in ("h", "help"):
            raise InfoRequested(_usage(model, component, flags, env_prefix))
        if name in ("V", "version") and name not in known:
            raise InfoRequested(version_text())
        if name not in known and name != "config":
            raise UsageError(f"flag provided but not defined: -{name}")
        if not equals:
            if name in known and _is_bool(model, known[name]):
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise UsageError(f"flag needs an argument: -{name}")
        given[name] = value
    return given


def _read_toml(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {file}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {file}: {error}") from error


def _explained(error: ValidationError, component: str, file: str, gathered: _Gathered) -> ConfigError:
    """One ConfigError out of pydantic's list: unknown keys in upstream's words (`K-02`), else every bad value."""
    problems = error.errors(include_url=False)
    unknown = sorted(".".join(map(str, p["loc"])) for p in problems if p["type"] == "extra_forbidden")
    if unknown:
        return ConfigError(
            f"component {component}'s config file {file} contained unknown configuration options: {', '.join(unknown)}"
        )
    lines = []
    for problem in problems:
        path = tuple(str(part) for part in problem["loc"])
        key = ".".join(path)
        where = gathered.source_of(path) or (f"config file {file}: {key}" if _in(gathered.values, path) else key)
        text = problem["msg"].removeprefix("Value error, ")
        if "password" not in key and problem["type"] not in ("missing", "value_error"):
            text = f"{text}, not {problem['input']!r}"
        lines.append(f"{where}: {text}" if where else text)
    return ConfigError("; ".join(lines))


def _in(values: object, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(values, dict):
            return isinstance(values, list)
        if part not in values:
            return False
        values = values[part]
    return True


# Looking into a model: which settings there are, for flags, usage and documentation.


def _section_of(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        for inner in get_args(annotation):
            found = _section_of(inner)
            if found is not None:
                return found
    return None


def _settings(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every setting below a model, with its TOML path; sections are entered."""
    for name, info in model.model_fields.items():
        path = (*above, info.alias or name)
        section = _section_of(info.annotation)
        if section is not None:
            yield from _settings(section, path)
        else:
            yield path, info


def _find(model: type[BaseModel], path: tuple[str, ...]) -> FieldInfo:
    for found, info in _settings(model):
        if found == path:
            return info
    raise ConfigError(f"a flag sets {'.'.join(path)}, which {model.__name__} does not have")


def _is_bool(model: type[BaseModel], flag: Flag) -> bool:
    return not flag.ignored and _find(model, flag.path).annotation is bool


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _usage(model: type[BaseModel], component: str, flags: Sequence[Flag], env_prefix: str) -> str:
    prefix = env_prefix.rstrip("_")
    lines = [f"Usage of {component}: (each flag also as {prefix}_<FLAG> in the environment)"]
    lines += ["  -V", "        print the version and exit", "  -config value", "        path of the TOML file"]
    for flag in sorted(flags, key=lambda flag: flag.name.lower()):
        if flag.ignored:
            lines += [f"  -{flag.name} value", "        DEPRECATED: accepted and ignored"]
            continue
        info = _find(model, flag.path)
        lines.append(f"  -{flag.name}" if info.annotation is bool else f"  -{flag.name} value")
        default = _default(info)
        lines.append(f"        {flag.help or info.description or ''}{f' (default {default})' if default else ''}")
    return "\n".join(lines)


def reference_markdown(model: type[BaseModel], flags: Sequence[Flag] = (), *, env_prefix: str = "") -> str:
    """A table of every setting, for docs/configuration.md: key, flag, variable, default, meaning."""
    by_path = {flag.path: flag for flag in flags if not flag.ignored}
    prefix = env_prefix.rstrip("_")
    rows = ["| key | flag | environment | default | meaning |", "|---|---|---|---|---|"]
    for path, info in _settings(model):
        flag = by_path.get(path)
        cells = (
            f"`{'.'.join(path)}`",
            f"`-{flag.name}`" if flag else "",
            f"`{_variable(prefix, flag.name)}`" if flag and prefix else "",
            f"`{_default(info)}`" if _default(info) else "",
            (flag.help if flag and flag.help else info.description or "").replace("|", "\\|"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
