"""Errors of encoding and decoding messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from binlog.errors import BinlogError, ConfigError, DecodeError

T = TypeVar("T")


class MessageError(BinlogError):
    """The bytes are not a valid message of the protocol. The text says what is wrong and where."""


class EncodeError(BinlogError):
    """The protocol cannot express a row. The text names table, column and commit_ts."""


class MessageTooLarge(EncodeError):
    """The message of a row is above the limit of its topic. The text names the row, its length and the limit."""


def converted(where: str, commit_ts: Any, convert: Callable[[Any], T], column: Any) -> T:
    """Return `convert(column)`. Raises EncodeError that names the first row with a value that `convert` refuses.
    `where`: begins its text; `commit_ts`: of each row; `column`: an Arrow array."""
    try:
        return convert(column)
    except DecodeError as error:
        for row, ts in enumerate(commit_ts.tolist()):
            try:
                convert(column.slice(row, 1))
            except DecodeError as found:
                raise EncodeError(f"{where} at commit_ts {ts}: {found}") from error
        raise EncodeError(f"{where}: {error}") from error


class ProtocolConfigError(ConfigError):
    """A protocol does not have an option that is set, or options contradict one another."""


class SchemaIdMissing(EncodeError):
    """A schema of a table is not registered yet, or its id has not reached this encoder. The driver must register the
    schemas that the encoder's `required_schemas` returns, and have the rows encoded again."""
