"""TLS settings of every program: one CA, one certificate with its key, and allowed client names.

TLS is on only when a CA is set (`S-01`). The pair is read when a program starts, so that a wrong path fails there, and
again for every handshake (`S-02`), so that it can be renewed without a restart.

`cert-allowed-cn` (`S-03`): a server then asks every client for a certificate of that CA and wants its Common Name in
the list. grpc offers no callback inside the handshake, so for gRPC the name is checked when a call arrives, before its
handler runs; the caller sees UNAUTHENTICATED. Upstream checks servers' names with the same list when it is the
client; here a client verifies the server's host name, as is usual.
"""

from __future__ import annotations

import contextlib
import inspect
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from binlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Security:
    """The `[security]` section. Empty: no TLS, and every method below returns None (or no interceptor)."""

    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    cert_allowed_cn: tuple[str, ...] = field(default=())

    @property
    def enabled(self) -> bool:
        return bool(self.ssl_ca)

    def verify(self) -> None:
        """ConfigError, naming key and file, if TLS is on and the files cannot be used."""
        if not self.enabled:
            return
        if bool(self.ssl_cert) != bool(self.ssl_key):
            raise ConfigError("security: ssl-cert and ssl-key must be set together")
        self.ssl_context(server=False)

    def grpc_channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For a client. The files are read now: who connects anew calls this anew (`S-02`)."""
        if not self.enabled:
            return None
        self.verify()
        pair = self._pair()
        return grpc.ssl_channel_credentials(_read("ssl-ca", self.ssl_ca), *(reversed(pair) if pair else (None, None)))

    def grpc_server_credentials(self) -> grpc.ServerCredentials | None:
        """For a server. The pair is read again for every handshake; a pair that cannot be read leaves the old one."""
        if not self.enabled:
            return None
        self.verify()
        ask = bool(self.cert_allowed_cn)
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._renewed, ask)  # type: ignore[arg-type]  # None keeps the pair

    def grpc_server_interceptors(self) -> list[aio.ServerInterceptor]:
        """What a gRPC server needs besides credentials to enforce `cert-allowed-cn`."""
        if not self.enabled or not self.cert_allowed_cn:
            return []
        return [_AllowedNames(self)]

    def ssl_context(self, *, server: bool, protocols: Sequence[str] = ()) -> ssl.SSLContext | None:
        """For HTTP, SQL and our own gRPC servers. A server's context reads the pair anew for every handshake.
        `protocols`: what is offered by ALPN, the best first."""
        if not self.enabled:
            return None
        if server and not self.ssl_cert:
            raise ConfigError("security: a server needs ssl-cert and ssl-key beside ssl-ca")
        context = self._context(server, protocols)
        if server:
            newest = context

            def renew(sock: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
                nonlocal newest
                with contextlib.suppress(ConfigError):  # a pair being replaced: the old one serves until it is whole
                    newest = self._context(server, protocols)
                sock.context = newest

            context.sni_callback = renew  # called for clients without SNI too
        return context

    def check_names(self, names: tuple[str, ...]) -> str | None:
        """None if one of a client's Common Names may connect, else upstream's text (`S-03`)."""
        allowed = {name.strip() for name in self.cert_allowed_cn}
        if not allowed or allowed.intersection(names):
            return None
        return _refusal(names, self.cert_allowed_cn)

    def _context(self, server: bool, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ssl_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"security: ssl-ca {self.ssl_ca}: {error}") from error
        if self.ssl_cert:
            try:
                context.load_cert_chain(self.ssl_cert, self.ssl_key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"security: ssl-cert {self.ssl_cert}, ssl-key {self.ssl_key}: {error}") from error
        if server:
            context.verify_mode = ssl.CERT_REQUIRED if self.cert_allowed_cn else ssl.CERT_NONE
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    def _pair(self) -> tuple[bytes, bytes] | None:
        """(certificate chain, key)."""
        if not self.ssl_cert:
            return None
        return _read("ssl-cert", self.ssl_cert), _read("ssl-key", self.ssl_key)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = self._pair()
        if pair is None:
            raise ConfigError("security: a server needs ssl-cert and ssl-key beside ssl-ca")
        chain, key = pair
        return grpc.ssl_server_certificate_configuration([(key, chain)], _read("ssl-ca", self.ssl_ca))

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            self._context(server=True)
            return self._configuration()
        except ConfigError:
            return None


def common_names(tls: ssl.SSLObject | None) -> tuple[str, ...]:
    """Those of the certificate that the other side of a connection has shown."""
    certificate: Any = (tls.getpeercert() if tls is not None else None) or {}
    return tuple(value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"security: {key} {path}: {error.strerror}") from error


def _refusal(names: tuple[str, ...], allowed: tuple[str, ...]) -> str:
    return (
        f"client certificate authentication failed. The Common Name from the client certificate {', '.join(names)} "
        f"was not found in the configuration cluster-verify-cn with value: {', '.join(allowed)}"
    )


class _AllowedNames(aio.ServerInterceptor):
    """Refuses a call whose client certificate has no allowed Common Name.

    grpc shows a handler the client's own certificate only, not the chain, so a name on an intermediate does not count.
    """

    def __init__(self, security: Security) -> None:
        self._security = security

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        sides = (
            "stream" if streaming else "unary" for streaming in (handler.request_streaming, handler.response_streaming)
        )
        kind = "_".join(sides)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(self._guarded(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer)

    def _guarded(self, inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        if inspect.isasyncgenfunction(inner):

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                await self._check(context)
                async for answer in inner(request, context):
                    yield answer

            return stream

        async def single(request: Any, context: Any) -> Any:
            await self._check(context)
            return await inner(request, context)

        return single

    async def _check(self, context: Any) -> None:
        names = tuple(name.decode(errors="replace") for name in context.auth_context().get("x509_common_name", ()))
        refusal = self._security.check_names(names)
        if refusal is not None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
