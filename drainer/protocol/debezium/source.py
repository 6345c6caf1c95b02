"""The source block of Debezium's messages: the text in front of and after its two numbers."""

from __future__ import annotations

from drainer.protocol.json_rows import Slot
from drainer.protocol.json_text import json_string

# TiCDC states the version of Debezium whose messages it imitates.
_VERSION = "2.4.0.Final"


def source_parts(namespace: str, schema: str, table: str, time: Slot | str, commit_ts: Slot | str) -> list[str | Slot]:
    """Return the parts of the source block. `time`: milliseconds since 1970."""
    name = json_string(namespace)
    return [
        f'{{"version":"{_VERSION}","connector":"TiCDC","name":{name},"ts_ms":',
        time,
        f',"snapshot":"false","db":{json_string(schema)},"table":{json_string(table)},"server_id":0,"gtid":null,'
        f'"file":"","pos":0,"row":0,"thread":0,"query":null,"commit_ts":',
        commit_ts,
        f',"cluster_id":{name}}}',
    ]


def source_text(namespace: str, schema: str, table: str, commit_ts: int) -> str:
    parts = source_parts(namespace, schema, table, str(commit_ts >> 18), str(commit_ts))
    return "".join(part for part in parts if isinstance(part, str))
