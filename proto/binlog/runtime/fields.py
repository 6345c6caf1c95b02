"""Types of settings, and sections that several programs share.

Error texts are those of the original (`K-05`, `K-11`).
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import struct
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from binlog.cluster import tso
from binlog.runtime.security import Security


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Section(BaseModel):
    """Base of configuration models: keys in kebab-case, unknown ones refused, values frozen, defaults validated."""

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=True, extra="forbid", frozen=True, validate_default=True
    )


def _tso(value: object) -> object:
    if isinstance(value, datetime):  # TOML has times
        return tso.of_time(value)
    return tso.parse(value) if isinstance(value, str) else value


Tso = Annotated[int, BeforeValidator(_tso)]


_BYTES = re.compile(r"([0-9][0-9,]*(?:\.[0-9,]*)?)\s*([a-z]*)", re.IGNORECASE)
_BYTE_UNITS = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgtpe", start=1)
    for unit, base in ((letter, 1000), (f"{letter}b", 1000), (f"{letter}i", 1024), (f"{letter}ib", 1024))
}


def parse_bytes(value: object) -> int:
    """Parse a size: `42 MB` = 42 000 000, `42 mib` = 44 040 192, a plain number: bytes, empty: 0. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"a size must not be negative: {value}")
        return value
    text = str(value).strip()
    if not text:
        return 0
    match = _BYTES.fullmatch(text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size in bytes; write for example 42 MB or 10 GiB")
    number, unit = match[1].replace(",", ""), _BYTE_UNITS[match[2].lower()]
    return int(float(number) * unit) if "." in number else int(number) * unit


_GO_UNITS_US = {"ns": 0.001, "us": 1, "µs": 1, "μs": 1, "ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6}
_GO_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def parse_go_duration(value: object) -> timedelta:
    """Parse a Go duration: `8h`, `1h30m`, `250ms`, `0`. Fractions of a microsecond are rounded. Raises ValueError."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    body = text.removeprefix("-").removeprefix("+")
    if body == "0":
        return timedelta(0)
    parts = list(_GO_PART.finditer(body))
    if not parts or "".join(part[0] for part in parts) != body:
        raise ValueError(f"{text!r} is not a duration; write for example 8h, 30m or 250ms")
    microseconds = sum(float(part[1]) * _GO_UNITS_US[part[2]] for part in parts)
    try:
        return timedelta(microseconds=-microseconds if text.startswith("-") else microseconds)
    except OverflowError as error:
        raise ValueError(f"{text!r} is a duration that is too long") from error


def parse_retention(value: object) -> timedelta:
    """Parse a retention time (`K-11`): a plain number is days; anything else is a Go duration."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    try:
        return timedelta(days=int(text)) if re.fullmatch(r"[0-9]+", text) else parse_go_duration(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"unsupported gc time {text}, etc: use 7 for 7 day, 7h for 7 hour") from error


_SECONDS = re.compile(r"([0-9]{1,9})([smh]?)")


def parse_seconds(value: object) -> float:
    """Parse a number of seconds, or a time such as `90s`, `5m`, `1h`. Raises ValueError."""
    match = _SECONDS.fullmatch(str(value))
    if match is None:
        raise ValueError(f"90s, 5m, 1h, or seconds were expected, not {value!r}")
    return float(int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]])


def check_zone(text: str) -> str:
    """Return the name if this machine knows a time zone of that name. Raises ValueError."""
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"{text!r} is not a time zone that this machine knows; write for example Europe/Berlin"
        ) from error
    return text


def split_host_port(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port` or `[v6]:port`. Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not bracketed):
        raise ValueError(f"{text!r} does not have the form host:port")
    return (host[1:-1] if bracketed else host), int(port)


def reachable(listens: str, advertised: str) -> str:
    """Return host:port at which other machines reach a server.

    `listens`: the address at which the server listens ("" gives ""). `advertised`: an address of the same machine.
    """
    if not listens:
        return ""
    host, port = split_host_port(listens)
    if host not in ("", "0.0.0.0", "::"):
        return listens
    return f"{advertised.rpartition(':')[0]}:{port}"


def why_not_listening(error: OSError) -> str:
    """Return the operating system's error text, without what asyncio writes before it."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error.strerror or error)


def check_host_port(text: str) -> str:
    """Return the address if it has the form host:port. Raises ValueError."""
    split_host_port(text.strip())
    return text.strip()


def check_url(text: str) -> str:
    """Return a URL if it is valid by `K-05`. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https", "unix", "unixs"):
        raise ValueError(f"URL scheme must be http, https, unix, or unixs: {text}")
    try:
        split_host_port(parts.netloc)
    except ValueError as error:
        raise ValueError(f'URL address does not have the form "host:port": {text}') from error
    if parts.path or parts.query or parts.fragment:
        raise ValueError(f"URL must not contain a path: {text}")
    return text


def parse_urls(value: object) -> tuple[str, ...]:
    """Parse URLs (`K-05`): comma-separated or a list, trimmed, sorted, at least one."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"a comma-separated text or a list of URLs was expected, not {value!r}")
    if not any(item.strip() for item in items):
        raise ValueError("no URL is given")
    return tuple(sorted(check_url(item.strip()) for item in items))


def parse_loose_urls(value: object) -> tuple[str, ...]:
    """Parse URLs as parse_urls does; a bare host:port means http (`K-05`: binlogctl and the pump client)."""
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(items, list | tuple):
        items = [f"http://{item.strip()}" if isinstance(item, str) and "://" not in item else item for item in items]
    return parse_urls(items)


def parse_names(value: object) -> object:
    """Parse a list of texts, or one comma-separated text."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
Duration = Annotated[timedelta, BeforeValidator(parse_go_duration)]
Retention = Annotated[timedelta, BeforeValidator(parse_retention)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
ZoneName = Annotated[str, AfterValidator(check_zone)]
HostPort = Annotated[str, AfterValidator(check_host_port)]
Urls = Annotated[tuple[str, ...], BeforeValidator(parse_urls)]
Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]


class SecuritySection(Section):
    """`[security]` (`S-01`)."""

    ssl_ca: str = Field("", description="CA file; TLS is used only if it is set")
    ssl_cert: str = Field("", description="certificate file, read again for every handshake")
    ssl_key: str = Field("", description="the certificate's key file")
    cert_allowed_cn: Names = Field(
        (),
        description="Common Names; a client's certificate must have one of them; empty: no client "
        "certificate is required",
    )

    def security(self) -> Security:
        """Return the settings as a Security. Raises ConfigError if its files cannot be used."""
        made = Security(self.ssl_ca, self.ssl_cert, self.ssl_key, self.cert_allowed_cn)
        made.verify()
        return made


TsoSource = Literal["auto", "pd", "own"]


class UpstreamSection(Section):
    """Address of etcd and source of timestamps. Programs inherit it, so its keys are at the file's top level."""

    pd_urls: Urls = Field(
        ("http://127.0.0.1:2379",), description="comma-separated URLs of PD, or of an etcd if there is no PD"
    )
    tso_source: TsoSource = Field(
        "auto",
        description="source of timestamps: PD (pd) or an elected pump (own); auto: PD if it answers. Chosen "
        "once for a cluster and recorded in etcd",
    )
    pd_addr: Annotated[str, AfterValidator(lambda text: check_host_port(text) if text else text)] = Field(
        "", description="host:port of PD's gRPC service if it is not at pd-urls"
    )


def default_host() -> str:
    """Return the first IPv4 address of an interface that is not a loopback, or 127.0.0.1 (`K-06`)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # an interface without an IPv4 address
            address = ipaddress.IPv4Address(answer[20:24])
            if not address.is_loopback:
                return str(address)
    return "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether a server at this address or name is on the machine itself, as one without any host is."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "")


# Settings of the client library on which nothing being lost or repeated depends.
KAFKA_RESERVED = frozenset(
    {"bootstrap.servers", "acks", "request.required.acks", "enable.idempotence", "transactional.id"}
    | {"message.max.bytes", "group.id", "enable.auto.commit", "isolation.level"}
)


class TopicSection(Section):
    """The brokers and the names of the pumps' topics."""

    addresses: tuple[str, ...] = Field((), description="some of the brokers, as host:port; empty: not used")
    topic_prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = Field(
        "tidb-binlog",
        description="a pump's topic is <topic-prefix>-<cluster id>-<node id>; the same for pumps and drainers",
    )
    client: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="further settings of the client library (librdkafka), as name = value: TLS and SASL, too",
    )

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        taken = sorted((KAFKA_RESERVED | {"auto.offset.reset"}) & self.client.keys())
        if taken:
            raise ValueError(f"client: {', '.join(taken)} cannot be set: it would lose or repeat binlogs")
        return self

    def client_settings(self) -> dict[str, str]:
        """Return the settings that all clients share, under the client library's names."""
        return {"bootstrap.servers": ",".join(self.addresses), "client.id": "tidb-binlog", **self.client}
