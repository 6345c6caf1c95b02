"""Settings of a pump: defaults, units, precedence, refusals."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.runtime.config import load

from pump.config import FLAGS, PROGRAM, PumpConfig
from tests.support.scripts import write_configuration


def loaded(*argv: str, environ: dict[str, str] | None = None) -> PumpConfig:
    return load(PROGRAM, argv, environ=environ or {})


def test_pump_config_has_documented_defaults() -> None:
    config = loaded()
    assert config.addr.endswith(":8250")
    assert config.status_listen.endswith(":9250")
    assert (config.heartbeat_interval, config.gen_binlog_interval, config.gc) == (2, 3, timedelta(days=7))
    assert config.storage.sync_log
    assert config.storage.stop_write_at_available_space == 10 << 30
    assert config.storage.kv.options().write_buffer_bytes == 64 << 20
    assert config.directory == "data.pump"


def test_pump_config_reads_every_key_of_original_and_flag_wins_over_environment(tmp_path: Path) -> None:
    """Every key of 1.1 is known, those without effect too; flag over environment over file."""
    path = tmp_path / "pump.toml"
    path.write_text(
        """
        addr = "127.0.0.1:8250"
        advertise-addr = "10.0.0.1:8250"
        pd-urls = "http://127.0.0.1:2379"
        data-dir = "data"
        heartbeat-interval = 2
        gc = 3
        gen-binlog-interval = 5
        log-level = "warn"
        [security]
        ssl-ca = ""
        [storage]
        sync-log = false
        stop-write-at-available-space = "42 mib"
        slow_write_threshold = 2.5
        kv_chan_cap = 100
        [storage.kv]
        block-cache-capacity = 1
        write-L0-pause-trigger = 24
        compaction-L0-trigger = 8
        block-size = -1
        """
    )
    config = loaded("-config", str(path), "--gc=8h", environ={"PUMP_ADDR": "127.0.0.1:1", "PUMP_GC": "9h"})
    assert config.addr == "127.0.0.1:1"
    assert config.advertised == "10.0.0.1:8250"
    assert config.gc == timedelta(hours=8)
    assert config.storage.stop_write_at_available_space == 44_040_192
    assert config.storage.kv.options().block_bytes == 4096
    assert loaded("-fake-binlog-interval", "7").gen_binlog_interval == 7
    assert loaded("-log-rotate", "hour", "-binlog-slice-size", "5").addr


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-addr", "8250"], "host:port"),
        (["-advertise-addr", "0.0.0.0:8250"], "invalid advertiseAddr host"),
        (["-gc", "0"], "must bigger than 0"),
        (["-gc", "soon"], "unsupported gc time"),
        (["-L", "loud"], "log-level|flag -L"),
        (["-status-addr", "x"], "host:port"),
        (["-heartbeat-interval", "-1"], "heartbeat"),
        (["-tso-source", "ntp"], "tso-source"),
    ],
)
def test_pump_config_refusal_names_the_setting(argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        loaded(*argv)


def test_pump_config_names_all_unknown_keys_in_one_error(tmp_path: Path) -> None:
    """All of them in one error, in upstream's words (K-02)."""
    path = tmp_path / "pump.toml"
    path.write_text("adr = 'x:1'\n[storage.kv]\nblok = 1\n")
    with pytest.raises(ConfigError, match=r"unknown configuration options: adr, storage\.kv\.blok"):
        loaded("-config", str(path))


@pytest.mark.parametrize(
    ("argv", "environ", "seconds"),
    [
        ([], {}, 5),
        (["-pending-warn", "3"], {}, 3),
        (["-pending-query-after", "4"], {"PUMP_PENDING_WARN": "9"}, 4),
        ([], {"PUMP_PENDING_WARN": "9"}, 9),
        ([], {"PUMP_PENDING_WARN": "9", "PUMP_PENDING_QUERY_AFTER": "8"}, 8),
        (["-pending-warn", "3", "-pending-query-after", "4"], {}, 4),
        (["-pending-query-after", "4", "-pending-warn", "3"], {}, 3),
    ],
)
def test_setting_with_former_name_in_file_is_overridden_by_either_name(
    argv: list[str], environ: dict[str, str], seconds: int, tmp_path: Path
) -> None:
    file = tmp_path / "pump.toml"
    file.write_text("pending-warn = 5\n")
    assert loaded("-config", str(file), *argv, environ=environ).pending_query_after == seconds


def test_file_with_former_and_current_name_of_a_setting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pump.toml"
    file.write_text("pending-warn = 5\npending-query-after = 5\n")
    with pytest.raises(ConfigError, match="pending-warn is the former name of pending-query-after: give one of them"):
        loaded("-config", str(file))


def test_status_address_is_any_port_if_addr_port_is_too_high() -> None:
    assert loaded("-addr", "127.0.0.1:65000").status_listen == "127.0.0.1:0"
    assert loaded("-status-addr", "").status_listen == ""


def test_every_pump_setting_has_a_description() -> None:
    """docs/configuration.md is made of this."""
    table = write_configuration().reference_markdown(PumpConfig, FLAGS, env_prefix="PUMP")
    for line in table.splitlines()[2:]:
        assert line.rstrip(" |").count("|") >= 5, line
