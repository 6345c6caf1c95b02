"""The command line of binlogctl: Go's flags, with one dash or two, `-flag value` or `-flag=value`. Pure.

`binlogctl -cmd pumps`, as in the original, and `binlogctl pumps` are the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from binlog.errors import BinlogError

FORMATS = ("auto", "table", "json", "log")
WATCHED = ("pumps", "drainers", "inspect")


class UsageError(BinlogError):
    """The command line is invalid: exit code 2 (K-03)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The values of all flags. A field's name is the flag's name with `_` for `-`."""

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
    watch: bool = False
    interval: str = "2s"
    start_ts: int = 0
    commit_ts: int = 0
    rollback: bool = False
    all: bool = False
    older_than: str = "60s"
    force: bool = False
    yes: bool = False
    dry_run: bool = False
    pending_max: int = 20
    output: str = "auto"
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    version: bool = False
    help: bool = False


HELP = {
    "cmd": "the command; it can also be the first word",
    "pd_urls": "PD, or an etcd if there is no PD: URLs or host:port, comma separated",
    "pd_addr": "host:port of PD's gRPC service if it is not at pd-urls",
    "tso_source": "auto, pd or own: where timestamps come from",
    "node_id": "the pump or drainer, as `pumps` and `drainers` list it",
    "state": "update-pump, update-drainer: online, pausing, paused, closing or offline",
    "show_offline_nodes": "pumps, drainers: list nodes that are offline, too",
    "data_dir": "generate_meta: where savepoint is written",
    "time_zone": "generate_meta: also show the position's time in this zone, as +08:00 or Asia/Shanghai",
    "text": "encrypt: the password; - reads it from the first line of stdin, and at a terminal without showing it",
    "watch": "pumps, drainers, inspect: repeat the listing until Ctrl-C; at a terminal in place, in a pipe one after "
    "the other, with -output json one document a line",
    "interval": "-watch: time between two listings: 2s, 1m, or seconds",
    "start_ts": "settle: which pending prewrite, by its TSO",
    "commit_ts": "settle: commit the prewrite at this TSO; pass-over: which binlog",
    "rollback": "settle: roll the prewrite back",
    "all": "settle -rollback: every prewrite older than -older-than, of -node-id or of all pumps. DDLs whose job is "
    "published are committed, and prewrites of a service whose lease is alive are left alone (-force: rolled back, "
    "too)",
    "older_than": "settle -all: how long a prewrite must have been pending: 90s, 5m, 1h, or seconds",
    "force": "settle: even if the published DDL job says otherwise; reset-tso-bound: even if higher timestamps "
    "were used",
    "yes": "settle, pass-over, reset-tso-bound: do not ask for confirmation; required without a terminal",
    "dry_run": "settle, pass-over, reset-tso-bound: show what the command would do, and do nothing",
    "pending_max": "settle, inspect: list at most so many pending prewrites of each pump",
    "output": "table, json, log (the original's lines), or auto: table at a terminal, otherwise log",
    "ssl_ca": "CA file; TLS is used only if it is set",
    "ssl_cert": "certificate file",
    "ssl_key": "key file",
    "version": "print the version and exit",
    "help": "print this text and exit",
}
_SHORT = {"V": "version", "h": "help", "o": "output"}
_KINDS: dict[str, type] = {name: type(getattr(Options(), name)) for name in HELP}
_TRUE, _FALSE = ("true", "1", "t", "T", "TRUE", "True"), ("false", "0", "f", "F", "FALSE", "False")


def flag_name(field: str) -> str:
    return "-" + field.replace("_", "-")


def parse(argv: Sequence[str]) -> Options:
    """Return the options. Raises UsageError that names the flag."""
    options: dict[str, str | int | bool] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            if "cmd" in options:
                raise UsageError(f"'{word}' is not a valid flag")
            options["cmd"] = word
            continue
        name, given, value = word.lstrip("-").partition("=")
        field = _SHORT.get(name, name.replace("-", "_"))
        if field not in _KINDS or (name != field.replace("_", "-") and name not in _SHORT):
            close = difflib.get_close_matches(name, [known.replace("_", "-") for known in _KINDS], n=1)
            meant = f" (did you mean -{close[0]}?)" if close else ""
            raise UsageError(f"flag provided but not defined: -{name}{meant}")
        options[field] = _value(field, value if given else _next(field, rest), word)
    if options.get("output", "auto") not in FORMATS:
        raise UsageError(f"invalid value {options['output']!r} for -output: one of {', '.join(FORMATS)}")
    _check_watch(options)
    return Options(**options)  # type: ignore[arg-type]  # _value gives each field its kind


def _check_watch(options: Mapping[str, str | int | bool]) -> None:
    if not options.get("watch"):
        return
    cmd = options.get("cmd", "pumps")
    if cmd not in WATCHED:
        raise UsageError(f"-watch can be used with {', '.join(WATCHED)}, not with {cmd}")
    if not seconds_of(str(options.get("interval", "2s")), "-interval"):
        raise UsageError("invalid value for -interval: it must be above 0")


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
            raise UsageError(f"invalid value {text!r} for {flag_name(field)}: expected a number below 2^63")
        return int(text)
    return text


_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(text: str, flag: str = "-older-than") -> float:
    """Return the seconds of 90, 90s, 5m or 1h. Raises UsageError that names the flag for any other text."""
    unit = _UNITS.get(text[-1:])
    number = text[:-1] if unit else text
    if not number.isdigit():
        raise UsageError(f"invalid value {text!r} for {flag}: 90s, 5m, 1h, or seconds")
    return float(int(number) * (unit or 1))


DONE, FAILED, USAGE, NO_CLUSTER, NOT_FOUND, NODE_SILENT, REFUSED = range(7)
EXIT_CODES: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed for another reason, for example because a pump did only a part",
    USAGE: "the command line is invalid: the command or a flag is unknown, or a flag is missing or wrong, also "
    "-pd-urls or a TLS file",
    NO_CLUSTER: "etcd or PD does not answer, or not with TLS as configured",
    NOT_FOUND: "the node, prewrite or binlog does not exist",
    NODE_SILENT: "the node does not answer",
    REFUSED: "refused, and nothing was done: the node refused, a confirmation is missing, or the state changed "
    "meanwhile",
}

COMMANDS: Mapping[str, str] = {
    "pumps": "list the pumps: address, state, position",
    "drainers": "list the drainers",
    "inspect": "query every pump, or -node-id: resolved ts, pending prewrites, late commits",
    "settle": "list pending prewrites; with -start-ts settle one of -node-id, by -commit-ts N or -rollback; with -all "
    "-rollback settle all old ones. Rolling back is safe if the writer has ended for good and its transaction was not "
    "committed. A service's transaction is committed only if a pump serves its commit; a TiDB's is committed in TiKV, "
    "and pumps query TiKV",
    "pass-over": "serve the damaged binlog -commit-ts of -node-id without its rows, which are lost; for a range "
    "that drainers cannot read (DATA_LOSS)",
    "reset-tso-bound": "without PD: lower a bound of timestamps that is far ahead; -dry-run shows what it would do",
    "pause-pump": "stop the pump -node-id for a while: it ends its transactions, then it is paused",
    "pause-drainer": "the same for a drainer, after the batch in flight",
    "offline-pump": "remove the pump -node-id for good, after every drainer has read its binlogs",
    "offline-drainer": "remove the drainer -node-id for good: pumps keep no more binlogs for it",
    "update-pump": "write -state into the record of the pump -node-id without contacting it; for dead pumps; may lose "
    "data",
    "update-drainer": "the same for a drainer",
    "generate_meta": "write the current TSO into <data-dir>/savepoint",
    "encrypt": "print -text encrypted, for encrypted_password in a drainer's [syncer.to]; the key is in "
    "BINLOG_SECRET_KEY, 16, 24 or 32 bytes in hexadecimal; without it the original's public key is used",
}
EXAMPLES = (
    "binlogctl pumps -pd-urls 10.0.0.9:2379 -show-offline-nodes",
    "binlogctl pumps -o json",
    "binlogctl pumps -watch",
    "binlogctl inspect -pd-urls 10.0.0.9:2379",
    "binlogctl settle -node-id pump-1 -start-ts 470613165340622850 -rollback",
    "binlogctl settle -rollback -all -older-than 5m -dry-run",
    "binlogctl pause-pump -node-id pump-1",
    "binlogctl update-pump -node-id pump-1 -state offline",
)


def _default(field: str) -> str:
    value = getattr(Options(), field)
    return "" if value in ("", 0, False) else str(value)


def usage() -> str:
    """Return the text for -h."""
    lines = ["binlogctl lists nodes, pauses or removes them, and settles transactions whose writer died.", ""]
    lines += ["Usage: binlogctl [command] [flags]", "", "Commands:"]
    lines += [f"  {name:16}{text}" for name, text in COMMANDS.items()]
    lines += ["", "Flags:"]
    for field, kind in _KINDS.items():
        default = _default(field)
        short = next((f", -{s}" for s, name in _SHORT.items() if name == field), "")
        takes = {int: " number", str: " text"}.get(kind, "")
        shown = f" (default {default})" if default else ""
        lines.append(f"  {flag_name(field)}{short}{takes}\n        {HELP[field]}{shown}")
    lines += ["", "Exit codes:"]
    lines += [f"  {code}  {text}" for code, text in EXIT_CODES.items()]
    lines += ["", "Examples:"]
    return "\n".join([*lines, *(f"  {example}" for example in EXAMPLES)])


def reference() -> str:
    """Return the tables of commands, flags and exit codes for docs/configuration.md."""
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {text.replace('<', '&lt;')} |" for name, text in COMMANDS.items()]
    lines += ["", "| flag | default | meaning |", "|---|---|---|"]
    for field in _KINDS:
        default = f"`{_default(field)}`" if _default(field) else ""
        lines.append(f"| `{flag_name(field)}` | {default} | {HELP[field]} |")
    lines += ["", "| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    return "\n".join(lines)
