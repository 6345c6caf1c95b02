"""The only module that uses aiohttp: a server for status pages, state changes and /metrics, and a PUT client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from binlog.errors import BinlogError, ConfigError
from binlog.runtime import metrics
from binlog.runtime.fields import split_host_port, why_not_listening
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security, common_names

BODY_BYTES_MAX = 1 << 20
STOP_S = 2.0

_log = get_logger("http")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. `path` holds the values of the route's {names}."""

    method: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


def json_response(document: object, *, status: int = 200, indent: int | None = None, newline: bool = False) -> Response:
    """A JSON response. Without `indent` it is compact, as Go's encoder writes it; `newline` adds the final newline
    that the original sends."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(document, separators=separators, indent=indent, ensure_ascii=False)
    return Response((text + "\n" * newline).encode(), status, "application/json; charset=utf-8")


def text_response(text: str, *, status: int = 200) -> Response:
    return Response(text.encode(), status)


def html_response(text: str, *, status: int = 200) -> Response:
    return Response(text.encode(), status, "text/html; charset=utf-8")


def ready_response(lacks: str) -> Response:
    """Answer to a probe. `lacks`: why the program does not do its work now, empty: it does."""
    return text_response(f"{lacks}\n", status=503) if lacks else text_response("ready\n")


class NoAnswer(BinlogError):
    """No HTTP server answers at an address; the text gives the reason."""


async def put(place: str, path: str, *, security: Security | None = None, timeout_s: float = 10.0) -> bytes:
    """The body of the answer to `PUT path` at host:port, over TLS where it is on. NoAnswer."""
    context = security.ssl_context(server=False) if security is not None else None
    url = f"{'https' if context else 'http'}://{place}{path}"
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.put(url, ssl=context or True) as answer,
        ):
            return await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise NoAnswer(f"{url}: {error or type(error).__name__}") from error


Page = Callable[[], Awaitable[Response]]
Action = Callable[[Request], Awaitable[Response]]


class StatusServer:
    """Pages at an address, or on connections that others give to `protocol`. Made, then serving between `start` or
    `prepare` and `close`.

    `routes` are GET pages by path; `actions` are by method and path with {names}, as "PUT /state/{node_id}/{action}".
    A BinlogError of a handler is a 500 with its text, any other a 500 without details; both are logged. /metrics is
    always there. `port` is the real one once it serves (an address may end in :0).
    """

    def __init__(
        self,
        addr: str,
        routes: Mapping[str, Page],
        *,
        actions: Mapping[str, Action] | None = None,
        security: Security | None = None,
    ) -> None:
        """`addr`: listen address, or empty for none."""
        try:
            self.host, self.port = split_host_port(addr) if addr else ("", 0)
        except ValueError as error:
            raise ConfigError(f"status-addr: {error}") from error
        self._security = security or Security()
        self._app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard])
        for path, page in routes.items():
            self._app.router.add_get(path, _page(page))
        for place, action in (actions or {}).items():
            method, _, path = place.partition(" ")
            self._app.router.add_route(method, path, _action(action))
        self._app.router.add_get("/metrics", _page(_metrics))
        self._runner: web.AppRunner | None = None

    async def prepare(self) -> None:
        """Serve what `protocol` is given."""
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=STOP_S)
        await self._runner.setup()

    def protocol(self) -> asyncio.Protocol:
        """For one connection that speaks HTTP/1."""
        assert self._runner is not None and self._runner.server is not None, "not prepared, or closed"
        return self._runner.server()

    async def start(self) -> None:
        """Listen; ConfigError naming the address where that fails."""
        await self.prepare()
        assert self._runner is not None
        context = self._security.ssl_context(server=True)
        site = web.TCPSite(self._runner, self.host or None, self.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"status-addr {self.host}:{self.port}: cannot listen there: {why_not_listening(self.addr)}"
            ) from error
        self.port = self._runner.addresses[0][1]

    @property
    def addr(self) -> str:
        """host:port it serves at."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def close(self) -> None:
        """Stop listening; requests under way get STOP_S seconds. Once it is closed, this does nothing."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Checks the client's name where `cert-allowed-cn` asks for it, and turns errors into answers."""
        refusal = self._security.check_names(_names_of(request)) if self._security.enabled else None
        if refusal is not None:
            return web.Response(text=refusal, status=403)
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


def _names_of(request: web.Request) -> tuple[str, ...]:
    """Common Names of the client's certificate."""
    transport = request.transport
    return common_names(transport.get_extra_info("ssl_object") if transport is not None else None)


def _answer(response: Response) -> web.Response:
    return web.Response(body=response.body, status=response.status, headers={"Content-Type": response.content_type})


def _page(page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(_request: web.Request) -> web.StreamResponse:
        return _answer(await page())

    return serve


def _action(action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        return _answer(await action(Request(request.method, dict(request.match_info), dict(request.query), body)))

    return serve


async def _metrics() -> Response:
    return Response(metrics.render(), content_type=metrics.CONTENT_TYPE)
