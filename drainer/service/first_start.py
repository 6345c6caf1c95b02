"""Where a drainer begins whose destination has no position yet, and what it says about that.

`initial-commit-ts` decides, where it is given. Where it is not, a drainer begins now: the destination was filled from a
copy of the upstream a moment ago, or nothing older is wanted. With one exception: when all that is known of the schema
was published by services that embed the SDK, the destination holds none of their tables, and the pumps still hold
everything since the first of them was made, it begins at the beginning. Beginning now would fail at the first row.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from binlog.cluster import tso
from binlog.errors import BinlogError, PurgedPosition
from binlog.runtime.log import get_logger

from drainer.config import Config
from drainer.pumps.watermark import Limits, Watermark
from drainer.schema.keeper import Known
from drainer.sink.base import FirstStart, Position

BEGINNING_TS = 0
PURGED_WAIT_S = 5.0
TABLES_TOLD_MAX = 20
WAY_OUT = (
    "to apply what the pumps hold, or what came after a copy of the upstream that is loaded into the destination: stop "
    "the drainer, delete its row in tidb_binlog.drainer_position, and start it with initial-commit-ts = 0, or with the "
    "TSO of that copy"
)

_log = get_logger(__name__)


class Survey(Protocol):
    """The part of drainer.pumps.survey.PumpSet that is used here."""

    async def survey(self, *, after_ts: int, limits: Limits) -> Watermark: ...


def is_given(config: Config) -> bool:
    """Whether a file, a flag or the environment says where to begin."""
    return "initial_commit_ts" in config.model_fields_set


def only_published(config: Config) -> bool:
    """Whether jobs that services published in etcd are the only DDL history."""
    return not config.schema_.history_file and not config.schema_.history_url


async def first_start(config: Config, known: Known, pumps: Survey) -> FirstStart:
    """The question to a destination without a position."""
    may_begin = not is_given(config) and only_published(config) and bool(known.tables)
    if may_begin and await _has_everything(pumps, known.first_ts):
        return FirstStart(known.tables, BEGINNING_TS)
    return FirstStart(known.tables)


async def _has_everything(pumps: Survey, first_ts: int) -> bool:
    """Whether no pump that answers has purged anything since then. One that does not answer is waited for later on."""
    try:
        async with asyncio.timeout(PURGED_WAIT_S):
            found = await pumps.survey(after_ts=BEGINNING_TS, limits=Limits(1))
    except PurgedPosition:
        return False
    except (BinlogError, TimeoutError):
        return True
    return found.purged_ts < first_ts


def tell(config: Config, initial_ts: int, first: FirstStart, position: Position) -> None:
    """What an operator should know of where this start begins."""
    # A row that the original's drainer left in the destination is a position, too.
    elsewhere = config.initial_commit_ts >= 0 and position.commit_ts != initial_ts
    if is_given(config) and (elsewhere or not position.fresh):
        _log.warning(
            "initial-commit-ts is not used: the destination has a position",
            initial_commit_ts=config.initial_commit_ts,
            position=position.commit_ts,
        )
    if not position.fresh:
        return
    if first.empty_ts is not None and position.commit_ts == first.empty_ts:
        _log.info(
            "the destination has no position and none of the published tables: beginning with the oldest binlog",
            tables=len(first.tables),
        )
    elif position.commit_ts == initial_ts and initial_ts:
        _tell_skipped(position)


def _tell_skipped(position: Position) -> None:
    skipped = {"skipped_until_ts": position.commit_ts, "skipped_until": tso.format_local(position.commit_ts)}
    if not position.missing:
        _log.info("the destination has no position: what is older is not applied", **skipped)
        return
    names = [f"{schema}.{table}" for schema, table in position.missing]
    _log.warning(
        "the destination has no position: what is older is not applied, and tables made before are not there; the "
        "first row of one of them will stop the drainer",
        **skipped,
        missing=names[:TABLES_TOLD_MAX],
        missing_count=len(names),
        way_out=WAY_OUT,
    )
