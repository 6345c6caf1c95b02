"""A session with a server, which is opened again if its connection is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, Session, connect
from drainer.sink.retry import Patience

_IDLE_S: Final = 8 * 3600
# Of databases that upstream's text creates without naming a character set, as TiDB has it, whatever the server's is.
_DEFAULTS: Final = b"SET SESSION character_set_server=utf8mb4, collation_server=utf8mb4_bin"

_T = TypeVar("_T")


class ReconnectingSession:
    """Connects at the first `run`. `wait_s`: how long `run` retries before it fails."""

    def __init__(self, config: ServerConfig, wait_s: float) -> None:
        self._config = config
        self._wait_s = wait_s
        self._session: Session | None = None

    def run(self, what: str, work: Callable[[Session], _T]) -> _T:
        """`work`, again after a lost connection or a deadlock: it looks itself at what has been done already. Raises
        DestinationDown in the end, and whatever else `work` or connecting raises."""
        patience = Patience(f"{self._config.address}: {what}", self._wait_s)
        while True:
            try:
                if self._session is None:
                    session = self._session = connect(self._config, idle_s=_IDLE_S, read_timeout_s=None)
                    session.execute(_DEFAULTS)
                done = work(self._session)
            except (ConnectionLost, Retry) as error:
                if isinstance(error, ConnectionLost):
                    self.close()
                patience.failed(error)
            else:
                patience.over()
                return done

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
