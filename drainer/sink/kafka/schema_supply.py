"""The driver's part in messages with ids of schemas: what tables need is registered before their rows are encoded.

Executors cannot ask a registry: they get the ids with the publication. So all tables of a schema view are registered as
soon as the driver plans with it, under each TableInfo that late rows may have been written under.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from drainer.protocol.encoder import RegisteringEncoder
from drainer.protocol.table import Table, table_of
from drainer.row.decode import Decoder
from drainer.schema.view import SchemaView, TableVersions
from drainer.sink.kafka.publication import Publication
from drainer.sink.kafka.schema_registry import SchemaRegistry


class SchemaSupply:
    """Used by two threads: one that plans, and one that writes."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._tables: set[tuple[str, tuple[int, int, int, str]]] = set()
        self._viewed: dict[int, TableVersions] = {}
        self._made: tuple[Publication, Publication] | None = None

    def check(self) -> None:
        """Raises DestinationRefused or DestinationDown."""
        self._registry.check()

    def register_view(self, publication: Publication, view: SchemaView) -> None:
        """Every table of it. Raises SchemaRefused, DestinationRefused, DestinationDown or EncodeError."""
        decoder, router = Decoder(view, stored_generated=True), publication.router
        for table_id, versions in view.tables.items():
            if self._viewed.get(table_id) is versions:
                continue
            tables = []
            for version in versions.versions:
                codec = decoder.codec(table_id, version, 0)
                if codec is not None:
                    forms = [(target.id, target.form) for target in codec.layout.targets]
                    at = codec.at
                    tables.append(table_of(at.schema, at.current, forms, at.current_version, at.at_version))
            self.register(publication, ((router.topic(table.schema, table.name), table) for table in tables))
            self._viewed[table_id] = versions

    def register(self, publication: Publication, tables: Iterable[tuple[str, Table]]) -> None:
        """Tables with their topics. Raises as `register_view`."""
        encoder = publication.encoder
        assert isinstance(encoder, RegisteringEncoder)
        for topic, table in tables:
            key = topic, table.key
            with self._lock:
                if key not in self._tables:
                    self._registry.register_all(encoder.required_schemas(topic, table))
                    self._tables.add(key)

    def with_ids(self, publication: Publication) -> Publication:
        """The publication with all ids there are; the same while nothing is new."""
        with self._lock:
            made = self._made
            if made is None or made[0] is not publication or made[1].ids is not self._registry.ids:
                made = self._made = publication, publication.with_ids(self._registry.ids)
            return made[1]
