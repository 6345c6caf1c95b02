"""A range of pumps pulled into a file by the driver, for a transaction that is too large to be one value anywhere.

The file has no name and lies where temporary files do; whatever becomes of this process, it is gone. It is mapped, not
read: a binlog in it is a view, and its pages are given back as soon as they have been used.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from binlog import envelope
from binlog.errors import BinlogError
from binlog.runtime.security import Security

from drainer.batch.binlog import ServedBinlog
from drainer.pumps.binlog_parts import parse
from drainer.pumps.pull import pull
from drainer.pumps.watermark import PumpRange


class SpoolFailed(BinlogError):
    """The folder for temporary files does not take a large transaction; the text names the folder."""


class NotServed(BinlogError):
    """A pump that told of a large transaction served its range without it. Nothing has been applied."""

    def __init__(self, node_id: str, commit_ts: int) -> None:
        super().__init__(
            f"pump {node_id} told of a large transaction of commit_ts {commit_ts} and did not serve it: look at its log"
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a binlog lies in the file."""

    pump: str
    begin: int
    end: int


class Spool:
    """Filled by `pull`, then read by `binlogs`. Open until `close`."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="drainer-large-", buffering=0)  # noqa: SIM115  closed by `close`
        self._size = 0
        self._places: list[_Place] = []

    def pull(
        self,
        ranges: Sequence[PumpRange],
        *,
        cluster_id: int,
        security: Security,
        came: Callable[[int], None] = lambda _size: None,
    ) -> None:
        """Everything in the ranges; `came` is told of the bytes of each message.

        Raises what pulling raises, DecodeError where parts do not fit together, and SpoolFailed."""
        for part in ranges:
            begin = self._size
            for message in pull(part, cluster_id=cluster_id, security=security):
                begin = self.take(part.node_id, message, begin)
                came(len(message))
            if begin != self._size:
                raise BinlogError(f"pump {part.node_id} ({part.host}) ended a pull within a binlog")

    def take(self, pump: str, message: bytes, begin: int) -> int:
        """Write a message; where the binlog begins that is not whole yet, or the next one."""
        found = parse(message, self._size - begin)
        if found.whole_bytes:
            self._write(found.payloads[0])
            if self._size - begin < found.whole_bytes:
                return begin
            self._places.append(_Place(pump, begin, self._size))
            return self._size
        for payload in found.payloads:
            at = self._size
            self._write(payload)
            self._places.append(_Place(pump, at, self._size))
        return self._size

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise SpoolFailed(
                f"{tempfile.gettempdir()}: a large transaction cannot be kept there, {self._size} bytes of it could: "
                f"{error}; make room, or name another folder in TMPDIR"
            ) from error
        self._size += len(data)

    def binlogs(self, large_bytes_min: int) -> Iterator[ServedBinlog]:
        """The binlogs in the order they came; those of more than `large_bytes_min` as views of the file."""
        if not self._size:
            return
        whole = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        for place in self._places:
            view = whole[place.begin : place.end]
            payload = view if len(view) > large_bytes_min else bytes(view)
            found = envelope.scan(payload)  # type: ignore[arg-type]  # it only reads single bytes and slices
            yield ServedBinlog(found.commit_ts, found.start_ts, place.pump, payload)

    def close(self) -> None:
        """Views that are still in use keep the bytes."""
        self._file.close()


def give_back(view: memoryview) -> None:
    """Let the kernel have the pages of a view's file that were looked at; looking again reads them again."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap):
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_DONTNEED)
