"""binlogctl's exit codes, and how a failure looks in each form."""

from __future__ import annotations

import io
import json
import sys

import pytest
from binlog.cluster.pd import NotPD
from binlog.errors import (
    BinlogError,
    ConfigError,
    EtcdError,
    NodeNotFound,
    RegistryConflict,
    TimestampUnavailable,
    WatchBroken,
)
from binlog.runtime.command_line import UsageError, usage
from binlog.runtime.encrypt import decrypt
from binlog.runtime.http import NoAnswer

from pumpclient.ctl.__main__ import main
from pumpclient.ctl.errors import EXIT_CODES, CommandError, Misused, NodeSilent, NotFound, Refused, code_of
from pumpclient.ctl.options import PROGRAM


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("x"), 1),
        (BinlogError("x"), 1),
        (UsageError("x"), 2),
        (Misused("x"), 2),
        (ConfigError("x"), 2),
        (EtcdError("x"), 3),
        (WatchBroken("x"), 3),
        (NotPD("x"), 3),
        (TimestampUnavailable("x"), 3),
        (NotFound("x"), 4),
        (NodeNotFound("x"), 4),
        (NodeSilent("x"), 5),
        (NoAnswer("x"), 5),
        (Refused("x"), 6),
        (RegistryConflict("x"), 6),
    ],
)
def test_each_error_class_has_its_documented_exit_code(error: BinlogError, code: int) -> None:
    assert code_of(error) == code
    assert f"  {code}  {EXIT_CODES[code]}" in usage(PROGRAM)


def ended(*argv: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(argv))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_failure_in_log_output_is_a_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """As upstream's, on stdout. The exit code is that of a bad command line; upstream's is 1."""
    assert ended("-cmd", "fly") == 2
    out, err = capsys.readouterr()
    assert '["fail to execute command"]' in out
    assert "[command=fly]" in out
    assert err == ""


def test_failure_in_table_output_is_text_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("pumps", "-pd-urls", "ftp://x:1", "-o", "table") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("binlogctl pumps: -pd-urls ftp://x:1: URL scheme must be")


def test_failure_in_json_output_is_an_error_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("pumps", "-ssl-ca", "/nowhere/ca.pem", "-o", "json") == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["command"], error["exit_code"]) == ("pumps", 2)
    assert "/nowhere/ca.pem: [Errno 2] No such file" in error["text"]
    assert err == ""


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("pause-pump", "-watch"), "-watch can be used with pumps, drainers, inspect, not with pause-pump"),
        (("-watch", "-interval", "often"), "flag -interval: 90s, 5m, 1h, or seconds were expected, not 'often'"),
        (("-watch", "-interval", "0s"), "must be above 0"),
    ],
)
def test_watch_with_other_commands_or_invalid_interval_is_refused(
    argv: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*argv) == 2
    assert why in capsys.readouterr().err


# --- encrypt ---------------------------------------------------------------------------------------------------------


def test_encrypt_command_prints_text_that_decrypt_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cluster is asked: the default -pd-urls leads nowhere here."""
    monkeypatch.setenv("BINLOG_SECRET_KEY", "00" * 32)
    assert ended("-cmd", "encrypt", "-text", "geheim") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert '["encrypt text"]' in line
    text = line.partition("[encrypted=")[2].removesuffix("]").strip('"')
    assert decrypt(text, {"BINLOG_SECRET_KEY": "00" * 32}) == "geheim"


def test_encrypt_command_reads_stdin_and_warns_about_public_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BINLOG_SECRET_KEY", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO("geheim \nnot this\n"))
    assert ended("encrypt", "-text", "-", "-o", "json") == 0
    out, err = capsys.readouterr()
    assert decrypt(json.loads(out)["done"][0]["encrypted"], {}) == "geheim "
    assert "is public" in err


@pytest.mark.parametrize(
    ("argv", "key", "why"),
    [
        (("encrypt",), "", "need to specify the text to be encrypt"),
        (("encrypt", "-text", "a"), "xyz", "BINLOG_SECRET_KEY is not hexadecimal"),
        (("encrypt", "-text", "a"), "0011", "has 2 bytes"),
    ],
)
def test_encrypt_command_refuses_missing_text_or_invalid_key(
    argv: tuple[str, ...],
    key: str,
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BINLOG_SECRET_KEY", key)
    assert ended(*argv) == 2
    assert why in capsys.readouterr().out
