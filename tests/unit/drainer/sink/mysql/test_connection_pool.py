"""Which connections a worker keeps between tasks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from drainer.sink.mysql import connection
from drainer.sink.mysql.config import ServerConfig

CONFIG = ServerConfig(port=1)


@dataclass
class OpenSession:
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenSession]:
    sessions: list[OpenSession] = []

    def connect(config: ServerConfig, *, idle_s: int, read_timeout_s: int | None) -> OpenSession:
        sessions.append(OpenSession())
        return sessions[-1]

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(connection, "_kept", {})
    return sessions


def take(config: ServerConfig = CONFIG) -> OpenSession:
    return connection.take(config, idle_s=1, read_timeout_s=None)  # type: ignore[return-value]


def give_back(session: OpenSession, config: ServerConfig = CONFIG) -> None:
    connection.give_back(config, session)  # type: ignore[arg-type]


def test_session_given_back_is_used_again(opened: list[OpenSession]) -> None:
    for _ in range(3):
        give_back(take())
    assert len(opened) == 1


def test_session_in_use_or_of_another_server_is_not_handed_out(opened: list[OpenSession]) -> None:
    first, second = take(), take()
    assert first is not second
    give_back(first)
    assert take(ServerConfig(port=2)) is not first


def test_sessions_beyond_maximum_or_age_are_closed(opened: list[OpenSession], monkeypatch: pytest.MonkeyPatch) -> None:
    for session in [take() for _ in range(connection.KEPT_MAX + 1)]:
        give_back(session)
    assert [session.closed for session in opened] == [False] * connection.KEPT_MAX + [True]
    monkeypatch.setattr(connection, "KEPT_S", 0.0)
    take()
    assert all(session.closed for session in opened[:-1])
    assert len(opened) == connection.KEPT_MAX + 2
