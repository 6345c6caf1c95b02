"""Parses protocol options from the parameters of a sink URI and the keys of a file, under TiCDC's names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.option_rules import check
from drainer.protocol.options import ProtocolOptions

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INT: Final = re.compile(r"[+-]?[0-9]{1,19}")

Read = Callable[[str, str], Any]


def _text(name: str, given: str) -> str:
    return given


def _switch(name: str, given: str) -> bool:
    if given not in _TRUE | _FALSE:
        raise ProtocolConfigError(f'{name}: invalid syntax: {given!r} is neither "true" nor "false"')
    return given in _TRUE


def _whole(name: str, given: str) -> int:
    if not _INT.fullmatch(given):
        raise ProtocolConfigError(f"{name}: invalid syntax: {given!r} is not an integer")
    return int(given)


def _seconds(name: str, given: str) -> float:
    return float(_whole(name, given))


def _level(name: str, given: str) -> bool:
    if given not in ("none", "correctness"):
        raise ProtocolConfigError(f'{name} must be "none" or "correctness", not {given!r}')
    return given == "correctness"


class _Option(NamedTuple):
    """Where an option is set. `uri`: the name of the URI's parameter, "" if it has none. `file`: its keys in the file,
    below `sink`."""

    field: str
    read: Read
    uri: str
    file: tuple[str, ...] = ()


def _named(field: str, read: Read, *file: str) -> _Option:
    name = field.replace("_", "-")
    return _Option(field, read, name, (name, *file))


_CODEC: Final = "kafka-config.codec-config."
_LARGE: Final = "kafka-config.large-message-handle."
_OPTIONS: Final = (
    _named("protocol", _text),
    _named("max_message_bytes", _whole, "kafka-config.max-message-bytes"),
    _named("max_batch_size", _whole, f"{_CODEC}max-batch-size"),
    _named("time_zone", _text),
    _named("namespace", _text),
    _named("enable_tidb_extension", _switch, f"{_CODEC}enable-tidb-extension"),
    _Option("enable_row_checksum", _level, "", ("integrity-check-level", "integrity.integrity-check-level")),
    _named("only_output_updated_columns", _switch),
    _named("delete_only_output_handle_key_columns", _switch),
    _named("output_raw_change_event", _switch, "kafka-config.output-raw-change-event"),
    _named("open_varchar_base64", _switch),
    _named("content_compatible", _switch),
    _named("avro_decimal_handling_mode", _text, f"{_CODEC}avro-decimal-handling-mode"),
    _named("avro_bigint_unsigned_handling_mode", _text, f"{_CODEC}avro-bigint-unsigned-handling-mode"),
    _named("avro_enable_watermark", _switch, f"{_CODEC}avro-enable-watermark"),
    _named("avro_output_old_row", _switch),
    _named("avro_subject_names", _text),
    _named("avro_defaults", _text),
    _named("schema_registry", _text),
    _named("debezium_disable_schema", _switch),
    _named("debezium_bigint_unsigned_handling_mode", _text),
    _named("encoding_format", _text, f"{_CODEC}encoding-format"),
    _Option("send_bootstrap_interval_s", _seconds, "", ("send-bootstrap-interval-in-sec",)),
    _Option("send_bootstrap_in_msg_count", _whole, "", ("send-bootstrap-in-msg-count",)),
    _Option("send_bootstrap_to_all_partition", _switch, "", ("send-bootstrap-to-all-partition",)),
    _named("large_message_handle_option", _text, f"{_LARGE}large-message-handle-option"),
    _named("large_message_handle_compression", _text, f"{_LARGE}large-message-handle-compression"),
    _named("claim_check_storage_uri", _text, f"{_LARGE}claim-check-storage-uri"),
    _named("claim_check_raw_value", _switch, f"{_LARGE}claim-check-raw-value"),
)
# Debezium and Open Protocol each have an option of this name, with the same default.
_OLD_VALUE: Final = {"open": "open.output-old-value", "debezium": "debezium.output-old-value"}

URI_NAMES: Final = frozenset(option.uri for option in _OPTIONS if option.uri)
FILE_NAMES: Final = frozenset(name for option in _OPTIONS for name in option.file) | frozenset(_OLD_VALUE.values())


def protocol_options(uri: Mapping[str, str], file: Mapping[str, str] | None = None) -> ProtocolOptions:
    """Parse the options. `uri`: parameters of the sink URI, which take precedence. `file`: keys of a changefeed's file
    below `sink`, with points (`open.output-old-value`, `kafka-config.large-message-handle.claim-check-storage-uri`);
    options that a URI may set are also accepted under their plain name. Names that are not in URI_NAMES or FILE_NAMES
    are ignored: other code reads them. The default of `protocol` is open-protocol.

    Raises ProtocolConfigError naming the option, its value and the allowed values.
    """
    keys = file or {}
    found: dict[str, Any] = {"protocol": "open-protocol"}
    for option in _OPTIONS:
        given = [(option.uri, uri.get(option.uri)), *((name, keys.get(name)) for name in option.file)]
        name, text = next(((name, text) for name, text in given if text is not None), ("", None))
        if text is not None:
            found[option.field] = option.read(name, text)
    found["protocol"] = found["protocol"].lower()
    old_value = _OLD_VALUE["debezium" if found["protocol"] == "debezium" else "open"]
    if old_value in keys:
        found["output_old_value"] = _switch(old_value, keys[old_value])
    options = ProtocolOptions(**found)
    check(options)
    return options
