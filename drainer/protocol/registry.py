"""The one table of protocols: each folder's encoder and decoder, by TiCDC's name, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from drainer.protocol.errors import ProtocolConfigError

if TYPE_CHECKING:
    from drainer.protocol.encoder import Decoder, Encoder
    from drainer.protocol.options import ProtocolOptions

# Name → the package; its module `encoder` has make_encoder(options), its module `decoder` make_decoder(options).
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


def make_encoder(options: ProtocolOptions) -> Encoder:
    """Raises ProtocolConfigError for a protocol that is not known, or options it does not take."""
    return cast("Callable[[ProtocolOptions], Encoder]", _made("encoder", options))(options)


def make_decoder(options: ProtocolOptions) -> Decoder:
    """For one partition. Raises as `make_encoder`."""
    return cast("Callable[[ProtocolOptions], Decoder]", _made("decoder", options))(options)


def _made(what: str, options: ProtocolOptions) -> object:
    package = PROTOCOLS.get(options.protocol.lower())
    if package is None:
        names = ", ".join(name for name in PROTOCOLS)
        raise ProtocolConfigError(f"protocol {options.protocol!r} is not known: there are {names}")
    return getattr(import_module(f"drainer.protocol.{package}.{what}"), f"make_{what}")
