"""Keeps a worker's connections from one task to the next, because opening one takes as long as writing a thousand rows.

A kept session is idle, outside any transaction, and its last work succeeded; all other sessions are closed. The
connection of a kept session may have been lost meanwhile; its next user then gets ConnectionLost, as with any session.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ServerSession, connect

# The server ends what is idle; a worker that has nothing to do for this long is not worth a connection.
KEPT_S: Final = 30.0
KEPT_MAX: Final = 2

_kept: dict[ServerConfig, list[tuple[float, ServerSession]]] = {}
_lock = threading.Lock()


def take(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> ServerSession:
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


def give_back(config: ServerConfig, session: ServerSession) -> None:
    """For the next task. Only a session that is in no transaction."""
    with _lock:
        kept = _kept.setdefault(config, [])
        if len(kept) < KEPT_MAX:
            kept.append((time.monotonic(), session))
            return
    session.close()
