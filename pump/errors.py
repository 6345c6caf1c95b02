"""What can go wrong in a pump beyond the errors all programs share."""

from __future__ import annotations

from binlog.errors import BinlogError


class DamagedRecord(BinlogError):
    """A record of the value log that cannot be read; names the file and the offset (`P-ST-05`)."""

    def __init__(self, place: str, offset: int, detail: str, *, prewrite_lost: bool = False) -> None:
        """`prewrite_lost`: the commit is there, its prewrite was in bytes that hold no record."""
        super().__init__(f"damaged record in {place} at byte {offset}: {detail}")
        self.place = place
        self.offset = offset
        self.detail = detail
        self.prewrite_lost = prewrite_lost

    def of_binlog(self, commit_ts: int) -> DamagedRecord:
        """The same, with the binlog that cannot be served for it."""
        detail = f"{self.detail}; the binlog of commit_ts {commit_ts} needs it"
        return DamagedRecord(self.place, self.offset, detail, prewrite_lost=self.prewrite_lost)


class InvalidBinlog(BinlogError):
    """A payload that is a Binlog, but not one a pump can store; the message names its ts and the reason."""


class TooFarAhead(InvalidBinlog):
    """A ts so far ahead of the timestamp source that the source cannot have given it out."""


class AbsurdBound(BinlogError):
    """What is recorded of timestamps given out is so far ahead of the clock that it is taken for a mistake."""


class TooLarge(BinlogError):
    """A binlog above `transaction-bytes-max`: no repetition of it will ever be taken."""

    def __init__(self, start_ts: int, size: int, limit: int) -> None:
        super().__init__(
            f"binlog of start_ts {start_ts} has {size} bytes, and this pump takes at most {limit} "
            f"(transaction-bytes-max): write it in smaller transactions, or raise that setting on every pump"
        )
        self.start_ts = start_ts
        self.size = size
        self.limit = limit


class MessageTooLarge(BinlogError):
    """A message above the limit, which is not read."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a message of {size} bytes is above the limit of {limit} (max-message-size, or what transaction-bytes-max "
            f"makes of it): write less at once, or raise that setting on every pump"
        )


class Overloaded(BinlogError):
    """Too many bytes are in flight over all calls; the same request may be taken in a moment, or by another pump.

    Writers tell it from a binlog that is too large by the first words (pumpclient.answer)."""

    def __init__(self, size: int, held: int, limit: int) -> None:
        super().__init__(
            f"too many bytes in flight: {held} are, a request of {size} does not fit into in-flight-bytes-max {limit}; "
            f"repeat it"
        )


class Conflict(BinlogError):
    """A binlog that contradicts one already stored: another commit_ts, another prewrite, a rollback before it."""


class RolledBack(Conflict):
    """A commit, or a late copy of a prewrite, of a transaction that was rolled back here."""


class NotResolved(BinlogError):
    """A pull above every resolved ts this pump has given out."""

    def __init__(self, until_ts: int, resolved_ts: int) -> None:
        super().__init__(f"a pull until {until_ts} is above the resolved ts {resolved_ts}")


class NoSuchPrewrite(BinlogError):
    """An operator would settle a start_ts that is not pending here."""


class NoSuchBinlog(BinlogError):
    """An operator would pass over a binlog that is not served here."""


class NotDamaged(BinlogError):
    """An operator would pass over a binlog that can be read."""


class NotLeader(BinlogError):
    """This pump does not allocate timestamps now; the message names who does."""


class DataDirLocked(BinlogError):
    """Another process uses the data-dir (`P-LC-02`)."""


class NotifyFailed(BinlogError):
    """A living drainer did not take the news of this pump (`P-LC-05`)."""


class Stopping(BinlogError):
    """The pump is closing and takes no more work."""


class DrainerUnreadable(BinlogError):
    """A drainer's record in the registry is damaged, so nobody knows what it still needs (rule 20)."""
