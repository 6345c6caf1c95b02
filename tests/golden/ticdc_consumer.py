"""Vectors of TiCDC's consumer: sequences of messages, and what it makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from drainer.kafka_consumer.core import ConsumerCore, Part
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, ResolvedEvent, RowEvent
from drainer.protocol.table import ColumnFlag
from tests.golden.vector_files import Vector, only

_RENAME: Final = re.compile(r"rename table test\.(\w+) to test\.(\w+)")


def _row(commit_ts: int) -> RowEvent:
    key = ColumnValue(commit_ts, flags=int(ColumnFlag.HANDLE_KEY))
    return RowEvent(Change.INSERT, commit_ts, "test", "t", new={"id": key})


def _ddl(given: Vector) -> DdlEvent:
    commit_ts, query, start_ts, number = only(given, "commit_ts query", "start_ts seq")
    return DdlEvent(commit_ts, "test", "t", query, start_ts=start_ts or 0, number=number or 0)


def fallback(given: Vector, expected: Vector) -> None:
    partition, resolved = only(given, "partition resolved")
    watermark, at, crash = only(expected, "watermark watermark_offset crash")
    assert crash is False
    places = [KafkaPartition("t", number) for number in range(partition + 1)]
    core = ConsumerCore(places)
    for one in resolved:
        commit_ts, offset = only(one, "ts offset")
        core.add(places[-1], offset, [ResolvedEvent(commit_ts)])
    assert core.watermark(places[-1]) == (watermark, at)


def ddls(given: Vector, expected: Vector) -> None:
    (those,) = only(given, "ddls")
    pending, order = only(expected, "pending", "order")
    core = ConsumerCore([KafkaPartition("t", 0)])
    for offset, one in enumerate(those):
        core.add(KafkaPartition("t", 0), offset, [_ddl(one)])
    found = [one.event.query for one in core._ddls]
    assert len(found) == pending
    if order is not None:
        assert ["->".join(_names(query)) for query in found] == order


def _names(query: str) -> tuple[str, ...]:
    found = _RENAME.fullmatch(query)
    assert found is not None, f"no statement this check can read: {query}"
    return found.groups()


def messages(given: Vector, expected: Vector) -> None:
    count, those = only(given, "partitions messages")
    order, buffered, after = only(expected, "executed_order buffered executes_after_message_index")
    rows_until, ddl_at = re.fullmatch(r"rows<=(\d+) of all partitions", order[0]), re.fullmatch(r"ddl@(\d+)", order[1])
    assert rows_until and ddl_at and len(order) == 2, f"no order this check can read: {order}"
    until_ts = int(rows_until[1])
    core = ConsumerCore(KafkaPartition("t", number) for number in range(count))
    parts: list[tuple[int, Part]] = []
    for index, one in enumerate(those):
        partition, event = _message(one)
        core.add(KafkaPartition("t", partition), index, [event])
        while (part := core.next()) is not None:
            parts.append((index, part))
    ((index, part),) = parts
    assert index == after
    given_rows = [one["row"] for one in those if "row" in one]
    assert [row.commit_ts for row in part.rows] == sorted(row for row in given_rows if row <= until_ts)
    assert part.ddl is not None
    assert part.ddl.commit_ts == int(ddl_at[1])
    assert sorted(f"row@{row.commit_ts}" for row in core.buffered) == sorted(buffered)


def _message(given: Vector) -> tuple[int, Event]:
    partition, row, ddl, resolved = only(given, "p", "row ddl resolved")
    made: list[Event] = []
    if row is not None:
        made.append(_row(row))
    if ddl is not None:
        made.append(_ddl({"commit_ts": ddl, "query": "a"}))
    if resolved is not None:
        made.append(ResolvedEvent(resolved))
    (event,) = made
    return partition, event


def below_watermark(given: Vector, expected: Vector) -> None:
    """What a watermark lets be applied is applied at once, so that it is known."""
    resolved, rows = only(given, "resolved rows")
    accepted, ignored = only(expected, "accepted ignored")
    core = ConsumerCore([KafkaPartition("t", 0)])
    core.add(KafkaPartition("t", 0), 0, [ResolvedEvent(resolved)])
    assert core.next() is not None
    for offset, commit_ts in enumerate(rows, 1):
        core.add(KafkaPartition("t", 0), offset, [_row(commit_ts)])
    found = [row.commit_ts for row in core.buffered]
    assert (found, [one for one in rows if one not in found]) == (accepted, ignored)


def sequence(vector: Vector) -> None:
    given: Mapping[str, Any] = vector["input"]
    known = {"messages": messages, "ddls": ddls, "rows": below_watermark, "partition": fallback}
    check = next((check for name, check in known.items() if name in given), None)
    assert check is not None, f"no check reads an input of {sorted(given)}"
    check(vector["input"], vector["expected"])


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {"sequence": sequence}
