"""Ids of registered schemas: fetched by the driver, carried by encoders, asked for by decoders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol
from uuid import UUID

# Confluent's registry numbers schemas; AWS Glue's versions have UUIDs.
SchemaId = int | UUID
# Subject → fingerprint of the schema's text → its id.
SchemaIds = Mapping[str, Mapping[str, SchemaId]]


class RequiredSchema(NamedTuple):
    """What must be registered before messages with it are written."""

    subject: str
    schema: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.schema)


class Schemas(Protocol):
    """Where a decoder finds the schemas that messages were written under."""

    def schema(self, schema_id: SchemaId) -> str:
        """Its text. Raises LookupError where there is none of this id."""
        ...


class KnownSchemas:
    """Finds schemas in a mapping from id to text."""

    def __init__(self, schemas: Mapping[SchemaId, str]) -> None:
        self._schemas = schemas

    def schema(self, schema_id: SchemaId) -> str:
        return self._schemas[schema_id]


def fingerprint(schema: str) -> str:
    """Of the text as it is: two that differ in a default or a parameter are two."""
    return sha256(schema.encode()).hexdigest()


def merged(ids: SchemaIds, more: Iterable[tuple[RequiredSchema, SchemaId]]) -> SchemaIds:
    """A new mapping with both."""
    found = {subject: dict(of_subject) for subject, of_subject in ids.items()}
    for required, schema_id in more:
        found.setdefault(required.subject, {})[required.fingerprint] = schema_id
    return found
