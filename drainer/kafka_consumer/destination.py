"""What a destination of `kafka-consumer` is, and how a `Resume` is stored in it."""

from __future__ import annotations

import json
from typing import Protocol

from drainer.kafka_consumer.core import ConsumeError, Part, Read, Resume
from drainer.kafka_reading.records import Place
from drainer.protocol.event import Image, RowEvent
from drainer.protocol.table import ColumnFlag


class Destination(Protocol):
    """Rows and the `Resume` are written in one transaction: what was applied is not applied again."""

    def open(self) -> Resume:
        """Where it stands; of a new one the beginning."""
        ...

    def apply(self, part: Part) -> None:
        """Raises ConsumeError; then nothing of the part is written, or what is left of its DDL is told by `open`."""
        ...

    def close(self) -> None: ...


def resume_text(resume: Resume) -> str:
    reads = [[*place, read.offset, read.seen] for place, read in sorted(resume.reads.items())]
    return json.dumps({"applied_ts": resume.applied_ts, "reads": reads, "ddls": sorted(resume.ddls)})


def resume_of(text: str) -> Resume:
    """Raises ConsumeError for what `resume_text` did not write."""
    try:
        found = json.loads(text)
        reads = {Place(topic, number): Read(offset, seen) for topic, number, offset, seen in found["reads"]}
        ddls = frozenset((ts, start, query, number) for ts, start, query, number in found["ddls"])
        return Resume(int(found["applied_ts"]), reads, ddls)
    except (ValueError, KeyError, TypeError) as error:
        raise ConsumeError(f"the stored position is damaged: {error}") from None


def key_of(event: RowEvent, image: Image) -> tuple[str, ...]:
    """Names of the columns that tell the row apart; empty: its table has none, or its protocol does not say."""
    if event.key is not None:
        return tuple(event.key)
    return tuple(name for name, column in image.items() if column.flags & ColumnFlag.HANDLE_KEY)


def removed(event: RowEvent) -> tuple[dict[str, object], bool]:
    """(columns and values of what goes away, whether that is a key). Empty: nothing does."""
    new = event.new or {}
    if event.new is not None and event.old is None:  # an insert that may come again
        keys = key_of(event, new)
        return {name: new[name].value for name in keys if name in new}, True
    old = {**new, **(event.old or {})}
    keys = key_of(event, old)
    if not keys:
        return {name: column.value for name, column in old.items()}, False
    of_key = event.key if event.key is not None and not event.old else old
    return {name: of_key[name].value for name in keys if name in of_key}, True


def added(event: RowEvent) -> dict[str, object]:
    """Columns and values of what comes; empty: nothing does."""
    return {name: column.value for name, column in (event.new or {}).items()}
