"""Confluent's schema registry: schemas are registered by the driver, and found by their ids. Requests have
authentication and TLS, and wait for a registry that does not answer."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from binlog.runtime.log import get_logger
from pydantic import Field

from drainer.protocol.encoder import RequiredSchema, SchemaIds, fingerprint, merged
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.settings.ticdc_settings import Switch
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


_log = get_logger(__name__)
WAIT_S: Final = 300.0
_REFUSALS: Final = (409, 422)
_NOT_FOUND: Final = 404
_SCHEMA_SHOWN: Final = 4_000  # characters of a schema in an error


class SchemaRefused(DestinationRefused):
    """The registry does not take a schema. Its own words say, as a rule, which rule of compatibility it breaks."""


class SchemaRegistry:
    """Blocking; not for several threads. Every schema is registered once, and every id is looked up once."""

    def __init__(
        self,
        url: str,
        settings: RegistrySection = NO_REGISTRY_SETTINGS,
        *,
        wait_s: float = WAIT_S,
        stop: threading.Event | None = None,
    ) -> None:
        """`wait_s`: how long a registry that is down is waited for, by each request. Raises ConfigError for a URL or
        TLS files that cannot be used."""
        self._http = RegistryHttp(url, settings, wait_s=wait_s, stop=stop)
        self._schemas: dict[int, str] = {}
        self.ids: SchemaIds = {}  # of all schemas that were registered so far

    def check(self) -> None:
        """Check that the registry answers, accepts the credentials and supports Avro. Raises DestinationRefused or
        DestinationDown."""
        try:
            kinds = self._http.get("/schemas/types")
        except RegistryAnswer as error:
            if error.status != _NOT_FOUND:
                raise
            raise DestinationRefused(
                f"{error}: schema-registry must be the URL at which Confluent's API begins, such as http://host:8081, "
                "with the path if it has one"
            ) from None
        if not isinstance(kinds, list) or "AVRO" not in kinds:
            raise DestinationRefused(f"{self._http.url} is no schema registry for Avro: its types are {kinds!r:.200}")

    def register(self, subject: str, schema: str) -> int:
        """The schema's id; the same again where the subject has it already.

        Raises SchemaRefused, DestinationRefused or DestinationDown."""
        known = self.ids.get(subject, {}).get(fingerprint(schema))
        if known is not None:
            return known
        try:
            answer = self._http.post(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        except RegistryAnswer as error:
            if error.status not in _REFUSALS:
                raise
            shown = schema[:_SCHEMA_SHOWN] + ("…" if len(schema) > _SCHEMA_SHOWN else "")
            raise SchemaRefused(
                f"the schema registry refuses a schema of the subject {subject} (HTTP {error.status}): {error.words}; "
                "change the subject's compatibility or the table's column; or, where several tables share this topic, "
                f'give each its own by topic = "{{schema}}_{{table}}" in [[syncer.to.dispatchers]]; the schema is '
                f"{shown}"
            ) from error
        found = _member(answer, "id")
        if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
            raise DestinationRefused(f"schema registry {self._http.url}: {found!r} as the id of a schema of {subject}")
        self.ids = merged(self.ids, [(RequiredSchema(subject, schema), found)])
        _log.info("schema registered", subject=subject, id=found)
        return found

    def register_all(self, required: Iterable[RequiredSchema]) -> SchemaIds:
        """`ids`, with these among them. Raises as `register`."""
        for one in required:
            self.register(one.subject, one.schema)
        return self.ids

    def schema(self, schema_id: int) -> str:
        """Return the schema of an id. Raises LookupError if the id does not exist, DestinationRefused if the schema is
        not an Avro schema, DestinationDown."""
        found = self._schemas.get(schema_id)
        if found is not None:
            return found
        try:
            answer = self._http.get(f"/schemas/ids/{schema_id}")
        except RegistryAnswer as error:
            if error.status == _NOT_FOUND:
                raise LookupError(f"no schema has the id {schema_id}: {error.words}") from None
            raise
        kind, text = _member(answer, "schemaType") or "AVRO", _member(answer, "schema")
        if kind != "AVRO" or not isinstance(text, str):
            raise DestinationRefused(f"schema registry {self._http.url}: the schema {schema_id} is one of {kind!r}")
        self._schemas[schema_id] = text
        return text


def _member(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None
