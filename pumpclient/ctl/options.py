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
    "cmd": "the command; it may also be given as the first word",
    "pd_urls": "PD, or an etcd where there is no PD: URLs or host:port, comma separated",
    "pd_addr": "host:port of PD's gRPC service, if it is not at pd-urls",
    "tso_source": "auto, pd or own: the source of timestamps",
    "node_id": "the pump or drainer, as `pumps` and `drainers` list it",
    "state": "update-pump, update-drainer: online, pausing, paused, closing or offline",
    "show_offline_nodes": "pumps, drainers: list offline nodes, too",
    "data_dir": "generate_meta: the directory for the savepoint file",
    "time_zone": "generate_meta: also write the position's time in this zone, such as +08:00 or Asia/Shanghai",
    "text": "encrypt: the password; - reads it from the first line of stdin, at a terminal without showing it",
    "watch": "pumps, drainers, inspect: repeat the listing until Ctrl-C; at a terminal in place, in a pipe one "
    "listing after the other, with -output json one document per line",
    "interval": "-watch: the time between listings: 2s, 1m, or seconds",
    "start_ts": "settle: the start ts of the pending prewrite",
    "commit_ts": "settle: commit the prewrite at this TSO; pass-over: the commit ts of the binlog",
    "rollback": "settle: roll the prewrite back",
    "all": "settle -rollback: all prewrites older than -older-than, of -node-id or of all pumps. DDLs whose job is "
    "published are committed instead; those of a service whose lease in etcd is valid are skipped (-force: neither)",
    "older_than": "settle -all: the time for which a prewrite must have been pending: 90s, 5m, 1h, or seconds",
    "force": "settle: ignore the published DDL job; reset-tso-bound: even if higher timestamps are in use",
    "yes": "settle, pass-over, reset-tso-bound: do not ask for confirmation; required without a terminal",
    "dry_run": "settle, pass-over, reset-tso-bound: report what would be done, and do nothing",
    "pending_max": "settle, inspect: the most pending prewrites to list for each pump",
    "output": "table, json, log (the original's log lines), or auto: table at a terminal, log elsewhere",
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
        raise UsageError(f"-watch goes with {', '.join(WATCHED)}, not with {cmd}")
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
    USAGE: "the command line is invalid: a flag is unknown, missing or wrong (including -pd-urls and TLS files)",
    NO_CLUSTER: "etcd or PD does not answer, or not with the TLS settings given",
    NOT_FOUND: "no such node, prewrite or binlog exists",
    NODE_SILENT: "the node does not answer",
    REFUSED: "refused, nothing was done: by the node, because a confirmation is missing, or because something changed "
    "meanwhile",
}

COMMANDS: Mapping[str, str] = {
    "pumps": "list the pumps: address, state, last heartbeat, position",
    "drainers": "list the drainers",
    "inspect": "query all pumps, or -node-id: resolved ts, pending prewrites, late commits",
    "settle": "list pending prewrites; with -start-ts end one of -node-id, with -commit-ts N or -rollback; with -all "
    "-rollback end all old ones. A rollback is safe if the writer has ended permanently and the transaction was not "
    "committed. A service's transaction is committed only if a pump serves its commit. For TiDB's, pumps query TiKV",
    "pass-over": "serve the damaged binlog -commit-ts of -node-id without its rows, which are then lost; for a "
    "range that drainers cannot read (DATA_LOSS)",
    "reset-tso-bound": "without PD: lower a timestamp bound that is far ahead; -dry-run reports what would be done",
    "pause-pump": "request the pump -node-id to pause: it ends its transactions, then its state is paused",
    "pause-drainer": "the same for a drainer, after the batch in flight",
    "offline-pump": "request the pump -node-id to leave permanently, after every drainer has read its binlogs",
    "offline-drainer": "request the drainer -node-id to leave permanently: pumps no longer keep binlogs for it",
    "update-pump": "write -state into the record of -node-id without contacting it; for dead nodes, may lose data",
    "update-drainer": "the same for a drainer",
    "generate_meta": "write the current TSO to <data-dir>/savepoint",
    "encrypt": "print -text encrypted, for encrypted_password in a drainer's [syncer.to]; the key is taken from "
    "BINLOG_SECRET_KEY (16, 24 or 32 bytes in hexadecimal); without it, the original's public key is used",
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
    lines = ["binlogctl lists nodes, requests them to pause or leave, and ends transactions whose writer died.", ""]
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
