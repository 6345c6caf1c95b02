"""Checks of the protocols' options, and which protocols use which option. Errors use TiCDC's texts where TiCDC has such
an error. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.options import ProtocolOptions, option_table
from drainer.protocol.registry import PROTOCOLS, unknown_protocol

_AVRO: Final = frozenset(name for name, package in PROTOCOLS.items() if package == "avro")
_OPEN: Final = frozenset(name for name, package in PROTOCOLS.items() if package == "open")
# Option → its allowed values, in the order in which errors list them.
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    name: get_args(hint) for name, hint in get_type_hints(ProtocolOptions).items() if get_origin(hint) is Literal
} | {"avro_decimal_handling_mode": ("string", "precise")}


def check(options: ProtocolOptions) -> None:
    """Check all options. Raises ProtocolConfigError naming the option, its value and the allowed values."""
    if options.protocol not in PROTOCOLS:
        raise ProtocolConfigError(unknown_protocol(options.protocol))
    for name, (_, option) in option_table().items():
        value = getattr(options, name)
        if isinstance(value, int) and value < option.least:
            raise ProtocolConfigError(f"invalid {_shown(name)} {value}: it must be at least {option.least}")
    check_choices(options)
    assert options.zone
    if options.protocol in _AVRO:
        _check_avro(options)
    if options.large_message_handle_option != "none":
        _check_large(options)


def check_choices(options: ProtocolOptions) -> None:
    """Check the options whose value is one of a few texts. Raises as `check`."""
    for name, choices in _CHOICES.items():
        if getattr(options, name) not in choices:
            allowed = " or ".join([", ".join(f'"{c}"' for c in choices[:-1]), f'"{choices[-1]}"'])
            raise ProtocolConfigError(f'{_shown(name)} value could only be {allowed}, not "{getattr(options, name)}"')


def _check_avro(options: ProtocolOptions) -> None:
    if not options.schema_registry:
        raise ProtocolConfigError(f'the protocol {options.protocol} requires parameter "schema-registry"')
    if options.avro_enable_watermark and not options.enable_tidb_extension:
        raise ProtocolConfigError('avro-enable-watermark needs "enable-tidb-extension" to be "true"')
    check_checksums(options)


def check_checksums(options: ProtocolOptions) -> None:
    """Check the options that Avro needs for the fields of a row's checksum. Raises ProtocolConfigError."""
    modes = (options.avro_decimal_handling_mode, options.avro_bigint_unsigned_handling_mode)
    if options.enable_row_checksum and not (options.enable_tidb_extension and modes == ("string", "string")):
        raise ProtocolConfigError(
            'row checksums (integrity-check-level "correctness") need "enable-tidb-extension" to be "true", and '
            '"avro-decimal-handling-mode" and "avro-bigint-unsigned-handling-mode" to be "string"'
        )


def _check_large(options: ProtocolOptions) -> None:
    what = f'large-message-handle-option is "{options.large_message_handle_option}"'
    if options.protocol not in {*_OPEN, "simple", "canal-json"}:
        raise ProtocolConfigError(f"{what}, but the protocol {options.protocol} has no such messages")
    if options.protocol == "canal-json" and not options.enable_tidb_extension:
        raise ProtocolConfigError(f'{what} and the protocol canal-json, but "enable-tidb-extension" is not "true"')
    if options.large_message_handle_option != "claim-check":
        return
    if not options.claim_check_storage_uri:
        raise ProtocolConfigError(f'{what}, which needs "claim-check-storage-uri"')
    if options.claim_check_raw_value and options.protocol in _OPEN:
        raise ProtocolConfigError(f"claim-check-raw-value is not supported for the protocol {options.protocol}")


def unread(package: str, given: Collection[str]) -> list[str]:
    """Return a warning for each given option that this package does not use."""
    return [
        f"{_shown(name)} has no effect: only {protocols_text(option.packages)} use it"
        for name, (_, option) in option_table().items()
        if name in given and option.packages and package not in option.packages
    ]


def protocols_text(packages: Collection[str]) -> str:
    """Return the names of the protocols of these packages."""
    shown = {"open": "open-protocol", "canal": "canal-json"}
    return ", ".join(shown.get(package, package) for package in packages)


def _shown(name: str) -> str:
    return name.replace("_", "-")


# Parses protocol options from the parameters of a sink URI, under TiCDC's names. Pure.

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


def _names() -> dict[str, tuple[str, Read]]:
    """Return the field and the reader of each parameter."""
    hints = get_type_hints(ProtocolOptions)
    options = {field.replace("_", "-"): field for field in option_table()}
    return {
        "protocol": ("protocol", _text),
        **{name: (field, {bool: _switch, int: _whole}.get(hints[field], _text)) for name, field in options.items()},
    }


_NAMES: Final = _names()
URI_NAMES: Final = _NAMES.keys()


def protocol_options(uri: Mapping[str, str]) -> ProtocolOptions:
    """Parse the options. `uri`: parameters of the sink URI; those of other names are ignored, because other code reads
    them. The default of `protocol` is open-protocol.

    Raises ProtocolConfigError naming the option, its value and the allowed values.
    """
    found: dict[str, Any] = {field: read(name, uri[name]) for name, (field, read) in _NAMES.items() if name in uri}
    options = ProtocolOptions(**{**found, "protocol": found.get("protocol", "open-protocol").lower()})
    check(options)
    return options
