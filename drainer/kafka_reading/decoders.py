"""Decoders of partitions: each has its own, and all share what the schema registry told."""

from __future__ import annotations

from collections.abc import Sequence

from drainer.kafka_reading.records import Place, Record
from drainer.protocol.encoder import Decoder, RegisteringEncoder
from drainer.protocol.event import Event
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import make_decoder, make_encoder
from drainer.sink.kafka.registry_http import access_of
from drainer.sink.kafka.schema_registry import SchemaRegistry


class Decoders:
    """Not for several threads."""

    def __init__(self, options: ProtocolOptions) -> None:
        """Raises ProtocolConfigError for options that the protocol does not take, ConfigError for a registry's address
        that is none. The registry is asked when the first message needs it."""
        self._options = options
        self._registry = None
        if isinstance(make_encoder(options), RegisteringEncoder):
            self._registry = SchemaRegistry(access_of(options.schema_registry))
        self._decoders: dict[Place, Decoder] = {}

    def decode(self, record: Record) -> Sequence[Event]:
        """Raises MessageError, and DestinationDown or DestinationRefused where the registry does not tell a schema."""
        decoder = self._decoders.get(record.place)
        if decoder is None:
            decoder = self._decoders[record.place] = make_decoder(self._options, self._registry)
        return decoder.decode(record.key, record.value)
