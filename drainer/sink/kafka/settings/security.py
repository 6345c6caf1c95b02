"""`[syncer.to.security]` of Kafka: TLS and SASL, under TiCDC's names, translated to the client library's settings."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Annotated, Final

from binlog.errors import ConfigError
from binlog.runtime.fields import Section
from pydantic import BeforeValidator, Field

from drainer.sink.kafka.settings.option_values import Switch

_WHERE: Final = "syncer.to.security"
_PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*_PASSWORDS, "OAUTHBEARER")
_OAUTH: Final = ("sasl_oauth_client_id", "sasl_oauth_client_secret", "sasl_oauth_token_url")


def _listed(value: object) -> object:
    """TiCDC's file has a list."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


class KafkaSecuritySection(Section):
    """TLS is on where a CA, a certificate or `enable-tls` is set, or the sink URI's scheme is kafka+ssl."""

    enable_tls: Switch = Field(False, description="TLS with the system's CA certificates if no `ca` is set")
    ca: str = Field("", description="CA file that verifies the brokers' certificates")
    cert: str = Field("", description="client certificate file")
    key: str = Field("", description="key file of the certificate")
    insecure_skip_verify: Switch = Field(
        False,
        description="true: neither certificates nor names of brokers are verified; anyone who can answer at "
        "their address can impersonate a broker",
    )
    sasl_mechanism: str = Field(
        "", description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; empty: PLAIN if a user is set"
    )
    sasl_user: str = Field("", description="user, for PLAIN and SCRAM")
    sasl_password: str = Field("", repr=False, description="its password; never logged or shown")
    sasl_oauth_client_id: str = Field("", description="client id, for OAUTHBEARER")
    sasl_oauth_client_secret: str = Field("", repr=False, description="client secret in base64, as with TiCDC")
    sasl_oauth_token_url: str = Field("", description="URL that issues tokens")
    sasl_oauth_scopes: Annotated[str, BeforeValidator(_listed)] = Field("", description="scopes, separated by commas")
    sasl_oauth_grant_type: str = Field("client_credentials", description="only client_credentials is supported")
    sasl_oauth_audience: str = Field("", description="audience of the token")
    sasl_gssapi_auth_type: str = Field("", description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_keytab_path: str = Field("", description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_kerberos_config_path: str = Field("", description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_service_name: str = Field("", description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_user: str = Field("", description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_password: str = Field("", repr=False, description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_realm: str = Field("", description="refused with the reason, as all of GSSAPI is")
    sasl_gssapi_disable_pafxfast: Switch = Field(False, description="refused with the reason, as all of GSSAPI is")

    @property
    def tls(self) -> bool:
        return self.enable_tls or self.insecure_skip_verify or bool(self.ca or self.cert)

    @property
    def mechanism(self) -> str:
        """Return the mechanism under Kafka's name; "" without SASL. Raises ConfigError for an unknown one."""
        if not self.sasl_mechanism:
            if any(getattr(self, name) for name in _OAUTH):
                return "OAUTHBEARER"
            return "PLAIN" if self.sasl_user else ""
        found = self.sasl_mechanism.upper()  # in TiCDC case does not matter
        if found not in (*MECHANISMS, "GSSAPI"):
            names = ", ".join(MECHANISMS)
            raise ConfigError(f"{_WHERE}: sasl-mechanism must be one of {names}, not {self.sasl_mechanism!r}")
        return found

    def check(self) -> None:
        """Raises ConfigError for settings that do not fit together, and for files that cannot be read."""
        if bool(self.cert) != bool(self.key):
            raise ConfigError(f"{_WHERE}: cert and key must be set together")
        if (self.ca or self.cert) and "enable_tls" in self.model_fields_set and not self.enable_tls:
            raise ConfigError(f"{_WHERE}: enable-tls is false, and there is a ca or cert: remove one of them")
        for name in ("ca", "cert", "key"):
            _check_file(name, getattr(self, name))
        mechanism = self.mechanism
        gssapi = [name for name in type(self).model_fields if name.startswith("sasl_gssapi")]
        if mechanism == "GSSAPI" or any(getattr(self, name) for name in gssapi):
            raise ConfigError(
                f"{_WHERE}: GSSAPI (Kerberos) needs a Kafka client library built with it, and the one that pip "
                f"installs is not: use SCRAM-SHA-512 or OAUTHBEARER, or build confluent-kafka against a librdkafka "
                f'with GSSAPI and set [syncer.to.client] "sasl.mechanism" and "sasl.kerberos.*" yourself'
            )
        if mechanism in _PASSWORDS and not (self.sasl_user and self.sasl_password):
            raise ConfigError(f"{_WHERE}: {mechanism} needs sasl-user and sasl-password")
        if mechanism == "OAUTHBEARER":
            self._check_oauth()
        elif any(getattr(self, name) for name in _OAUTH):
            raise ConfigError(f'{_WHERE}: sasl-oauth-* settings need sasl-mechanism = "OAUTHBEARER"')

    def _check_oauth(self) -> None:
        missing = [name.replace("_", "-") for name in _OAUTH if not getattr(self, name)]
        if missing:
            raise ConfigError(f"{_WHERE}: OAUTHBEARER needs {', '.join(missing)}")
        if self.sasl_oauth_grant_type != "client_credentials":
            raise ConfigError(
                f"{_WHERE}: sasl-oauth-grant-type must be client_credentials, not {self.sasl_oauth_grant_type!r}"
            )
        self._oauth_secret()

    def _oauth_secret(self) -> str:
        try:
            return base64.b64decode(self.sasl_oauth_client_secret, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ConfigError(f"{_WHERE}: sasl-oauth-client-secret must be base64 of the secret") from None

    def client_settings(self) -> dict[str, str]:
        """Under the client library's names (librdkafka). Call `check` first."""
        mechanism = self.mechanism
        protocol = ("SASL_" if mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")
        found = {"security.protocol": protocol}
        if self.tls:
            files = {
                "ssl.ca.location": self.ca or "probe",
                "ssl.certificate.location": self.cert,
                "ssl.key.location": self.key,
            }
            found |= {name: value for name, value in files.items() if value}
            if self.insecure_skip_verify:
                found |= {
                    "enable.ssl.certificate.verification": "false",
                    "ssl.endpoint.identification.algorithm": "none",
                }
        if mechanism:
            found["sasl.mechanism"] = mechanism
        if mechanism in _PASSWORDS:
            found |= {"sasl.username": self.sasl_user, "sasl.password": self.sasl_password}
        if mechanism == "OAUTHBEARER":
            found |= self._oauth_settings()
        return found

    def _oauth_settings(self) -> dict[str, str]:
        settings = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": self.sasl_oauth_client_id,
            "sasl.oauthbearer.client.secret": self._oauth_secret(),
            "sasl.oauthbearer.token.endpoint.url": self.sasl_oauth_token_url,
            "sasl.oauthbearer.scope": self.sasl_oauth_scopes.replace(",", " "),
        }
        if self.sasl_oauth_token_url.startswith("https:"):
            settings["https.ca.location"] = self.ca or "probe"
        return {name: value for name, value in settings.items() if value}


def _check_file(name: str, path: str) -> None:
    if not path:
        return
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{_WHERE}: {name} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{_WHERE}: {name} {path!r} is no file's name: {error}") from None
