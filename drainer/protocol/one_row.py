"""What the protocols that send one row a message have in common."""

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
    """What encoders of such protocols inherit: a message for each row, and none of what most of them do not have."""

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
    """Raises ProtocolConfigError where an option of these, by TiCDC's name, is set."""
    for name in given:
        if getattr(options, name.replace("-", "_")) not in (False, "none", ""):
            raise ProtocolConfigError(f"protocol {options.protocol!r} has no {name}: {why}")


def physical_ms(commit_ts: int) -> int:
    """The milliseconds since 1970 of a timestamp."""
    return commit_ts >> 18
