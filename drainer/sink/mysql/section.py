"""`[syncer.to]` of a MySQL, MariaDB or TiDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from binlog.errors import ConfigError
from binlog.runtime.encrypt import CipherError, decrypt, warn_of_default_key
from binlog.runtime.fields import Names, Section
from pydantic import AfterValidator, Field

from drainer.original_settings import WITHOUT_EFFECT, CheckpointSection, whole_rows
from drainer.sink.mysql.config import LOCK_WAIT_S, ServerConfig
from drainer.sink.settings import SyncerSettings, ToSection


def _no_common_names(value: tuple[str, ...]) -> tuple[str, ...]:
    if value:
        raise ValueError("remove it: the server's certificate must carry the name in host")
    return value


class ServerSecuritySection(Section):
    """`[syncer.to.security]`: TLS to the destination."""

    cert_allowed_cn: Annotated[Names, AfterValidator(_no_common_names)] = Field(
        (), description="must be empty: the server's certificate must carry the name in host"
    )
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

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""
        if bool(self.ssl_cert) != bool(self.ssl_key):
            raise ConfigError("syncer.to.security: ssl-cert and ssl-key must be set together")
        if self.ssl_cert and not self.ssl_ca and not self.skip_verify:
            raise ConfigError(
                "syncer.to.security: ssl-cert needs ssl-ca, the CA that verifies the server's certificate; the "
                "system's CA certificates are in a file such as /etc/ssl/certs/ca-certificates.crt"
            )


def _decrypted(text: str) -> str:
    try:
        return decrypt(text) if text else ""
    except CipherError as error:
        raise ValueError(str(error)) from error


class MySQLSection(ToSection):
    """How the server is reached."""

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
    params: dict[str, str] = Field(
        default_factory=dict, description="session variables of the connections, as name = value"
    )
    security: ServerSecuritySection = Field(default_factory=lambda: ServerSecuritySection.model_validate({}))
    allow_triggers: bool = Field(
        False, description="allow tables with triggers; the triggers see deletes and inserts instead of updates"
    )
    takeover: Literal["same-node", "never", "force"] = Field(
        "same-node",
        description="which drainer's connection to the destination a starting drainer may end to take over: "
        "same-node: that of the same node-id, never: none, force: any",
    )
    load_data: Literal["auto", "off"] = Field(
        "auto",
        description="auto: many rows of a table are written by LOAD DATA LOCAL if the server is a MySQL or "
        "MariaDB with local_infile on; off: by statements only",
    )

    sync_mode: Annotated[int, AfterValidator(whole_rows)] = Field(1, description="must be 1: complete rows are written")
    read_timeout: str = Field(
        "1m", description=f"{WITHOUT_EFFECT}: a statement may take an hour, and a DDL as long as it runs"
    )
    merge: bool = Field(False, description=f"{WITHOUT_EFFECT}: changes of a row are always merged")
    checkpoint: CheckpointSection = Field(default_factory=lambda: CheckpointSection.model_validate({}))

    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def hosts(self) -> Mapping[str, str]:
        return {"[syncer.to] host": self.host}

    def check(self) -> None:
        self.security.check()

    def server(self, syncer: SyncerSettings) -> ServerConfig:
        if self.encrypted_password:
            warn_of_default_key()
        return ServerConfig(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.encrypted_password or self.password,
            params=tuple(self.params.items()),
            ssl_ca=self.security.ssl_ca,
            ssl_cert=self.security.ssl_cert,
            ssl_key=self.security.ssl_key,
            skip_verify=self.security.skip_verify,
            distributed=syncer.distributed,
            takeover=self.takeover,
            allow_triggers=self.allow_triggers,
            load_data=self.load_data,
            recycle_keep_ms=syncer.recycle_keep_ms,
            lock_wait_s=1 if syncer.former_has_ended else LOCK_WAIT_S,
            channel_id=syncer.channel_id,
        )
