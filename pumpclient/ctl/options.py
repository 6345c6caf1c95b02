"""binlogctl's command line: Go's flags, with one dash or two, `-flag value` or `-flag=value`. Pure.

`-cmd pumps` as upstream and plain `binlogctl pumps` are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from binlog.errors import BinlogError


class UsageError(BinlogError):
    """The command line cannot be read: exit code 2 (K-03)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Every flag. Names are the flags' with `_` for `-`."""

    cmd: str = "pumps"
    pd_urls: str = "http://127.0.0.1:2379"
    pd_addr: str = ""
    tso_source: str = "auto"
    node_id: str = ""
    state: str = ""
    show_offline_nodes: bool = False
    data_dir: str = "binlog_position"
    time_zone: str = ""
    text: str = ""
    start_ts: int = 0
    commit_ts: int = 0
    rollback: bool = False
    force: bool = False
    yes: bool = False
    pending_max: int = 20
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    version: bool = False
    help: bool = False


HELP = {
    "cmd": "what to do; the first word does as well",
    "pd_urls": "PD, or an etcd where there is no PD: URLs or host:port, comma separated",
    "pd_addr": "host:port of PD's gRPC service where it is not at pd-urls",
    "tso_source": "auto, pd or own: where timestamps come from",
    "node_id": "the pump or drainer",
    "state": "update-pump, update-drainer: online, pausing, paused, closing or offline",
    "show_offline_nodes": "pumps, drainers: list those too",
    "data_dir": "generate_meta: where savepoint is written",
    "time_zone": "generate_meta: also show the position's time in this zone, as +08:00 or Asia/Shanghai",
    "text": "encrypt: the text (not supported yet)",
    "start_ts": "settle: the pending prewrite",
    "commit_ts": "settle: commit it at this ts",
    "rollback": "settle: roll it back",
    "force": "settle: against what the published DDL job says",
    "yes": "settle: do not ask",
    "pending_max": "settle, inspect: how many pending prewrites of each pump to list",
    "ssl_ca": "CA file; TLS is on only when it is set",
    "ssl_cert": "certificate file",
    "ssl_key": "key file",
    "version": "print the version and exit",
    "help": "print this and exit",
}
_SHORT = {"V": "version", "h": "help"}
_KINDS: dict[str, type] = {name: type(getattr(Options(), name)) for name in HELP}
_TRUE, _FALSE = ("true", "1", "t", "T", "TRUE", "True"), ("false", "0", "f", "F", "FALSE", "False")


def flag_name(field: str) -> str:
    return "-" + field.replace("_", "-")


def parse(argv: Sequence[str]) -> Options:
    """UsageError naming the flag."""
    found: dict[str, str | int | bool] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            if "cmd" in found:
                raise UsageError(f"'{word}' is not a valid flag")
            found["cmd"] = word
            continue
        name, given, value = word.lstrip("-").partition("=")
        field = _SHORT.get(name, name.replace("-", "_"))
        if field not in _KINDS or (name != field.replace("_", "-") and name not in _SHORT):
            raise UsageError(f"flag provided but not defined: -{name}")
        found[field] = _value(field, value if given else _next(field, rest), word)
    return Options(**found)  # type: ignore[arg-type]  # _value gives each field its kind


def _next(field: str, rest: list[str]) -> str:
    if _KINDS[field] is bool:
        return "true"
    if not rest:
        raise UsageError(f"flag needs an argument: {flag_name(field)}")
    return rest.pop(0)


def _value(field: str, text: str, word: str) -> str | int | bool:
    kind = _KINDS[field]
    if kind is bool:
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise UsageError(f"invalid boolean value {text!r} for {word}")
    if kind is int:
        if not text.isdigit() or int(text) >= 1 << 63:
            raise UsageError(f"invalid value {text!r} for {flag_name(field)}: a number of at most 63 bits is wanted")
        return int(text)
    return text


def usage(commands: Sequence[str]) -> str:
    defaults = Options()
    lines = ["Usage of binlogctl:", f"  commands: {', '.join(commands)}"]
    for field in _KINDS:
        default = getattr(defaults, field)
        shown = f" (default {default})" if default not in ("", 0, False) else ""
        short = next((f", -{s}" for s, name in _SHORT.items() if name == field), "")
        lines.append(f"  {flag_name(field)}{short}\n        {HELP[field]}{shown}")
    return "\n".join(lines)
