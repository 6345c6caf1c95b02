"""What the sections `[syncer.to]` of all kinds of destinations have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from binlog.runtime.fields import Section

from drainer.sink.recycle_names import KEEP_MS_DEFAULT


class ToSection(Section):
    """Base of `[syncer.to]` for one kind of destination."""

    def address(self) -> str:
        """The destination's address, the same for every drainer that writes to it. It is part of keys in etcd."""
        raise NotImplementedError

    def hosts(self) -> Mapping[str, str]:
        """Hosts that executors must reach, by the setting that names them."""
        return {}

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together."""

    def warnings(self) -> list[str]:
        """What of the settings has another effect than one may think. Call `check` first."""
        return []


@dataclass(frozen=True, slots=True)
class SyncerSettings:
    """Settings that a destination may need. `recycle_keep_ms`: how long to keep tables that upstream dropped, in ms;
    `distributed`: whether executors may write; `former_has_ended`: the lease of a former drainer with this node id has
    ended, so what it holds in the destination need not be waited for; `channel_id`: with loopback-control, the
    channel of the marks to write with rows."""

    recycle_keep_ms: int = KEEP_MS_DEFAULT
    distributed: bool = True
    former_has_ended: bool = False
    channel_id: int | None = None
