"""Warns of tables of which a DELETE would stop the drainer, or is left out: Avro has no message for it without a handle
key."""

from __future__ import annotations

from binlog.runtime.log import get_logger

from drainer.dispatch.ddl_messages import described
from drainer.schema.steps import Located
from drainer.schema.view import SchemaView
from drainer.sink.kafka.publication import Publication

_log = get_logger(__name__)


class KeylessTables:
    """Names each table once, when the drainer starts or after a DDL."""

    def __init__(self, publication: Publication) -> None:
        self._selectors = publication.router.selectors
        self._concerns = publication.encoder.name == "avro" and not publication.options.avro_output_old_row
        self._leaves_out = publication.leaves_out_deletes
        self._named: set[str] = set()

    def warn(self, view: SchemaView) -> None:
        """Warn of the tables that no warning has named yet."""
        found = [name for name in self._without_key(view) if name not in self._named] if self._concerns else []
        self._named.update(found)
        if found:
            effect = "is left out" if self._leaves_out else "stops the drainer, unless avro-delete-without-key is set"
            _log.warning(
                f"these tables have no handle key, so Avro has no message for a DELETE, which {effect}: give them a "
                "primary key, or leave them out with [[syncer.ignore-table]]",
                tables=found,
            )

    def _without_key(self, view: SchemaView) -> list[str]:
        found = []
        for table_id, versions in view.tables.items():
            table = described(Located(table_id, versions.schema, versions.current), versions.versions[-1])
            if table is not None and versions.current.has_rows and not self._selectors.select(table).table.handle:
                found.append(f"{versions.schema}.{versions.name}")
        return sorted(found)
