"""The destination of `kafka-consumer`, and the stored form of a `Resume`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from drainer.kafka_consumer.core import ConsumeError, Part, Read, Resume
from drainer.kafka_reading.records import KafkaPartition
from drainer.sink.errors import DestinationDown, DestinationError
from drainer.sink.replay import Replayed, Replayer, ReplayFailed, ReplaySettings, replayed

_T = TypeVar("_T")


def resume_text(resume: Resume) -> str:
    reads = [[*topic_partition, read.offset, read.seen] for topic_partition, read in sorted(resume.reads.items())]
    return json.dumps({"applied_ts": resume.applied_ts, "reads": reads, "ddls": sorted(resume.ddls)})


def resume_of(text: str) -> Resume:
    """Raises ConsumeError for what `resume_text` did not write."""
    try:
        found = json.loads(text)
        reads = {KafkaPartition(topic, number): Read(offset, seen) for topic, number, offset, seen in found["reads"]}
        ddls = frozenset((ts, start, query, number) for ts, start, query, number in found["ddls"])
        return Resume(int(found["applied_ts"]), reads, ddls)
    except (ValueError, KeyError, TypeError) as error:
        raise ConsumeError(f"the stored position is damaged: {error}") from None


def settings(name: str, **more: Any) -> ReplaySettings:
    """Return those of a consumer of this name."""
    return ReplaySettings("consumer", "kafka_consumer", name, safe=True, names_only=True, **more)


class Destination:
    """Writes rows and the `Resume` in one transaction, so that nothing is applied twice."""

    def __init__(self, to: Replayer) -> None:
        self._to = to

    def open(self) -> Resume:
        """Return the stored position; that of a new destination is the beginning."""
        text = _tried(self._to.open)
        return resume_of(text) if text else Resume()

    def apply(self, part: Part) -> None:
        """Apply a part. Raises ConsumeError: then nothing of the part is written, or the next `open` continues its
        DDL."""
        rows = [Replayed(part.resume.applied_ts, part.rows)] if part.rows else []
        ddl = None if part.ddl is None else replayed(part.ddl)
        _tried(lambda: self._to.apply(rows, resume_text(part.resume), ddl))

    def close(self) -> None:
        self._to.close()


def _tried(work: Callable[[], _T]) -> _T:
    """Raises ConsumeError, and DestinationDown if the destination stays unreachable."""
    try:
        return work()
    except DestinationDown:
        raise
    except ReplayFailed as error:
        topic_partition = f"rows up to commit_ts {error.commit_ts}: " if error.table else ""
        raise ConsumeError(f"{topic_partition}{error}") from error
    except DestinationError as error:
        raise ConsumeError(str(error)) from error
