"""Errors of encoding and decoding messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from binlog.errors import BinlogError, ConfigError, DecodeError


class MessageError(BinlogError):
    """The bytes are not a valid message of the protocol. The text says what is wrong and where."""


class EncodeError(BinlogError):
    """The protocol cannot express a row. The text names table, column and commit_ts."""


class MessageTooLarge(EncodeError):
    """The message of a row is above the limit of its topic. The text names the row, its length and the limit."""


def refused(
    where: str, commit_ts: Any, images: Sequence[Any], convert: Callable[[Any], object], error: DecodeError
) -> EncodeError:
    """Return the error that names the first row with a value that `convert` refuses. `where`: begins its text;
    `commit_ts`: of each row; `images`: Arrow arrays of one column's values in the same rows; `error`: what `convert`
    raised for one of them."""
    for row, ts in enumerate(commit_ts.tolist()):
        for image in images:
            try:
                convert(image.slice(row, 1))
            except DecodeError as found:
                return EncodeError(f"{where} at commit_ts {ts}: {found}")
    return EncodeError(f"{where}: {error}")


class ProtocolConfigError(ConfigError):
    """A protocol does not have an option that is set, or options contradict one another."""


class SchemaIdMissing(EncodeError):
    """A schema of a table is not registered yet, or its id has not reached this encoder. The driver must register the
    schemas that the encoder's `required_schemas` returns, and have the rows encoded again."""
