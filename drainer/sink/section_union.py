"""`[syncer.to]` as a union discriminated by db-type: one section for each kind of destination
(drainer.sink.registry)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from drainer.sink.registry import KINDS, section
from drainer.sink.settings import ToSection


def sections() -> Mapping[str, type[BaseModel]]:
    """Every section, each once, by the db-types that have it."""
    found: dict[type[BaseModel], list[str]] = {}
    for db_type in KINDS:
        found.setdefault(section(db_type), []).append(db_type)
    return {", ".join(names): one for one, names in found.items()}


def taken(db_type: str, value: Any) -> ToSection:
    """The section of this kind. Raises ValidationError, which says of a key of another kind whose it is."""
    model = section(db_type)
    if isinstance(value, Mapping):
        details = [_foreign(key, given, db_type) for key, given in value.items() if key not in _keys(model)]
        refused = [one for one in details if one is not None]
        if refused:
            raise ValidationError.from_exception_data("to", refused)
    return model.model_validate(value, by_alias=True, by_name=False)


def _keys(model: type[BaseModel]) -> set[str]:
    return {info.alias or name for name, info in model.model_fields.items()}


def _foreign(key: str, given: object, db_type: str) -> InitErrorDetails | None:
    """None for a key that no kind has: that is refused as unknown, like any other."""
    owners = [names for names, model in sections().items() if key in _keys(model)]
    if not owners:
        return None
    text = f"a destination of db-type {db_type} has no {key}; it is a setting of {' and '.join(owners)}: remove it"
    return InitErrorDetails(type=PydanticCustomError("value_error", "{text}", {"text": text}), loc=(key,), input=given)
