"""What a caller may say when it connects: the same words for the pump client, the SDK and their blocking faces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from binlog.fields import UpstreamSection, parse_loose_urls
from binlog.security import Security

from pumpclient.errors import CommitUndelivered
from pumpclient.tracker import OpenTransaction
from pumpclient.writer import Limits

PdUrls = str | Sequence[str]


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of every `connect`; each may be left out.

    write_timeout_s: seconds after which another pump is tried, 15 by default; `limits` says it and all other times.
    security: TLS towards etcd, PD and the pumps. tso_source: auto, pd or own. pd_addr: PD's gRPC address, host:port,
    where it is not at pd_urls. on_undelivered, on_expired: called in the event loop, once for each transaction whose
    end reached no pump, or that has been open for too long.
    """

    write_timeout_s: float
    security: Security | None
    tso_source: str
    pd_addr: str
    limits: Limits | None
    on_undelivered: Callable[[CommitUndelivered], None] | None
    on_expired: Callable[[OpenTransaction], None] | None


def upstream(pd_urls: PdUrls, *, tso_source: str = "auto", pd_addr: str = "") -> UpstreamSection:
    """The section of settings the contract's functions take; bare host:port is accepted (K-05). Raises ConfigError."""
    urls = parse_loose_urls(pd_urls if isinstance(pd_urls, str) else list(pd_urls))
    return UpstreamSection.model_validate({"pd-urls": list(urls), "tso-source": tso_source, "pd-addr": pd_addr})


def upstream_of(pd_urls: PdUrls, options: ConnectOptions) -> UpstreamSection:
    """`upstream` of what the caller of a `connect` said."""
    return upstream(pd_urls, tso_source=options.get("tso_source", "auto"), pd_addr=options.get("pd_addr", ""))


def limits_of(options: ConnectOptions) -> Limits:
    """`limits` where it is given, else the defaults with `write_timeout_s`."""
    given = options.get("limits")
    if given is not None:
        return given
    return Limits(write_timeout_s=options["write_timeout_s"]) if "write_timeout_s" in options else Limits()
