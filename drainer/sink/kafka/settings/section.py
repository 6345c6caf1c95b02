"""`[syncer.to]` of Kafka, under TiCDC's names where TiCDC has the setting."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import AfterValidator, Field

from drainer.dispatch.column_selector import SelectorRule
from drainer.dispatch.rules import DispatchRule, Method, Router
from drainer.protocol.encoder import RegisteringEncoder
from drainer.protocol.option_readers import unread
from drainer.protocol.option_rules import check as check_options
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import PROTOCOLS, make_encoder
from drainer.sink.kafka.config import KafkaConfig, PartitionChange, ReplicationCheck
from drainer.sink.kafka.settings.connection import KafkaConnectionSection
from drainer.sink.kafka.settings.option_values import (
    INT16_MAX,
    LookInterval,
    MessageBytes,
    ResolvedInterval,
    RetryTime,
    Switch,
    TransactionTimeout,
    whole_number,
)
from drainer.sink.kafka.settings.registry_http import RegistryAccess, access_of
from drainer.sink.kafka.settings.sink_uri import checked_topic

_S = timedelta(seconds=1)


class DispatcherSection(Section):
    """`[[syncer.to.dispatchers]]`: the first rule whose patterns match a table applies to it."""

    matcher: tuple[str, ...] = Field(description="patterns of tables, such as shop.*")
    partition: str = Field("", description="default, table, index-value, columns, ts or conflict")
    dispatcher: str = Field("", description="older name of `partition`")
    topic: str = Field("", description="an expression such as {schema}_{table}; empty: the topic of the destination")
    index: str = Field("", description="for index-value: the unique index; empty: the handle key")
    columns: tuple[str, ...] = Field((), description="for columns: their names")

    def rule(self) -> DispatchRule:
        return DispatchRule(self.matcher, self.partition, self.dispatcher, self.topic, self.index, self.columns)


class ColumnSelectorSection(Section):
    """`[[syncer.to.column-selectors]]`: the first selector whose patterns match a table applies to it. A table that
    no selector matches has all columns."""

    matcher: tuple[str, ...] = Field(description="patterns of tables, such as shop.*")
    columns: tuple[str, ...] = Field(
        description="patterns of the columns that messages have: name, c*, c? or !name; the last that matches counts"
    )

    def rule(self) -> SelectorRule:
        return SelectorRule(self.matcher, self.columns)


class OldValueSection(Section):
    """`[syncer.to.open]` and `[syncer.to.debezium]`: tables of TiCDC's file."""

    output_old_value: Switch = Field(True, description="the same as output-old-value, but only for this protocol")


class RegistrySection(Section):
    """`[syncer.to.registry]`: TLS and authentication, under the names of Confluent's clients with - for the dot."""

    ssl_ca_location: str = Field("", description="CA file that verifies the registry's certificate")
    ssl_certificate_location: str = Field("", description="client certificate file")
    ssl_key_location: str = Field("", description="key file of the certificate")
    bearer_auth_token: str = Field(
        "", repr=False, description="token that is sent instead of a user; never logged or shown"
    )
    insecure_skip_verify: Switch = Field(
        False, description="true: neither the registry's certificate nor its name is verified"
    )

    def check(self, url: str) -> None:
        """Raises ConfigError for settings that do not fit together."""
        where = "syncer.to.registry"
        if self.ssl_key_location and not self.ssl_certificate_location:
            raise ConfigError(f"{where}: ssl-key-location needs ssl-certificate-location")
        tls = [self.ssl_ca_location, self.ssl_certificate_location, self.insecure_skip_verify]
        if any(tls) and not url.startswith("https:"):
            raise ConfigError(f"{where}: TLS is set, and schema-registry does not begin with https")
        if self.bearer_auth_token and "@" in urlsplit(url).netloc:
            raise ConfigError(f"{where}: bearer-auth-token, and a user in schema-registry: one of them")

    def access(self, url: str) -> RegistryAccess:
        """Raises ConfigError."""
        return access_of(
            url,
            token=self.bearer_auth_token,
            ca=self.ssl_ca_location,
            cert=self.ssl_certificate_location,
            key=self.ssl_key_location,
            insecure_skip_verify=self.insecure_skip_verify,
        )


class KafkaSection(KafkaConnectionSection):
    """`[syncer.to]` of Kafka: the format of messages, their topics and partitions, and whether each is sent exactly
    once. The base class has the settings of the connection."""

    protocol: Annotated[str, AfterValidator(str.lower)] = Field(
        "open-protocol", description=f"message format: {', '.join(PROTOCOLS)}"
    )
    dispatchers: tuple[DispatcherSection, ...] = Field((), description="which topic and partition rows go to")
    column_selectors: tuple[ColumnSelectorSection, ...] = Field(
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
        description="maximum number of writers of a spread batch, which has two for each task that runs at "
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
    )
    replication_factor: Annotated[int, whole_number(1, INT16_MAX)] = Field(
        1, description="number of replicas of topics that are created"
    )
    replication_check: ReplicationCheck = Field(
        "warn",
        description="what to do if a topic has one replica, or min.insync.replicas 1, so that exactly once ends when "
        "a broker is killed: warn: name the topic in the log; stop: end with an error",
    )
    auto_create_topic: Switch = Field(True, description="create topics that do not exist")
    partition_change: PartitionChange = Field(
        "stop",
        description="what to do if a topic has another number of partitions than before: stop: end with an "
        "error; take-up: announce it in all partitions, and continue with the new number",
    )
    partition_look: LookInterval = Field(
        timedelta(seconds=10), description="interval at which the number of partitions is checked"
    )
    max_message_bytes: MessageBytes = Field(
        10 << 20, description="target size of a message of several rows; never above the topic's max.message.bytes"
    )
    max_batch_size: Annotated[int, whole_number(1)] = Field(
        16, description="maximum number of rows of one message, for open-protocol"
    )
    time_zone: str = Field("UTC", description="IANA name of the time zone in which TIMESTAMPs are shown")
    enable_tidb_extension: Switch = Field(
        False, description="for avro and canal-json: add the commit ts and more to each message"
    )
    only_output_updated_columns: Switch = Field(False, description="updates have only the old values that changed")
    delete_only_output_handle_key_columns: Switch = Field(False, description="deletes have only the handle key")
    output_raw_change_event: Switch = Field(
        False, description="updates of keys remain updates, instead of a delete and an insert"
    )
    output_old_value: Switch = Field(
        True, description="for open-protocol and debezium: include the row before the change"
    )
    open: OldValueSection = Field(default_factory=lambda: OldValueSection.model_validate({}))
    debezium: OldValueSection = Field(default_factory=lambda: OldValueSection.model_validate({}))
    content_compatible: Switch = Field(False, description="for canal-json: write messages as Alibaba's canal does")
    debezium_disable_schema: Switch = Field(False, description="for debezium: messages without their schema")
    debezium_bigint_unsigned_handling_mode: Literal["long", "precise"] = Field(
        "long",
        description="for debezium: BIGINT UNSIGNED as int64, negative above 2^63-1 (long), or as Connect's Decimal "
        "(precise)",
    )
    encoding_format: Literal["json", "avro"] = Field("json", description="for simple: json or avro")
    send_bootstrap_interval_in_sec: Annotated[int, whole_number(0)] = Field(
        120, description="for simple: seconds between two messages with a table's schema; 0: none are sent"
    )
    send_bootstrap_in_msg_count: Annotated[int, whole_number(0)] = Field(
        10_000, description="for simple: number of rows after which a table's schema is sent again; 0: it is never sent"
    )
    send_bootstrap_to_all_partition: Switch = Field(
        True, description="for simple: true: a table's schema is sent to all partitions; false: only to the first"
    )
    avro_decimal_handling_mode: Literal["precise", "string"] = Field(
        "precise", description="for avro: DECIMAL as Avro's decimal (precise) or as text (string)"
    )
    avro_bigint_unsigned_handling_mode: Literal["long", "string"] = Field(
        "long", description="for avro: BIGINT UNSIGNED as long or as text (string)"
    )
    avro_enable_watermark: Switch = Field(
        False, description="for avro: DDLs and resolved events are messages of their own"
    )
    avro_output_old_row: Switch = Field(
        False, description="for avro: include the row before the change, in _ticdc_before"
    )
    avro_subject_names: Literal["ticdc", "topic", "record", "topic-record"] = Field(
        "ticdc",
        description="for avro: name subjects by the topic with _ for dots (ticdc), or by one of Confluent's strategies",
    )
    avro_defaults: Literal["ticdc", "avro"] = Field(
        "ticdc", description="for avro: defaults of fields as TiCDC writes them, or as in Avro's specification"
    )
    schema_registry: str = Field(
        "", repr=False, description="for avro: http(s)://user:password@host:port of a registry with Confluent's API"
    )
    registry: RegistrySection = Field(default_factory=lambda: RegistrySection.model_validate({}))
    large_message_handle_option: Literal["none", "handle-key-only", "claim-check"] = Field(
        "none",
        description="what to do with a row that is too large for a message: an error, only its handle key, "
        "or a claim check",
    )
    claim_check_storage_uri: str = Field(
        "",
        repr=False,
        description="for claim-check: where complete rows are stored, an absolute path or s3://bucket/prefix",
    )
    claim_check_raw_value: Switch = Field(
        False, description="for claim-check: store only values, unchanged, without the key"
    )
    large_message_handle_compression: Literal["none", "snappy", "lz4"] = Field(
        "none", description="for open-protocol and canal-json: how each value is compressed"
    )

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
        if isinstance(make_encoder(self.options()), RegisteringEncoder):
            if not self.schema_registry:
                raise ConfigError(f"syncer.to.schema-registry: {self.protocol} needs one")
            self.registry.check(self.schema_registry)
            self.registry.access(self.schema_registry).tls()
        if self.large_message_handle_option == "claim-check" and not self.claim_check_storage_uri:
            raise ConfigError("syncer.to.claim-check-storage-uri: claim-check needs a place for whole rows")
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
        check_options(self.options())

    def router(self) -> Router:
        """Raises DispatchConfigError, PatternError."""
        return Router(
            [one.rule() for one in self.dispatchers],
            self.topic,
            protocol=self.protocol,
            selectors=[one.rule() for one in self.column_selectors],
        )

    @property
    def _outputs_old_value(self) -> bool:
        of_protocol = {"open": self.open, "debezium": self.debezium}.get(PROTOCOLS.get(self.protocol, ""))
        return self.output_old_value and (of_protocol is None or of_protocol.output_old_value)

    def warnings(self) -> list[str]:
        given = {name for name in self.model_fields_set if getattr(self, name) != type(self).model_fields[name].default}
        return [*self.router().warnings, *unread(PROTOCOLS[self.protocol], given)]

    def options(self) -> ProtocolOptions:
        return ProtocolOptions(
            protocol=self.protocol,
            max_message_bytes=self.max_message_bytes,
            max_batch_size=self.max_batch_size,
            time_zone=self.time_zone,
            enable_tidb_extension=self.enable_tidb_extension,
            only_output_updated_columns=self.only_output_updated_columns,
            delete_only_output_handle_key_columns=self.delete_only_output_handle_key_columns,
            output_raw_change_event=self.output_raw_change_event,
            output_old_value=self._outputs_old_value,
            content_compatible=self.content_compatible,
            avro_decimal_handling_mode=self.avro_decimal_handling_mode,
            avro_bigint_unsigned_handling_mode=self.avro_bigint_unsigned_handling_mode,
            avro_enable_watermark=self.avro_enable_watermark,
            avro_output_old_row=self.avro_output_old_row,
            avro_subject_names=self.avro_subject_names,
            avro_defaults=self.avro_defaults,
            schema_registry=self.schema_registry,
            debezium_disable_schema=self.debezium_disable_schema,
            debezium_bigint_unsigned_handling_mode=self.debezium_bigint_unsigned_handling_mode,
            encoding_format=self.encoding_format,
            send_bootstrap_interval_s=float(self.send_bootstrap_interval_in_sec),
            send_bootstrap_in_msg_count=self.send_bootstrap_in_msg_count,
            send_bootstrap_to_all_partition=self.send_bootstrap_to_all_partition,
            large_message_handle_option=self.large_message_handle_option,
            claim_check_storage_uri=self.claim_check_storage_uri,
            claim_check_raw_value=self.claim_check_raw_value,
            large_message_handle_compression=self.large_message_handle_compression,
        )

    def kafka(self, *, spread: bool = True) -> KafkaConfig:
        producer: dict[str, str] = {"compression.type": self.compression}
        if self.required_acks != -1:
            producer |= {"acks": str(self.required_acks), "enable.idempotence": "false"}
        return KafkaConfig(
            client=self.client_settings("tidb-binlog-drainer"),
            address=",".join(self.addresses),
            control_topic=self.control_topic,
            producer=producer,
            slots=self.slots,
            exactly_once=self.exactly_once,
            transaction_timeout_s=self.transaction_timeout / _S,
            retry_for_s=self.retry_for / _S,
            resolved_s=self.resolved_interval / _S,
            auto_create_topic=self.auto_create_topic,
            partition_num=self.partition_num,
            replication_factor=self.replication_factor,
            replication_check=self.replication_check,
            partition_change=self.partition_change,
            look_s=self.partition_look / _S,
            spread=spread,
            registry=self.registry.access(self.schema_registry) if self.schema_registry else None,
        )
