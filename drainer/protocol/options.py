"""The options of all protocols, with TiCDC's names and defaults. Every encoder gets the same object.

ProtocolOptions is the one table of these options. Made from it are: their settings in `[syncer.to]` with checks of type
and bounds (drainer/sink/kafka/settings/section.py), which are also what a reader's sink URI may have; the warnings
about options that a protocol does not use (registry.py); and docs/configuration.md.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from datetime import UTC, tzinfo
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from drainer.protocol.errors import ProtocolConfigError

LargeMessageOption = Literal["none", "handle-key-only", "claim-check"]
Compression = Literal["none", "snappy", "lz4"]

_KEY: Final = "option"
# TiCDC's tables.
KAFKA_CONFIG: Final = "kafka-config"
_CODEC: Final = f"{KAFKA_CONFIG}.codec-config"
_LARGE: Final = f"{KAFKA_CONFIG}.large-message-handle"


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option beside its name, type and default. `about`: its meaning, for the documentation, ""
    for an option that the drainer does not have. `packages`: those of drainer.protocol (registry.PROTOCOLS) that use
    it, empty: all. `table`: TiCDC's table of `[sink]` that has it, "": `[sink]` itself. `least`: the smallest number
    that is allowed; `is_size`: it is a number of bytes."""

    about: str = ""
    packages: tuple[str, ...] = ()
    table: str = ""
    least: int = 0
    is_size: bool = False


def _option(default: object, about: str = "", *packages: str, is_secret: bool = False, **more: Any) -> Any:
    """Return an option's field. `more`: further members of Option. `is_secret`: its value is not shown."""
    return field(default=default, repr=not is_secret, metadata={_KEY: Option(about, packages, **more)})


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    """`time_zone`: the IANA name of the zone in which TIMESTAMPs are shown. `namespace`: the changefeed's namespace,
    part of Avro's names. `open_varchar_base64`: for decoders only, if the producer wrote CHAR and VARCHAR in base64.
    The effect of an option is documented where a protocol reads it."""

    protocol: str
    max_message_bytes: int = _option(
        10 << 20,
        "target size of a message of several rows; never above the topic's max.message.bytes",
        table=KAFKA_CONFIG,
        least=1,
        is_size=True,
    )
    max_batch_size: int = _option(16, "maximum number of rows of one message", "open", table=_CODEC, least=1)
    time_zone: str = _option("UTC", "IANA name of the time zone in which TIMESTAMPs are shown")
    namespace: str = _option("default")
    enable_tidb_extension: bool = _option(
        False, "add the commit ts and more to each message", "avro", "canal", "debezium", table=_CODEC
    )
    only_output_updated_columns: bool = _option(False, "updates have only the old values that changed", "open", "canal")
    delete_only_output_handle_key_columns: bool = _option(False, "deletes have only the handle key", "open", "canal")
    output_raw_change_event: bool = _option(
        False, "updates of keys remain updates, instead of a delete and an insert", table=KAFKA_CONFIG
    )
    output_old_value: bool = _option(True, "include the row before the change", "open", "debezium")
    open_varchar_base64: bool = _option(False)
    content_compatible: bool = _option(False, "write messages as Alibaba's canal does", "canal")
    debezium_disable_schema: bool = _option(False, "messages without their schema", "debezium")
    debezium_bigint_unsigned_handling_mode: Literal["long", "precise"] = _option(
        "long", "BIGINT UNSIGNED as int64, negative above 2^63-1 (long), or as Connect's Decimal (precise)", "debezium"
    )
    encoding_format: Literal["json", "avro"] = _option("json", "json or avro", "simple", table=_CODEC)
    send_bootstrap_interval_in_sec: int = _option(
        120, "seconds between two messages with a table's schema; 0: none are sent", "simple"
    )
    send_bootstrap_in_msg_count: int = _option(
        10_000, "number of rows after which a table's schema is sent again; 0: it is never sent", "simple"
    )
    send_bootstrap_to_all_partition: bool = _option(
        True, "true: a table's schema is sent to all partitions; false: only to the first", "simple"
    )
    avro_decimal_handling_mode: Literal["precise", "string"] = _option(
        "precise", "DECIMAL as Avro's decimal (precise) or as text (string)", "avro", table=_CODEC
    )
    avro_bigint_unsigned_handling_mode: Literal["long", "string"] = _option(
        "long", "BIGINT UNSIGNED as long or as text (string)", "avro", table=_CODEC
    )
    avro_enable_watermark: bool = _option(
        False, "DDLs and resolved events are messages of their own", "avro", table=_CODEC
    )
    avro_output_old_row: bool = _option(False, "include the row before the change, in _ticdc_before", "avro")
    avro_subject_names: Literal["ticdc", "topic"] = _option(
        "ticdc", "name subjects by the topic with _ for dots (ticdc), or by the topic, as Confluent does", "avro"
    )
    avro_defaults: Literal["ticdc", "avro"] = _option(
        "ticdc", "defaults of fields as TiCDC writes them, or as in Avro's specification", "avro"
    )
    schema_registry: str = _option(
        "", "http(s)://user:password@host:port of a registry with Confluent's API", "avro", is_secret=True
    )
    large_message_handle_option: LargeMessageOption = _option(
        "none",
        "what to do with a row that is too large for a message: an error, only its handle key, or a claim check",
        table=_LARGE,
    )
    claim_check_storage_uri: str = _option(
        "",
        "for claim-check: where complete rows are stored, an absolute path or s3://bucket/prefix",
        table=_LARGE,
        is_secret=True,
    )
    claim_check_raw_value: bool = _option(
        False, "for claim-check: store only values, unchanged, without the key", table=_LARGE
    )
    large_message_handle_compression: Compression = _option(
        "none", "how each value is compressed", "open", "canal", "debezium", "simple", table=_LARGE
    )

    @property
    def zone(self) -> tzinfo:
        """Return the time zone. Raises ProtocolConfigError if its name is not known."""
        if self.time_zone.upper() == "UTC":
            return UTC
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ProtocolConfigError(f"time-zone {self.time_zone!r} is not in the IANA database") from None


def option_table() -> dict[str, tuple[Field[Any], Option]]:
    """Return the options with what is known of them, by the name of their field in ProtocolOptions."""
    return {one.name: (one, one.metadata[_KEY]) for one in fields(ProtocolOptions) if _KEY in one.metadata}
