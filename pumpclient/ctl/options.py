"""The command line of binlogctl: its flags and its commands.

`binlogctl -cmd pumps`, as in the original, and `binlogctl pumps` are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from binlog.runtime.command_line import Flag, Program, flags_of
from binlog.runtime.fields import Seconds, Section, TsoSource
from pydantic import Field, model_validator

from pumpclient.ctl.errors import EXIT_CODES

WATCHED = ("pumps", "drainers", "inspect")
Format = Literal["auto", "table", "json", "log"]


class Options(Section):
    """The values of all flags."""

    cmd: str = Field("pumps", description="the command; it can also be the first word")
    pd_urls: str = Field(
        "http://127.0.0.1:2379", description="PD, or an etcd if there is no PD: URLs or host:port, comma separated"
    )
    pd_addr: str = Field("", description="host:port of PD's gRPC service if it is not at pd-urls")
    tso_source: TsoSource = Field("auto", description="auto, pd or own: where timestamps come from")
    node_id: str = Field("", description="the pump or drainer, as `pumps` and `drainers` list it")
    state: str = Field("", description="update-pump, update-drainer: online, pausing, paused, closing or offline")
    show_offline_nodes: bool = Field(False, description="pumps, drainers: list nodes that are offline, too")
    data_dir: str = Field("binlog_position", description="generate_meta: where savepoint is written")
    time_zone: str = Field(
        "", description="generate_meta: also show the position's time in this zone, as +08:00 or Asia/Shanghai"
    )
    text: str = Field(
        "",
        description="encrypt: the password; - reads it from the first line of stdin, and at a terminal without "
        "showing it",
    )
    watch: bool = Field(
        False,
        description="pumps, drainers, inspect: repeat the listing until Ctrl-C; at a terminal in place, in a pipe "
        "one after the other, with -output json one document a line",
    )
    interval: Seconds = Field(  # type: ignore[assignment]
        "2s", description="-watch: time between two listings: 2s, 1m, or seconds"
    )
    start_ts: int = Field(0, ge=0, lt=1 << 63, description="settle: which pending prewrite, by its TSO")
    commit_ts: int = Field(
        0,
        ge=0,
        lt=1 << 63,
        description="settle: commit the prewrite at this TSO; pass-over: which binlog; "
        "decide-transaction: which transaction",
    )
    rollback: bool = Field(False, description="settle: roll the prewrite back")
    all: bool = Field(
        False,
        description="settle -rollback: every prewrite older than -older-than, of -node-id or of all pumps. DDLs "
        "whose job is published are committed, and prewrites of a service whose lease is alive are left "
        "alone (-force: rolled back, too)",
    )
    older_than: Seconds = Field(  # type: ignore[assignment]
        "60s", description="settle -all: how long a prewrite must have been pending: 90s, 5m, 1h, or seconds"
    )
    force: bool = Field(
        False,
        description="settle: even if the published DDL job says otherwise; reset-tso-bound: even if higher "
        "timestamps were used",
    )
    yes: bool = Field(
        False,
        description="settle, pass-over, reset-tso-bound, decide-transaction: do not ask for confirmation; required "
        "without a terminal",
    )
    dry_run: bool = Field(
        False, description="settle, pass-over, reset-tso-bound: show what the command would do, and do nothing"
    )
    delay: str = Field("", description="update-changefeed: stay behind by this time, such as 1h; 0: not at all")
    stop_at: str = Field(
        "",
        description="update-changefeed: apply everything up to this commit_ts, then exit: a TSO, or a time such as "
        "2026-11-20 10:00; 0: do not stop",
    )
    job_id: int = Field(0, ge=0, description="decide-ddl: which DDL, by the job id in the error")
    run_again: bool = Field(False, description="decide-ddl, decide-transaction: try it again")
    skip: bool = Field(False, description="decide-ddl, decide-transaction: go on without it")
    sql: str = Field("", description="decide-ddl: the statement to run instead")
    pending_max: int = Field(
        20, ge=0, description="settle, inspect: list at most so many pending prewrites of each pump"
    )
    output: Format = Field(
        "auto", description="table, json, log (the original's lines), or auto: table at a terminal, otherwise log"
    )
    ssl_ca: str = Field("", description="CA file; TLS is used only if it is set")
    ssl_cert: str = Field("", description="certificate file")
    ssl_key: str = Field("", description="key file")

    @model_validator(mode="after")
    def _check_watch(self) -> Self:
        if self.watch and self.cmd not in WATCHED:
            raise ValueError(f"-watch can be used with {', '.join(WATCHED)}, not with {self.cmd}")
        if self.watch and not self.interval:
            raise ValueError("flag -interval: it must be above 0")
        return self


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
    "pause-changefeed": "let the running drainer -node-id begin no batch until resume-changefeed; the process and its "
    "record stay, unlike with pause-drainer",
    "resume-changefeed": "end the pause",
    "update-changefeed": "set -delay, -stop-at or both in the running drainer -node-id, until it is restarted",
    "decide-ddl": "decide about the DDL -job-id that the destination refused and the drainer -node-id waits with "
    "(when-refused): -run-again, -skip or -sql TEXT",
    "decide-transaction": "let the running drainer -node-id skip the transaction -commit-ts (-skip), or try it again "
    "after the destination refused it (-run-again); the rows of a skipped one are lost downstream, and listed in "
    "<data-dir>/skipped.jsonl",
    "update-pump": "write -state into the record of the pump -node-id without contacting it; for dead pumps; may lose "
    "data",
    "update-drainer": "the same for a drainer",
    "generate_meta": "write the current TSO into <data-dir>/savepoint",
    "encrypt": "print -text encrypted, for encrypted_password in a drainer's [syncer.to]; the key is in "
    "BINLOG_SECRET_KEY, 16, 24 or 32 bytes in hexadecimal; without it the original's public key is used",
}

PROGRAM = Program(
    "binlogctl",
    Options,
    (Flag("o", "output"), *flags_of(Options)),
    words=("cmd",),
    about="binlogctl lists nodes, pauses or removes them, steers drainers, and settles transactions whose writer died.",
    commands=COMMANDS,
    exit_codes=EXIT_CODES,
    examples=(
        "binlogctl pumps -pd-urls 10.0.0.9:2379 -show-offline-nodes",
        "binlogctl pumps -o json",
        "binlogctl pumps -watch",
        "binlogctl inspect -pd-urls 10.0.0.9:2379",
        "binlogctl settle -node-id pump-1 -start-ts 470613165340622850 -rollback",
        "binlogctl settle -rollback -all -older-than 5m -dry-run",
        "binlogctl pause-pump -node-id pump-1",
        "binlogctl update-changefeed -node-id drainer-1 -delay 1h",
        "binlogctl update-pump -node-id pump-1 -state offline",
    ),
)
