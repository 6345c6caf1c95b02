"""TiCDC's sink URI as a reader's address: brokers and security, the topic, the protocol and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from drainer.protocol.registry import ProtocolOptions, check
from drainer.sink.kafka.settings.connection import KafkaConnectionSection
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.settings.ticdc_settings import Switch


class TopicsSection(Section):
    """The topics that a program reads, as its command line gives them."""

    uri: str = Field(description="TiCDC's address of a topic: kafka://host:9092/topic?protocol=open-protocol")
    topic: tuple[str, ...] = Field(
        (), description="a topic to read, or a regular expression that begins with ^; without it, that of the address"
    )


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where and how to read. `client`: settings of the client library; they may contain a password."""

    topic: str
    options: ProtocolOptions
    client: Mapping[str, str] = field(repr=False)


class _ReaderSection(KafkaSection):
    """The settings of a sink URI, and those that only decoders have."""

    namespace: str = "default"
    open_varchar_base64: Switch = False


def kafka_address(uri: str, client_id: str, client: Mapping[str, str]) -> KafkaAddress:
    """Parse a sink URI. `client`: further settings of the client library. Parameters for producers have no effect.
    Raises ConfigError, also for parameters that neither a drainer nor a reader knows."""
    try:
        section = _ReaderSection.model_validate({"sink-uri": uri, "client": dict(client)})
    except ValidationError as error:
        raise ConfigError("; ".join(_refusal(problem) for problem in error.errors(include_url=False))) from None
    KafkaConnectionSection.check(section)  # what KafkaSection checks beside it concerns producers
    options = section.options()
    check(options)
    return KafkaAddress(section.topic, options, section.client_settings(client_id))


def _refusal(problem: ErrorDetails) -> str:
    is_unknown = problem["type"] == "extra_forbidden"
    why = "the parameter is not known" if is_unknown else problem["msg"].removeprefix("Value error, ")
    return f"the address: {'.'.join(map(str, problem['loc']))}: {why}"
