"""The options that a sink URI sets."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from drainer.kafka_reading.address import kafka_address
from drainer.protocol.registry import ProtocolOptions


def protocol_options(parameters: Mapping[str, str]) -> ProtocolOptions:
    """Raises ConfigError."""
    return kafka_address(f"kafka://h:9092/topic?{urlencode(parameters)}", "test", {}).options
