"""How pumps and drainers reach the brokers of the pumps' topics: `[kafka]` and `[kafka-source]`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from binlog.runtime.fields import Section

# Settings of the client library on which nothing being lost or repeated depends.
RESERVED = frozenset(
    {"bootstrap.servers", "acks", "request.required.acks", "enable.idempotence", "transactional.id"}
    | {"message.max.bytes", "group.id", "enable.auto.commit", "isolation.level"}
)


class TopicSection(Section):
    """The brokers and the names of the pumps' topics."""

    addresses: tuple[str, ...] = Field((), description="some of the brokers, as host:port; empty: not used")
    topic_prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = Field(
        "tidb-binlog",
        description="a pump's topic is <topic-prefix>-<cluster id>-<node id>; the same for pumps and drainers",
    )
    client: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="further settings of the client library (librdkafka), as name = value: TLS and SASL, too",
    )

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        taken = sorted((RESERVED | {"auto.offset.reset"}) & self.client.keys())
        if taken:
            raise ValueError(f"client: {', '.join(taken)} cannot be set: it would lose or repeat binlogs")
        return self

    def client_settings(self) -> dict[str, str]:
        """Return the settings that all clients share, under the client library's names."""
        return {"bootstrap.servers": ",".join(self.addresses), "client.id": "tidb-binlog", **self.client}
