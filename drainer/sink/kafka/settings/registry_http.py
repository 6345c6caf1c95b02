"""Requests to a schema registry: authentication, TLS, and how long one that does not answer is waited for."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import Field

from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.settings.option_values import Switch
from drainer.sink.retry import RetryDeadline

TIMEOUT_S: Final = 30.0  # of one request
BODY_BYTES_MAX: Final = 64 << 20
_WORDS_MAX: Final = 2_000  # characters of the registry's own words in an error
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = f"{_JSON}, application/vnd.schemaregistry+json, application/json"
_TOO_MANY: Final = 429


class RegistrySection(Section):
    """`[syncer.to.registry]`: TLS and authentication, under the names of Confluent's clients with - for the dot."""

    ssl_ca_location: str = Field("", description="CA file that verifies the registry's certificate")
    ssl_certificate_location: str = Field("", description="client certificate file")
    ssl_key_location: str = Field("", description="key file of the certificate")
    bearer_auth_token: str = Field(
        "", repr=False, description="token that is sent instead of a user; never logged or shown"
    )
    insecure_skip_verify: Switch = Field(
        False, description="true: neither the registry's certificate nor its name is verified"
    )

    def check(self, url: str) -> None:
        """Raises ConfigError for settings that do not fit together."""
        where = "syncer.to.registry"
        if self.ssl_key_location and not self.ssl_certificate_location:
            raise ConfigError(f"{where}: ssl-key-location needs ssl-certificate-location")
        tls = [self.ssl_ca_location, self.ssl_certificate_location, self.insecure_skip_verify]
        if any(tls) and not url.startswith("https:"):
            raise ConfigError(f"{where}: TLS is set, and schema-registry does not begin with https")
        if self.bearer_auth_token and "@" in urlsplit(url).netloc:
            raise ConfigError(f"{where}: bearer-auth-token, and a user in schema-registry: one of them")

    def tls(self) -> ssl.SSLContext:
        """ConfigError where a file cannot be used."""
        ca, cert, key = self.ssl_ca_location, self.ssl_certificate_location, self.ssl_key_location
        try:
            context = ssl.create_default_context(cafile=ca or None)
            if cert:
                context.load_cert_chain(cert, key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (ca, cert, key) if name)
            raise ConfigError(f"schema registry: TLS files ({files}) cannot be used: {error}") from error
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


NO_REGISTRY_SETTINGS: Final = RegistrySection.model_validate({})


def _access(url: str) -> tuple[str, str]:
    """Return TiCDC's `schema-registry` without the user:password that it may have, URL-encoded, and the value of the
    Authorization header for them, or "". Slashes at its end do not count. Raises ConfigError."""
    parts = urlsplit(url)
    try:
        where, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"schema-registry: {_without_user(url)}: {error}") from None
    if parts.scheme not in ("http", "https") or not where:
        raise ConfigError(f"schema-registry: {_without_user(url)!r} is no http:// or https:// URL")
    plain = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    basic = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    return plain, basic if user else ""


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

    def __init__(
        self, url: str, settings: RegistrySection, *, wait_s: float, stop: threading.Event | None = None
    ) -> None:
        """`url`: with user and password, if it has them. Raises ConfigError, also for TLS files that cannot be used."""
        self.url, basic = _access(url)
        self._wait_s = wait_s
        self._stop = stop
        token = settings.bearer_auth_token
        self._authorization = f"Bearer {token}" if token else basic
        handlers: list[Any] = [_NoRedirect()]
        if self.url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=settings.tls()))
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
