"""binlogctl's command line."""

from __future__ import annotations

import pytest

from pumpclient.ctl.__main__ import COMMANDS, LOCAL, main
from pumpclient.ctl.options import COMMANDS as EXPLAINED
from pumpclient.ctl.options import HELP, Options, UsageError, parse, usage


@pytest.mark.parametrize(
    "argv",
    [
        ["-cmd", "update-pump", "-node-id", "p1", "-state", "offline", "-show-offline-nodes"],
        ["--cmd=update-pump", "--node-id=p1", "--state", "offline", "--show-offline-nodes=true"],
        ["update-pump", "-node-id=p1", "--state=offline", "-show-offline-nodes=1"],
        ["-node-id", "p1", "update-pump", "-state", "offline", "-show-offline-nodes"],
    ],
)
def test_parse_accepts_all_spellings_of_flags_and_command(argv: list[str]) -> None:
    assert parse(argv) == Options(cmd="update-pump", node_id="p1", state="offline", show_offline_nodes=True)


def test_parse_of_no_arguments_returns_defaults() -> None:
    assert parse([]) == Options()
    assert Options().cmd == "pumps"
    assert Options().data_dir == "binlog_position"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["-nod-id"], "not defined: -nod-id (did you mean -node-id?)"),
        (["-nope"], "flag provided but not defined: -nope"),
        (["-node_id", "x"], "not defined: -node_id"),
        (["-node-id"], "flag needs an argument: -node-id"),
        (["-start-ts", "x"], "invalid value 'x' for -start-ts"),
        (["-start-ts", str(1 << 63)], "below 2^63"),
        (["-rollback=maybe"], "invalid boolean value 'maybe'"),
        (["-o", "yaml"], "invalid value 'yaml' for -output: one of auto, table, json, log"),
        (["pumps", "drainers"], "'drainers' is not a valid flag"),
    ],
)
def test_parse_refuses_invalid_arguments_with_exit_code_2(
    argv: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert why in str(caught.value)
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert why in capsys.readouterr().err


def test_help_and_version_flags_print_text_and_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, text in ((["-h"], "-show-offline-nodes"), (["--help"], "settle"), (["-V"], "Release Version:")):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 0
        assert text in capsys.readouterr().out


def test_every_flag_and_command_is_explained_in_usage() -> None:
    text = usage()
    assert set(HELP) == set(Options.__dataclass_fields__)
    assert {*COMMANDS, *LOCAL} == set(EXPLAINED)
    assert all(command in text for command in EXPLAINED)
