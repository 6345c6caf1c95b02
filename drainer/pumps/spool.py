"""Temporary file into which the driver pulls a range that contains a transaction too large for memory.

The file is unlinked, so it disappears with the process. It is memory-mapped: a binlog in it is a memoryview, and its
pages are released after use.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence

from binlog import envelope
from binlog.errors import BinlogError
from binlog.pb import parsed
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.security import Security

from drainer.batch.served import ServedBinlog
from drainer.pumps.binlog_parts import check_continues
from drainer.pumps.pull import pull
from drainer.pumps.watermark import PumpRange


class SpoolFailed(BinlogError):
    """A large transaction cannot be written to the directory of temporary files, which the text names."""


class NotServed(BinlogError):
    """A pump announced a large transaction and served its range without it. Nothing has been applied."""

    def __init__(self, node_id: str, commit_ts: int) -> None:
        super().__init__(
            f"pump {node_id} announced a large transaction of commit_ts {commit_ts} and did not serve it: see its log"
        )


class Spool:
    """Call `pull`, then `binlogs`, then `close`."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="drainer-large-", buffering=0)  # noqa: SIM115  closed by `close`
        self._size = 0
        self._binlogs: list[tuple[str, int, int]] = []  # the pump of each, and where it begins and ends in the file

    def pull(
        self,
        ranges: Sequence[PumpRange],
        *,
        cluster_id: int,
        security: Security,
        on_bytes: Callable[[int], None] = lambda _size: None,
    ) -> None:
        """Write everything in the ranges to the file; `on_bytes` is called with the size of each message.

        Raises what pulling raises, DecodeError where parts are out of sequence, and SpoolFailed."""
        for part in ranges:
            begin = self._size
            for message in pull(part, cluster_id=cluster_id, security=security):
                begin = self.take(part.node_id, message, begin)
                on_bytes(len(message))
            if begin != self._size:
                raise BinlogError(f"pump {part.node_id} ({part.host}) ended a pull within a binlog")

    def take(self, pump: str, message: bytes, begin: int) -> int:
        """Write a message; returns the offset of the incomplete binlog, or of the next one."""
        found = parsed(ext.PullRangeResp, message)
        check_continues(found, self._size - begin)
        if found.whole_bytes:
            self._write(found.payloads[0])
            if self._size - begin < found.whole_bytes:
                return begin
            self._binlogs.append((pump, begin, self._size))
            return self._size
        for payload in found.payloads:
            at = self._size
            self._write(payload)
            self._binlogs.append((pump, at, self._size))
        return self._size

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise SpoolFailed(
                f"{tempfile.gettempdir()}: cannot store a large transaction, {self._size} bytes were written: {error}; "
                "free disk space, or set TMPDIR to another directory"
            ) from error
        self._size += len(data)

    def binlogs(self, large_bytes_min: int) -> Iterator[ServedBinlog]:
        """The binlogs in the order received; those above `large_bytes_min` bytes as views of the file."""
        if not self._size:
            return
        whole = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        for pump, begin, end in self._binlogs:
            view = whole[begin:end]
            payload = view if len(view) > large_bytes_min else bytes(view)
            found = envelope.scan(payload)  # type: ignore[arg-type]  # it only reads single bytes and slices
            yield ServedBinlog(found.commit_ts, found.start_ts, pump, payload)

    def close(self) -> None:
        """Close the file; views still in use stay valid."""
        self._file.close()


def give_back(view: memoryview) -> None:
    """Release the resident pages of a view's file; a later access reads them again."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap):
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_DONTNEED)
