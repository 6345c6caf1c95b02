"""Connections that a worker keeps from one task to the next: one takes as long to open as a thousand rows to write.

A kept session is idle, outside any transaction, and was left by work that went well; everything else is closed. What it
may not be is dead: its next user finds out as with any other, by ConnectionLost.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import Session, connect

# The server ends what is idle; a worker that has nothing to do for this long is not worth a connection.
KEPT_S: Final = 30.0
KEPT_MAX: Final = 2

_kept: dict[ServerConfig, list[tuple[float, Session]]] = {}
_lock = threading.Lock()


def take(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> Session:
    """A kept session of these settings, or a new one. Raises as `connect`."""
    with _lock:
        found = _kept.get(config, [])
        fresh = [(left_at, session) for left_at, session in found if time.monotonic() - left_at < KEPT_S]
        stale = [session for left_at, session in found if time.monotonic() - left_at >= KEPT_S]
        taken = fresh.pop()[1] if fresh else None
        _kept[config] = fresh
    for session in stale:
        session.close()
    return taken or connect(config, idle_s=idle_s, read_timeout_s=read_timeout_s)


def give_back(config: ServerConfig, session: Session) -> None:
    """For the next task. Only a session that is in no transaction."""
    with _lock:
        kept = _kept.setdefault(config, [])
        if len(kept) < KEPT_MAX:
            kept.append((time.monotonic(), session))
            return
    session.close()
