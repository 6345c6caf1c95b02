"""What the protocols that send one row a message have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import cast

from drainer.changes.vector import Words
from drainer.protocol.encoder import EncodedRow, Message, TableEncoder
from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table

# Compiled tables are kept by an encoder up to this number, then all are made again.
TABLES_MAX = 4096


def frame_rows(rows: Iterable[EncodedRow]) -> Iterator[Message]:
    """A message for each row."""
    made = partial(tuple.__new__, Message)  # Message(...) of each, without a Python call for each
    return cast("Iterator[Message]", map(made, ((key, value, 1, commit_ts) for key, value, commit_ts in rows)))


def encoded_rows(keys: Sequence[bytes] | None, values: Sequence[bytes | None], commits: Words) -> list[EncodedRow]:
    """All of one length; `keys` None: rows have no key."""
    made = partial(tuple.__new__, EncodedRow)  # EncodedRow(...) of each, without a Python call for each
    return cast("list[EncodedRow]", [*map(made, zip(keys or repeat(None), values, commits.tolist()))])  # noqa: B905


def refuse(options: ProtocolOptions, given: Iterable[str], why: str) -> None:
    """Raises ProtocolConfigError where an option of these, by TiCDC's name, is set."""
    for name in given:
        if getattr(options, name.replace("-", "_")) not in (False, "none", ""):
            raise ProtocolConfigError(f"protocol {options.protocol!r} has no {name}: {why}")


class Tables(dict[tuple[int, int, int, str], TableEncoder]):
    """What an encoder has compiled, by `Table.key`; left behind when the encoder is pickled."""

    def keep(self, table: Table, made: TableEncoder) -> TableEncoder:
        if len(self) >= TABLES_MAX:
            self.clear()
        self[table.key] = made
        return made

    def __reduce__(self) -> tuple[type[Tables], tuple[()]]:
        return Tables, ()


def physical_ms(commit_ts: int) -> int:
    """The milliseconds since 1970 of a timestamp."""
    return commit_ts >> 18
