"""Room on the disk, and what says that there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import plyvel
import pytest
from binlog.errors import NoSpace

from pump.store.limits import RESUME_BYTES, Space, lacks_room


class Disk:
    """Each look at it takes the next of these numbers of free bytes; the last one stays. An OSError is raised."""

    def __init__(self, *free: int | OSError) -> None:
        self.free = list(free)

    def __call__(self, _: Path) -> os.statvfs_result:
        free = self.free.pop(0) if len(self.free) > 1 else self.free[0]
        if isinstance(free, OSError):
            raise free
        return os.statvfs_result((1, 1, 1 << 40, free, free, 0, 0, 0, 0, 255))


def test_space_check_fails_at_limit_of_available_bytes(tmp_path: Path) -> None:
    space = Space(tmp_path, stop_bytes=100, statvfs=Disk(101, 100))
    space.refresh()
    space.check()
    assert space.shortage == ""
    space.refresh()
    assert space.shortage == "storage.stop-write-at-available-space is 100 bytes, and 100 are available"
    with pytest.raises(NoSpace, match="available: 100, StopWriteAtAvailableSpace: 100"):
        space.check()


async def test_wait_for_room_ignores_space_seen_before_and_retries_after_disk_error(tmp_path: Path) -> None:
    """What was seen before the disk was full says nothing; a disk that does not answer is asked again."""
    disk = Disk(1 << 40, 0, OSError(errno.EIO, "x"), RESUME_BYTES, RESUME_BYTES + 1, 7)
    space = Space(tmp_path, stop_bytes=0, statvfs=disk)
    space.refresh()
    await space.wait_for_room(0)
    assert disk.free == [7]


async def test_wait_for_room_waits_until_free_bytes_exceed_limit(tmp_path: Path) -> None:
    disk = Disk(1 << 40, (1 << 40) + 1, 7)
    await Space(tmp_path, stop_bytes=1 << 40, statvfs=disk).wait_for_room(0)
    assert disk.free == [7]


def test_lacks_room_recognises_full_disk_errors_only(tmp_path: Path) -> None:
    assert lacks_room(str(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "f")))
    assert lacks_room(f"x: {plyvel.IOError(b'IO error: f: No space left on device')}")
    assert lacks_room(str(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))))
    assert not lacks_room(str(OSError(errno.EIO, os.strerror(errno.EIO))))
