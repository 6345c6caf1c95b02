"""How brokers are reached, `[syncer.to]` of Kafka: TLS and SASL, addresses, client settings, TiCDC's sink URI, and the
original drainer's settings."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from binlog.errors import ConfigError
from binlog.runtime.fields import KAFKA_RESERVED, Section, split_host_port
from pydantic import BeforeValidator, Field, model_validator

from drainer.dispatch.rules import checked_topic
from drainer.original_settings import WITHOUT_EFFECT, CheckpointSection, only
from drainer.protocol.registry import KAFKA_CONFIG
from drainer.sink.kafka.settings.ticdc_settings import (
    ConnectTimeout,
    RequestTimeout,
    Switch,
    TicdcSection,
    UnusedNumber,
    in_ticdc_table,
    ticdc_tables,
    whole_number,
    with_ticdc_tables,
)

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


# Settings of the original drainer's `[syncer.to]` with `db-type = "kafka"`.
#
# Its `kafka-addrs` and `topic-name` are `addresses` and `topic`. If one of them is given, the file is the original's:
# settings that are missing then have the values of what the original writes, `protocol = "secondary-binlog"` and one
# partition.

# The original's name → ours.
_NAMES: Final = {"kafka-addrs": "addresses", "topic-name": "topic"}
_AS_IT_WRITES: Final[Mapping[str, object]] = {"protocol": "secondary-binlog", "partition-num": 1}
# Settings of other destinations, which have no effect for Kafka in the original.
_OTHERS: Final = ("oracle-service-name", "oracle-connect-string")
_TLS: Final = ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn")
_HERE: Final = (
    "the position is in the control topic: remove it, and begin with initial-commit-ts of the checkpoint that exists"
)
_NO_ZOOKEEPER: Final = "brokers are not looked up in ZooKeeper: set kafka-addrs to host:port of some of them"


class KafkaCheckpointSection(CheckpointSection):
    """`[syncer.to.checkpoint]` of the original, which keeps its position for Kafka in a file unless a server is
    configured."""

    type: Annotated[str, only("", "file", why=_HERE)] = Field("", description=f"{WITHOUT_EFFECT}: file, or empty")
    schema_: str = Field("", alias="schema", description=f"{WITHOUT_EFFECT}: the position is in the control topic")
    host: Annotated[str, only("", why=_HERE)] = Field("", description="must be empty")


class OriginalKafkaSection(Section):
    """The original's keys that are not also names of other settings."""

    zookeeper_addrs: Annotated[str, only("", why=_NO_ZOOKEEPER)] = Field(
        "", description="must be empty: brokers are named by kafka-addrs"
    )
    kafka_max_messages: UnusedNumber = Field(
        1024, description=f"{WITHOUT_EFFECT}: the client library forms batches by bytes"
    )
    kafka_max_message_size: UnusedNumber = Field(
        1 << 30, description=f"{WITHOUT_EFFECT}: a topic's own max.message.bytes is the limit"
    )
    checkpoint: KafkaCheckpointSection = Field(default_factory=lambda: KafkaCheckpointSection.model_validate({}))


def with_original_names(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section's mapping under our names. Raises ConfigError if a setting is given under both
    names."""
    found = {name: given for name, given in value.items() if name not in (*_NAMES, *_OTHERS)}
    if any(value.get(name) for name in _OTHERS):
        names = ", ".join(name for name in _OTHERS if value.get(name))
        raise ConfigError(f"syncer.to: {names}: settings of other destinations, without effect for Kafka: remove them")
    if isinstance(value.get("security"), Mapping):
        given_tls = [name for name in _TLS if value["security"].get(name)]
        if given_tls:
            raise ConfigError(
                f"syncer.to.security: {', '.join(given_tls)}: the original has TLS for databases alone; that of Kafka "
                "is set by ca, cert and key: rename or remove them"
            )
        found["security"] = {name: given for name, given in value["security"].items() if name not in _TLS}
    given = {name: value[name] for name in _NAMES if value.get(name)}
    for name, text in given.items():
        if found.get(_NAMES[name]):
            raise ConfigError(f"syncer.to: {name} and {_NAMES[name]} are one setting: give one of them")
        if value.get("sink-uri"):
            raise ConfigError(f"syncer.to: {name}, and sink-uri, which says it, too: give one of them")
        is_list = name == "kafka-addrs" and isinstance(text, str)
        found[_NAMES[name]] = [one.strip() for one in text.split(",")] if is_list else text
    return {**_AS_IT_WRITES, **found} if given else found


SECURITY_KEYS: Final = tuple(info.alias or name for name, info in KafkaSecuritySection.model_fields.items())
# Settings of the client library that only the sink may set: another value could lose or repeat rows.
_RESERVED: Final = KAFKA_RESERVED | {
    "client.id",
    "compression.type",
    "compression.codec",
    "transaction.timeout.ms",
    "partitioner",
}
_BEFORE_PARAMETERS: Final = ("sink-uri", "addresses", "topic", "security")
_IN_KAFKA_CONFIG: Final = in_ticdc_table(KAFKA_CONFIG)
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]+")


def _lowered(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class KafkaConnectionSection(TicdcSection, OriginalKafkaSection):
    """Base of the section. A setting in `sink-uri` overrides the same setting in the file, as in TiCDC."""

    sink_uri: str = Field(
        "",
        repr=False,
        description="TiCDC's address of a topic, such as "
        "kafka://host:9092/topic?protocol=avro&partition-num=6; each parameter is the setting of "
        "that name here or under `security`, and takes precedence over it",
    )
    addresses: tuple[str, ...] = Field(
        (), description="some of the brokers, as host:port; the others are found through them"
    )
    topic: str = Field(
        "", description="the topic for everything that no rule sends elsewhere, including DDLs of databases"
    )
    kafka_client_id: str = Field(
        "", description="client id that brokers log; empty: named after the drainer", json_schema_extra=_IN_KAFKA_CONFIG
    )
    required_acks: Annotated[Literal[-1, 0, 1], whole_number(-1, 1)] = Field(
        -1,
        description="acknowledgements: -1 all in-sync replicas; 0 and 1 lose rows, and need exactly-once = false",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    compression: Annotated[Literal["none", "gzip", "snappy", "lz4", "zstd"], BeforeValidator(_lowered)] = Field(
        "none", description="how the client library compresses batches", json_schema_extra=_IN_KAFKA_CONFIG
    )
    dial_timeout: ConnectTimeout = Field(
        timedelta(seconds=10),
        description="timeout for opening a connection; at least 1s",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    read_timeout: RequestTimeout = Field(
        timedelta(seconds=10),
        description="timeout for the answer to a request; at least 1s",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    write_timeout: RequestTimeout = Field(
        timedelta(seconds=10),
        description="as read-timeout; the longer of the two counts, because the client library has one setting",
        json_schema_extra=_IN_KAFKA_CONFIG,
    )
    client: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="further settings of the client library (librdkafka), as name = value",
    )
    security: KafkaSecuritySection = Field(default_factory=lambda: KafkaSecuritySection.model_validate({}))

    @model_validator(mode="before")
    @classmethod
    def _from_uri(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if not isinstance(value.get("security", {}), Mapping):
            raise ConfigError("syncer.to.security: a section was expected")
        tables = ticdc_tables(cls)
        return with_sink_uri(with_ticdc_tables(with_original_names(value), tables, SECURITY_KEYS))

    def address(self) -> str:
        return f"kafka:{','.join(sorted(self.addresses))}/{self.topic}"

    @property
    def brokers(self) -> str:
        """Return the addresses as they were given, for texts."""
        return ",".join(self.addresses)

    def check(self) -> None:
        if not self.addresses:
            raise ConfigError('syncer.to: no Kafka address: set addresses = ["host:9092"] and topic, or sink-uri')
        checked_addresses(self.addresses, "syncer.to.addresses")
        if not self.topic:
            raise ConfigError(
                "syncer.to.topic: a topic for what no rule sends elsewhere; the original drainer's, where it is told "
                "none, is <cluster id>_obinlog"
            )
        checked_topic(self.topic, "syncer.to.topic")
        if self.kafka_client_id and not _CLIENT_ID.fullmatch(self.kafka_client_id):
            raise ConfigError(
                f"syncer.to.kafka-client-id: {self.kafka_client_id!r} may have letters, digits, '.', '_' and '-' alone"
            )
        taken = sorted(_RESERVED & self.client.keys())
        if taken:
            raise ConfigError(f"syncer.to.client: {', '.join(taken)} cannot be set: exactly-once apply depends on it")
        self.security.check()

    def client_settings(self, client_id: str = "tidb-binlog-drainer") -> dict[str, str]:
        """Return what producers, consumers and the admin client share, under the client library's names."""
        answer = max(self.read_timeout, self.write_timeout)
        return {
            "bootstrap.servers": ",".join(checked_addresses(self.addresses, "syncer.to.addresses")),
            "client.id": self.kafka_client_id or re.sub(r"[^A-Za-z0-9._-]", "_", client_id),
            "socket.connection.setup.timeout.ms": str(_milliseconds(self.dial_timeout)),
            "socket.timeout.ms": str(max(_milliseconds(answer), 1000)),
            **self.security.client_settings(),
            **self.client,
        }


def _milliseconds(duration: timedelta) -> int:
    return max(1000, duration // timedelta(milliseconds=1))


def with_sink_uri(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section's mapping with its sink-uri's, which take precedence. Raises ConfigError."""
    text = value.get("sink-uri")
    if not text or not isinstance(text, str):
        return dict(value)
    given = parse_sink_uri(text)
    of_security = {name: given.pop(name) for name in SECURITY_KEYS if name in given}
    found = {name: value[name] for name in value if name != "sink-uri"} | given
    if of_security:
        found["security"] = dict(value.get("security") or {}) | of_security
    return found


# TiCDC's sink URI: `kafka://host:port,host:port/topic?protocol=avro&partition-num=6`.

SCHEMES: Final = ("kafka", "kafka+ssl")
PORT_DEFAULT: Final = 9092


def parse_sink_uri(text: str) -> dict[str, Any]:
    """Return the settings in a sink URI: addresses, the topic, and its parameters, among them those of security. Raises
    ConfigError naming the invalid part. The error does not quote the URI, which may hold a password."""
    # If a password contains / ? or #, a part of it would be parsed as a host, a topic or a name, and errors would show
    # it.
    if "@" in text.partition("=")[0]:
        raise ConfigError(
            "sink-uri: a user before the host is not understood; write sasl-user and sasl-password as parameters"
        )
    try:
        parts = urlsplit(text)
    except ValueError:  # its text quotes the URI
        raise ConfigError("sink-uri: the part between // and the next / is not a list of host:port") from None
    if parts.scheme.lower() not in SCHEMES:
        raise ConfigError(f"sink-uri: the scheme must be one of {', '.join(SCHEMES)}, not {parts.scheme!r}")
    if "#" in text:
        raise ConfigError("sink-uri: the part after a # would be ignored; write %23 for a # in a value, or remove it")
    topic = unquote(parts.path.strip("/"))
    if not topic:
        raise ConfigError("sink-uri: no topic; it is the path, as in kafka://host:9092/topic")
    addresses = checked_addresses(parts.netloc.split(","), "sink-uri")
    parameters = _parameters(parts.query)
    own = [name for name in _BEFORE_PARAMETERS if name in parameters]
    if own:
        raise ConfigError(
            f"sink-uri: {own[0]} is no parameter: brokers and the topic stand before the ?, and each setting of "
            "security is a parameter of its own"
        )
    tls = {"enable-tls": True} if parts.scheme.lower() == "kafka+ssl" else {}
    return {"addresses": addresses, "topic": checked_topic(topic, "sink-uri"), **tls, **parameters}


def checked_addresses(addresses: Iterable[str], where: str) -> tuple[str, ...]:
    """Return each address as host:port, with the default port if it has none. `where`: the setting, for the error.
    Raises ConfigError."""
    return tuple(_address(address, where) for address in addresses)


def _address(given: str, where: str) -> str:
    text = given.strip()
    if not text:
        raise ConfigError(f"{where}: a broker's address is empty; write host:port,host:port")
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{PORT_DEFAULT}"
    try:
        host, port = split_host_port(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not host or not port:
        raise ConfigError(f"{where}: {given!r} does not have the form host:port")
    return text


def _parameters(query: str) -> dict[str, str]:
    """Parse the part after the ?. Raises ConfigError."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=200)
    except ValueError:
        raise ConfigError("sink-uri: the part after the ? must be name=value pairs with & between them") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"sink-uri: parameter {name} is given twice")
        if "\0" in value:
            raise ConfigError(f"sink-uri: parameter {name} has a NUL")
        found[name] = value
    return found
