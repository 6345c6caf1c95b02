"""The options of the data source "binlog", read and checked. The list with defaults is in data_source.py."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from binlog.cluster import tso
from binlog.errors import BinlogError, ConfigError
from binlog.runtime.security import Security

if TYPE_CHECKING:
    from binlog.cluster.etcd import Etcd

    from drainer.schema.history.base import JobSource

BATCH_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Picklable. `planner`: the address and key of the drainer's own scheduler (planner_server.py), which then decides
    every batch; `error_secret`: that of its ErrorSeal; `blob_folder`: see slot_blob.folder_of. All are empty if the
    source is used without the drainer."""

    pd_urls: tuple[str, ...]
    cluster_id: int = 0
    pd_addr: str = ""
    tso_source: str = "auto"
    source: str = field(default="", repr=False)
    source_topics: str = ""
    start_ts: int = 0
    end_ts: int = 0
    batch_bytes_max: int = BATCH_BYTES_MAX
    packed: bool = False
    tables: tuple[tuple[str, str], ...] = ()
    history_file: str = ""
    history_url: str = ""
    schema_changes: str = "fail"
    zero_dates: str = "null"
    rules_file: str = ""
    planner: str = ""
    planner_key: str = field(default="", repr=False)
    error_secret: str = field(default="", repr=False)
    blob_folder: str = ""
    security: Security = field(default_factory=Security)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options. Raises ConfigError naming the option. Spark may pass option names in any case."""
        given = {name.lower(): value.strip() for name, value in options.items()}
        unknown = sorted(set(given) - _KNOWN)
        if unknown:
            close = difflib.get_close_matches(unknown[0], _KNOWN, 1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(f"data source binlog: unknown option {', '.join(unknown)}{meant}")
        urls = tuple(url.strip() for url in given.get("pd-urls", "").split(",") if url.strip())
        if not urls and "planner" not in given and "source" not in given:
            raise ConfigError("data source binlog: the option pd-urls is required, or source")
        if "source" in given and not (given.get("history-file") or given.get("history-url")):
            raise ConfigError("data source binlog: the option source needs history-url or history-file")
        start_ts, end_ts = _tso(given, "start-ts"), _tso(given, "end-ts")
        if end_ts and end_ts < start_ts:
            raise ConfigError(
                f"data source binlog: end-ts {end_ts} ({tso.format_utc(end_ts)}) is before start-ts {start_ts} "
                f"({tso.format_utc(start_ts)})"
            )
        texts: dict[str, Any] = {name.replace("-", "_"): given[name] for name in _TEXTS if name in given}
        return cls(
            pd_urls=urls,
            cluster_id=_number(given, "cluster-id", 0),
            start_ts=start_ts,
            end_ts=end_ts,
            batch_bytes_max=_number(given, "batch-bytes-max", BATCH_BYTES_MAX) or BATCH_BYTES_MAX,
            packed=_truth(given, "packed"),
            **_typed(given),
            **texts,
            security=Security(given.get("ssl-ca", ""), given.get("ssl-cert", ""), given.get("ssl-key", "")),
        )

    def job_sources(self, etcd: Etcd | None) -> list[JobSource]:
        """Return the sources of DDL jobs; those that are published in etcd need `etcd`."""
        from drainer.schema.history.sources import job_sources  # executors do not need it

        return job_sources(etcd, self.security, history_file=self.history_file, history_url=self.history_url)


_TEXTS = (
    "pd-addr", "tso-source", "history-file", "history-url", "rules-file",
    "planner", "planner-key", "error-secret", "blob-folder", "source", "source-topics",
)  # fmt: skip
_KNOWN = {
    *_TEXTS, "pd-urls", "cluster-id", "start-ts", "end-ts", "batch-bytes-max", "packed",
    "table", "schema-changes", "zero-dates", "ssl-ca", "ssl-cert", "ssl-key",
}  # fmt: skip


_P = ParamSpec("_P")
_T = TypeVar("_T")


def one_line_errors(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a method that Spark calls in a Python process of its own, so that the user sees only the text of the
    drainer's errors.

    Spark puts the whole traceback into its exception, unless this variable of its own is set when it reports one. The
    process ends with the report, so no other traceback is hidden.
    """

    @functools.wraps(method)
    def told(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except BinlogError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return told


def _typed(given: Mapping[str, str]) -> dict[str, Any]:
    """Parse the options that are only valid with `table`."""
    tables = _tables(given["table"]) if "table" in given else ()
    alone = [name for name in _TYPED if name in given and not ("source" in given and name.startswith("history"))]
    if alone and not tables:
        raise ConfigError(f"data source binlog: the option {alone[0]} goes with the option table, which is not given")
    if tables and given.get("packed"):
        raise ConfigError("data source binlog: the options packed and table exclude each other")
    return {
        "tables": tables,
        "schema_changes": _one_of(given, "schema-changes", ("fail", "collect")),
        "zero_dates": _one_of(given, "zero-dates", ("null", "fail")),
    }


_TYPED = ("history-file", "history-url", "schema-changes", "zero-dates", "rules-file")


def _tables(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `shop.orders, shop.items`; a name that contains a dot or comma is written in backquotes."""
    tables: list[tuple[str, str]] = []
    at = 0
    while True:
        match = _TABLE.match(text, at)
        if match is None:
            raise ConfigError(
                f"data source binlog: option table must be database.table, or several with commas between them, "
                f"not {text!r}"
            )
        names = [(match[n] or match[n + 1].replace("``", "`")).lower() for n in (1, 3)]
        if (names[0], names[1]) not in tables:
            tables.append((names[0], names[1]))
        at = match.end()
        if match[5] != ",":
            return tuple(tables)


_NAME = r"(?:([^`.,\s]+)|`((?:[^`]|``)+)`)"
_TABLE = re.compile(rf"\s*{_NAME}\.{_NAME}\s*(,|$)")


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return the option's value; the first choice is the default."""
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise ConfigError(f"data source binlog: option {name} must be {' or '.join(values)}, not {value!r}")
    return value


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"data source binlog: option {name} must be a whole number, not {text!r}")
    return int(text)


def _tso(given: Mapping[str, str], name: str) -> int:
    try:
        found = tso.parse(given.get(name) or "0")
    except ValueError as error:
        raise ConfigError(f"data source binlog: option {name}: {error}") from None
    if found < 0:
        raise ConfigError(f"data source binlog: option {name} must not be negative: {found}")
    return found


def _truth(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"data source binlog: option {name} must be true or false, not {text!r}")
    return text == "true"
