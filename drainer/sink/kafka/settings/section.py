"""`[syncer.to]` of Kafka, under TiCDC's names where TiCDC has the setting."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import AfterValidator, Field, create_model

from drainer.dispatch.rules import DispatchRule, Method, Router, SelectorRule, checked_topic
from drainer.protocol.registry import (
    KAFKA_CONFIG,
    PROTOCOLS,
    Option,
    ProtocolOptions,
    make_encoder,
    option_table,
    protocols_text,
    unread,
)
from drainer.protocol.registry import check as check_options
from drainer.sink.kafka.schema_registry import RegistryHttp, RegistrySection
from drainer.sink.kafka.settings.connection import KafkaConnectionSection
from drainer.sink.kafka.settings.ticdc_settings import (
    INT16_MAX,
    MessageBytes,
    PollInterval,
    ResolvedInterval,
    RetryTime,
    Switch,
    TransactionTimeout,
    in_ticdc_table,
    whole_number,
)

_S = timedelta(seconds=1)
_IN_KAFKA_CONFIG = in_ticdc_table(KAFKA_CONFIG)
PartitionChange = Literal["stop", "take-up"]
ReplicationCheck = Literal["warn", "stop"]


class OldValueSection(Section):
    """`[syncer.to.open]` and `[syncer.to.debezium]`: tables of TiCDC's file."""

    output_old_value: Switch = Field(True, description="the same as output-old-value, but only for this protocol")


def _type_of(hint: object, option: Option) -> object:
    """Return the type of a setting, which reads the texts of a sink URI, too."""
    if hint is bool:
        return Switch
    if hint is int:
        return MessageBytes if option.is_size else Annotated[int, whole_number(option.least)]
    return hint


def _protocol_settings() -> Iterator[tuple[str, Any]]:
    """Yield name, type and field of each setting."""
    hints = get_type_hints(ProtocolOptions)
    for name, (field, option) in option_table().items():
        if option.about:
            about = f"for {protocols_text(option.packages)}: {option.about}" if option.packages else option.about
            extra = in_ticdc_table(option.table)
            info = Field(field.default, repr=field.repr, description=about, json_schema_extra=extra)
            yield name, (_type_of(hints[name], option), info)


if TYPE_CHECKING:

    class ProtocolSection(Section):
        """A setting for each option that the drainer has."""

else:
    ProtocolSection = create_model("ProtocolSection", __base__=Section, **dict(_protocol_settings()))


class KafkaSection(ProtocolSection, KafkaConnectionSection):
    """`[syncer.to]` of Kafka: the format of messages, their topics and partitions, and whether each is sent exactly
    once. The base classes have the settings of the connection and the options of the protocols."""

    protocol: Annotated[str, AfterValidator(str.lower)] = Field(
        "open-protocol", description=f"message format: {', '.join(PROTOCOLS)}"
    )
    dispatchers: tuple[DispatchRule, ...] = Field((), description="which topic and partition rows go to")
    column_selectors: tuple[SelectorRule, ...] = Field(
        (), description="which columns messages have; a complete primary key or unique key must remain"
    )
    exactly_once: Switch = Field(
        True,
        description="true: rows are sent in transactions with the position, and a read-committed consumer "
        "sees each once; false: without transactions, each at least once",
    )
    control_topic: str = Field(
        "",
        description="a compacted topic that only this changefeed uses, for its position; the transactional "
        "ids begin with its name. Empty: tidb-binlog-<changefeed>-<cluster id>",
    )
    slots: Annotated[int, whole_number(1, 200)] = Field(
        16,
        description="maximum number of writers of a distributed batch, which has two for each task that runs at "
        "the same time; fixed when the control topic is created",
    )
    transaction_timeout: TransactionTimeout = Field(
        timedelta(minutes=5),
        description="how long brokers keep the transaction of a drainer open that ended and does not return; "
        "read-committed consumers wait for that long; a large upstream transaction must be "
        "written within this time",
    )
    retry_for: RetryTime = Field(
        timedelta(minutes=10), description="how long the drainer retries while brokers do not answer"
    )
    resolved_interval: ResolvedInterval = Field(_S, description="interval of resolved events while there are no rows")
    partition_num: Annotated[int, whole_number(0)] = Field(
        0,
        description="number of partitions of the topic that are used, and of topics that are created; 0: all "
        "partitions, and 3",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    replication_factor: Annotated[int, whole_number(1, INT16_MAX)] = Field(
        1, description="number of replicas of topics that are created", json_schema_extra=_IN_KAFKA_CONFIG
    )
    replication_check: ReplicationCheck = Field(
        "warn",
        description="what to do if a topic has one replica, or min.insync.replicas 1, so that exactly once ends when "
        "a broker is killed: warn: name the topic in the log; stop: end with an error",
    )
    auto_create_topic: Switch = Field(
        True, description="create topics that do not exist", json_schema_extra=_IN_KAFKA_CONFIG
    )
    partition_change: PartitionChange = Field(
        "stop",
        description="what to do if a topic has another number of partitions than before: stop: end with an "
        "error; take-up: announce it in all partitions, and continue with the new number",
    )
    partition_check_interval: PollInterval = Field(
        timedelta(seconds=10), description="interval at which the number of partitions is checked"
    )
    open: OldValueSection = Field(default_factory=lambda: OldValueSection.model_validate({}))
    debezium: OldValueSection = Field(default_factory=lambda: OldValueSection.model_validate({}))
    registry: RegistrySection = Field(default_factory=lambda: RegistrySection.model_validate({}))

    def check(self) -> None:
        super().check()
        if self.control_topic:
            checked_topic(self.control_topic, "syncer.to.control-topic")
        if self.control_topic == self.topic:
            raise ConfigError("syncer.to.control-topic: it must be another topic than the one for rows")
        if self.exactly_once and self.required_acks != -1:
            raise ConfigError("syncer.to.required-acks: exactly-once needs -1; or set exactly-once = false")
        if self.replication_check == "stop" and self.required_acks != -1:
            raise ConfigError('syncer.to.replication-check: "stop" needs required-acks = -1; or set it to "warn"')
        options = self.options()
        check_options(options)
        if make_encoder(options).registers:
            self.registry.check(options.schema_registry)
            RegistryHttp(options.schema_registry, self.registry, wait_s=0.0)
        if not self.exactly_once and any(rule.method is Method.CONFLICT for rule in self.router().rules):
            raise ConfigError(
                'syncer.to.dispatchers: partition = "conflict" needs exactly-once = true, because a repeated batch may '
                "be cut otherwise and put a row into another partition"
            )
        if self.column_selectors and PROTOCOLS[self.protocol] == "secondary":
            raise ConfigError(
                f"syncer.to.column-selectors: readers of {self.protocol} apply whole rows: leave them out, or set "
                "another protocol"
            )
        self.router()

    def router(self) -> Router:
        """Raises DispatchConfigError, PatternError."""
        return Router(self.dispatchers, self.topic, protocol=self.protocol, selectors=self.column_selectors)

    def warnings(self) -> list[str]:
        given = {name for name in self.model_fields_set if getattr(self, name) != type(self).model_fields[name].default}
        return [*self.router().warnings, *unread(PROTOCOLS[self.protocol], given)]

    def options(self) -> ProtocolOptions:
        names = option_table().keys() & type(self).model_fields.keys()
        given = {name: getattr(self, name) for name in names}
        of_protocol = {"open": self.open, "debezium": self.debezium}.get(PROTOCOLS.get(self.protocol, ""))
        if of_protocol is not None and not of_protocol.output_old_value:
            given["output_old_value"] = False
        return ProtocolOptions(protocol=self.protocol, **given)

    def producer_settings(self) -> dict[str, str]:
        """Return the settings of producers, under the client library's names."""
        found = {**self.client_settings(), "compression.type": self.compression}
        if self.required_acks != -1:
            found |= {"acks": str(self.required_acks), "enable.idempotence": "false"}
        return found

    def slot_id(self, slot: int) -> str:
        """Return the transactional id of a slot's producers."""
        return f"{self.control_topic}-{slot}"
