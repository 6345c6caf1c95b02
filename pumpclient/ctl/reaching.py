"""Finds out why etcd cannot be reached, because gRPC reports the same error for every reason."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from binlog.runtime.fields import split_host_port
from binlog.runtime.security import Security

PROBE_S = 2.0


async def why_unreachable(urls: Sequence[str], security: Security | None) -> str:
    """Try to connect to each URL and return the problems, as `https://h:1 …; https://h:2 …`."""
    found = await asyncio.gather(*(_probe(urlsplit(url).netloc or url, security) for url in urls))
    return "; ".join(f"{url} {why}" for url, why in zip(urls, found, strict=True))


async def _probe(place: str, security: Security | None) -> str:
    """Return the problem at host:port, as far as a TCP connection shows it (with TLS if `security` is given)."""
    host, port = split_host_port(place)
    context = security.ssl_context(server=False, protocols=("h2",)) if security is not None else None
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=host if context is not None else None
            )
    except ssl.SSLCertVerificationError as error:
        return f"has a certificate that -ssl-ca does not verify: {error.verify_message}"
    except ssl.SSLError as error:
        return f"does not speak TLS with us: {error.reason or error}"
    except TimeoutError:
        return "does not answer"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    writer.transport.abort()  # close() would wait for the peer's TLS close_notify
    if context is None:
        return await _silence(host, port)
    needs = "" if security is not None and security.ssl_cert else ": does it need -ssl-cert and -ssl-key?"
    return f"accepts the TLS connection, but not the requests{needs}"


async def _silence(host: str, port: int) -> str:
    """Return why a server that accepts plain connections does not answer: it may wait for a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but the handshake
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except TimeoutError:
        return "accepts the connection, but does not answer: it hangs, or is no etcd"
    except OSError:  # SSLError is one: it answers, and not with TLS
        return "accepts the connection, but does not answer as an etcd"
    writer.transport.abort()
    return "accepts the connection, but requires TLS: does it need -ssl-ca?"
