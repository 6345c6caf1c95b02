"""Type checks of arguments; errors name the argument and its value. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from binlog.tidb.types import FieldType

from pumpclient.sdk.errors import BadDeclaration, shown

T = TypeVar("T")
_KIND_NAMES: dict[type, str] = {FieldType: "type such as BigInt() or VarChar(40)", object: "columns"}


def of_kind(where: str, value: object, kind: type[T]) -> T:
    """Return `value`, or raise BadDeclaration if it is not a `kind`."""
    if not isinstance(value, kind):
        raise BadDeclaration(f"{where} must be a {_KIND_NAMES.get(kind, kind.__name__)}, not {shown(value)}")
    return value


def list_of(where: str, value: object, kind: type[T]) -> tuple[T, ...]:
    """Return the elements of a list, tuple or other iterable of `kind`. A str is refused, although it is a sequence of
    str.
    """
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
