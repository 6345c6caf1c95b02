"""The tables of TiCDC's `[sink]` as they stand in its file: `kafka-config` and what is below it. Pure.

Here all of a destination's settings are in one table, so each of them is the setting of its last name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from binlog.errors import ConfigError

_SECURITY: Final = (
    *("sasl-user", "sasl-password", "sasl-mechanism"),
    *("sasl-gssapi-auth-type", "sasl-gssapi-keytab-path", "sasl-gssapi-kerberos-config-path"),
    *("sasl-gssapi-service-name", "sasl-gssapi-user", "sasl-gssapi-password", "sasl-gssapi-realm"),
    "sasl-gssapi-disable-pafxfast",
    *("sasl-oauth-client-id", "sasl-oauth-client-secret", "sasl-oauth-token-url", "sasl-oauth-scopes"),
    *("sasl-oauth-grant-type", "sasl-oauth-audience"),
    *("enable-tls", "ca", "cert", "key", "insecure-skip-verify"),
)
# Table → its settings.
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka-config": (
        *("partition-num", "replication-factor", "kafka-version", "max-message-bytes", "compression"),
        *("kafka-client-id", "auto-create-topic", "dial-timeout", "write-timeout", "read-timeout", "required-acks"),
        "output-raw-change-event",
        *_SECURITY,
    ),
    "kafka-config.codec-config": (
        *("enable-tidb-extension", "max-batch-size", "avro-enable-watermark", "avro-decimal-handling-mode"),
        *("avro-bigint-unsigned-handling-mode", "encoding-format"),
    ),
    "kafka-config.large-message-handle": (
        *("large-message-handle-option", "large-message-handle-compression", "claim-check-storage-uri"),
        "claim-check-raw-value",
    ),
}
_GLUE: Final = "glue-schema-registry-config"


def with_ticdc_tables(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section's mapping, each under the last part of its name. Raises ConfigError that names
    unknown, refused and repeated settings."""
    _refuse_glue(value, "")
    found = {name: given for name, given in value.items() if name != "kafka-config"}
    for path, given in _settings(value, "kafka-config"):
        name = path.rpartition(".")[2]
        if name in _SECURITY:
            found["security"] = _added(found.get("security") or {}, name, given, path)
        else:
            found = _added(found, name, given, path)
    return found


def _settings(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
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
        if place in _TABLES:
            yield from _settings(below, place)
        elif key in _TABLES[path]:
            yield place, given
        elif key != _GLUE:
            raise ConfigError(f"syncer.to.{place}: TiCDC has no such setting; there are {', '.join(_TABLES[path])}")


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
