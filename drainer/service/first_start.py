"""Chooses the start position of a drainer whose destination has none, and logs it.

If `initial-commit-ts` is given, it is the position. Otherwise a drainer starts at the current TSO: the destination has
just been loaded from a copy of the upstream, or older changes are not wanted. Exception: if the whole known schema was
published by services that embed the SDK, the destination has none of their tables, and the pumps still hold everything
since the first table was created, it starts from the beginning. Starting now would fail at the first row.
"""

from __future__ import annotations

import asyncio

from binlog.cluster import tso
from binlog.errors import BinlogError, PurgedPosition
from binlog.runtime.log import get_logger

from drainer.config import Config
from drainer.pumps.survey import PumpSet
from drainer.pumps.watermark import BatchLimits
from drainer.schema.provider import Known
from drainer.sink.base import FirstStart, Position

BEGINNING_TS = 0
PURGED_WAIT_S = 5.0
TABLES_SHOWN_MAX = 20
REMEDY = (
    "to apply the binlogs that the pumps hold, or those after a copy of the upstream that was loaded into the "
    "destination: stop "
    "the drainer, delete its row in tidb_binlog.drainer_position, and start it with initial-commit-ts = 0, or with the "
    "TSO of that copy"
)

_log = get_logger(__name__)


def is_given(config: Config) -> bool:
    """Return whether initial-commit-ts is set in the file, by a flag or in the environment."""
    return "initial_commit_ts" in config.model_fields_set


async def first_start(config: Config, known: Known, pumps: PumpSet) -> FirstStart:
    """Return the start options from which the destination chooses if it has no position."""
    only_published = not config.schema_.history_file and not config.schema_.history_url
    may_begin = not is_given(config) and only_published and bool(known.tables)
    if may_begin and await _has_everything(pumps, known.first_ts):
        return FirstStart(known.tables, BEGINNING_TS)
    return FirstStart(known.tables)


async def _has_everything(pumps: PumpSet, first_ts: int) -> bool:
    """Return whether no pump that answers has purged binlogs after `first_ts`. Pumps that do not answer are not
    checked.
    """
    try:
        async with asyncio.timeout(PURGED_WAIT_S):
            found = await pumps.survey(after_ts=BEGINNING_TS, limits=BatchLimits(1))
    except PurgedPosition:
        return False
    except (BinlogError, TimeoutError):
        return True
    return found.purged_ts < first_ts


def log_start_position(config: Config, initial_ts: int, first: FirstStart, position: Position) -> None:
    """Log the start position and what it skips."""
    # The checkpoint row of the original drainer is a position, too.
    elsewhere = config.initial_commit_ts >= 0 and position.commit_ts != initial_ts
    if is_given(config) and (elsewhere or not position.fresh):
        _log.warning(
            "initial-commit-ts is ignored: the destination already has a position",
            initial_commit_ts=config.initial_commit_ts,
            position=position.commit_ts,
        )
    if not position.fresh:
        return
    if first.empty_ts is not None and position.commit_ts == first.empty_ts:
        _log.info(
            "the destination has no position and none of the published tables: starting from the oldest binlog",
            tables=len(first.tables),
        )
    elif position.commit_ts == initial_ts and initial_ts:
        _log_skipped(position)


def _log_skipped(position: Position) -> None:
    skipped = {"skipped_until_ts": position.commit_ts, "skipped_until": tso.format_local(position.commit_ts)}
    if not position.missing:
        _log.info("the destination has no position: older binlogs are not applied", **skipped)
        return
    names = [f"{schema}.{table}" for schema, table in position.missing]
    _log.warning(
        "the destination has no position: older binlogs are not applied, and tables created before are missing; the "
        "first row of one of them will stop the drainer",
        **skipped,
        missing=names[:TABLES_SHOWN_MAX],
        missing_count=len(names),
        remedy=REMEDY,
    )
