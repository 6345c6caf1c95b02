"""Decoders for the partitions that are read. Avro decoders request each schema once from a registry."""

from __future__ import annotations

from collections.abc import Callable

from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import PROTOCOLS, make_decoder
from drainer.sink.kafka.schema_registry import SchemaRegistry
from drainer.sink.kafka.settings.registry_http import access_of

MakeDecoder = Callable[[], Decoder]


def decoders(options: ProtocolOptions) -> MakeDecoder:
    """Return a function that makes a decoder for one partition. Raises ConfigError. Decoding raises MessageError, and
    the registry's errors if it does not answer."""
    if PROTOCOLS.get(options.protocol.lower()) != "avro" or not options.schema_registry:
        return lambda: make_decoder(options)
    schemas = SchemaRegistry(access_of(options.schema_registry))
    return lambda: AvroDecoder(options, schemas)
