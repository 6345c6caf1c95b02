"""The options of `connect`, shared by the pump client, the SDK and their blocking forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from binlog.errors import ConfigError
from binlog.runtime.fields import UpstreamSection, parse_loose_urls
from binlog.runtime.security import Security
from pydantic import ValidationError

from pumpclient.errors import CommitUndelivered
from pumpclient.pool import STRATEGIES
from pumpclient.tracker import OpenTransaction
from pumpclient.writer import Limits

PdUrls = str | Sequence[str]


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of every `connect`. All are optional.

    - `write_timeout_s`: seconds after which another pump is tried, by default 15. `limits` sets this and all other
      times.
    - `security`: TLS for connections to etcd, PD and the pumps.
    - `tso_source`: auto, pd or own.
    - `pd_addr`: PD's gRPC address as host:port, if it is not at pd_urls.
    - `labels`: labels of this writer for the strategy `label`, such as {"zone": "a"}.
    - `labels_only`: fail instead of writing to a pump without these labels.
    - `on_undelivered`: called in the event loop, once for each transaction whose commit or rollback reached no pump.
    - `on_expired`: called in the event loop, once for each transaction that has been open for too long.
    """

    write_timeout_s: float
    security: Security | None
    tso_source: str
    pd_addr: str
    limits: Limits | None
    labels: Mapping[str, str]
    labels_only: bool
    on_undelivered: Callable[[CommitUndelivered], None] | None
    on_expired: Callable[[OpenTransaction], None] | None


_KINDS: dict[str, tuple[type, ...]] = {
    "write_timeout_s": (int, float),
    "security": (Security, type(None)),
    "tso_source": (str,),
    "pd_addr": (str,),
    "limits": (Limits, type(None)),
    "labels": (Mapping,),
    "labels_only": (bool,),
}


def upstream(pd_urls: PdUrls, *, tso_source: str = "auto", pd_addr: str = "") -> UpstreamSection:
    """Return the upstream settings. A URL may be a bare host:port (K-05). Raises ConfigError."""
    given: dict[str, object] = {"pd-urls": pd_urls, "tso-source": tso_source, "pd-addr": pd_addr}
    try:
        given["pd-urls"] = list(parse_loose_urls(pd_urls if isinstance(pd_urls, str) else list(pd_urls)))
        return UpstreamSection.model_validate(given)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(
                _told(given, fault["loc"], fault["msg"].removeprefix("Value error, ")) for fault in error.errors()
            )
        ) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(_told(given, ("pd-urls",), str(error))) from None


def _told(given: Mapping[str, object], place: Sequence[int | str], why: str) -> str:
    name = str(place[0]) if place else ""
    return f"{name.replace('-', '_')}={given.get(name)!r}: {why}"


def check_options(options: Mapping[str, object]) -> None:
    """Raise TypeError for an unknown option or a value of the wrong type."""
    known = sorted(ConnectOptions.__annotations__)
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"connect has no option {name}={value!r}; the options are {', '.join(known)}")
        kinds = _KINDS.get(name)
        if kinds is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise TypeError(f"{name}={value!r}: expected {wanted}, got {type(value).__name__}")
    for name in ("on_undelivered", "on_expired"):
        if options.get(name) is not None and not callable(options[name]):
            raise TypeError(f"{name}={options[name]!r}: expected a function, got {type(options[name]).__name__}")
    seconds = options.get("write_timeout_s")
    if isinstance(seconds, int | float) and not seconds > 0:
        raise ConfigError(f"write_timeout_s={seconds!r}: it must be more than 0")


def check_strategy(strategy: str) -> str:
    """Raise ConfigError for an unknown strategy."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy!r}: it must be one of {', '.join(STRATEGIES)}")
    return strategy


def check_labels(strategy: str, labels: Mapping[str, str], *, only: bool) -> None:
    """Raise ConfigError unless labels are given exactly if the strategy uses them."""
    if strategy == "label" and not labels:
        raise ConfigError("strategy='label' needs labels, such as labels={'zone': 'a'}")
    if strategy != "label" and (labels or only):
        raise ConfigError(f"labels={dict(labels)!r}: strategy={strategy!r} does not use labels; only 'label' does")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"labels={dict(labels)!r}: names and values must be str")


def upstream_of(pd_urls: PdUrls, options: ConnectOptions) -> UpstreamSection:
    """Return the upstream settings of a `connect`. Raises TypeError or ConfigError that names the argument."""
    check_options(options)
    return upstream(pd_urls, tso_source=options.get("tso_source", "auto"), pd_addr=options.get("pd_addr", ""))


def limits_of(options: ConnectOptions) -> Limits:
    """Return the option `limits`, or else default limits with the option `write_timeout_s`."""
    given = options.get("limits")
    if given is not None:
        return given
    return Limits(write_timeout_s=options["write_timeout_s"]) if "write_timeout_s" in options else Limits()
