"""Confluent's schema registry: schemas are registered by the driver, and found by their ids."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from binlog.runtime.log import get_logger

from drainer.protocol.encoder import RequiredSchema, SchemaIds, fingerprint, merged
from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.settings.registry_http import (
    NO_REGISTRY_SETTINGS,
    RegistryAnswer,
    RegistryHttp,
    RegistrySection,
)

_log = get_logger(__name__)
WAIT_S: Final = 300.0
_REFUSALS: Final = (409, 422)
_NOT_FOUND: Final = 404
_SCHEMA_SHOWN: Final = 4_000  # characters of a schema in an error


class SchemaRefused(DestinationRefused):
    """The registry does not take a schema. Its own words say, as a rule, which rule of compatibility the schema
    breaks."""


class SchemaRegistry:
    """Blocking; not for several threads. Every schema is registered once, and every id is looked up once."""

    def __init__(
        self,
        url: str,
        settings: RegistrySection = NO_REGISTRY_SETTINGS,
        *,
        wait_s: float = WAIT_S,
        stop: threading.Event | None = None,
    ) -> None:
        """`wait_s`: how long a registry that is down is waited for, by each request. Raises ConfigError for a URL or
        TLS files that cannot be used."""
        self._http = RegistryHttp(url, settings, wait_s=wait_s, stop=stop)
        self._schemas: dict[int, str] = {}
        self.ids: SchemaIds = {}  # of all schemas that were registered so far

    def check(self) -> None:
        """Check that the registry answers, accepts the credentials and supports Avro. Raises DestinationRefused or
        DestinationDown."""
        try:
            kinds = self._http.get("/schemas/types")
        except RegistryAnswer as error:
            if error.status != _NOT_FOUND:
                raise
            raise DestinationRefused(
                f"{error}: schema-registry must be the URL at which Confluent's API begins, such as http://host:8081, "
                "with the path if it has one"
            ) from None
        if not isinstance(kinds, list) or "AVRO" not in kinds:
            raise DestinationRefused(f"{self._http.url} is no schema registry for Avro: its types are {kinds!r:.200}")

    def register(self, subject: str, schema: str) -> int:
        """The schema's id; the same again where the subject has it already.

        Raises SchemaRefused, DestinationRefused or DestinationDown."""
        known = self.ids.get(subject, {}).get(fingerprint(schema))
        if known is not None:
            return known
        try:
            answer = self._http.post(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        except RegistryAnswer as error:
            if error.status not in _REFUSALS:
                raise
            shown = schema[:_SCHEMA_SHOWN] + ("…" if len(schema) > _SCHEMA_SHOWN else "")
            raise SchemaRefused(
                f"the schema registry refuses a schema of the subject {subject} (HTTP {error.status}): {error.words}; "
                "change the subject's compatibility or the table's column; or, where several tables share this topic, "
                f'give each its own by topic = "{{schema}}_{{table}}" in [[syncer.to.dispatchers]]; the schema is '
                f"{shown}"
            ) from error
        found = _member(answer, "id")
        if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
            raise DestinationRefused(f"schema registry {self._http.url}: {found!r} as the id of a schema of {subject}")
        self.ids = merged(self.ids, [(RequiredSchema(subject, schema), found)])
        _log.info("schema registered", subject=subject, id=found)
        return found

    def register_all(self, required: Iterable[RequiredSchema]) -> SchemaIds:
        """`ids`, with these among them. Raises as `register`."""
        for one in required:
            self.register(one.subject, one.schema)
        return self.ids

    def schema(self, schema_id: int) -> str:
        """Return the schema of an id. Raises LookupError if the id does not exist, DestinationRefused if the schema is
        not an Avro schema, DestinationDown."""
        found = self._schemas.get(schema_id)
        if found is not None:
            return found
        try:
            answer = self._http.get(f"/schemas/ids/{schema_id}")
        except RegistryAnswer as error:
            if error.status == _NOT_FOUND:
                raise LookupError(f"no schema has the id {schema_id}: {error.words}") from None
            raise
        kind, text = _member(answer, "schemaType") or "AVRO", _member(answer, "schema")
        if kind != "AVRO" or not isinstance(text, str):
            raise DestinationRefused(f"schema registry {self._http.url}: the schema {schema_id} is one of {kind!r}")
        self._schemas[schema_id] = text
        return text


def _member(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None
