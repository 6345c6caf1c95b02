"""How pumps and drainers reach the brokers of the pumps' topics: `[kafka]` and `[kafka-source]`."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from binlog.runtime.fields import Section

# Settings of the client library on which nothing being lost or repeated depends.
_RESERVED = frozenset(
    {"bootstrap.servers", "acks", "request.required.acks", "enable.idempotence", "transactional.id"}
    | {"message.max.bytes", "group.id", "enable.auto.commit", "auto.offset.reset", "isolation.level"}
)


class TopicSecuritySection(Section):
    """TLS and SASL, under the names of `[syncer.to.security]` of Kafka."""

    enable_tls: bool = Field(False, description="TLS with the system's CA certificates if no `ca` is set")
    ca: str = Field("", description="CA file that verifies the brokers' certificates; switches TLS on")
    cert: str = Field("", description="client certificate file")
    key: str = Field("", description="key file of the certificate")
    sasl_mechanism: str = Field("PLAIN", description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, if a user is set")
    sasl_user: str = Field("", description="user")
    sasl_password: str = Field("", repr=False, description="its password; never logged or shown")

    def client_settings(self) -> dict[str, str]:
        tls = self.enable_tls or bool(self.ca or self.cert)
        files = {"ssl.ca.location": self.ca, "ssl.certificate.location": self.cert, "ssl.key.location": self.key}
        found = {"security.protocol": ("SASL_" if self.sasl_user else "") + ("SSL" if tls else "PLAINTEXT")}
        found |= {name: value for name, value in files.items() if value}
        if self.sasl_user:
            found["sasl.mechanism"] = self.sasl_mechanism.upper()
            found |= {"sasl.username": self.sasl_user, "sasl.password": self.sasl_password}
        return found


class TopicSection(Section):
    """The brokers and the names of the pumps' topics."""

    addresses: tuple[str, ...] = Field((), description="some of the brokers, as host:port; empty: not used")
    topic_prefix: str = Field(
        "tidb-binlog",
        description="a pump's topic is <topic-prefix>-<cluster id>-<node id>; the same for pumps and drainers",
    )
    client: dict[str, str] = Field(
        default_factory=dict, description="further settings of the client library (librdkafka), as name = value"
    )
    security: TopicSecuritySection = Field(default_factory=lambda: TopicSecuritySection.model_validate({}))

    @field_validator("topic_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", value):
            raise ValueError(f"{value!r} may have letters, digits, '.', '_' and '-' alone, and at most 100 of them")
        return value

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        taken = sorted(_RESERVED & self.client.keys())
        if taken:
            raise ValueError(f"client: {', '.join(taken)} cannot be set: it would lose or repeat binlogs")
        return self

    def client_settings(self) -> dict[str, str]:
        """Return the settings that all clients share, under the client library's names."""
        return {
            "bootstrap.servers": ",".join(self.addresses),
            "client.id": "tidb-binlog",
            **self.security.client_settings(),
            **self.client,
        }
