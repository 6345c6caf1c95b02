"""A recording through a pipeline into a directory of files, without Spark, and what they then hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from drainer.changes.stream import StreamDecoder
from drainer.protocol.pb_file import FileBinlog, decode, parse_name, records, sorted_files
from drainer.protocol.pb_file import record as record_parts
from drainer.schema.errors import UnknownColumn
from drainer.schema.history.sources import FileSource
from drainer.schema.job_policy import Policy
from drainer.schema.provider import SchemaProvider
from drainer.schema.segmenter import walk
from drainer.schema.steps import Ddl, Rows
from drainer.sink.base import ChangeSink, Identity
from drainer.sink.file.files import FileFormat, Rotation
from drainer.sink.file.lines import JsonlFormat
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.sink import FileSink
from tests.support.capture import CaptureSet
from tests.support.change_replay import WHO, replay_changes
from tests.support.recorded_steps import batch_of

FORMATS: dict[str, FileFormat] = {
    "pb": PbFormat(UTC, held_bytes_max=300),
    "pb-gzip": PbFormat(UTC, compresses=True, held_bytes_max=300),
    "parquet": ParquetFormat(),
    "jsonl": JsonlFormat(1),
}


def sink(directory: Path, form: str, *, rotate_bytes: int = 4000, interval_ms: int = 0, **more: Any) -> FileSink:
    return FileSink(directory, FORMATS[form], rotation=Rotation(rotate_bytes, interval_ms), **more)


def settle(destination: FileSink) -> None:
    """Wait until files that are complete now are compressed or converted."""
    housekeeping = destination._housekeeping
    if housekeeping is not None and housekeeping._work is not None:
        housekeeping._work.result()


class Settled(FileSink):
    """Ends when all complete files are put away, so that a life reaches its crash points, however slow it is."""

    def close(self, *, clean: bool) -> None:
        if clean:
            for _ in range(2):  # what was under way may not have known of the last file
                self._tidy()
                settle(self)
        super().close(clean=clean)


def run(directory: Path, edges: Sequence[int], form: str) -> None:
    """See change_replay.replay_changes."""
    replay_changes(Settled(directory, FORMATS[form], rotation=Rotation(4000)), edges)


def finish(directory: Path, form: str) -> None:
    """Complete the current file, whatever its size, and put all of them away."""
    destination = sink(directory, form, rotate_bytes=1)
    destination.open(WHO, 1)
    settle(destination)
    destination.close(clean=True)


def payloads(directory: Path) -> list[bytes]:
    """Of all files of records."""
    names = sorted_files(directory, parse_name)
    return [
        one.payload
        for at, name in enumerate(names)
        for one in records(directory / name.text, is_last=at == len(names) - 1)
    ]


def framed(*parts: bytes) -> bytes:
    """A record with this payload."""
    return b"".join(record_parts(parts, sum(map(len, parts))))


def binlogs(directory: Path) -> list[FileBinlog]:
    return [decode(payload) for payload in payloads(directory)]


def parquet_rows(directory: Path) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every change and DDL of the Parquet files, with its place in the stream."""
    found = []
    for path in sorted(directory.rglob("*.parquet")):
        table = pq.read_table(path)
        of = (str(path.parent.relative_to(directory)),)
        for row in table.to_pylist():
            is_ddl = "query" in row
            place = (row["commit_ts"], is_ddl, 0 if is_ddl else row["start_ts"], row.get("place", 0))
            found.append((place, {**row, "of": of}))
    return found


def record(capture: CaptureSet, destination: ChangeSink, jobs: Path, policy: Policy) -> None:
    """The whole recording into a destination, in one life. `jobs`: a file to be made for the job history."""
    begin_ts = int(capture.meta["scenario_start_ts"])
    destination.open(Identity(capture.meta["cluster_id"], "golden", "golden"), begin_ts)
    batch = batch_of(capture)
    jobs.write_bytes(capture.jobs_text)
    provider = SchemaProvider([FileSource(jobs)], policy)
    schema = asyncio.run(provider.open(position_ts=begin_ts, job_done=destination.job_done))
    while batch.after_ts < batch.until_ts:
        try:
            for step in walk(batch, schema, job_done=destination.job_done):
                if isinstance(step, Ddl):
                    destination.ddl(step, may_exist=step.may_exist)
                elif isinstance(step, Rows):
                    payloads = [bytes(one.payload) for one in step.binlogs]
                    segment = StreamDecoder(step.view, stored_generated=destination.stored_generated).segment(
                        payloads, step.after_ts, step.until_ts
                    )
                    destination.apply(segment, schema.applied_version)
                else:
                    destination.advance(step.until_ts, schema.applied_version)
        except UnknownColumn as error:
            assert asyncio.run(provider.resolve_column(error)), error
        batch = batch.after(destination.commit_ts)
    destination.close(clean=True)
