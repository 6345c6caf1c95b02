"""`python -m tests.crash.small_pump …`: a pump whose log files and checkpoints are small, so that a death meets the
change of a file, a checkpoint and a flush of the index as often as a write. CRASH_LEASE_S: how long it leads at least
after it was last seen."""

from __future__ import annotations

import os
from typing import Any

import pump.cluster.election
import pump.process
from pump.__main__ import main
from pump.index.leveldb import IndexOptions
from pump.store.group_commit import StoreOptions

FILE_BYTES_MAX = 64 << 10
CHECKPOINT_BYTES = 16 << 10
WRITE_BUFFER_BYTES = 64 << 10


def options(**given: Any) -> StoreOptions:
    given |= {"file_bytes_max": FILE_BYTES_MAX, "checkpoint_bytes": CHECKPOINT_BYTES}
    return StoreOptions(**given | {"index": IndexOptions(write_buffer_bytes=WRITE_BUFFER_BYTES)})


if __name__ == "__main__":
    pump.process.StoreOptions = options  # type: ignore[attr-defined,assignment]
    pump.cluster.election.LEASE_S = int(os.environ.get("CRASH_LEASE_S", str(pump.cluster.election.LEASE_S)))
    main()
