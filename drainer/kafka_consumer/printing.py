"""Events as lines of JSON, for people and for `jq`. Pure.

{"topic": "shop", "partition": 0, "offset": 7, "event": "update", "commit_ts": 4479…, "table": "shop.staff",
 "old": {"id": 7, "level": 3}, "new": {"id": 7, "level": 200}}
{"topic": "shop", "partition": 0, "offset": 8, "event": "ddl", "commit_ts": 4479…, "table": "shop.staff",
     "query": "ALTER …"}
{"topic": "shop", "partition": 0, "offset": 9, "event": "resolved", "commit_ts": 4479…}
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from drainer.kafka_reading.records import Record
from drainer.protocol.event import AdminEvent, BootstrapEvent, DdlEvent, Event, Image, ResolvedEvent, RowEvent


def line_of(record: Record, event: Event) -> str:
    """Return the line of an event, without a line feed. Binary strings are base64; fields that a protocol does not have
    are left out."""
    found: dict[str, Any] = {"topic": record.place.topic, "partition": record.place.partition, "offset": record.offset}
    found |= _shown(event)
    return json.dumps(found, ensure_ascii=False, default=_base64)


def _shown(event: Event) -> dict[str, Any]:
    if isinstance(event, RowEvent):
        found: dict[str, Any] = {"event": str(event.change)}
        if event.commit_ts:
            found["commit_ts"] = event.commit_ts
        found["table"] = f"{event.schema}.{event.table}"
        if event.handle_only:
            found["handle_only"], found["claim"] = True, event.claim
        images = {"old": event.old, "new": event.new}
        return found | {name: _values(image) for name, image in images.items() if image is not None}
    if isinstance(event, DdlEvent):
        table = f"{event.schema}.{event.table}" if event.table else event.schema
        return {"event": "ddl", "commit_ts": event.commit_ts, "table": table, "query": event.query}
    if isinstance(event, ResolvedEvent):
        return {"event": "resolved", "commit_ts": event.commit_ts}
    if isinstance(event, AdminEvent):
        return {"event": "partitions", "commit_ts": event.commit_ts, "partitions": event.partitions}
    assert isinstance(event, BootstrapEvent)
    return {"event": "bootstrap", "commit_ts": event.commit_ts, "table": f"{event.schema}.{event.table}"}


def _values(image: Image) -> dict[str, Any]:
    return {name: column.value for name, column in image.items()}


def _base64(value: Any) -> str:
    assert isinstance(value, bytes)
    return b64encode(value).decode()
