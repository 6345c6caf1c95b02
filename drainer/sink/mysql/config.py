"""How a server is reached and how hard it may be pushed: a value that travels to executors, and the `[syncer.to]` of a
MySQL, MariaDB or TiDB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from binlog.runtime.fields import Names
from pydantic import Field

from drainer.original_settings import WITHOUT_EFFECT, CheckpointSection, only
from drainer.sink import recycle_names
from drainer.sink.settings import ServerSection, SyncerSettings, TlsSection, ToSection

Takeover = Literal["same-node", "never", "force"]
LoadData = Literal["auto", "off"]


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """Bounds of one statement. The server's max_allowed_packet, read when a session opens, bounds them again.

    `load_rows_min`: so many rows and more are written by LOAD DATA, which bounds neither."""

    statement_rows_max: int = 500
    statement_bytes_max: int = 1 << 20
    load_rows_min: int = 1000


LOCK_WAIT_S: Final = 30


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One MySQL, MariaDB or TiDB.

    `params`: session variables set after ours, in order (an error when the server rejects one). `retry_for_s`: how long
    to wait for an unreachable server. `lock_wait_s`: how long to wait for another holder of the changefeed's lock; then
    `takeover` decides: `same-node` ends the holder's connection if it belongs to an earlier process with this node id,
    `never` fails, `force` always ends it. `allow_triggers`: write into tables that have
    triggers of the destination's own, although these see deletes and inserts instead of updates.
    `index_wait_s`: how long the stream waits for an index that is built beside it; most take less. `skip_verify`: TLS
    without verifying the server's certificate. `load_data`: `auto`: use LOAD DATA LOCAL if the server accepts it,
    `off`: use statements only. `recycle_schema`, `recycle_keep_ms`: the schema in which dropped tables are kept for a
    FLASHBACK, and for how many ms; 0: they are not kept. `channel_id`: the channel with which
    transactions that write rows are marked; None: they are not. `section`: where these settings are, for errors.
    """

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    params: tuple[tuple[str, str], ...] = ()
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    skip_verify: bool = False
    read_timeout_s: int = 3600
    retry_for_s: float = 600.0
    lock_wait_s: int = LOCK_WAIT_S
    index_wait_s: float = 1.0
    takeover: Takeover = "same-node"
    schema: str = "tidb_binlog"
    checkpoint_every_s: float = 3.0
    limits: StatementLimits = StatementLimits()
    allow_triggers: bool = False
    load_data: LoadData = "auto"
    recycle_schema: str = recycle_names.SCHEMA
    recycle_keep_ms: int = recycle_names.KEEP_MS_DEFAULT
    channel_id: int | None = None
    section: str = "syncer.to"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


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
