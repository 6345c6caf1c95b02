"""`[syncer.to]` of a MySQL, MariaDB or TiDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import Field

from drainer.sink.mysql.config import ServerConfig
from drainer.sink.settings import SyncerSettings, ToSection


class ServerSecuritySection(Section):
    """`[syncer.to.security]`: TLS to the destination."""

    ssl_ca: str = Field(
        "",
        description="CA file; when it is set, TLS is required, and the server's certificate must be signed by it and "
        "carry the name in host",
    )
    ssl_cert: str = Field("", description="certificate file that the drainer shows, read again for every connection")
    ssl_key: str = Field("", description="the certificate's key file")
    skip_verify: bool = Field(
        False,
        description="true: TLS is required, but neither certificate nor name of the server is verified; anybody on the "
        "way may pose as the server",
    )

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""
        if bool(self.ssl_cert) != bool(self.ssl_key):
            raise ConfigError("syncer.to.security: ssl-cert and ssl-key must be set together")
        if self.ssl_cert and not self.ssl_ca and not self.skip_verify:
            raise ConfigError(
                "syncer.to.security: ssl-cert is set without the ssl-ca that the server is verified with; the "
                "system's authorities are in a file such as /etc/ssl/certs/ca-certificates.crt"
            )


class MySQLSection(ToSection):
    """How the server is reached."""

    host: str = Field("127.0.0.1", description="the server")
    port: int = Field(3306, ge=1, le=65535, description="its port")
    user: str = Field("root", description="who writes there; the privileges it needs are in operations.md")
    password: str = Field("", repr=False, description="that user's password; in no log and on no page")
    params: dict[str, str] = Field(default_factory=dict, description="session variables there, as name = value")
    security: ServerSecuritySection = Field(default_factory=lambda: ServerSecuritySection.model_validate({}))
    allow_triggers: bool = Field(
        False, description="write into tables with triggers there, which see deletes and inserts in place of updates"
    )
    takeover: Literal["same-node", "never", "force"] = Field(
        "same-node", description="whose connection to the destination a starting drainer may end to take its place"
    )

    def place(self) -> str:
        return f"{self.host}:{self.port}"

    def hosts(self) -> Mapping[str, str]:
        return {"[syncer.to] host": self.host}

    def check(self) -> None:
        self.security.check()

    def server(self, syncer: SyncerSettings) -> ServerConfig:
        return ServerConfig(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            params=tuple(self.params.items()),
            ssl_ca=self.security.ssl_ca,
            ssl_cert=self.security.ssl_cert,
            ssl_key=self.security.ssl_key,
            skip_verify=self.security.skip_verify,
            spread=syncer.spread,
            takeover=self.takeover,
            allow_triggers=self.allow_triggers,
            recycle_keep_ms=syncer.recycle_keep_ms,
        )
