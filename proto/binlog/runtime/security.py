"""TLS settings of every program: a CA, a certificate with its key, and allowed client names.

TLS is used only if a CA is set (`S-01`). The certificate and its key are read when a program starts, so that a wrong
path fails immediately, and again for every handshake (`S-02`), so that they can be renewed without a restart.

`cert-allowed-cn` (`S-03`): a server then requires from every client a certificate of that CA with a Common Name in the
list. The name is checked when a call or request arrives, before its handler runs, so that the caller sees the reason.
The original uses the same list to check servers' names when it is the client. Here a client verifies the server's host
name, as is usual.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from binlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Security:
    """The `[security]` section. If it is empty, TLS is off, and the methods below return None."""

    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    cert_allowed_cn: tuple[str, ...] = field(default=())

    @property
    def enabled(self) -> bool:
        return bool(self.ssl_ca)

    def verify(self) -> None:
        """Raise ConfigError with the key and the file if TLS is on and a file cannot be used."""
        if not self.enabled:
            return
        if bool(self.ssl_cert) != bool(self.ssl_key):
            raise ConfigError("security: ssl-cert and ssl-key must be set together")
        self.ssl_context(server=False)

    def grpc_channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a client. The files are read now: call it for every new connection (`S-02`)."""
        if not self.enabled:
            return None
        self.verify()
        ca = _read("ssl-ca", self.ssl_ca)
        if not self.ssl_cert:
            return grpc.ssl_channel_credentials(ca)
        return grpc.ssl_channel_credentials(ca, _read("ssl-key", self.ssl_key), _read("ssl-cert", self.ssl_cert))

    def ssl_context(self, *, server: bool, protocols: Sequence[str] = ()) -> ssl.SSLContext | None:
        """Return a context for HTTP, SQL and our own gRPC servers. A server's context reads the files again for every
        handshake.

        `protocols`: the protocols offered by ALPN, the preferred one first.
        """
        if not self.enabled:
            return None
        if server and not self.ssl_cert:
            raise ConfigError("security: a server needs ssl-cert and ssl-key beside ssl-ca")
        context = self._context(server, protocols)
        if server:
            newest = context

            def renew(sock: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
                nonlocal newest
                with contextlib.suppress(ConfigError):  # while files are being replaced, use the old ones
                    newest = self._context(server, protocols)
                sock.context = newest

            context.sni_callback = renew  # called for clients without SNI too
        return context

    def check_names(self, names: tuple[str, ...]) -> str | None:
        """Return None if one of a client's Common Names is allowed, otherwise the original's error text (`S-03`)."""
        allowed = {name.strip() for name in self.cert_allowed_cn}
        if not allowed or allowed.intersection(names):
            return None
        return (
            f"client certificate authentication failed. The Common Name from the client certificate {', '.join(names)} "
            f"was not found in the configuration cluster-verify-cn with value: {', '.join(self.cert_allowed_cn)}"
        )

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


def common_names(tls: ssl.SSLObject | None) -> tuple[str, ...]:
    """Return the Common Names of the certificate that the peer of a connection has presented."""
    certificate: Any = (tls.getpeercert() if tls is not None else None) or {}
    return tuple(value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"security: {key} {path}: {error.strerror}") from error
