"""Errors of the SDK, and type checks of arguments. Texts name the table and column, or the argument, and the value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import FunctionType
from typing import TypeVar

from binlog.errors import BinlogError
from binlog.tidb.types import FieldType


def shown(value: object) -> str:
    """Return a value as text short enough for a message."""
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}: call it, {value.__name__}()"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class SdkError(BinlogError):
    """Base class of the SDK's errors."""


class BadDeclaration(SdkError):
    """The declaration of a table, column or index, or another argument, is invalid."""


class ValueRejected(SdkError):
    """The column cannot store the value exactly. The SDK never rounds or truncates a value."""

    def __init__(self, table: str, column: str, value: object, why: str) -> None:
        super().__init__(f"{table}.{column} = {shown(value)}: {why}")
        self.table = table
        self.column = column
        self.why = why


class RowRejected(SdkError):
    """The row has an unknown or a generated column or lacks a column, or the table is only declared, not created."""


class SchemaNotFound(SdkError):
    """The published jobs contain no such database, table, column or index."""


class SchemaExists(SdkError):
    """The database, table, column or index exists already."""


class SchemaDiffers(SchemaExists):
    """With `if_not_exists`: the existing database or table is not as declared. The text names the difference."""


class SchemaConflict(SdkError):
    """The transaction uses handles of schema versions that were never valid at the same time."""


class TransactionEnded(SdkError):
    """The transaction has been committed or rolled back, or its commit failed."""


class Busy(SdkError):
    """Too many transactions are being sent, and either the queue is full or this one has waited in it for too long.

    Nothing was sent. Report to the caller that it should retry later; an immediate retry adds to the load.
    """


class DdlLockLost(SdkError):
    """The DDL lock or the writer's lease expired before the statement was published. The statement is rolled back."""


class DdlUndecided(SdkError):
    """It is unknown whether the statement was published. The writer's lease is revoked after its other transactions
    have ended. The pumps then commit the statement if its job is published, and roll it back if not.
    """


T = TypeVar("T")
_KIND_NAMES: dict[type, str] = {FieldType: "type such as BigInt() or VarChar(40)", object: "columns"}


def of_kind(where: str, value: object, kind: type[T]) -> T:
    """Return `value`, or raise BadDeclaration if it is not a `kind`."""
    if not isinstance(value, kind):
        raise BadDeclaration(f"{where} must be a {_KIND_NAMES.get(kind, kind.__name__)}, not {shown(value)}")
    return value


def list_of(where: str, value: object, kind: type[T]) -> tuple[T, ...]:
    """Return the elements of an iterable of `kind`. A str is refused, although it is a sequence of str."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection | Iterator):
        raise BadDeclaration(f"{where} must be a list of {_KIND_NAMES.get(kind, kind.__name__)}, not {shown(value)}")
    return tuple(of_kind(f"{where}[{n}]", item, kind) for n, item in enumerate(value))


def mapping_of(where: str, value: object, kind: type[T]) -> tuple[tuple[str, T], ...]:
    """Return a mapping of names to `kind` as pairs."""
    if not isinstance(value, Mapping):
        raise BadDeclaration(f"{where} must be a dict of names to {kind.__name__}, not {shown(value)}")
    return tuple(
        (of_kind(f"a key of {where}", name, str), of_kind(f"{where}[{name!r}]", item, kind))
        for name, item in value.items()
    )
