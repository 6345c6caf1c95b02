"""The table of protocols: the encoder and decoder of each by TiCDC's name, imported on first use; and their
options, with TiCDC's names and defaults. Every encoder gets the same object.

ProtocolOptions is the one table of these options. Made from it are: their settings in `[syncer.to]` with checks of type
and bounds (drainer/sink/kafka/settings/section.py), which are also what a reader's sink URI may have; the warnings
about options that a protocol does not use (`unread`); and docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import UTC, tzinfo
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from drainer.protocol.errors import ProtocolConfigError

if TYPE_CHECKING:
    from drainer.protocol.encoder import Decoder, Encoder


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
    for an option that the drainer does not have. `packages`: those of drainer.protocol (PROTOCOLS) that use
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


# Name → the package. That of Avro has AvroEncoder in its module `encoder` and AvroDecoder in `decoder`, and so on;
# both are called with the options. Some are no package, and one module has both.
_OF_ONE_MODULE: Final = ("canal", "secondary")
PROTOCOLS: Final[Mapping[str, str]] = {
    "open-protocol": "open",
    "default": "open",
    "avro": "avro",
    "flat-avro": "avro",
    "canal-json": "canal",
    "debezium": "debezium",
    "simple": "simple",
    "secondary-binlog": "secondary",
}
# Protocols of TiCDC that are not supported → which to use instead.
_NOT_BUILT: Final[Mapping[str, str]] = {
    "canal": "canal-json, which has the same messages as JSON",
    "maxwell": "debezium or canal-json",
    "craft": "open-protocol",
    "csv": 'canal-json, or files of db-type = "file"',
}


def unknown_protocol(name: str) -> str:
    """Return the text of the error for a protocol that is not supported."""
    if name.lower() in _NOT_BUILT:
        return f"protocol {name!r} of TiCDC is not supported: take {_NOT_BUILT[name.lower()]}"
    return f"protocol {name!r} is not known: there are {', '.join(PROTOCOLS)}"


def make_encoder(options: ProtocolOptions) -> Encoder:
    """Return the encoder of the configured protocol. Raises ProtocolConfigError if the protocol or the time zone is not
    known, or if the protocol does not support an option. `check` has accepted the options before."""
    assert options.zone, "one that is not known raises"
    if PROTOCOLS.get(options.protocol.lower()) in ("debezium", "simple"):
        for name in ("only-output-updated-columns", "delete-only-output-handle-key-columns"):
            if getattr(options, name.replace("-", "_")):
                raise ProtocolConfigError(f"protocol {options.protocol!r} has no {name}: rows are always whole")
    return cast("Callable[[ProtocolOptions], Encoder]", _class("Encoder", options))(options)


def make_decoder(options: ProtocolOptions) -> Decoder:
    """Return a decoder for one partition. Raises as `make_encoder`."""
    return cast("Callable[[ProtocolOptions], Decoder]", _class("Decoder", options))(options)


def _class(what: str, options: ProtocolOptions) -> object:
    package = PROTOCOLS.get(options.protocol.lower())
    if package is None:
        raise ProtocolConfigError(unknown_protocol(options.protocol))
    module = package if package in _OF_ONE_MODULE else f"{package}.{what.lower()}"
    return getattr(import_module(f"drainer.protocol.{module}"), f"{package.capitalize()}{what}")


# Checks of the protocols' options, and which protocols use which option. Errors use TiCDC's texts where TiCDC has
# such an error. Pure.


def check(options: ProtocolOptions) -> None:
    """Check what the types of the options do not say. Raises ProtocolConfigError naming the option."""
    if options.protocol not in PROTOCOLS:
        raise ProtocolConfigError(unknown_protocol(options.protocol))
    assert options.zone
    if PROTOCOLS[options.protocol] == "avro":
        _check_avro(options)
    if options.large_message_handle_option != "none":
        _check_large(options)


def _check_avro(options: ProtocolOptions) -> None:
    if not options.schema_registry:
        raise ProtocolConfigError(f'the protocol {options.protocol} requires parameter "schema-registry"')
    if options.avro_enable_watermark and not options.enable_tidb_extension:
        raise ProtocolConfigError('avro-enable-watermark needs "enable-tidb-extension" to be "true"')


def _check_large(options: ProtocolOptions) -> None:
    what = f'large-message-handle-option is "{options.large_message_handle_option}"'
    package = PROTOCOLS[options.protocol]
    if package not in ("open", "simple", "canal"):
        raise ProtocolConfigError(f"{what}, but the protocol {options.protocol} has no such messages")
    if package == "canal" and not options.enable_tidb_extension:
        raise ProtocolConfigError(f'{what} and the protocol canal-json, but "enable-tidb-extension" is not "true"')
    if options.large_message_handle_option != "claim-check":
        return
    if not options.claim_check_storage_uri:
        raise ProtocolConfigError(f'{what}, which needs "claim-check-storage-uri"')
    if options.claim_check_raw_value and package == "open":
        raise ProtocolConfigError(f"claim-check-raw-value is not supported for the protocol {options.protocol}")


def unread(package: str, given: Collection[str]) -> list[str]:
    """Return a warning for each given option that this package does not use."""
    return [
        f"{name.replace('_', '-')} has no effect: only {protocols_text(option.packages)} use it"
        for name, (_, option) in option_table().items()
        if name in given and option.packages and package not in option.packages
    ]


def protocols_text(packages: Collection[str]) -> str:
    """Return the names of the protocols of these packages."""
    shown = {"open": "open-protocol", "canal": "canal-json"}
    return ", ".join(shown.get(package, package) for package in packages)
