"""How brokers are reached, `[syncer.to]` of Kafka: addresses, client settings, and TiCDC's sink URI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from binlog.errors import ConfigError
from pydantic import BeforeValidator, Field, model_validator

from drainer.protocol.options import KAFKA_CONFIG
from drainer.sink.kafka.settings.option_values import ConnectTimeout, RequestTimeout, whole_number
from drainer.sink.kafka.settings.original_settings import OriginalKafkaSection, with_original_names
from drainer.sink.kafka.settings.security import KafkaSecuritySection
from drainer.sink.kafka.settings.sink_uri import checked_addresses, checked_topic, parse_sink_uri
from drainer.sink.kafka.settings.ticdc_settings import TicdcSection, in_ticdc_table, ticdc_tables, with_ticdc_tables

SECURITY_KEYS: Final = tuple(info.alias or name for name, info in KafkaSecuritySection.model_fields.items())
# Settings of the client library that only the sink may set: another value could lose or repeat rows.
_RESERVED: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "acks",
        "request.required.acks",
        "compression.type",
        "compression.codec",
        "enable.idempotence",
        "transactional.id",
        "transaction.timeout.ms",
        "message.max.bytes",
        "isolation.level",
        "enable.auto.commit",
        "group.id",
        "partitioner",
    }
)
_BEFORE_PARAMETERS: Final = ("sink-uri", "addresses", "topic", "security")
_IN_KAFKA_CONFIG: Final = in_ticdc_table(KAFKA_CONFIG)
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]+")


def _lowered(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class KafkaConnectionSection(TicdcSection, OriginalKafkaSection):
    """Base of the section. A setting in `sink-uri` overrides the same setting in the file, as in TiCDC."""

    sink_uri: str = Field(
        "",
        repr=False,
        description="TiCDC's address of a topic, such as "
        "kafka://host:9092/topic?protocol=avro&partition-num=6; each parameter is the setting of "
        "that name here or under `security`, and takes precedence over it",
    )
    addresses: tuple[str, ...] = Field(
        (), description="some of the brokers, as host:port; the others are found through them"
    )
    topic: str = Field(
        "", description="the topic for everything that no rule sends elsewhere, including DDLs of databases"
    )
    kafka_client_id: str = Field(
        "", description="client id that brokers log; empty: named after the drainer", json_schema_extra=_IN_KAFKA_CONFIG
    )
    required_acks: Annotated[Literal[-1, 0, 1], whole_number(-1, 1)] = Field(
        -1,
        description="acknowledgements: -1 all in-sync replicas; 0 and 1 lose rows, and need exactly-once = false",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    compression: Annotated[Literal["none", "gzip", "snappy", "lz4", "zstd"], BeforeValidator(_lowered)] = Field(
        "none", description="how the client library compresses batches", json_schema_extra=_IN_KAFKA_CONFIG
    )
    dial_timeout: ConnectTimeout = Field(
        timedelta(seconds=10),
        description="timeout for opening a connection; at least 1s",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    read_timeout: RequestTimeout = Field(
        timedelta(seconds=10),
        description="timeout for the answer to a request; at least 1s",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    write_timeout: RequestTimeout = Field(
        timedelta(seconds=10),
        description="as read-timeout; the longer of the two counts, because the client library has one setting",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    client: dict[str, str] = Field(
        default_factory=dict, description="further settings of the client library (librdkafka), as name = value"
    )
    security: KafkaSecuritySection = Field(default_factory=lambda: KafkaSecuritySection.model_validate({}))

    @model_validator(mode="before")
    @classmethod
    def _from_uri(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if not isinstance(value.get("security", {}), Mapping):
            raise ConfigError("syncer.to.security: a section was expected")
        tables = ticdc_tables(cls)
        return with_sink_uri(with_ticdc_tables(with_original_names(value), tables, SECURITY_KEYS))

    def address(self) -> str:
        return f"kafka:{','.join(sorted(self.addresses))}/{self.topic}"

    def check(self) -> None:
        if not self.addresses:
            raise ConfigError('syncer.to: no Kafka address: set addresses = ["host:9092"] and topic, or sink-uri')
        checked_addresses(self.addresses, "syncer.to.addresses")
        if not self.topic:
            raise ConfigError(
                "syncer.to.topic: a topic for what no rule sends elsewhere; the original drainer's, where it is told "
                "none, is <cluster id>_obinlog"
            )
        checked_topic(self.topic, "syncer.to.topic")
        if self.kafka_client_id and not _CLIENT_ID.fullmatch(self.kafka_client_id):
            raise ConfigError(
                f"syncer.to.kafka-client-id: {self.kafka_client_id!r} may have letters, digits, '.', '_' and '-' alone"
            )
        taken = sorted(_RESERVED & self.client.keys())
        if taken:
            raise ConfigError(f"syncer.to.client: {', '.join(taken)} cannot be set: exactly-once apply depends on it")
        self.security.check()

    def client_settings(self, client_id: str) -> dict[str, str]:
        """Return the settings that producers, consumers and the admin client share, under the client library's
        names."""
        answer = max(self.read_timeout, self.write_timeout)
        return {
            "bootstrap.servers": ",".join(checked_addresses(self.addresses, "syncer.to.addresses")),
            "client.id": self.kafka_client_id or re.sub(r"[^A-Za-z0-9._-]", "_", client_id),
            "socket.connection.setup.timeout.ms": str(_milliseconds(self.dial_timeout)),
            "socket.timeout.ms": str(max(_milliseconds(answer), 1000)),
            **self.security.client_settings(),
            **self.client,
        }


def _milliseconds(duration: timedelta) -> int:
    return max(1000, duration // timedelta(milliseconds=1))


def with_sink_uri(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section's mapping with those of its sink-uri, which take precedence. Raises
    ConfigError."""
    text = value.get("sink-uri")
    if not text or not isinstance(text, str):
        return dict(value)
    uri = parse_sink_uri(text)
    own = [name for name in _BEFORE_PARAMETERS if name in uri.parameters]
    if own:
        raise ConfigError(
            f"sink-uri: {own[0]} is no parameter: brokers and the topic stand before the ?, and each setting of "
            "security is a parameter of its own"
        )
    found = {name: given for name, given in value.items() if name != "sink-uri"}
    found["addresses"], found["topic"] = uri.addresses, uri.topic
    security = dict(found.get("security") or {})
    if uri.tls:
        security["enable-tls"] = True
    for name, given in uri.parameters.items():
        if name in SECURITY_KEYS:
            security[name] = given
        else:
            found[name] = given
    if security:
        found["security"] = security
    return found
