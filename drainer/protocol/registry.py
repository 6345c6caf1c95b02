"""The table of protocols: the encoder and decoder of each folder by TiCDC's name, imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from drainer.protocol.errors import ProtocolConfigError

if TYPE_CHECKING:
    from drainer.protocol.encoder import Decoder, Encoder
    from drainer.protocol.options import ProtocolOptions

# Name → the package. Its module `encoder` has make_encoder(options), its module `decoder` has make_decoder(options).
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
    """Return the encoder of the configured protocol. Raises ProtocolConfigError if the protocol is not known or does
    not support an option."""
    return cast("Callable[[ProtocolOptions], Encoder]", _made("encoder", options))(options)


def make_decoder(options: ProtocolOptions) -> Decoder:
    """Return a decoder for one partition. Raises as `make_encoder`."""
    return cast("Callable[[ProtocolOptions], Decoder]", _made("decoder", options))(options)


def _made(what: str, options: ProtocolOptions) -> object:
    package = PROTOCOLS.get(options.protocol.lower())
    if package is None:
        raise ProtocolConfigError(unknown_protocol(options.protocol))
    return getattr(import_module(f"drainer.protocol.{package}.{what}"), f"make_{what}")
