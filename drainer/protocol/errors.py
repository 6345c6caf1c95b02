"""What encoding and decoding of messages may raise."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.errors import BinlogError, ConfigError


class MessageError(BinlogError):
    """A message that is no message of its protocol; the text says what is wrong and where."""


class EncodeError(BinlogError):
    """A row that its protocol cannot express; the text names table, column and commit_ts."""


class MessageTooLarge(EncodeError):
    """A row whose message is above the limit. `length`: what it would have, in bytes; `limit`: what it may have."""

    def __init__(self, *, schema: str, table: str, key: str, commit_ts: int, length: int, limit: int) -> None:
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

    def __reduce__(self) -> tuple[object, ...]:
        # Spark's workers pickle errors; keyword-only arguments need this.
        return _too_large, self.args


def _too_large(schema: str, table: str, key: str, commit_ts: int, length: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(schema=schema, table=table, key=key, commit_ts=commit_ts, length=length, limit=limit)


class ProtocolConfigError(ConfigError):
    """Options that a protocol does not have, or that contradict one another."""


class SchemaIdMissing(EncodeError):
    """Schemas of a table are not registered yet, or their ids did not reach this encoder. Who talks to the registry
    registers what `required_schemas` of the encoder says, and has the rows encoded again."""

    def __init__(self, schema: str, table: str, subjects: Sequence[str]) -> None:
        super().__init__(schema, table, tuple(subjects))
        self.schema = schema
        self.table = table
        self.subjects = tuple(subjects)

    def __str__(self) -> str:
        return f"`{self.schema}`.`{self.table}`: no schema id is known for {' and '.join(self.subjects)}"
