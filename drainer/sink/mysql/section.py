"""`[syncer.to]` of a MySQL, MariaDB or TiDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from binlog.runtime.fields import Names
from pydantic import Field

from drainer.original_settings import WITHOUT_EFFECT, CheckpointSection, only
from drainer.sink.mysql.config import LOCK_WAIT_S, ServerConfig
from drainer.sink.settings import ServerSection, SyncerSettings, TlsSection, ToSection

_NO_COMMON_NAMES = "remove it: the server's certificate must carry the name in host"
_WHOLE_ROWS = "only 1 is supported: rows are written with all their columns"


class ServerSecuritySection(TlsSection):
    """`[syncer.to.security]`: TLS to the destination."""

    cert_allowed_cn: Annotated[Names, only((), why=_NO_COMMON_NAMES)] = Field(
        (), description="must be empty: the server's certificate must carry the name in host"
    )


class MySQLSection(ServerSection, ToSection):
    """The server, and how it is written to."""

    security: ServerSecuritySection = Field(default_factory=lambda: ServerSecuritySection.model_validate({}))
    params: dict[str, str] = Field(
        default_factory=dict, description="session variables of the connections, as name = value"
    )
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

    sync_mode: Annotated[int, only(0, 1, why=_WHOLE_ROWS)] = Field(
        1, description="must be 1: complete rows are written"
    )
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
        self.security.check("syncer.to")

    def server(self, syncer: SyncerSettings) -> ServerConfig:
        return ServerConfig(
            **self.access(),
            params=tuple(self.params.items()),
            takeover=self.takeover,
            allow_triggers=self.allow_triggers,
            load_data=self.load_data,
            recycle_keep_ms=syncer.recycle_keep_ms,
            lock_wait_s=1 if syncer.former_has_ended else LOCK_WAIT_S,
            channel_id=syncer.channel_id,
        )
