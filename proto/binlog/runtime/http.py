"""A server for status pages, state changes and /metrics, and a PUT client. Only this module uses aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

import aiohttp
from aiohttp import web

from binlog.errors import BinlogError, ConfigError
from binlog.runtime import metrics
from binlog.runtime.fields import split_host_port, why_not_listening
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.open_files import connections_max as own_connections_max
from binlog.runtime.security import Security, common_names

BODY_BYTES_MAX = 1 << 20
STOP_S = 2.0
REQUEST_S = 30.0  # see _Connection
CONNECTIONS_MAX = 256  # at a port that also serves gRPC, these are at most a quarter of its connections
TLS_HANDSHAKE_S = 20.0

_log = get_logger("http")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. `path` contains the values of the route's {names}; `peer` the client's address and, if it has
    presented a certificate, the Common Name in it."""

    method: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


def json_response(document: object, *, status: int = 200, indent: int | None = None, newline: bool = False) -> Response:
    """Return a JSON response. Without `indent` it is compact, as Go's encoder writes it.

    `newline` adds the final newline that the original sends.
    """
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(document, separators=separators, indent=indent, ensure_ascii=False)
    return Response((text + "\n" * newline).encode(), status, "application/json; charset=utf-8")


def text_response(text: str, *, status: int = 200) -> Response:
    return Response(text.encode(), status)


def html_response(text: str, *, status: int = 200) -> Response:
    return Response(text.encode(), status, "text/html; charset=utf-8")


def ready_response(lacks: str) -> Response:
    """Return the answer to a readiness probe. `lacks`: why the program cannot do its work now, or empty if it can."""
    return text_response(f"{lacks}\n", status=503) if lacks else text_response("ready\n")


class NoAnswer(BinlogError):
    """No HTTP server answers at the address. The text gives the reason."""


async def put(
    place: str, path: str, *, body: bytes = b"", security: Security | None = None, timeout_s: float = 10.0
) -> bytes:
    """Send `PUT path` to host:port, over TLS if it is enabled, and return the body of the answer. Raises NoAnswer."""
    context = security.ssl_context(server=False) if security is not None else None
    url = f"{'https' if context else 'http'}://{place}{path}"
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.put(url, data=body, ssl=context or True) as answer,
        ):
            return await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise NoAnswer(f"{url}: {error or type(error).__name__}") from error


Page = Callable[[], Awaitable[Response]]
Action = Callable[[Request], Awaitable[Response]]


class _Connection(web.RequestHandler):
    """A connection. It is aborted `request_s` seconds after it was accepted, or after its last request was handled,
    unless the whole next request has arrived by then. So a response must be accepted within that time, too.
    """

    __slots__ = ("_accepted", "_owner", "_request_s", "_timer")

    def __init__(self, server: web.Server, owner: StatusServer, request_s: float) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._owner = owner
        self._request_s = request_s
        self._accepted: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._accepted = cast(asyncio.Transport, transport)
        if not self._owner.opened(self):
            self._accepted.abort()
            return
        super().connection_made(transport)
        self.wait_for_request()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.connections.discard(self)
        self.stop_waiting()
        super().connection_lost(exc)

    def wait_for_request(self) -> None:
        self.stop_waiting()
        if self._accepted is not None and self in self._owner.connections:
            self._timer = self._loop.call_later(self._request_s, self._accepted.abort)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class StatusServer:
    """Serves pages at an address, or on connections accepted elsewhere, through `protocol`. It serves from `start` or
    `prepare` until `close`.

    `routes`: GET pages by path. `actions`: handlers by method and path with {names}, such as "PUT
    /state/{node_id}/{action}". If a handler raises a BinlogError, the answer is a 500 with its text; for any other
    error, a 500 without details. Both are logged. /metrics is always served. While serving, `port` is the real port
    (the address may end in :0).
    """

    def __init__(
        self,
        addr: str,
        routes: Mapping[str, Page],
        *,
        actions: Mapping[str, Action] | None = None,
        security: Security | None = None,
        request_s: float = REQUEST_S,
        connections_max: int = 0,
    ) -> None:
        """`addr`: the address to listen at, or empty to not listen. `connections_max` 0: the lower of CONNECTIONS_MAX
        and an eighth of the files that this process may open."""
        try:
            self.host, self.port = split_host_port(addr) if addr else ("", 0)
        except ValueError as error:
            raise ConfigError(f"status-addr: {error}") from error
        self._security = security or Security()
        self._app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard])
        for path, page in routes.items():
            self._app.router.add_get(path, _action(_page(page)))
        for place, action in (actions or {}).items():
            method, _, path = place.partition(" ")
            self._app.router.add_route(method, path, _action(action))
        self._app.router.add_get("/metrics", _action(_metrics))
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._request_s = request_s
        self._connections_max = connections_max or own_connections_max(CONNECTIONS_MAX, files_share=8)
        self._full = Outage(
            _log, "too many HTTP connections: new ones are closed", "new HTTP connections are accepted again"
        )
        self.connections: set[_Connection] = set()  # the open ones

    def opened(self, connection: _Connection) -> bool:
        """Note a connection. Return False if there are too many."""
        if len(self.connections) >= self._connections_max:
            self._full.failed(connections=len(self.connections))
            return False
        self._full.over()
        self.connections.add(connection)
        return True

    async def prepare(self) -> None:
        """Start to serve connections that are passed to `protocol`."""
        self._runner = web.AppRunner(self._app, shutdown_timeout=STOP_S)
        await self._runner.setup()

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol for one connection that uses HTTP/1."""
        assert self._runner is not None and self._runner.server is not None, "not prepared, or closed"
        return _Connection(self._runner.server, self, self._request_s)

    async def start(self) -> None:
        """Listen at the address. Raises ConfigError with the address if that fails."""
        await self.prepare()
        assert self._runner is not None
        context = self._security.ssl_context(server=True)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self.protocol,
                self.host or None,
                self.port,
                ssl=context,
                ssl_handshake_timeout=TLS_HANDSHAKE_S if context is not None else None,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"status-addr {self.host}:{self.port}: cannot listen there: {why_not_listening(error)}"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]

    @property
    def addr(self) -> str:
        """The host:port at which it listens."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def close(self) -> None:
        """Stop listening. Open requests get STOP_S seconds. A second call does nothing."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the client's name if `cert-allowed-cn` requires it, receive the whole request, and turn errors into
        answers."""
        connection = cast(_Connection, request.protocol)
        refusal = self._security.check_names(_names_of(request)) if self._security.enabled else None
        if refusal is not None:
            return web.Response(text=refusal, status=403)
        await request.read()
        connection.stop_waiting()
        try:
            return await handler(request)
        except BinlogError as error:
            _log.error("a request failed", method=request.method, path=request.path, error=error)
            return web.Response(text=f"{error}\n", status=500)
        except web.HTTPException:
            raise
        except Exception:  # noqa: BLE001  a broken page must not end the program; the log has the traceback
            _log.exception("a request failed", method=request.method, path=request.path)
            return web.Response(text="internal error; see the log\n", status=500)
        finally:
            connection.wait_for_request()


def _names_of(request: web.Request) -> tuple[str, ...]:
    """Return the Common Names of the client's certificate."""
    transport = request.transport
    return common_names(transport.get_extra_info("ssl_object") if transport is not None else None)


def _page(page: Page) -> Action:
    return lambda _request: page()


def _action(action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        names = ", ".join(_names_of(request))
        peer = f"{request.remote} ({names})" if names else str(request.remote)
        given = Request(request.method, dict(request.match_info), dict(request.query), body, peer)
        answer = await action(given)
        return web.Response(body=answer.body, status=answer.status, headers={"Content-Type": answer.content_type})

    return serve


async def _metrics(_request: Request) -> Response:
    return Response(metrics.render(), content_type=metrics.CONTENT_TYPE)
