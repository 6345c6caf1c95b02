"""TiCDC's sink URI: `kafka://host:port,host:port/topic?protocol=avro&partition-num=6`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from binlog.errors import ConfigError
from binlog.runtime.fields import split_host_port

from drainer.dispatch.rules import checked_topic

SCHEMES: Final = ("kafka", "kafka+ssl")
PORT_DEFAULT: Final = 9092


@dataclass(frozen=True, slots=True)
class SinkUri:
    """The parts of a sink URI. `addresses`: host:port of each broker. `parameters`: name → value, in the order
    of the URI. `tls`: whether the scheme is kafka+ssl."""

    addresses: tuple[str, ...]
    topic: str
    parameters: dict[str, str]
    tls: bool


def parse_sink_uri(text: str) -> SinkUri:
    """Parse a sink URI. Raises ConfigError naming the invalid part. The error does not quote the URI, which may hold a
    password."""
    # If a password contains / ? or #, a part of it would be parsed as a host, a topic or a name, and errors would show
    # it.
    if "@" in text.partition("=")[0]:
        raise ConfigError(
            "sink-uri: a user before the host is not understood; write sasl-user and sasl-password as parameters"
        )
    try:
        parts = urlsplit(text)
    except ValueError:  # its text quotes the URI
        raise ConfigError("sink-uri: the part between // and the next / is not a list of host:port") from None
    if parts.scheme.lower() not in SCHEMES:
        raise ConfigError(f"sink-uri: the scheme must be one of {', '.join(SCHEMES)}, not {parts.scheme!r}")
    if "#" in text:
        raise ConfigError("sink-uri: the part after a # would be ignored; write %23 for a # in a value, or remove it")
    topic = unquote(parts.path.strip("/"))
    if not topic:
        raise ConfigError("sink-uri: no topic; it is the path, as in kafka://host:9092/topic")
    return SinkUri(
        addresses=tuple(_address(address, "sink-uri") for address in parts.netloc.split(",")),
        topic=checked_topic(topic, "sink-uri"),
        parameters=_parameters(parts.query),
        tls=parts.scheme.lower() == "kafka+ssl",
    )


def checked_addresses(addresses: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return each address as host:port, with the default port if it has none. `where`: the setting, for the error.
    Raises ConfigError."""
    return tuple(_address(address, where) for address in addresses)


def _address(given: str, where: str) -> str:
    """Return a broker's address as host:port. `where`: the setting, for the error. Raises
    ConfigError."""
    text = given.strip()
    if not text:
        raise ConfigError(f"{where}: a broker's address is empty; write host:port,host:port")
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{PORT_DEFAULT}"
    try:
        host, port = split_host_port(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not host or not port:
        raise ConfigError(f"{where}: {given!r} does not have the form host:port")
    return text


def _parameters(query: str) -> dict[str, str]:
    """Parse the part after the ?. Raises ConfigError."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=200)
    except ValueError:
        raise ConfigError("sink-uri: the part after the ? must be name=value pairs with & between them") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"sink-uri: parameter {name} is given twice")
        if "\0" in value:
            raise ConfigError(f"sink-uri: parameter {name} has a NUL")
        found[name] = value
    return found
