"""Options with which a store is opened. Most of them are settings of the pump's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from pump.index.leveldb import IndexOptions
from pump.store.disk_thread import WAIT_MAX_S
from pump.store.matcher import RECENT_MAX
from pump.store.progress import CHECKPOINT_BYTES
from pump.store.ts_limit import AHEAD_MAX_S


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`file_bytes_max` and `sync` as in ValueLog; `stop_bytes`: see Space; `checkpoint_bytes`: see Progress;
    `ts_ahead_max_s`: see Horizon; `transaction_bytes_max`: larger binlogs are refused. `loop_bytes_max`: a batch of
    more bytes is judged in the writer's thread; `wait_max_s`: see DiskThread; `progress_interval_s`: the shortest time
    between two times that progress is saved; `recent_max`: see Matcher."""

    stop_bytes: int = 0
    transaction_bytes_max: int = 1 << 30
    sync: bool = True
    file_bytes_max: int = 500 << 20
    checkpoint_bytes: int = CHECKPOINT_BYTES
    ts_ahead_max_s: int = AHEAD_MAX_S
    index: IndexOptions = field(default_factory=IndexOptions)
    loop_bytes_max: int = 1 << 20
    wait_max_s: float = WAIT_MAX_S
    progress_interval_s: float = 1.0
    recent_max: int = RECENT_MAX
