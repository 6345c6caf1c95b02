"""TiCDC's topics in place of pumps: each partition is followed and pulled as a pump is, its rows as TiDB's binlogs."""

from __future__ import annotations

from binlog.runtime.fields import Section
from pydantic import Field


class TicdcSection(Section):
    """`[ticdc-source]`: the topics that a drainer reads in place of pumps."""

    uri: str = Field(
        "",
        repr=False,
        description="TiCDC's address of a topic with its changefeed's options, such as kafka://host:9092/topic"
        "?protocol=canal-json&enable-tidb-extension=true; empty: not used; messages of simple need no [schema]",
    )
    topics: tuple[str, ...] = Field(
        (), description="topics to read, or regular expressions that begin with ^; empty: that of the address"
    )
    client: dict[str, str] = Field(
        default_factory=dict, repr=False, description="further settings of the client library (librdkafka)"
    )
