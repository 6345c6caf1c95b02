"""`[ticdc-source]`: where a drainer finds TiCDC's topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from binlog.runtime.fields import Section
from pydantic import Field

if TYPE_CHECKING:
    from drainer.kafka_reading.address import KafkaAddress


class TicdcSection(Section):
    """`[ticdc-source]`: the topics that a drainer reads in place of pumps."""

    uri: str = Field(
        "",
        repr=False,
        description="TiCDC's address of a topic with its changefeed's options, such as kafka://host:9092/topic"
        "?protocol=canal-json&enable-tidb-extension=true; empty: not used",
    )
    topics: tuple[str, ...] = Field(
        (), description="topics to read, or regular expressions that begin with ^; empty: that of the address"
    )
    client: dict[str, str] = Field(
        default_factory=dict, repr=False, description="further settings of the client library (librdkafka)"
    )

    def address(self) -> KafkaAddress:
        """Raises ConfigError, also for messages that do not say all that a drainer needs."""
        from drainer.kafka_reading.address import kafka_address  # other sources need none of it
        from drainer.ticdc.heads import heads_of

        found = kafka_address(self.uri, "drainer", self.client)
        heads_of(found.options)
        return found
