"""What the protocols that send one row a message have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import cast

from drainer.changes.vector import Words
from drainer.order.collector import collector_paused
from drainer.protocol.encoder import EncodedRow, Message
from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table


class OneRowMessages:
    """What encoders of such protocols inherit: a message for each row, and none of what most of them do not have."""

    def frame(self, rows: Iterable[EncodedRow]) -> Iterator[Message]:
        return frame_rows(rows)

    def bootstrap(self, table: Table, commit_ts: int) -> list[Message]:
        return []

    def partitions_changed(self, partitions: int, commit_ts: int) -> list[Message]:
        return []


def frame_rows(rows: Iterable[EncodedRow]) -> Iterator[Message]:
    """A message for each row."""
    made = partial(tuple.__new__, Message)  # Message(...) of each, without a Python call for each
    return cast("Iterator[Message]", map(made, ((key, value, 1, commit_ts) for key, value, commit_ts in rows)))


def encoded_rows(keys: Sequence[bytes] | None, values: Sequence[bytes | None], commits: Words) -> list[EncodedRow]:
    """All of one length; `keys` None: rows have no key."""
    made = partial(tuple.__new__, EncodedRow)  # EncodedRow(...) of each, without a Python call for each
    with collector_paused():
        return cast("list[EncodedRow]", [*map(made, zip(keys or repeat(None), values, commits.tolist()))])  # noqa: B905


def refuse(options: ProtocolOptions, given: Iterable[str], why: str) -> None:
    """Raises ProtocolConfigError where an option of these, by TiCDC's name, is set."""
    for name in given:
        if getattr(options, name.replace("-", "_")) not in (False, "none", ""):
            raise ProtocolConfigError(f"protocol {options.protocol!r} has no {name}: {why}")


def physical_ms(commit_ts: int) -> int:
    """The milliseconds since 1970 of a timestamp."""
    return commit_ts >> 18
