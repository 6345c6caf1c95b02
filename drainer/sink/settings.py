"""What the sections `[syncer.to]` of all kinds of destinations have in common, and how servers are reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from binlog.errors import ConfigError
from binlog.runtime.fields import Duration, Section
from pydantic import AfterValidator, Field

from drainer.sink.recycle_names import KEEP_MS_DEFAULT


class ToSection(Section):
    """Base of `[syncer.to]` for one kind of destination. `shows_lost`: see schema.job_policy.Policy."""

    shows_lost: ClassVar[bool] = False

    def address(self) -> str:
        """The destination's address, the same for every drainer that writes to it. It is part of keys in etcd."""
        raise NotImplementedError

    def hosts(self) -> Mapping[str, str]:
        """Hosts that executors must reach, by the setting that names them."""
        return {}

    def spark_settings(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Spark's settings that the destination needs; those `given` in `[spark.conf]` override them."""
        return {}

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""

    def warnings(self) -> list[str]:
        """What of the settings has another effect than one may think. Call `check` first."""
        return []


class TlsSection(Section):
    """`security` of a server: TLS."""

    ssl_ca: str = Field(
        "",
        description="CA file; if it is set, TLS is required, and the server's certificate must be signed by "
        "this CA and carry the name in host",
    )
    ssl_cert: str = Field("", description="client certificate file, read again for every connection")
    ssl_key: str = Field("", description="key file of the certificate")
    skip_verify: bool = Field(
        False,
        description="true: TLS is required, but neither the certificate nor the name of the server is "
        "verified; anyone on the network path can impersonate the server",
    )

    def check(self, section: str) -> None:
        """Raises ConfigError for settings that do not fit together. `section`: the server's."""
        if bool(self.ssl_cert) != bool(self.ssl_key):
            raise ConfigError(f"{section}.security: ssl-cert and ssl-key must be set together")
        if self.ssl_cert and not self.ssl_ca and not self.skip_verify:
            raise ConfigError(
                f"{section}.security: ssl-cert needs ssl-ca, the CA that verifies the server's certificate; the "
                "system's CA certificates are in a file such as /etc/ssl/certs/ca-certificates.crt"
            )


def _decrypted(text: str) -> str:
    if not text:
        return ""
    from binlog.runtime.encrypt import CipherError, decrypt  # imports cryptography, for which no other start waits

    try:
        return decrypt(text)
    except CipherError as error:
        raise ValueError(str(error)) from error


class ServerSection(Section):
    """How a server is reached."""

    host: str = Field("127.0.0.1", description="the server")
    port: int = Field(3306, ge=1, le=65535, description="the server's port")
    user: str = Field("root", description="user; operations.md lists the privileges it needs")
    password: str = Field("", repr=False, description="password of the user; never logged or shown")
    encrypted_password: Annotated[str, AfterValidator(_decrypted)] = Field(
        "",
        alias="encrypted_password",
        repr=False,
        description="password as `binlogctl encrypt` prints it, instead of `password`; its key is in the "
        "environment variable BINLOG_SECRET_KEY",
    )  # the value is the decrypted one
    security: TlsSection = Field(default_factory=lambda: TlsSection.model_validate({}))

    def access(self) -> dict[str, Any]:
        """Address, user and TLS under ServerConfig's names. Warns if the password was encrypted with the key that
        everybody knows."""
        address = self.model_dump(include={"host", "port", "user"})
        return address | self.security.model_dump(include=set(TlsSection.model_fields)) | {"password": self._password()}

    def _password(self) -> str:
        if self.encrypted_password:
            from binlog.runtime.encrypt import warn_of_default_key

            warn_of_default_key()
        return self.encrypted_password or self.password


class UpstreamServer(ServerSection):
    """`[upstream]`: the TiDB whose tables are read. Nothing is written there."""

    host: str = Field("", description="a TiDB server of upstream: `drainer load` and source = ticdc read it")
    port: int = Field(4000, ge=1, le=65535, description="the server's port")
    user: str = Field("root", description="user; it needs the privilege SELECT on the tables, and no other")
    first_load: bool = Field(
        False, description="true: a drainer whose destination is empty first does what `drainer load` does"
    )

    check_interval: Duration = Field(
        timedelta(0),
        ge=timedelta(0),
        description="how often the running drainer does what `drainer check` does, such as 24h; 0: never",
    )
    check_hours: str = Field(
        "",
        pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9])?$",
        description="when it begins, in UTC, such as 22:00-05:30; empty: at any time",
    )
    check_rate: int = Field(
        0, ge=0, description="how many rows a second a check reads on each side, on average; 0: as many as it can"
    )

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""
        self.security.check("upstream")
        if self.first_load and not self.host:
            raise ConfigError("upstream.first-load needs upstream.host")
        if self.check_interval and not self.host:
            raise ConfigError("upstream.check-interval needs upstream.host")


@dataclass(frozen=True, slots=True)
class SyncerSettings:
    """Settings that a destination may need. `recycle_keep_ms`: how long to keep tables that upstream dropped, in ms;
    `former_has_ended`: the lease of a former drainer with this node id has ended, so what it holds in the destination
    need not be waited for; `channel_id`: with loopback-control, the channel of the marks to write with rows."""

    recycle_keep_ms: int = KEEP_MS_DEFAULT
    former_has_ended: bool = False
    channel_id: int | None = None
