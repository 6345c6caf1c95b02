"""What the protocols with one row for each message share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from drainer.changes.vector import Ints
from drainer.protocol.encoded_columns import EncodedColumns
from drainer.protocol.encoder import EncodedRow, Message
from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.row_messages import RowMessages, frame_rows
from drainer.protocol.table import Table


class OneRowMessages:
    """The base class of such encoders. Makes a message for each row, and no message for events that most of the
    protocols do not have."""

    @property
    def joins_transactions(self) -> bool:
        return False

    def frame(self, rows: Iterable[EncodedRow]) -> Iterator[Message]:
        return frame_rows(rows)

    def frame_columns(self, parts: Sequence[EncodedColumns], chosen: Ints) -> RowMessages:
        return RowMessages(parts, chosen)

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        return []

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        return []


def refuse(options: ProtocolOptions, given: Iterable[str], why: str) -> None:
    """Raise ProtocolConfigError if one of the options `given`, named as in TiCDC, is set. `why`: the reason in the
    error's text."""
    for name in given:
        if getattr(options, name.replace("-", "_")) not in (False, "none", ""):
            raise ProtocolConfigError(f"protocol {options.protocol!r} has no {name}: {why}")


def physical_ms(commit_ts: int) -> int:
    """Return the physical part of a TSO: milliseconds since 1970."""
    return commit_ts >> 18
