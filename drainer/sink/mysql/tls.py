"""TLS to the server: its certificate and its name are verified unless the configuration says `skip-verify`.

Without any TLS setting the connection is encrypted if the server offers TLS, and nothing is verified. An attacker on
the network may then read the data or impersonate the server; a warning is logged once.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from binlog.errors import ConfigError
from binlog.runtime.fields import is_loopback
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security
from pymysql.err import OperationalError

from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.config import ServerConfig

_log = get_logger(__name__)

# CR_SSL_CONNECTION_ERROR: the server offers no TLS.
NO_TLS: Final = 2026


def _skip(config: ServerConfig) -> str:
    return (
        f"set [{config.section}.security] skip-verify = true to connect without (the server's identity is then not "
        f"verified)"
    )


def required(config: ServerConfig) -> bool:
    return bool(config.ssl_ca or config.ssl_cert or config.ssl_key or config.skip_verify)


def connect_options(config: ServerConfig) -> dict[str, Any]:
    """Return the arguments of pymysql.connect for TLS. Raises DestinationRefused for files that cannot be used.

    The password is never sent in plain text to a server that is not verified."""
    options: dict[str, Any] = {}
    if required(config):
        options["ssl"] = context(config)
    if not required(config) or config.skip_verify:
        options["auth_plugin_map"] = {b"mysql_clear_password": _NotInClear, b"dialog": _NotInClear}
    return options


def context(config: ServerConfig) -> ssl.SSLContext:
    """The files are read at every connect, so that they can be renewed without a restart."""
    try:
        if config.ssl_ca:
            made = Security(config.ssl_ca, config.ssl_cert, config.ssl_key).ssl_context(server=False)
            assert made is not None, "TLS is on where a CA is set"
        elif config.skip_verify:
            made = unverified()
            if config.ssl_cert:
                made.load_cert_chain(config.ssl_cert, config.ssl_key or None)
        else:
            raise ConfigError(f"ssl-cert is set without the ssl-ca that the server is verified with; {_skip(config)}")
    except (ConfigError, OSError) as error:
        raise DestinationRefused(f"{config.address}: [{config.section}.security]: {error}") from error
    if config.skip_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def unverified() -> ssl.SSLContext:
    """For a connection that is encrypted if the server offers it and verifies nothing."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # TLS 1.2 and newer
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def refusal(config: ServerConfig, error: BaseException) -> DestinationRefused | None:
    """Why the server is not trusted, if that is what this error says."""
    cause = getattr(error, "original_exception", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DestinationRefused(
            f"{config.address}: the server's certificate is refused: {cause.verify_message or cause}. Expected is a "
            f"certificate for {config.host!r} that is signed by {config.ssl_ca} and valid today; correct "
            f"[{config.section}] host, [{config.section}.security] ssl-ca or the server's certificate, or "
            f"{_skip(config)}"
        )
    if isinstance(error, OperationalError) and error.args[:1] == (NO_TLS,):
        return DestinationRefused(
            f"{config.address}: the server offers no TLS, which [{config.section}.security] requires; switch it on "
            f"there, or remove ssl-ca, ssl-cert, ssl-key and skip-verify to connect without"
        )
    return None


def report(config: ServerConfig) -> None:
    """Log once what is not verified."""
    if config.skip_verify:
        _log.warning("skip-verify: the destination's certificate and name are not verified", address=config.address)
    elif not required(config) and config.password and not is_loopback(config.host):
        _log.warning(
            "the destination's certificate is not verified, and the connection may not even be encrypted: set "
            "[syncer.to.security] ssl-ca",
            address=config.address,
        )


class _NotInClear:
    """Stands in for the authentication plugins that send the password as it is."""

    def __init__(self, _connection: object) -> None:
        pass

    def authenticate(self, _packet: object) -> None:
        raise OperationalError(
            2059,  # a plugin that cannot be used: refused, not tried again
            "the server asks for the password in clear text, and its certificate is not verified; set ssl-ca in its "
            "security section",
        )
