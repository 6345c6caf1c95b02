"""The errors of a pump, in addition to those that all programs share (binlog.errors)."""

from __future__ import annotations

from binlog.errors import BinlogError


class DamagedRecord(BinlogError):
    """A record of the value log cannot be read; the message names the file and the offset (`P-ST-05`)."""

    def __init__(self, place: str, offset: int, detail: str, *, prewrite_lost: bool = False) -> None:
        """`prewrite_lost`: the commit is stored, but its prewrite was in the damaged bytes."""
        super().__init__(f"damaged record in {place} at byte {offset}: {detail}")
        self.place = place
        self.offset = offset
        self.detail = detail
        self.prewrite_lost = prewrite_lost

    def of_binlog(self, commit_ts: int) -> DamagedRecord:
        """Return the same error with the binlog that therefore cannot be served."""
        detail = f"{self.detail}; the binlog of commit_ts {commit_ts} needs it"
        return DamagedRecord(self.place, self.offset, detail, prewrite_lost=self.prewrite_lost)


class InvalidBinlog(BinlogError):
    """The payload is a Binlog that a pump cannot store; the message names its ts and the reason."""


class TooFarAhead(InvalidBinlog):
    """A ts is so far ahead of the timestamp source that the source cannot have allocated it."""


class AbsurdBound(BinlogError):
    """The recorded bound of allocated timestamps, or a ts of the log, is so far ahead of the clock that it must be
    wrong."""


class TooLarge(BinlogError):
    """A binlog is above `transaction-bytes-max`; repeating it is useless."""

    def __init__(self, start_ts: int, size: int, limit: int) -> None:
        super().__init__(
            f"binlog of start_ts {start_ts} has {size} bytes, and this pump takes at most {limit} "
            f"(transaction-bytes-max): write it in smaller transactions, or raise that setting on every pump"
        )


class MessageTooLarge(BinlogError):
    """A message is above the limit and is not read."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a message of {size} bytes is above the limit of {limit} (max-message-size, or a limit derived from "
            f"transaction-bytes-max): send smaller messages, or raise that setting on every pump"
        )


class TooManyItems(BinlogError):
    """A message lists more items than a pump processes together."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"a message holds more than {limit} {what}: send them in several messages")


class Overloaded(BinlogError):
    """Too many bytes are in flight over all calls. The request may be accepted a little later, or by another pump."""

    def __init__(self, size: int, held: int, limit: int) -> None:
        super().__init__(
            f"too many bytes in flight: {held} are in use, and a request of {size} bytes does not fit into "
            f"in-flight-bytes-max {limit}; repeat the request"
        )


class Conflict(BinlogError):
    """A binlog contradicts a stored one: another commit_ts, another prewrite, or a rollback before it."""


class RolledBack(Conflict):
    """A commit, or a late copy of a prewrite, of a transaction that was rolled back here."""


class NotResolved(BinlogError):
    """A pull is above every resolved ts that this pump has returned."""

    def __init__(self, until_ts: int, resolved_ts: int) -> None:
        super().__init__(f"a pull up to {until_ts} is above the resolved ts {resolved_ts}")


class NoSuchBinlog(BinlogError):
    """An operator wants to settle a start_ts that is not pending here, or to skip a binlog that is not served here."""


class NotDamaged(BinlogError):
    """An operator wants to skip a binlog that can be read."""


class NotLeader(BinlogError):
    """This pump does not allocate timestamps now; the message names the pump that does."""


class NotifyFailed(BinlogError):
    """An online drainer could not be notified of this pump (`P-LC-05`)."""


class Stopping(BinlogError):
    """The pump is not serving: it is starting or stopping."""
