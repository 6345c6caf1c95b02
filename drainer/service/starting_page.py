"""What a drainer shows from its first moment on: before there is a position to show, that it is about to open it.

A destination that is down may be waited for long, and whoever looks then must see why nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from binlog.runtime.http import Action, Page, Request, Response, html_response, json_response

from drainer.failures import TROUBLES
from drainer.service.page import starting_page
from drainer.service.status import FAILED, error_fields, result

PATHS = ("/", "/status", "/commit_ts")
STATE = "PUT /state/{node_id}/{action}"


class Shown(Protocol):
    """What stands behind the front: handlers by path, of PATHS and STATE."""

    def routes(self) -> Mapping[str, Page]: ...

    def actions(self) -> Mapping[str, Action]: ...


class Starting:
    """Nothing is known yet but who this is and what it waits for."""

    def __init__(self, node_id: str, destination: str) -> None:
        self._node_id = node_id
        self._destination = destination

    def routes(self) -> Mapping[str, Page]:
        return {"/": self._home, "/status": self._status, "/commit_ts": self._commit_ts}

    def actions(self) -> Mapping[str, Action]:
        return {STATE: self._refuse}

    def document(self) -> dict[str, object]:
        return {
            "PumpPos": None,
            "Synced": False,
            "LastTS": 0,
            "TsMap": "",
            "NodeID": self._node_id,
            "Phase": "opening the destination",
            "Destination": self._destination,
            **error_fields(TROUBLES),
        }

    async def _status(self) -> Response:
        return json_response(self.document(), indent=1, newline=True)

    async def _home(self) -> Response:
        return html_response(starting_page(self.document()))

    async def _commit_ts(self) -> Response:
        return result("this drainer has not opened its destination yet", FAILED)

    async def _refuse(self, request: Request) -> Response:
        return result(f"this drainer is starting, apply {request.path['action']} failed!", FAILED)


class Front:
    """The handlers of a status server; they ask `shown`, which changes when the drainer knows its position."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown

    def routes(self) -> Mapping[str, Page]:
        def page(path: str) -> Page:
            return lambda: self.shown.routes()[path]()

        return {path: page(path) for path in PATHS}

    def actions(self) -> Mapping[str, Action]:
        return {STATE: lambda request: self.shown.actions()[STATE](request)}
