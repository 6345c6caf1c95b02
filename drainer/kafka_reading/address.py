"""TiCDC's sink URI as a reader's address: brokers and security, the topic, the protocol and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.options import ProtocolOptions
from drainer.sink.kafka.connection import KafkaConnectionSection
from drainer.sink.kafka.sink_uri import parse_sink_uri

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """`client`: settings of the client library; they may hold a password."""

    topic: str
    options: ProtocolOptions
    client: Mapping[str, str] = field(repr=False)


def kafka_address(uri: str, client_id: str, client: Mapping[str, str]) -> KafkaAddress:
    """Raises ConfigError. Parameters that concern producers alone are accepted and have no effect."""
    parsed = parse_sink_uri(uri)
    options, rest = split_options(parsed.parameters)
    known = {info.alias or name for name, info in KafkaConnectionSection.model_fields.items()}
    security = KafkaConnectionSection.model_fields["security"].annotation
    assert security is not None
    known |= {info.alias or name for name, info in security.model_fields.items()}
    given: dict[str, Any] = {name: value for name, value in rest.items() if name in known}
    connection = KafkaConnectionSection.model_validate(
        {
            "addresses": parsed.addresses,
            "topic": parsed.topic,
            "client": dict(client),
            "security": {
                **({"enable-tls": True} if parsed.tls else {}),
                **{name: value for name, value in given.items() if name not in KafkaConnectionSection_names()},
            },
        }
    )
    connection.check()
    return KafkaAddress(parsed.topic, options, connection.client_settings(client_id))


def KafkaConnectionSection_names() -> set[str]:
    return {info.alias or name for name, info in KafkaConnectionSection.model_fields.items()}


def split_options(parameters: Mapping[str, str]) -> tuple[ProtocolOptions, dict[str, str]]:
    """(what of the parameters are options of a protocol, the others). Raises ProtocolConfigError."""
    found: dict[str, Any] = {}
    rest = dict(parameters)
    for one in fields(ProtocolOptions):
        name = one.name.replace("_", "-")
        if name in rest:
            found[one.name] = _value(name, rest.pop(name), one.default)
    if "protocol" not in found:
        raise ProtocolConfigError("the address names no protocol: add ?protocol=open-protocol, or which it is")
    return ProtocolOptions(**found), rest


def _value(name: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return _BOOLEANS[text.lower()]
        return type(default)(text) if isinstance(default, int | float) else text
    except (KeyError, ValueError):
        raise ProtocolConfigError(f"{name}: {text!r} is no value of it") from None
