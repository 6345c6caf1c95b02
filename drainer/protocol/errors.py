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
    """The message of a row is above the limit. `length`: its length in bytes; `limit`: the limit in bytes."""

    def __init__(self, schema: str, table: str, key: str, commit_ts: int, length: int, limit: int) -> None:
        super().__init__(schema, table, key, commit_ts, length, limit)
        self.schema = schema
        self.table = table
        self.key = key
        self.commit_ts = commit_ts
        self.length = length
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the message of the row {self.key} of `{self.schema}`.`{self.table}` at commit_ts {self.commit_ts} has "
            f"{self.length:,} bytes, and {self.limit:,} are allowed: raise the topic's max.message.bytes and "
            f'max-message-bytes, or choose large-message-handle-option = "claim-check" or "handle-key-only"'
        )


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

    def __init__(self, schema: str, table: str, subjects: Sequence[str]) -> None:
        super().__init__(schema, table, tuple(subjects))
        self.schema = schema
        self.table = table
        self.subjects = tuple(subjects)

    def __str__(self) -> str:
        return f"`{self.schema}`.`{self.table}`: no schema id is known for {' and '.join(self.subjects)}"
