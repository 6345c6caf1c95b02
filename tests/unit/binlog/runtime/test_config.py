"""Precedence (K-01), unknown keys (K-02), the command line (K-03), and refusals that name their source."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.runtime.command_line import Flag, InfoRequested, Program, UsageError
from binlog.runtime.config import line_of, load, load_or_exit
from binlog.runtime.fields import ByteSize, Duration, Retention, Section, SecuritySection, UpstreamSection
from pydantic import Field

from tests.support.scripts import write_configuration


class Storage(Section):
    sync_log: bool = Field(True, description="sync every batch")
    kv_chan_cap: int = Field(1 << 20, alias="kv_chan_cap", ge=1)
    stop_write_at_available_space: ByteSize = Field("10 gib", description="refuse writes below")  # type: ignore[arg-type,unused-ignore]


class Target(Section):
    password: str = ""
    client_secret: str = ""
    bearer_token: str = ""
    sink_uri: str = ""
    schema_registry: str = ""
    port: int = 3306


class Settings(UpstreamSection):
    data_dir: str = Field("", description="where it keeps its data")
    gc: Retention = Field("7", description="how long | binlogs stay")  # type: ignore[arg-type,unused-ignore]
    heartbeat_interval: int = 2
    enable_debug: bool = False
    log_level: str = "info"
    tables: tuple[str, ...] = ()
    storage: Storage = Storage()
    to: Target | None = None
    security: SecuritySection = SecuritySection()


FLAGS = (
    Flag("data-dir"),
    Flag("gc"),
    Flag("heartbeat-interval"),
    Flag("enable-debug"),
    Flag("pd-urls"),
    Flag("L", key="log-level", help="debug, info, warn, error, fatal"),
    Flag("sync-log", key="storage.sync-log"),
    Flag("log-rotate", ignored=True),
)
PROGRAM = Program("pump", Settings, FLAGS, env_prefix="PUMP", about="pump: keeps binlogs", examples=["pump -gc 8h"])


def run(*argv: str, toml: str | None = None, directory: Path | None = None, **environ: str) -> Settings:
    args = list(argv)
    if toml is not None:
        assert directory is not None
        (directory / "p.toml").write_text(toml)
        args += ["-config", str(directory / "p.toml")]
    return load(PROGRAM, args, environ=environ)


def test_config_defaults_are_parsed_values() -> None:
    config = run()
    assert config.gc == timedelta(days=7)
    assert config.storage.stop_write_at_available_space == 10 << 30
    assert config.pd_urls == ("http://127.0.0.1:2379",)


def test_config_precedence_is_flag_environment_file_default(tmp_path: Path) -> None:
    toml = 'data-dir = "file"\n[storage]\nsync-log = false\n'
    assert run(toml=toml, directory=tmp_path).data_dir == "file"
    assert run(toml=toml, directory=tmp_path, PUMP_DATA_DIR="env").data_dir == "env"
    assert run("-data-dir", "flag", toml=toml, directory=tmp_path, PUMP_DATA_DIR="env").data_dir == "flag"
    assert run(toml=toml, directory=tmp_path, PUMP_DATA_DIR="").data_dir == "file", "an empty variable is none"
    assert run(toml=toml, directory=tmp_path).storage.sync_log is False
    assert run("-sync-log", toml=toml, directory=tmp_path).storage.sync_log is True
    (tmp_path / "e.toml").write_text('gc = "3"')
    assert run(PUMP_CONFIG=str(tmp_path / "e.toml")).gc == timedelta(days=3)


def test_misspelt_section_is_suggested_as_section(tmp_path: Path) -> None:
    """Not a setting elsewhere whose last word looks like it."""
    with pytest.raises(ConfigError, match=r"storagee: did you mean storage\?"):
        run(toml="[storagee]\n", directory=tmp_path)


@pytest.mark.parametrize(
    "argv",
    [["-gc", "8h"], ["--gc", "8h"], ["-gc=8h"], ["--gc=8h"], ["-gc", "1", "-gc", "8h"], ["-log-rotate", "x", "-gc=8h"]],
)
def test_flags_accept_one_or_two_dashes_and_equal_sign(argv: list[str]) -> None:
    assert run(*argv).gc == timedelta(hours=8)


def test_bool_flags_need_no_value() -> None:
    assert run("-enable-debug", "-gc", "1").enable_debug
    assert not run("--enable-debug=false").enable_debug
    assert run("-L", "warn").log_level == "warn"
    assert run(PUMP_ENABLE_DEBUG="true", PUMP_L="error").enable_debug


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["stray"], "'stray' is not a valid flag"),
        (["-enable-debug", "true"], "'true' is not a valid flag"),
        (["--", "x"], "'x' is not a valid flag"),
        (["-data-dri=x"], "flag provided but not defined: -data-dri (did you mean -data-dir?)"),
        (["-nope"], "flag provided but not defined: -nope"),
        (["--nope=1"], "flag provided but not defined: -nope"),
        (["-gc"], "flag needs an argument: -gc"),
        (
            ["-gc", "--L=debug"],
            "flag needs an argument: -gc (-L is a flag; a value like it goes behind -gc=)",
        ),
        (["mysql://u:hunter2@h"], "an argument is not a valid flag"),
        (
            ["-mysql://u:hunter2@h"],
            "flag provided but not defined: a word that begins with a dash is no flag's name",
        ),
        (["-enable-debug=maybe"], "flag -enable-debug: true or false was expected, not 'maybe'"),
        (["-heartbeat-interval", "2s"], "flag -heartbeat-interval: a whole number was expected, not '2s'"),
        (
            ["-gc", "x", "-heartbeat-interval", "1.5"],
            "flag -gc: unsupported gc time x, etc: use 7 for 7 day, 7h for 7 hour; "
            "flag -heartbeat-interval: a whole number was expected, not '1.5'",
        ),
    ],
)
def test_a_bad_command_line_exits_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        run(*argv)
    assert str(caught.value) == text
    with pytest.raises(SystemExit) as exit_:
        load_or_exit(PROGRAM, argv)
    assert exit_.value.code == 2
    assert text in capsys.readouterr().err


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in ((["-h"], "-heartbeat-interval number"), (["-gc", "1", "-V"], "Release Version: ")):
        with pytest.raises(InfoRequested):
            run(*argv)
        with pytest.raises(SystemExit) as exit_:
            load_or_exit(PROGRAM, argv)
        assert exit_.value.code == 0
        assert words in capsys.readouterr().out


def test_bad_values_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        load_or_exit(PROGRAM, ["-gc", "x"])
    assert exit_.value.code == 1
    assert "pump: flag -gc: unsupported gc time x, etc: use 7 for 7 day, 7h for 7 hour" in capsys.readouterr().err


def test_invalid_file_or_environment_value_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.toml").write_text('heartbeat-interval = "often"\n')
    for argv, variables in ((["-config", str(tmp_path / "p.toml")], {}), ([], {"PUMP_HEARTBEAT_INTERVAL": "often"})):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as exit_:
            load_or_exit(PROGRAM, argv)
        assert exit_.value.code == 1


def test_unknown_config_keys_are_reported_as_by_original(tmp_path: Path) -> None:
    toml = 'data_dir = "x"\nwhatever = 1\ngc = "bad too"\n[storage]\nfoo = 1\n[foreign]\na = 1\n'
    with pytest.raises(ConfigError) as caught:
        run(toml=toml, directory=tmp_path)
    assert str(caught.value) == (
        f"component pump's config file {tmp_path}/p.toml contained unknown configuration options: "
        "data_dir, foreign, storage.foo, whatever (line 1, 2, 5, 6; data_dir: did you mean data-dir?)"
    )


@pytest.mark.parametrize(
    ("argv", "environ", "toml", "text"),
    [
        ([], {"PUMP_HEARTBEAT_INTERVAL": "soon"}, None, "environment variable PUMP_HEARTBEAT_INTERVAL: .*not 'soon'"),
        (["-heartbeat-interval", "soon"], {}, None, "^flag -heartbeat-interval: .*not 'soon'"),
        (
            [],
            {},
            "heartbeat-interval = 'soon'",
            r"config file .*/p.toml, line 1: heartbeat-interval: a whole number was expected, not 'soon'",
        ),
        (
            [],
            {},
            "[storage]\nkv_chan_cap = 0",
            r"p.toml, line 2: storage.kv_chan_cap: .*greater than or equal to 1, not 0",
        ),
        ([], {}, "[storage]\nstop-write-at-available-space = 'much'", "storage.stop-write.*: 'much' is not a size"),
        ([], {}, "tables = ['a', 1]", r"p.toml, line 1: tables.1: a text in quotes was expected, not 1"),
        ([], {}, "storage = 3", r"p.toml, line 1: storage: a section was expected, not 3"),
        (
            ["-pd-urls", "ftp://a:1"],
            {},
            None,
            "flag -pd-urls: URL scheme must be http, https, unix, or unixs: ftp://a:1",
        ),
        (["-sync-log"], {}, "storage = 3", "flag -sync-log: storage is not a section"),
        ([], {}, "gc = ", r"config file .*/p.toml: "),
        (["-gc", "x", "-pd-urls", ""], {}, None, "flag -pd-urls: no URL is given; flag -gc: unsupported"),
    ],
)
def test_a_bad_value_names_its_source(
    argv: list[str], environ: dict[str, str], toml: str | None, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text):
        run(*argv, toml=toml, directory=tmp_path, **environ)


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ("[to]\npassword = 12345", "to.password: a text"),
        ("[to]\nclient-secret = 12345", "to.client-secret: a text in quotes was expected"),
        ("[to]\nbearer-token = 12345", "to.bearer-token: a text"),
        ("[to]\nsink-uri = ['kafka://a/t?sasl-password=12345']", "to.sink-uri: a text"),
        ("[to]\nschema-registry = ['http://u:12345@a']", "to.schema-registry: a text"),
        ("[[to]]\npassword = '12345'", "to: a section was expected"),
        ("to = '12345'", "to: a section was expected"),
        ("heartbeat-interval = {password = '12345'}", "heartbeat-interval: a whole number was expected"),
        ("tables = [['12345']]", "tables.0: a text in quotes was expected"),
    ],
)
def test_invalid_value_that_may_hold_secret_is_not_shown(toml: str, place: str, tmp_path: Path) -> None:
    """Also where a list or a section stands in the place of something else, as [[to]] for [to]."""
    with pytest.raises(ConfigError) as caught:
        run(toml=toml, directory=tmp_path)
    assert "12345" not in str(caught.value) and place in str(caught.value)


def test_unreadable_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config file .*/none.toml: No such file"):
        run("-config", str(tmp_path / "none.toml"))
    (tmp_path / "b.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 5"):
        run("-config", str(tmp_path / "b.toml"))


def test_flag_without_its_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sets nothing.here, which Settings does not have"):
        load(Program("p", Settings, [Flag("x", key="nothing.here")]), ["-h"])


def test_reference_lists_every_setting() -> None:
    table = write_configuration().reference_markdown(Settings, FLAGS, env_prefix="PUMP")
    assert "| `gc` | `-gc` | `PUMP_GC` | `7` | how long \\| binlogs stay |" in table
    assert "| `storage.sync-log` | `-sync-log` | `PUMP_SYNC_LOG` | `true` | sync every batch |" in table
    assert "| `to.port` |  |  | `3306` |  |" in table
    assert "log-rotate" not in table


def test_reference_markdown_shows_machine_independent_defaults() -> None:
    class Table(Section):
        name: str = Field(description="whose")
        size: ByteSize = Field(1 << 20, description="how large")

    class Shown(Section):
        addr: str = Field("10.1.2.3:1", json_schema_extra={"default": "<host>:1"})
        keep: Retention = Field(timedelta(days=7))
        wait: Duration = Field(timedelta(seconds=90))
        limit: ByteSize = Field(10 << 30)
        maybe: int | None = None
        params: dict[str, str] = Field(default_factory=dict)
        tables: tuple[Table, ...] = Field((), description="some tables")

    assert write_configuration().reference_markdown(Shown).splitlines()[2:] == [
        "| `addr` |  |  | `<host>:1` |  |",
        "| `keep` |  |  | `7` |  |",
        "| `wait` |  |  | `1m30s` |  |",
        "| `limit` |  |  | `10 GiB` |  |",
        "| `maybe` |  |  |  |  |",
        "| `params` |  |  |  |  |",
        "| `[[tables]]` |  |  |  | some tables |",
        "| `tables.name` |  |  | `required` | whose |",
        "| `tables.size` |  |  | `1 MiB` | how large |",
    ]


def test_help_shows_kinds_defaults_and_examples() -> None:
    with pytest.raises(InfoRequested) as caught:
        load(PROGRAM, ["-h"], environ={})
    text = caught.value.text
    assert text.startswith("pump: keeps binlogs\n\nUsage of pump:\n")
    assert "  -gc days|duration\n        how long | binlogs stay (default 7)\n" in text
    assert "  -enable-debug\n" in text
    assert "Accepted and ignored: -log-rotate" in text
    assert text.endswith("Examples:\n  pump -gc 8h")


def test_line_of_returns_line_of_each_toml_key() -> None:
    text = """a = 1
[s]
b = 2  # not [c]
"q.r" = 3
[s.t]
c = [1,
  2]
[[list]]
x = 1
[[list]]
x = 2
"""
    places = {"a": 1, "s.b": 3, "s.t.c": 6, "s.t.c.1": 6, "list.0.x": 9, "list.1.x": 11, "list.1.y": 10, "s.t": 5}
    assert {key: line_of(text, key.split(".")) for key in places} == places
    assert line_of(text, ["nothing"]) is None
