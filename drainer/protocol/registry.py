"""The table of protocols: the encoder and decoder of each folder by TiCDC's name, imported on first use; and the
checks of their options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.options import ProtocolOptions, option_table

if TYPE_CHECKING:
    from drainer.protocol.encoder import Decoder, Encoder


# Name → the package. That of Canal has CanalEncoder in its module `encoder` and CanalDecoder in `decoder`, and so on;
# both are called with the options.
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
    return getattr(import_module(f"drainer.protocol.{package}.{what.lower()}"), f"{package.capitalize()}{what}")


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
