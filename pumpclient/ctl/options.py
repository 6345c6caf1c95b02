"""binlogctl's command line: Go's flags, with one dash or two, `-flag value` or `-flag=value`. Pure.

`-cmd pumps` as upstream and plain `binlogctl pumps` are the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from binlog.errors import BinlogError

FORMATS = ("auto", "table", "json", "log")
WATCHED = ("pumps", "drainers", "inspect")


class UsageError(BinlogError):
    """Invalid command line: exit code 2 (K-03)."""


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
    "cmd": "what to do; the first word does as well",
    "pd_urls": "PD, or an etcd where there is no PD: URLs or host:port, comma separated",
    "pd_addr": "host:port of PD's gRPC service where it is not at pd-urls",
    "tso_source": "auto, pd or own: where timestamps come from",
    "node_id": "the pump or drainer, as `pumps` and `drainers` list it",
    "state": "update-pump, update-drainer: online, pausing, paused, closing or offline",
    "show_offline_nodes": "pumps, drainers: list those too",
    "data_dir": "generate_meta: where savepoint is written",
    "time_zone": "generate_meta: also show the position's time in this zone, as +08:00 or Asia/Shanghai",
    "text": "encrypt: the password; - reads it from the first line of stdin, and at a terminal without showing it",
    "watch": "pumps, drainers, inspect: list again and again until Ctrl-C; at a terminal in place, in a pipe one "
    "listing after the other, with -output json one document a line",
    "interval": "-watch: how often: 2s, 1m, or seconds",
    "start_ts": "settle: which pending prewrite, by its TSO",
    "commit_ts": "settle: commit it at this TSO; pass-over: which binlog",
    "rollback": "settle: roll it back",
    "all": "settle -rollback: every prewrite older than -older-than, of -node-id or of all pumps. DDLs whose job is "
    "published are committed instead; those of a service whose lease in etcd lives are left alone (-force: neither)",
    "older_than": "settle -all: how long a prewrite must have been pending: 90s, 5m, 1h, or seconds",
    "force": "settle: against what the published DDL job says; reset-tso-bound: although higher timestamps were used",
    "yes": "settle, pass-over, reset-tso-bound: do not ask; needed where there is no terminal to ask at",
    "dry_run": "settle, pass-over, reset-tso-bound: say what it would do, and do nothing",
    "pending_max": "settle, inspect: how many pending prewrites of each pump to list at most",
    "output": "table, json, log (the original's lines), or auto: table at a terminal, log elsewhere",
    "ssl_ca": "CA file; TLS is on only when it is set",
    "ssl_cert": "certificate file",
    "ssl_key": "key file",
    "version": "print the version and exit",
    "help": "print this and exit",
}
_SHORT = {"V": "version", "h": "help", "o": "output"}
_KINDS: dict[str, type] = {name: type(getattr(Options(), name)) for name in HELP}
_TRUE, _FALSE = ("true", "1", "t", "T", "TRUE", "True"), ("false", "0", "f", "F", "FALSE", "False")


def flag_name(field: str) -> str:
    return "-" + field.replace("_", "-")


def parse(argv: Sequence[str]) -> Options:
    """UsageError naming the flag."""
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
    """90, 90s, 5m or 1h. UsageError, which names the flag, for anything else."""
    unit = _UNITS.get(text[-1:])
    number = text[:-1] if unit else text
    if not number.isdigit():
        raise UsageError(f"invalid value {text!r} for {flag}: 90s, 5m, 1h, or seconds")
    return float(int(number) * (unit or 1))


DONE, FAILED, USAGE, NO_CLUSTER, NOT_FOUND, NODE_SILENT, REFUSED = range(7)
EXIT_CODES: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed for another reason, such as a pump that did a part of it",
    USAGE: "the command line cannot be used: a flag is unknown, missing or wrong, -pd-urls or a TLS file among them",
    NO_CLUSTER: "etcd or PD does not answer, or not over TLS as it was asked",
    NOT_FOUND: "there is no such node, prewrite or binlog",
    NODE_SILENT: "the node does not answer",
    REFUSED: "refused, and nothing done: by the node, for want of a confirmation, or because something changed "
    "meanwhile",
}

COMMANDS: Mapping[str, str] = {
    "pumps": "list the pumps: address, state, how far they are",
    "drainers": "list the drainers",
    "inspect": "ask every pump, or -node-id: resolved ts, pending prewrites, late commits",
    "settle": "list pending prewrites; with -start-ts end one of -node-id, by -commit-ts N or -rollback; with -all "
    "-rollback end all old ones. Rolling back is safe when the writer has ended for good and its transaction was not "
    "committed: a service's is not unless a pump serves its commit; of a TiDB's, TiKV knows, and pumps ask it",
    "pass-over": "serve the damaged binlog -commit-ts of -node-id without its rows, which are lost by that; for a "
    "range that drainers cannot read (DATA_LOSS)",
    "reset-tso-bound": "without PD: lower a bound of timestamps that is far ahead; -dry-run says what it would do",
    "pause-pump": "ask the pump -node-id to stop for a while: it ends its transactions, then says paused",
    "pause-drainer": "the same for a drainer, after the batch in flight",
    "offline-pump": "ask the pump -node-id to leave for good, once every drainer has read what it holds",
    "offline-drainer": "ask the drainer -node-id to leave for good: pumps keep nothing for it any more",
    "update-pump": "write -state into the record of -node-id without asking it; for dead nodes, may lose data",
    "update-drainer": "the same for a drainer",
    "generate_meta": "write a TSO of now into <data-dir>/savepoint",
    "encrypt": "print -text encrypted, for encrypted_password in a drainer's [syncer.to]; the key is in "
    "BINLOG_SECRET_KEY, 16, 24 or 32 bytes in hexadecimal, without which upstream's public one is used",
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
    """The answer to -h."""
    lines = ["binlogctl lists nodes, asks them to pause or to leave, and ends transactions whose writer died.", ""]
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
    """Two tables for docs/configuration.md."""
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {text.replace('<', '&lt;')} |" for name, text in COMMANDS.items()]
    lines += ["", "| flag | default | meaning |", "|---|---|---|"]
    for field in _KINDS:
        default = f"`{_default(field)}`" if _default(field) else ""
        lines.append(f"| `{flag_name(field)}` | {default} | {HELP[field]} |")
    lines += ["", "| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    return "\n".join(lines)
