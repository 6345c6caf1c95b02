"""generate_meta: writes the current TSO as a savepoint file from which a drainer can start.

The original appends lines with the time, which make the file invalid TOML. Here these lines are comments.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlog.cluster.timestamp import current_ts
from binlog.cluster.tso import physical_ms

from pumpclient.ctl.errors import Misused
from pumpclient.ctl.session import CommandSession

SAVEPOINT = "savepoint"


def parse_zone(text: str) -> tzinfo:
    """Return a time zone: `+08:00`, `Asia/Shanghai`, `UTC`, or `Local` (this machine's zone, Go's name). Raises
    Misused.
    """
    if text == "Local":
        local = datetime.now().astimezone().tzinfo
        assert local is not None
        return local
    offset = re.fullmatch(r"([+-])(\d{1,2}):(\d{2})", text)
    if offset:
        delta = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-delta if offset[1] == "-" else delta)
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Misused(f"time zone {text!r} is neither an offset like +08:00 nor a known name") from error


def savepoint_text(commit_ts: int, zone: tzinfo | None) -> str:
    """Return the file as TOML: the position, and its time as comments."""
    moment = datetime.fromtimestamp(physical_ms(commit_ts) / 1000, UTC)
    lines = [f"commitTS = {commit_ts}"]
    if zone is not None:
        lines += [f"# {moment:%Y-%m-%d %H:%M:%S %z} UTC", f"# {moment.astimezone(zone):%Y-%m-%d %H:%M:%S %z}"]
    return "\n".join(lines) + "\n"


def write_savepoint(directory: Path, text: str) -> Path:
    """Write the file atomically (K-12): write a new file and rename it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / SAVEPOINT
    new = path.with_suffix(".tmp")
    new.write_text(text)
    new.chmod(0o644)  # as in the original: a drainer of another user may read it
    new.replace(path)
    return path


async def generate_meta(session: CommandSession) -> None:
    zone = parse_zone(session.options.time_zone) if session.options.time_zone else None
    commit_ts = await current_ts(session.etcd, session.section, session.security)
    text = savepoint_text(commit_ts, zone)
    path = await asyncio.to_thread(write_savepoint, Path(session.options.data_dir), text)
    session.out.done("save meta", meta=f"commitTS: {commit_ts}", path=str(path))
