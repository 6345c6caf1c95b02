"""Nothing of the original's pump is left without an answer: each fact has its place in the code, in a test, or in
docs/compatibility.md, each setting and flag is taken, each path of HTTP is served."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pytest
from binlog.runtime.command_line import settings
from binlog.runtime.config import load

from pump.config import FLAGS, PROGRAM, PumpConfig
from pump.status import StatusPages
from tests.unit.docs.test_facts import facts, files, ids_in

FAMILIES = {"P-LC": 11, "P-RPC": 11, "P-FAKE": 3, "P-ST": 13, "P-SC": 6, "P-SO": 6, "P-PULL": 6, "P-GC": 6}
FACTS = [f"{family}-{number:02}" for family, count in FAMILIES.items() for number in range(1, count + 1)]
# What the lists of this and other tests name is no answer.
LISTS = {Path("tests/unit/docs/test_original_pump.py"), Path("tests/unit/docs/test_facts.py")}
ANSWERS = ("pump", "proto", "pumpclient", "tests", "docs/compatibility.md", "pump/FORMAT.md")

FILE = """
log-level = "info"
node-id = "n"
addr = "127.0.0.1:8250"
advertise-addr = "127.0.0.1:8250"
socket = ""
pd-urls = "http://127.0.0.1:2379"
data-dir = "d"
heartbeat-interval = 2
gc = "7"
log-file = ""
gen-binlog-interval = 3
[security]
ssl-ca = ""
ssl-cert = ""
ssl-key = ""
cert-allowed-cn = []
[storage]
sync-log = true
kv_chan_cap = 1048576
slow_write_threshold = 1.0
stop-write-at-available-space = "10 gib"
[storage.kv]
block-cache-capacity = 8388608
block-restart-interval = 16
block-size = 4096
compaction-L0-trigger = 8
compaction-table-size = 67108864
compaction-total-size = 536870912
compaction-total-size-multiplier = 8.0
write-buffer = 67108864
write-L0-pause-trigger = 24
write-L0-slowdown-trigger = 17
"""
FLAG_VALUES = {
    "node-id": "n",
    "addr": "127.0.0.1:8250",
    "advertise-addr": "127.0.0.1:8250",
    "socket": "/s",
    "pd-urls": "http://127.0.0.1:2379",
    "data-dir": "d",
    "heartbeat-interval": "2",
    "gc": "7",
    "L": "info",
    "log-file": "f",
    "metrics-addr": "127.0.0.1:9091",
    "metrics-interval": "15",
    "fake-binlog-interval": "3",
    "enable-debug": "true",
    "max-message-size": "9223372036850581504",
    "binlog-file-size": "1",
    "enable-binlog-slice": "true",
    "binlog-slice-size": "1",
    "log-rotate": "hour",
}
PATHS = {
    "GET /status",
    "GET /drainers",
    "PUT /state/{node_id}/{action}",
    "GET /debug/binlog/{ts}",
    "POST /debug/gc/trigger",
}


def loaded(*argv: str) -> PumpConfig:
    return load(PROGRAM, argv, environ={})


def leaves(table: dict[str, object], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    found: dict[tuple[str, ...], object] = {}
    for key, value in table.items():
        found |= leaves(value, (*above, key)) if isinstance(value, dict) else {(*above, key): value}
    return found


@cache
def answered() -> set[str]:
    answering = [text for path, text in files().items() if path not in LISTS and str(path).startswith(ANSWERS)]
    return {fact for text in answering for fact in ids_in(text)}


@pytest.mark.parametrize("fact", FACTS)
def test_fact_about_original_pump_is_cited_or_explained(fact: str) -> None:
    assert fact in facts()
    assert fact in answered(), f"{fact} is neither cited by code or tests nor in docs/compatibility.md"


def test_list_of_pump_facts_equals_facts_page() -> None:
    assert {fact for fact in facts() if fact.startswith("P-")} == set(FACTS)


def test_pump_config_reads_every_key_of_original_with_same_defaults(tmp_path: Path) -> None:
    path = tmp_path / "pump.toml"
    path.write_text(FILE)
    known = {key for key, _ in settings(PumpConfig)}
    wanted = leaves(tomllib.loads(FILE))
    assert set(wanted) <= known
    config = loaded("-config", str(path))
    default = loaded()
    assert config.without_effect == []
    assert config.storage == default.storage
    assert (config.gc, config.heartbeat_interval, config.gen_binlog_interval) == (
        default.gc,
        default.heartbeat_interval,
        default.gen_binlog_interval,
    )


def test_pump_flags_accept_every_flag_of_original() -> None:
    assert set(FLAG_VALUES) <= {flag.name for flag in FLAGS}
    config = loaded(*(f"-{name}={value}" for name, value in FLAG_VALUES.items()))
    assert (config.metrics_addr, config.metrics_interval, config.enable_debug) == ("127.0.0.1:9091", 15, True)
    assert config.socket == "/s"


def test_every_path_of_the_original_is_served() -> None:
    pages = StatusPages(*[None] * 6, measures=lambda: None)  # type: ignore[arg-type,return-value]  # nothing is asked
    assert {f"GET {path}" for path in pages.routes()} | set(pages.actions()) >= PATHS


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kv_chan_cap = 100", ["storage.kv_chan_cap"]),
        ("kv_chan_cap = 0", []),
        ("sync-log = false", []),
        ("[storage.kv]\nblock-size = 8192", []),
        ("[storage.kv]\ncompaction-L0-trigger = -1", []),
        (
            "[storage.kv]\nwrite-L0-pause-trigger = 30\ncompaction-table-size = 1",
            ["storage.kv.compaction-table-size", "storage.kv.write-L0-pause-trigger"],
        ),
    ],
)
def test_config_settings_without_effect_are_named(tmp_path: Path, text: str, named: list[str]) -> None:
    path = tmp_path / "pump.toml"
    path.write_text(f"[storage]\n{text}\n")
    assert sorted(loaded("-config", str(path)).without_effect) == named


@pytest.mark.parametrize(("given", "seconds"), [("2.5", 2.5), ("0", 1.0), ("-1", 1.0)])
def test_slow_write_threshold_not_above_0_is_the_default(tmp_path: Path, given: str, seconds: float) -> None:
    path = tmp_path / "pump.toml"
    path.write_text(f"[storage]\nslow_write_threshold = {given}\n")
    assert loaded("-config", str(path)).slow_write_s == seconds
