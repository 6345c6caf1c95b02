"""TiCDC's sink URI as a reader's address: brokers and security, the topic, the protocol and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, get_origin

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from drainer.protocol.option_rules import URI_NAMES, protocol_options
from drainer.protocol.options import ProtocolOptions
from drainer.sink.kafka.settings.connection import KafkaConnectionSection
from drainer.sink.kafka.settings.original_settings import OriginalKafkaSection
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.settings.security import KafkaSecuritySection
from drainer.sink.kafka.settings.sink_uri import parse_sink_uri


class TopicsSection(Section):
    """The topics that a program reads, as its command line gives them."""

    uri: str = Field(description="TiCDC's address of a topic: kafka://host:9092/topic?protocol=open-protocol")
    topic: tuple[str, ...] = Field(
        (), description="a topic to read, or a regular expression that begins with ^; without it, that of the address"
    )


# What a URI has before its parameters.
_BEFORE_PARAMETERS: Final = frozenset({"sink-uri", "topic"})


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where and how to read. `client`: settings of the client library; they may contain a password."""

    topic: str
    options: ProtocolOptions
    client: Mapping[str, str] = field(repr=False)


def _known() -> set[str]:
    """Return the parameters that a URI may have: the settings that are one text, number, duration or choice."""
    plain = {
        info.alias or name
        for section in (KafkaSection, KafkaSecuritySection)
        for name, info in section.model_fields.items()
        if name not in OriginalKafkaSection.model_fields
        and (info.annotation in (str, bool, int, timedelta) or get_origin(info.annotation) is Literal)
    }
    return {*plain, *URI_NAMES} - _BEFORE_PARAMETERS


def kafka_address(uri: str, client_id: str, client: Mapping[str, str]) -> KafkaAddress:
    """Parse a sink URI. `client`: further settings of the client library. Parameters for producers have no effect.
    Raises ConfigError, also for parameters that neither a drainer nor a reader knows."""
    parsed = parse_sink_uri(uri)
    unknown = sorted(parsed.parameters.keys() - _known())
    if unknown:
        raise ConfigError(f"the address has parameters that are not known: {', '.join(unknown)}")
    names = {info.alias or name for name, info in KafkaSecuritySection.model_fields.items()}
    security: dict[str, object] = {name: value for name, value in parsed.parameters.items() if name in names}
    if parsed.tls:
        security["enable-tls"] = True
    connection = {info.alias or name for name, info in KafkaConnectionSection.model_fields.items()}
    given: dict[str, object] = {name: value for name, value in parsed.parameters.items() if name in connection}
    given |= {"addresses": parsed.addresses, "topic": parsed.topic, "client": dict(client), "security": security}
    try:
        section = KafkaConnectionSection.model_validate(given)
    except ValidationError as error:
        raise ConfigError("; ".join(_refusal(problem) for problem in error.errors(include_url=False))) from None
    section.check()
    return KafkaAddress(parsed.topic, protocol_options(parsed.parameters), section.client_settings(client_id))


def _refusal(problem: ErrorDetails) -> str:
    return f"the address: {'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}"
