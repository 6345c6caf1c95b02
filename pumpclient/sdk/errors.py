"""What the SDK refuses, always naming the table, the column and the value."""

from __future__ import annotations

from binlog.errors import BinlogError


class SdkError(BinlogError):
    """Root of the SDK's errors."""


class BadDeclaration(SdkError):
    """A table, column or index that cannot be."""


class ValueRejected(SdkError):
    """A value that its column does not hold. Nothing is converted in silence: no rounding, no truncation."""

    def __init__(self, table: str, column: str, value: object, why: str) -> None:
        text = repr(value)
        if len(text) > 80:
            text = f"{text[:77]}..."
        super().__init__(f"{table}.{column} = {text}: {why}")
        self.table = table
        self.column = column
        self.why = why


class RowRejected(SdkError):
    """A row with an unknown or a missing column."""


class SchemaNotFound(SdkError):
    """No such database or table among the published jobs."""


class SchemaExists(SdkError):
    """The database, table, column or index is there already."""


class SchemaDiffers(SchemaExists):
    """What is there already is not what is declared (`if_not_exists`); the text names the difference."""


class SchemaConflict(SdkError):
    """One transaction uses tables as of schema versions that never stood together."""


class TransactionEnded(SdkError):
    """The transaction has been committed or rolled back."""


class Busy(SdkError):
    """As many transactions as may be are under way, and as many wait as may, or this one has waited for long enough.

    Nothing was sent. Tell the caller to come again later; an attempt at once makes it worse."""


class DdlLockLost(SdkError):
    """The DDL lock ran out while a statement was under way, before anything of it was published."""


class DdlUndecided(SdkError):
    """It is not known whether the job was published. The writer's lease ends with its other transactions; then the
    pumps commit the statement if its job is there, and roll it back if not."""
