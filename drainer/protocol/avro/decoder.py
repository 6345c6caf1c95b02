"""Decodes TiCDC's Avro: rows, deletes, and the two events that only `avro_enable_watermark` writes."""

from __future__ import annotations

import json
from typing import Any, Final

from binlog.runtime.log import get_logger

from drainer.protocol.avro.encoder import DDL_LEAD, RESOLVED_LEAD
from drainer.protocol.avro.envelope import read_header
from drainer.protocol.avro.record import Record
from drainer.protocol.avro.schema import BEFORE, COMMIT_TS, CORRUPTED, OP
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.schema_ids import KnownSchemas, SchemaId, Schemas

_log = get_logger(__name__)
_CHANGES: Final = {"c": Change.INSERT, "u": Change.UPDATE, "d": Change.DELETE, "": Change.UPSERT}
_RESOLVED_BYTES: Final = 9
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class AvroDecoder:
    """Decodes Avro. Names of tables, databases and columns are those of the schemas, in which `_` replaces characters
    that Avro's names do not have. Each schema is requested only once. The checksum of a row is verified if the row has
    one."""

    def __init__(self, options: ProtocolOptions, schemas: Schemas) -> None:
        self._schemas = schemas
        self._zone = options.zone
        self._records: dict[SchemaId, Record] = {}

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """Decode one message, which has exactly one event. Raises MessageError. Errors that `schemas` raises because it
        cannot be reached are passed on."""
        if not key:
            if not value:
                raise MessageError("Avro: a message with neither key nor value")
            if value[:1] == DDL_LEAD:
                return [_ddl(value[1:])]
            if value[:1] == RESOLVED_LEAD:
                return [_resolved(value)]
            return [self._row(None, value)]
        return [self._row(key, value)] if value else [self._delete(key)]

    def _delete(self, key: bytes) -> RowEvent:
        record, found = self._read(key)
        image = record.image(found)
        return RowEvent(Change.DELETE, 0, record.schema, record.table, old=image, key=image)

    def _row(self, key: bytes | None, value: bytes) -> RowEvent:
        record, found = self._read(value)
        of_key = None
        if key is not None:
            key_record, key_found = self._read(key)
            of_key = key_record.image(key_found)
        operation, commit_ts, before = found.get(OP, ""), found.get(COMMIT_TS, 0), found.get(BEFORE)
        if not isinstance(operation, str) or operation not in _CHANGES:
            raise MessageError(f"Avro: {OP} is {operation!r}, not c, u or d")
        if not isinstance(commit_ts, int) or not (before is None or isinstance(before, dict)):
            raise MessageError(f"Avro: {COMMIT_TS} is {commit_ts!r:.80}, and {BEFORE} is {before!r:.80}")
        change, image = _CHANGES[operation], record.image(found)
        record.verify(found, image, self._zone)
        if found.get(CORRUPTED):
            _log.warning(
                "row whose checksum was wrong upstream", schema=record.schema, table=record.table, key=str(of_key)
            )
        old = None if before is None else record.image(before)
        deleted = change is Change.DELETE
        return RowEvent(
            change,
            commit_ts & _MASK,
            record.schema,
            record.table,
            old=old if old is not None or not deleted else image,
            new=None if deleted else image,
            key=of_key,
        )

    def _read(self, data: bytes) -> tuple[Record, dict[str, Any]]:
        envelope = read_header(data)
        record = self._records.get(envelope.schema_id)
        if record is None:
            try:
                text = self._schemas.schema(envelope.schema_id)
            except LookupError:
                raise MessageError(f"Avro: no schema has the id {envelope.schema_id}") from None
            record = self._records[envelope.schema_id] = Record(text)
        return record, record.read(data, envelope.begin)


def _ddl(data: bytes) -> DdlEvent:
    try:
        document = json.loads(data)
        return DdlEvent(
            _number(document, "commitTs"),
            _text(document, "schema"),
            _text(document, "table"),
            _text(document, "query"),
            _number(document, "type"),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError(f"Avro: not a valid DDL event: {error!r}") from None


def _number(document: dict[str, Any], name: str) -> int:
    found = document[name]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _MASK:
        raise TypeError(f"{name} is {found!r}")
    return found


def _text(document: dict[str, Any], name: str) -> str:
    found = document[name]
    if not isinstance(found, str):
        raise TypeError(f"{name} is {found!r}")
    return found


def _resolved(value: bytes) -> ResolvedEvent:
    if len(value) != _RESOLVED_BYTES:
        raise MessageError(f"Avro: a resolved event has {_RESOLVED_BYTES} bytes, and this one {len(value)}")
    return ResolvedEvent(int.from_bytes(value[1:], "big"))


def make_decoder(options: ProtocolOptions, schemas: Schemas | None = None) -> AvroDecoder:
    """Return a decoder. `schemas`: a client of the registry, or known schemas. Without schemas only the events of
    `avro_enable_watermark` can be read."""
    return AvroDecoder(options, schemas or KnownSchemas({}))
