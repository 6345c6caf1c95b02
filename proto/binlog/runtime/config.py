"""Configuration. Priority: flag, environment, TOML file, default (`K-01`). Any invalid setting gives one clear error.

A program defines its settings as a model (a `Section`) and its flags, both in a `Program`; `load` reads them. Every
error names its source: the flag, the variable, or the file and key. The original only logs most invalid variables; here
they are errors.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from binlog.errors import ConfigError
from binlog.runtime.command_line import (
    InfoRequested,
    Model,
    Program,
    UsageError,
    closest,
    discard_stdout,
    parse,
    settings,
    variable,
)

_FLAG = "flag -"  # how the source of a flag's value begins


@dataclass(slots=True)
class _Gathered:
    """The values found so far and their sources. `file`, `text`: name and content of the TOML file, if any."""

    file: str = ""
    text: str = ""
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

    def value(self, path: tuple[str, ...]) -> object:
        """Return the value at a path, the list that the path goes through, or None."""
        at: object = self.values
        for part in path:
            if not isinstance(at, list):
                at = at.get(part) if isinstance(at, dict) else None
        return at

    def source_of(self, path: tuple[str, ...]) -> str | None:
        for length in range(len(path), 0, -1):
            if path[:length] in self.sources:
                return self.sources[path[:length]]
        return None


def load(program: Program[Model], argv: Sequence[str], *, environ: Mapping[str, str] | None = None) -> Model:
    """Return the program's settings. `argv`: the arguments without the program's name.

    Raises InfoRequested for -h and -V, UsageError for an invalid command line, and ConfigError for an invalid value,
    variable or file.
    """
    given = parse(program, argv)
    prefix = program.env_prefix
    environ = (os.environ if environ is None else environ) if prefix else {}
    gathered = _Gathered(str(given.get("config") or environ.get(variable(prefix, "config"), "")))
    if gathered.file:
        gathered.text, gathered.values = _read_toml(gathered.file)
        _use_current_names(program.model, gathered)
    flags = {flag.name: flag for flag in program.flags if not flag.ignored}
    # A setting with several names: of the variables, that of the first name in the table counts; of the flags, the last
    # one that is given.
    for flag in reversed(flags.values()):
        name = variable(prefix, flag.name)
        if environ.get(name):
            gathered.set(flag.path, environ[name], f"environment variable {name}")
    for name, value in given.items():
        if name in flags:
            gathered.set(flags[name].path, value, f"{_FLAG}{name}")
    try:
        return program.model.model_validate(gathered.values, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _explained(error, program, gathered) from error


def _use_current_names(model: type[BaseModel], gathered: _Gathered) -> None:
    """Move the file's values of former names, the further choices of a setting's alias, to the current name."""
    for info in model.model_fields.values():
        if not isinstance(info.validation_alias, AliasChoices):
            continue
        current, *former = map(str, info.validation_alias.choices)
        for name in former:
            if name in gathered.values and current in gathered.values:
                raise ConfigError(
                    f"config file {gathered.file}: {name} is the former name of {current}: give one of them"
                )
            if name in gathered.values:
                gathered.values[current] = gathered.values.pop(name)


def load_or_exit(program: Program[Model], argv: Sequence[str] | None = None) -> Model:
    """`load` for a `__main__`: exit with 0 for -h and -V, 2 for invalid flags, 1 for invalid values (`K-03`)."""
    try:
        return load(program, sys.argv[1:] if argv is None else argv)
    except InfoRequested as info:
        try:
            sys.stdout.write(f"{info.text}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()
        raise SystemExit(0) from None
    except UsageError as error:
        sys.stderr.write(f"{program.name}: {error}\nrun {program.name} -h for the flags\n")
        raise SystemExit(2) from None
    except ConfigError as error:
        sys.stderr.write(f"{program.name}: {error}\n")
        raise SystemExit(1) from None


def _read_toml(file: str) -> tuple[str, dict[str, Any]]:
    """Return the file's text and its values. ConfigError names the file and, if possible, the line."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"config file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {file}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {file}: {error}") from error


def _explained(error: ValidationError, program: Program[Any], gathered: _Gathered) -> ConfigError:
    """Return one ConfigError for pydantic's errors: unknown keys in the original's words (`K-02`), or all invalid
    values. Every value of a program that has only flags is one of its command line.
    """
    problems = error.errors(include_url=False)
    unknown = sorted({tuple(map(str, p["loc"])) for p in problems if p["type"] == "extra_forbidden"})
    if unknown:
        known = [".".join(path) for path, _ in settings(program.model)]
        sections = sorted({key.rpartition(".")[0] for key in known if "." in key})
        keys = [".".join(path) for path in unknown]
        at = sorted({line for path in unknown if (line := line_of(gathered.text, path))})
        hints = [f"line {', '.join(map(str, at))}"] if at else []
        for path, key in zip(unknown, keys, strict=True):
            close = closest(key, sections if isinstance(gathered.value(path), dict) else known)
            hints += [f"{key}: did you mean {close}?"] if close else []
        return ConfigError(
            f"component {program.name}'s config file {gathered.file} contained unknown configuration options: "
            f"{', '.join(keys)}" + (f" ({'; '.join(hints)})" if hints else "")
        )
    text = "; ".join(_refusal(problem, gathered) for problem in problems)
    usage = not program.env_prefix or any(_is_unreadable_flag(problem, gathered) for problem in problems)
    return UsageError(text) if usage else ConfigError(text)


# What pydantic reports for a text that is not of the kind that Go's flag package parses: bool, int or float.
_UNREADABLE = frozenset({"bool_type", "bool_parsing", "int_type", "int_parsing", "int_parsing_size", "float_parsing"})


def _is_unreadable_flag(problem: ErrorDetails, gathered: _Gathered) -> bool:
    """Return whether the value was given by a flag and Go's flag package would refuse it: it is no bool, int or
    float."""
    source = gathered.source_of(tuple(map(str, problem["loc"])))
    return problem["type"] in _UNREADABLE and source is not None and source.startswith(_FLAG)


# Settings whose names contain one of these words are never shown: URIs and registries have users and passwords.
_SECRETS = ("password", "secret", "token", "uri", "registry")
_SECTIONS = ("model_type", "dict_type")

# Replacements for pydantic's texts, which are written for programmers.
_EXPECTED = {
    "missing": "it must be given",
    "model_type": "a section was expected",
    "int_type": "a whole number was expected",
    "int_parsing": "a whole number was expected",
    "float_parsing": "a number was expected",
    "bool_type": "true or false was expected",
    "bool_parsing": "true or false was expected",
    "string_type": "a text in quotes was expected",
    "tuple_type": "a list was expected",
    "dict_type": "a section was expected",
}


def _refusal(problem: ErrorDetails, gathered: _Gathered) -> str:
    """Describe an invalid value, with its source."""
    path = tuple(str(part) for part in problem["loc"])
    key = ".".join(path)
    where = gathered.source_of(path) or key
    there = gathered.value(path[: -1 if problem["type"] == "missing" else None])
    if where == key and gathered.file and there is not None:
        line = line_of(gathered.text, path)
        where = f"config file {gathered.file}{f', line {line}' if line else ''}: {key}"
    text = _EXPECTED.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("literal_error", "enum"):
        text = f"{problem['ctx']['expected']} was expected"
    if problem["type"] not in ("missing", "value_error") and _may_be_shown(key, problem):
        text = f"{text}, not {problem['input']!r}"
    return f"{where}: {text}" if where else text


def _may_be_shown(key: str, problem: ErrorDetails) -> bool:
    """Whether the value may be in an error's text. Not if it may hold a secret: by its name, or because it is a list, a
    section, or a text in place of a section."""
    value = problem["input"]
    if isinstance(value, dict | list | tuple) or any(word in key for word in _SECRETS):
        return False
    return not (isinstance(value, str) and problem["type"] in _SECTIONS)


_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line of a TOML file with a key, or with the nearest section above it; None if that is unclear.

    tomllib does not record line numbers. Numbers in `path` are indexes in a list of tables.
    """
    tables: dict[str, int] = {}
    section: tuple[str, ...] = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            section = _parts(header[1])
            if line.lstrip().startswith("[["):
                nth = tables[header[1]] = tables.get(header[1], -1) + 1
                section = (*section, str(nth))
            found = section
        elif key is not None:
            found = (*section, *_parts(key[1]))
        else:
            continue
        if found == tuple(path[: len(found)]) and (best is None or len(found) > best[0]):
            best = (len(found), number)
    return best[1] if best is not None else None


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
