"""binlogctl's command line."""

from __future__ import annotations

import pytest
from binlog.runtime.command_line import UsageError, usage
from binlog.runtime.config import load

from pumpclient.ctl.__main__ import COMMANDS, LOCAL, main
from pumpclient.ctl.options import COMMANDS as EXPLAINED
from pumpclient.ctl.options import PROGRAM, Options


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
    assert load(PROGRAM, argv) == Options(cmd="update-pump", node_id="p1", state="offline", show_offline_nodes=True)


def test_parse_of_no_arguments_returns_defaults() -> None:
    assert load(PROGRAM, []) == Options()
    assert Options().cmd == "pumps"
    assert Options().data_dir == "binlog_position"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["-node_id", "x"], "not defined: -node_id"),
        (["-start-ts", str(1 << 63)], "flag -start-ts: Input should be less than 9223372036854775808"),
        (["-commit-ts", "-1"], "flag -commit-ts: Input should be greater than or equal to 0, not '-1'"),
        (["-o", "yaml"], "flag -o: 'auto', 'table', 'json' or 'log' was expected, not 'yaml'"),
        (["settle", "-older-than", "soon"], "flag -older-than: 90s, 5m, 1h, or seconds were expected, not 'soon'"),
        (["pumps", "drainers"], "an argument too many: without a flag's name binlogctl takes only"),
        (["settle", "-interval", "9" * 400], "flag -interval: 90s, 5m, 1h, or seconds were expected"),
    ],
)
def test_parse_refuses_invalid_arguments_with_exit_code_2(
    argv: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        load(PROGRAM, argv)
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
    text = usage(PROGRAM)
    for name, field in Options.model_fields.items():
        assert f"  -{name.replace('_', '-')}" in text and field.description
    assert {*COMMANDS, *LOCAL} == set(EXPLAINED)
    assert all(command in text for command in EXPLAINED)
