"""TiCDC's sink URI as a reader's address: brokers and security, the topic, the protocol and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drainer.protocol.option_texts import protocol_options
from drainer.protocol.options import ProtocolOptions
from drainer.sink.kafka.connection import KafkaConnectionSection
from drainer.sink.kafka.security import KafkaSecuritySection
from drainer.sink.kafka.sink_uri import parse_sink_uri


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """`client`: settings of the client library; they may hold a password."""

    topic: str
    options: ProtocolOptions
    client: Mapping[str, str] = field(repr=False)


def kafka_address(uri: str, client_id: str, client: Mapping[str, str]) -> KafkaAddress:
    """`client`: further settings. Parameters that concern producers alone have no effect. Raises ConfigError."""
    parsed = parse_sink_uri(uri)
    names = {info.alias or name for name, info in KafkaSecuritySection.model_fields.items()}
    security: dict[str, object] = {name: value for name, value in parsed.parameters.items() if name in names}
    if parsed.tls:
        security["enable-tls"] = True
    given = {"addresses": parsed.addresses, "topic": parsed.topic, "client": dict(client), "security": security}
    section = KafkaConnectionSection.model_validate(given)
    section.check()
    return KafkaAddress(parsed.topic, protocol_options(parsed.parameters), section.client_settings(client_id))
