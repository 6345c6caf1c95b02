"""A recording as one batch, and as the steps of that batch."""

from __future__ import annotations

from collections.abc import Iterator

from binlog import envelope

from drainer.batch.served import Batch, ServedBinlog, read_batch
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.job_policy import Policy
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema
from drainer.schema.steps import Step
from tests.support.capture import CaptureSet


def batch_of(capture: CaptureSet) -> Batch:
    """Everything after the scenario's start, as one pump serves it."""
    scans = [(envelope.scan(payload), payload) for payload in capture.binlogs]
    binlogs = [ServedBinlog(seen.commit_ts, seen.start_ts, "pump1", payload) for seen, payload in scans]
    begin_ts = int(capture.meta["scenario_start_ts"])
    return read_batch(binlogs, after_ts=begin_ts, until_ts=max(one.commit_ts for one in binlogs))


def steps_of(capture: CaptureSet) -> tuple[Schema, Iterator[Step]]:
    """The steps, and the schema, which each step changes when the next one is requested."""
    batch = batch_of(capture)
    history = JobHistory(parse_jobs(capture.jobs_text.decode(), capture.name))
    schema = Schema.open(history, position_ts=batch.after_ts, policy=Policy())
    return schema, walk(batch, schema)
