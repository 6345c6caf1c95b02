"""How a server is reached and how hard it may be pushed. A value: it travels to executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from drainer.sink import recycle_names

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
