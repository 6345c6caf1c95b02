"""Rows encoded as vectors of Open Protocol say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drainer.protocol.encoder import Message
from drainer.protocol.open.encoder import OpenEncoder
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges
from tests.support.encoded import EncodedRow, encoded_rows, framed_rows, handle_only_rows

_ALIASES: Final = {"open_output_old_value": "output_old_value"}


def options_of(given: Mapping[str, Any] | None, **more: Any) -> ProtocolOptions:
    named = {_ALIASES.get(name, name): value for name, value in (given or {}).items()}
    return ProtocolOptions("open-protocol", **{**named, **more})


def encoded(changes: RowChanges, options: ProtocolOptions, *, handle_only: bool = False) -> tuple[EncodedRow, Message]:
    encoder = OpenEncoder(options)
    table = encoder.table(changes.table)
    (row,) = handle_only_rows(table, changes) if handle_only else encoded_rows(table, changes)
    (message,) = framed_rows(encoder, [row])
    return row, message
