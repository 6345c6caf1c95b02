"""Status pages of a drainer that has not opened its destination yet.

Waiting for a destination that is down may take long, and the page shows why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from binlog.runtime.http import Action, Page, Request, Response, html_response, json_response, ready_response

from drainer.failures import FAILURES
from drainer.service.page import starting_page
from drainer.service.status import FAILED, error_fields, result

PATHS = ("/", "/status", "/ready", "/commit_ts")
STATE = "PUT /state/{node_id}/{action}"


class PageHandlers(Protocol):
    """HTTP handlers by path, for PATHS and STATE."""

    def routes(self) -> Mapping[str, Page]: ...

    def actions(self) -> Mapping[str, Action]: ...


class StartingPages:
    """The pages before the destination is open: node id, destination and the current error."""

    def __init__(self, node_id: str, destination: str) -> None:
        self._node_id = node_id
        self._destination = destination

    def routes(self) -> Mapping[str, Page]:
        return {"/": self._home, "/status": self._status, "/ready": self._ready, "/commit_ts": self._commit_ts}

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
            **error_fields(FAILURES),
        }

    async def _status(self) -> Response:
        return json_response(self.document(), indent=1, newline=True)

    async def _home(self) -> Response:
        return html_response(starting_page(self.document()))

    async def _ready(self) -> Response:
        return ready_response("opening the destination")

    async def _commit_ts(self) -> Response:
        return result("this drainer has not opened its destination yet", FAILED)

    async def _refuse(self, request: Request) -> Response:
        return result(f"this drainer is starting, apply {request.path['action']} failed!", FAILED)


class PageSwitch:
    """Handlers of the status server that delegate to `shown`, which is replaced once the destination is open."""

    def __init__(self, shown: PageHandlers) -> None:
        self.shown = shown

    def routes(self) -> Mapping[str, Page]:
        def page(path: str) -> Page:
            return lambda: self.shown.routes()[path]()

        return {path: page(path) for path in PATHS}

    def actions(self) -> Mapping[str, Action]:
        return {STATE: lambda request: self.shown.actions()[STATE](request)}
