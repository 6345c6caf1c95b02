"""The tables of TiCDC's `[sink]` as they stand in its file: `kafka-config` and what is below it. Pure.

Here all of a destination's settings are in one table, so each of them is the setting of its last name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from binlog.errors import ConfigError
from pydantic import BaseModel

from drainer.protocol.options import KAFKA_CONFIG

_TABLE: Final = "ticdc-table"
_GLUE: Final = "glue-schema-registry-config"


def in_ticdc_table(name: str) -> dict[str, Any]:
    """Return what a setting's `json_schema_extra` says of TiCDC's table that has it; "": none below `[sink]`."""
    return {_TABLE: name}


def ticdc_tables(section: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return TiCDC's tables with the names of those settings of the section that they have."""
    found: dict[str, list[str]] = {}
    for name, info in section.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, Mapping) and extra.get(_TABLE):
            found.setdefault(str(extra[_TABLE]), []).append(info.alias or name)
    return {table: tuple(names) for table, names in found.items()}


def with_ticdc_tables(
    value: Mapping[str, Any], tables: Mapping[str, Sequence[str]], security: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a section's mapping, each under the last part of its name. `tables`: those of
    `ticdc_tables`; `security`: the settings of the section `security`, which stand in kafka-config. Raises ConfigError
    that names unknown, refused and repeated settings."""
    _refuse_glue(value, "")
    found = {name: given for name, given in value.items() if name != KAFKA_CONFIG}
    known = {**tables, KAFKA_CONFIG: (*tables.get(KAFKA_CONFIG, ()), *security)}
    for path, given in _settings(value, KAFKA_CONFIG, known):
        name = path.rpartition(".")[2]
        if name in security:
            found["security"] = _added(found.get("security") or {}, name, given, path)
        else:
            found = _added(found, name, given, path)
    return found


def _settings(table: Mapping[str, Any], path: str, tables: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of the table at `path` and of the tables below it, with their paths."""
    name = path.rpartition(".")[2]
    below = table.get(name)
    if below is None:
        return
    if not isinstance(below, Mapping):
        raise ConfigError(f"syncer.to.{path}: it is a table, as in TiCDC's file")
    _refuse_glue(below, f"{path}.")
    for key, given in below.items():
        place = f"{path}.{key}"
        if place in tables:
            yield from _settings(below, place, tables)
        elif key in tables[path]:
            yield place, given
        elif key != _GLUE:
            raise ConfigError(f"syncer.to.{place}: TiCDC has no such setting; there are {', '.join(tables[path])}")


def _added(found: Mapping[str, Any], name: str, given: object, path: str) -> dict[str, Any]:
    if name in found and found[name] != given:
        raise ConfigError(f"syncer.to: {path} and {name} are one setting, and differ: give one of them")
    return {**found, name: given}


def _refuse_glue(table: Mapping[str, Any], above: str) -> None:
    if table.get(_GLUE):  # its values are secrets
        raise ConfigError(
            f"syncer.to.{above}{_GLUE}: AWS Glue is not supported: run a registry with Confluent's API (Confluent's, "
            "Karapace, Apicurio), and set schema-registry to its address"
        )
