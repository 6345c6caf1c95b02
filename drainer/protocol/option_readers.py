"""Which protocols use which option. An option that the chosen protocol does not use has no effect. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

# Option → the packages of drainer.protocol (registry.PROTOCOLS) that use it. All packages use an option that is not
# listed.
READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "max_batch_size": ("open",),
    "enable_tidb_extension": ("avro", "canal", "debezium"),
    "only_output_updated_columns": ("open", "canal"),
    "delete_only_output_handle_key_columns": ("open", "canal"),
    "output_old_value": ("open", "debezium"),
    "content_compatible": ("canal",),
    "debezium_disable_schema": ("debezium",),
    "debezium_bigint_unsigned_handling_mode": ("debezium",),
    "encoding_format": ("simple",),
    "send_bootstrap_interval_in_sec": ("simple",),
    "send_bootstrap_in_msg_count": ("simple",),
    "send_bootstrap_to_all_partition": ("simple",),
    "avro_decimal_handling_mode": ("avro",),
    "avro_bigint_unsigned_handling_mode": ("avro",),
    "avro_enable_watermark": ("avro",),
    "avro_output_old_row": ("avro",),
    "avro_subject_names": ("avro",),
    "avro_defaults": ("avro",),
    "schema_registry": ("avro",),
    "large_message_handle_compression": ("open", "canal", "debezium", "simple"),
}


def unread(package: str, given: Collection[str]) -> list[str]:
    """Return a warning for each given option that this package does not use."""
    return [
        f"{name.replace('_', '-')} has no effect: only {', '.join(_protocols(packages))} use it"
        for name, packages in READERS.items()
        if name in given and package not in packages
    ]


def _protocols(packages: Collection[str]) -> list[str]:
    shown = {"open": "open-protocol", "canal": "canal-json"}
    return [shown.get(package, package) for package in packages]
