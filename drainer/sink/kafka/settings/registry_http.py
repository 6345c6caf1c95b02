"""Requests to a schema registry: authentication, TLS, and how long one that does not answer is waited for."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from binlog.errors import ConfigError

from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.retry import RetryDeadline

TIMEOUT_S: Final = 30.0  # of one request
BODY_BYTES_MAX: Final = 64 << 20
_WORDS_MAX: Final = 2_000  # characters of the registry's own words in an error
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = f"{_JSON}, application/vnd.schemaregistry+json, application/json"
_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """`url`: without user and password. A `token` is a bearer's. `ca`, `cert`, `key`: files in PEM."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure_skip_verify: bool = False

    @property
    def authorization(self) -> str:
        """Return the value of the Authorization header; "" without a user or token."""
        if self.token:
            return f"Bearer {self.token}"
        if self.user:
            return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return ""

    def tls(self) -> ssl.SSLContext | None:
        """ConfigError where a file cannot be used; None for http."""
        if not self.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise ConfigError(f"schema registry: TLS files ({files}) cannot be used: {error}") from error
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def access_of(url: str, **more: Any) -> RegistryAccess:
    """From TiCDC's `schema-registry`, which may have user:password, URL-encoded. Slashes at its end do not count.

    Raises ConfigError."""
    parts = urlsplit(url)
    try:
        where, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"schema-registry: {_without_user(url)}: {error}") from None
    if parts.scheme not in ("http", "https") or not where:
        raise ConfigError(f"schema-registry: {_without_user(url)!r} is no http:// or https:// URL")
    plain = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    more = {"user": user, "password": password, **{name: value for name, value in more.items() if value}}
    return RegistryAccess(plain, **more)


def _without_user(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}" if slashes else url.rpartition("@")[2]


class RegistryAnswer(DestinationRefused):
    """The registry answered with an error. `status`: the HTTP status; `words`: the text of the answer, unchanged."""

    def __init__(self, message: str, status: int, words: str) -> None:
        super().__init__(message)
        self.status = status
        self.words = words


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would send user and password to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class RegistryHttp:
    """A blocking client. A request without an answer, or with one that the next attempt may change (5xx, 429), is
    retried for `wait_s` seconds."""

    def __init__(self, access: RegistryAccess, *, wait_s: float, stop: threading.Event | None = None) -> None:
        self.url = access.url
        self._wait_s = wait_s
        self._stop = stop
        self._authorization = access.authorization
        handlers: list[Any] = [_NoRedirect()]
        if (context := access.tls()) is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> Any:
        """Send a GET request; see `post`."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """Send a POST request; return the JSON of the answer. Raises RegistryAnswer for an error status,
        DestinationRefused for an answer that is not a registry's, DestinationDown if there was no answer in time."""
        return self._ask("POST", path, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        deadline = RetryDeadline(f"schema registry {self.url}", self._wait_s, self._stop)
        return deadline.repeat(lambda: self._once(method, path, body), (DestinationDown,))

    def _once(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"Accept": _ACCEPT}
        if body is not None:
            headers["Content-Type"] = _JSON
        if self._authorization:
            headers["Authorization"] = self._authorization
        where = f"{method} {self.url}{path}"
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                data = response.read(BODY_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            raise _answer(where, error) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise DestinationRefused(f"schema registry: {where}: {reason}") from None
            raise DestinationDown(f"{where}: no answer: {reason}") from None
        try:
            if len(data) > BODY_BYTES_MAX:
                raise ValueError(f"more than {BODY_BYTES_MAX} bytes")
            return json.loads(data)
        except ValueError as error:
            raise DestinationRefused(f"schema registry: {where}: the answer is no registry's: {error}") from None


def _answer(where: str, error: urllib.error.HTTPError) -> DestinationDown | RegistryAnswer:
    try:
        data = error.read(BODY_BYTES_MAX)
    except (OSError, HTTPException):
        data = b""
    number, words = "", data.decode("utf-8", "replace").strip()[:_WORDS_MAX] or str(error.reason)
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("message"), str):
        words = document["message"][:_WORDS_MAX]
        number = f" (error {document['error_code']})" if isinstance(document.get("error_code"), int) else ""
    if error.code >= 500 or error.code == _TOO_MANY:
        return DestinationDown(f"{where}: HTTP {error.code}: {words}")
    return RegistryAnswer(f"schema registry: {where}: HTTP {error.code}{number}: {words}", error.code, words)
