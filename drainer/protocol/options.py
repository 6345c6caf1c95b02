"""The options of all protocols, with TiCDC's names and defaults. Every encoder gets the same object."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from drainer.protocol.errors import ProtocolConfigError

LargeMessageOption = Literal["none", "handle-key-only", "claim-check"]
Compression = Literal["none", "snappy", "lz4"]


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    """`max_message_bytes`: the target size of a batch, and the limit of a message unless the topic's limit is lower.
    `time_zone`: the IANA name of the zone in which TIMESTAMPs are shown. `namespace`: the changefeed's namespace, part
    of Avro's names. `open_varchar_base64`: for decoders only, if the producer wrote CHAR and VARCHAR in base64. The
    effect of an option is documented where a protocol reads it, its names in a URI or a file in option_texts."""

    protocol: str
    max_message_bytes: int = 10 * 1024 * 1024
    max_batch_size: int = 16
    time_zone: str = "UTC"
    namespace: str = "default"
    enable_tidb_extension: bool = False
    enable_row_checksum: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    output_raw_change_event: bool = False
    output_old_value: bool = True
    open_varchar_base64: bool = False
    content_compatible: bool = False
    avro_decimal_handling_mode: Literal["precise", "string"] = "precise"
    avro_bigint_unsigned_handling_mode: Literal["long", "string"] = "long"
    avro_enable_watermark: bool = False
    avro_output_old_row: bool = False
    avro_subject_names: Literal["ticdc", "topic", "record", "topic-record"] = "ticdc"
    avro_defaults: Literal["ticdc", "avro"] = "ticdc"
    schema_registry: str = field(default="", repr=False)  # its address may hold a password
    debezium_disable_schema: bool = False
    debezium_bigint_unsigned_handling_mode: Literal["long", "precise"] = "long"
    encoding_format: Literal["json", "avro"] = "json"
    send_bootstrap_interval_s: float = 120.0
    send_bootstrap_in_msg_count: int = 10_000
    send_bootstrap_to_all_partition: bool = True
    large_message_handle_option: LargeMessageOption = "none"
    large_message_handle_compression: Compression = "none"
    claim_check_storage_uri: str = field(default="", repr=False)  # may hold a secret, too
    claim_check_raw_value: bool = False

    @property
    def zone(self) -> tzinfo:
        """Return the time zone. Raises ProtocolConfigError if its name is not known."""
        if self.time_zone.upper() == "UTC":
            return UTC
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ProtocolConfigError(f"time-zone {self.time_zone!r} is not in the IANA database") from None
