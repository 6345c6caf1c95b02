"""The options of all protocols, under TiCDC's names and with its defaults. One value goes to every encoder."""

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
    """`max_message_bytes`: the target of a batch, and the limit of a message where the topic allows no less.
    `time_zone`: the IANA name of the zone in which TIMESTAMPs are shown. `namespace`: of the changefeed, in Avro's
    names. `open_varchar_base64`: for reading alone, of producers that wrote CHAR and VARCHAR in base64. What an option
    does is said where the protocol reads it; how it is called in a URI or a file, in option_texts."""

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
    encoding_format: Literal["json", "avro"] = "json"
    send_bootstrap_interval_s: float = 120.0
    send_bootstrap_in_msg_count: int = 10_000
    send_bootstrap_to_all_partition: bool = True
    large_message_handle_option: LargeMessageOption = "none"
    large_message_handle_compression: Compression = "none"
    claim_check_storage_uri: str = field(default="", repr=False)  # likewise
    claim_check_raw_value: bool = False

    @property
    def zone(self) -> tzinfo:
        """Raises ProtocolConfigError for a name that is not known."""
        if self.time_zone.upper() == "UTC":
            return UTC
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ProtocolConfigError(f"time-zone {self.time_zone!r} is not in the IANA database") from None
