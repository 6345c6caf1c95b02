"""Decoders for the partitions that are read. Avro decoders request each schema once from a registry."""

from __future__ import annotations

from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import PROTOCOLS, make_decoder
from drainer.sink.kafka.schema_registry import SchemaRegistry
from drainer.sink.kafka.settings.registry_http import access_of


class PartitionDecoders:
    """A decoder for each partition that is read, made with its first message."""

    def __init__(self, options: ProtocolOptions) -> None:
        """Raises ConfigError."""
        self._options = options
        self._decoders: dict[KafkaPartition, Decoder] = {}
        is_avro = PROTOCOLS.get(options.protocol.lower()) == "avro" and options.schema_registry
        self._schemas = SchemaRegistry(access_of(options.schema_registry)) if is_avro else None

    def of(self, topic_partition: KafkaPartition) -> Decoder:
        """Return the decoder of a partition. Decoding raises MessageError, and the registry's errors if it does not
        answer."""
        found = self._decoders.get(topic_partition)
        if found is None:
            made = make_decoder(self._options) if self._schemas is None else AvroDecoder(self._options, self._schemas)
            found = self._decoders[topic_partition] = made
        return found
