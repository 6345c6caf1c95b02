"""The control table of a changefeed in a lake: its position, and at which TSO each version of a mirror is upstream's.

The position is one text in the table's log (Delta's domain metadata). Every transaction replaces it, unless another
writer has replaced it meanwhile. The table's rows are the versions of mirrors: a mirror has upstream's state at
`until_ts` from `version` on, until the next row of the mirror. A `version` of -1: the table was dropped. A row without
a path: earlier states are not kept.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass
from typing import Final

import pyarrow as pa
from binlog.runtime.crashpoint import crash_point

from drainer.lake import files
from drainer.lake.delta import Delta, errors, schema_action
from drainer.lake.fields import named_fields, quoted
from drainer.lake.files import Place
from drainer.lake.history import arrow_type, write_file
from drainer.sink.base import Identity
from drainer.sink.document_position import Document, DocumentPositionStore, document_of, document_value, label_of
from drainer.sink.errors import DestinationRefused
from drainer.sink.file.parquet import path_of

DOMAIN: Final = "tidb-binlog.position"
_COLUMNS: Final = (
    ("until_ts", "long"),
    ("path", "string"),
    ("schema", "string"),
    ("table", "string"),
    ("version", "long"),
)
_SCHEMA: Final = pa.schema([(name, arrow_type(kind)) for name, kind in _COLUMNS])


@dataclass(frozen=True, slots=True)
class MirrorVersion:
    """A row of the control table. `path`: of the mirror, under the lake's directory."""

    until_ts: int
    path: str
    schema: str
    table: str
    version: int


def forget(delta: Delta, path: Place, before_ts: int) -> None:
    """Remove from a control table the versions of mirrors that at.newest chooses for no TSO from `before_ts` on."""
    table, order = f"delta.{quoted(str(path))}", "struct(t.until_ts, t.version < 0 AS gone, t.version)"
    last = f"SELECT path, max({order}) AS last FROM {table} t WHERE until_ts <= {before_ts} GROUP BY path"
    with errors(path):
        delta.spark.sql(
            f"MERGE INTO {table} t USING ({last}) s ON t.path = s.path AND {order} < s.last WHEN MATCHED THEN DELETE"
        )
    delta.sync(path)


def control_path(directory: Place, changefeed: str) -> Place:
    return directory / "_control" / path_of(changefeed)


class Control:
    """The control table of one changefeed, made if it is not there."""

    def __init__(self, delta: Delta, directory: Place, identity: Identity) -> None:
        self.path = control_path(directory, identity.changefeed)
        self._delta, self._directory = delta, directory
        self._identity = identity
        self._label = label_of(identity, self.path)
        if delta.state(self.path) is None:
            files.make(self.path)
            kept = {"delta.logRetentionDuration": "interval 7 days"}
            made = schema_action(f"{identity.cluster_id}-control", named_fields(_COLUMNS), len(_COLUMNS), kept)
            delta.commit(self.path, [made])

    @contextlib.contextmanager
    def transaction(self, versions: Sequence[MirrorVersion] = ()) -> Iterator[DocumentPositionStore]:
        """Commit what is changed when it ends, together with `versions`; nothing if it raises. Raises
        DestinationRefused if the position cannot be read, and Fenced if another writer has committed meanwhile."""
        version, text = self._delta.domain(self.path, DOMAIN)
        document = self._read(text)
        store = DocumentPositionStore(deepcopy(document), self._label)
        yield store
        if store.document == document and not versions:
            return
        body = json.dumps(document_value(store.document, self._identity), sort_keys=True)
        for path in {one.path for one in versions if one.version >= 0}:
            self._delta.sync(self._directory / path)
        actions = [{"domainMetadata": {"domain": DOMAIN, "configuration": body, "removed": False}}]
        if versions:
            rows = pa.Table.from_arrays(
                [pa.array(one) for one in zip(*map(astuple, versions), strict=True)], schema=_SCHEMA
            )
            actions.append(write_file(self.path, "versions", [rows]).action())
        crash_point("sink.before_commit")
        self._delta.commit(self.path, actions, version=version)
        crash_point("sink.after_commit")

    def _read(self, text: str | None) -> Document:
        if text is None:
            return Document()
        try:
            body = json.loads(text)
            owner = (body["cluster_id"], body["changefeed"])
            found = document_of(body, self._label)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DestinationRefused(
                f"{self._label} was not written by this version of the drainer ({error!r}): start the one that wrote it"
            ) from error
        if owner != (self._identity.cluster_id, self._identity.changefeed):
            raise DestinationRefused(f"{self.path} is the position of changefeed {owner[1]!r} of cluster {owner[0]}")
        return found
